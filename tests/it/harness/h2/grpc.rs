//! Owns gRPC's framing for toys: messages with a prefix, and payloads that show a gap.

use crate::harness::http::pattern;

/// Length of a message's prefix: one flag and a length.
pub(crate) const PREFIX: usize = 5;

/// A message on the wire.
pub(crate) fn message(payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A payload that says which one it is; never shorter than its number.
pub(crate) fn numbered(number: u64, length: usize) -> Vec<u8> {
    let mut payload = number.to_be_bytes().to_vec();
    payload.extend(pattern(length.saturating_sub(payload.len())));
    payload
}

/// The number of such a payload; `None` if any byte is not as it was built.
pub(crate) fn number_of(payload: &[u8]) -> Option<u64> {
    let number = u64::from_be_bytes(payload.get(..8)?.try_into().ok()?);
    (payload == numbered(number, payload.len())).then_some(number)
}

/// The whole messages in these bytes, and how many bytes of an unfinished one follow.
pub(crate) fn split(bytes: &[u8]) -> (Vec<Vec<u8>>, usize) {
    let mut messages = Messages::from(bytes.to_vec());
    let whole = std::iter::from_fn(|| messages.next()).collect();
    (whole, messages.left())
}

/// Takes messages out of bytes as they come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Messages(Vec<u8>);

// === impl Messages ===

impl Messages {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The payload of the next whole message.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        let head = self.0.get(..PREFIX)?;
        let end = PREFIX + u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let payload = self.0.get(PREFIX..end)?.to_vec();
        self.0.drain(..end);
        Some(payload)
    }

    /// Bytes that are no whole message yet.
    pub(crate) const fn left(&self) -> usize {
        self.0.len()
    }
}

impl From<Vec<u8>> for Messages {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}
