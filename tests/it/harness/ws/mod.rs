//! Owns WebSocket for toys: frames, a strict reader of them, a client over HTTP/1 and HTTP/2, many sessions at once.

pub(crate) mod frame;

mod reader;

mod transport;

mod client;

mod session;

mod summary;

pub(crate) use self::client::{Refusal, WsClient, extended_connect};
pub(crate) use self::frame::{Violation, WsFrame, opcode};
pub(crate) use self::reader::{Close, Reader, Said, Side};
pub(crate) use self::session::{Answer, Over, Sessions, WsPlan};
pub(crate) use self::summary::{WsFault, WsRecord, WsSummary};

/// What an API tells where a Close held no code; never on the wire.
pub(crate) const NO_STATUS: u16 = 1005;

/// What an API tells where no Close came; never on the wire.
pub(crate) const NO_CLOSE: u16 = 1006;

/// A message that tells its sender (`c`lient or `p`ushed by the app) and its number, filled up to a size.
pub(crate) fn numbered(sender: char, number: u64, size: usize) -> Vec<u8> {
    let mut message = format!("{sender}{number} ").into_bytes();
    message.resize(message.len().max(size), FILL);
    message
}

/// Sender and number, if every byte is as [`numbered`] made it.
pub(crate) fn number_of(message: &[u8]) -> Option<(char, u64)> {
    let head = message.iter().position(|byte| *byte == b' ')?;
    let text = std::str::from_utf8(&message[..head]).ok()?;
    let sender = text.chars().next()?;
    let number = text.get(1..)?.parse().ok()?;
    message[head + 1..].iter().all(|byte| *byte == FILL).then_some((sender, number))
}

const FILL: u8 = b'.';
