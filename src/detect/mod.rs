//! What a connection speaks, from its first bytes: bounded in bytes, and in time by the sweep.

pub mod preface;
pub mod frames;
pub mod proxy_header;

/// What the first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detected {
    /// HTTP/1.0 or 1.1, or something that HTTP/1's parser will refuse.
    Http1,
    /// The HTTP/2 preface, whole.
    Http2,
    /// A TLS handshake (RFC 8446 §5.1): no text begins like this.
    Tls,
    /// The beginning of the HTTP/2 preface: read on.
    Undecided,
}

/// Looks at the first bytes of a connection.
pub fn detect(bytes: &[u8]) -> Detected {
    if bytes.first() == Some(&22) {
        Detected::Tls
    } else if preface::is_http2(bytes) {
        Detected::Http2
    } else if preface::may_become_http2(bytes) {
        Detected::Undecided
    } else {
        Detected::Http1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_of_the_preface_is_undecided_until_it_is_whole() {
        for end in 1..preface::HTTP2.len() {
            assert_eq!(detect(&preface::HTTP2[..end]), Detected::Undecided, "{end} bytes");
        }
        assert_eq!(detect(preface::HTTP2), Detected::Http2);
        let mut longer = preface::HTTP2.to_vec();
        longer.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
        assert_eq!(detect(&longer), Detected::Http2);
    }

    #[test]
    fn one_other_byte_makes_it_http1() {
        for at in 0..preface::HTTP2.len() {
            let mut bytes = preface::HTTP2.to_vec();
            bytes[at] ^= 0x20;
            assert_eq!(detect(&bytes), Detected::Http1, "byte {at}");
        }
        assert_eq!(detect(&[22, 3, 1]), Detected::Tls);
        assert_eq!(detect(b"G"), Detected::Http1);
        assert_eq!(detect(b"PUT / HTTP/1.1\r\n"), Detected::Http1);
        assert_eq!(detect(b"PRI * HTTP/1.1\r\n"), Detected::Http1);
    }
}
