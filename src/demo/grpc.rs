//! The little gRPC that the demo's app and clients need. Pure.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::HeaderMap;

/// A unary call: answered with the request's message.
pub(super) const PRICE: &str = "/demo.Shop/Price";
/// A server stream without an end: messages that are numbered from 0.
pub(super) const WATCH: &str = "/demo.Shop/Watch";
/// The content type of calls and answers.
pub(super) const CONTENT_TYPE: &str = "application/grpc";
/// The status of a call that went well.
pub(super) const OK: u16 = 0;
/// The status of a call that is worth repeating elsewhere.
pub(super) const UNAVAILABLE: u16 = 14;

/// Compressed flag and length.
const PREFIX: usize = 5;

/// A message as it is sent: prefix and payload.
pub(super) fn message(payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(PREFIX + payload.len());
    bytes.put_u8(0);
    bytes.put_u32(payload.len() as u32);
    bytes.put_slice(payload);
    bytes.freeze()
}

/// Takes the first message's payload out of what has come; `None` while it is not whole.
pub(super) fn take_message(received: &mut BytesMut) -> Option<Bytes> {
    let length = received.get(1..PREFIX)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    if received.len() < PREFIX + length {
        return None;
    }
    received.advance(PREFIX);
    Some(received.split_to(length).freeze())
}

/// The number in `grpc-status`.
pub(super) fn status(headers: &HeaderMap) -> Option<u16> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_when_whole() {
        let bytes = [message(b"one"), message(b""), message(b"three")].concat();
        let mut received = BytesMut::new();
        let mut taken = Vec::new();
        for byte in bytes {
            received.put_u8(byte);
            taken.extend(take_message(&mut received));
        }
        assert_eq!(taken, [&b"one"[..], b"", b"three"]);
        assert!(received.is_empty());
    }

    #[test]
    fn a_status_is_a_number() {
        let mut headers = HeaderMap::new();
        assert_eq!(status(&headers), None);
        headers.insert("grpc-status", UNAVAILABLE.into());
        assert_eq!(status(&headers), Some(14));
    }
}
