//! Where a WebSocket's frames begin and end (RFC 6455 §5.2). Payloads are never looked at.

use std::io::Cursor;

use bytes::Bytes;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Control, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{Frame, FrameHeader};

use crate::proxy::boundary::Boundary;

/// Follows the frames of one direction. A header that can't be one ends that: no boundary is known from there on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Frames {
    head: [u8; LONGEST_HEAD],
    filled: u8,
    /// Payload bytes to come.
    left: u64,
    /// The frame that is open is a Close.
    closing: bool,
    closed: bool,
    lost: bool,
}

/// Two bytes, eight of length, four of mask.
const LONGEST_HEAD: usize = 14;

// === impl Frames ===

impl Frames {
    /// A whole Close frame has passed.
    pub const fn has_closed(&self) -> bool {
        self.closed
    }

    /// These are no frames.
    pub const fn is_lost(&self) -> bool {
        self.lost
    }

    fn begin(&mut self) {
        let filled = std::mem::take(&mut self.filled);
        match FrameHeader::parse(&mut Cursor::new(&self.head[..usize::from(filled)])) {
            Ok(Some((header, length))) => {
                self.left = length;
                self.closing = header.opcode == OpCode::Control(Control::Close);
                self.closed |= self.closing && length == 0;
            }
            Ok(None) | Err(_) => self.lost = true,
        }
    }

    /// Bytes that the head takes, as far as its first two tell.
    fn head_length(&self) -> usize {
        if self.filled < 2 {
            return 2;
        }
        let extended = match self.head[1] & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask = if self.head[1] & 0x80 == 0 { 0 } else { 4 };
        2 + extended + mask
    }
}

impl Boundary for Frames {
    fn step(&mut self, bytes: &[u8]) -> usize {
        if self.lost {
            return bytes.len();
        }
        if self.left > 0 {
            let taken = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
            self.left -= taken as u64;
            self.closed |= self.closing && self.left == 0;
            return taken;
        }
        let filled = usize::from(self.filled);
        let taken = bytes.len().min(self.head_length() - filled);
        self.head[filled..filled + taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken as u8;
        if self.filled >= 2 && usize::from(self.filled) == self.head_length() {
            self.begin();
        }
        taken
    }

    fn at_boundary(&self) -> bool {
        !self.lost && self.left == 0 && self.filled == 0
    }
}

/// A whole Close frame; masked if it goes to the app.
pub fn close(code: u16, reason: &'static str, masked: bool) -> Bytes {
    let mut frame = Frame::close(Some(CloseFrame { code: code.into(), reason: reason.into() }));
    if masked {
        frame.header_mut().mask = Some(fastrand::u32(..).to_be_bytes());
    }
    let mut bytes = Vec::new();
    // Writing to memory does not fail.
    let _ = frame.format(&mut bytes);
    bytes.into()
}

#[cfg(test)]
mod tests;
