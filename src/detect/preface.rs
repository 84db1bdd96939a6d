//! The HTTP/2 connection preface. Pure.

/// RFC 9113 §3.4.
pub const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The bytes begin with the whole preface.
pub fn is_http2(bytes: &[u8]) -> bool {
    bytes.starts_with(HTTP2)
}

/// The bytes are a beginning of the preface.
pub fn may_become_http2(bytes: &[u8]) -> bool {
    HTTP2.starts_with(bytes)
}
