//! Owns what one side of a WebSocket says, read as strictly as RFC 6455 allows.

use super::NO_STATUS;
use super::frame::{RSV1, Violation, WsFrame, opcode};

/// Who is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Message { text: bool, compressed: bool, payload: Vec<u8> },
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Close),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Close {
    /// [`NO_STATUS`] if there is none.
    pub(crate) code: u16,
    pub(crate) reason: String,
}

/// Fed with bytes as they come; the first violation is the last that it tells.
#[derive(Debug)]
pub(crate) struct Reader {
    from: Side,
    /// Whether an extension was agreed that may use RSV1.
    extended: bool,
    input: Vec<u8>,
    /// How much of the input has become frames.
    taken: usize,
    /// The message whose last fragment has not come.
    message: Option<Said>,
    closed: bool,
    /// Whole frames.
    pub(crate) frames: u64,
}

// === impl Reader ===

impl Reader {
    pub(crate) const fn new(from: Side, extended: bool) -> Self {
        Self { from, extended, input: Vec::new(), taken: 0, message: None, closed: false, frames: 0 }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        // Once per read, not once per frame: bursts of small frames would be moved again and again.
        self.input.drain(..std::mem::take(&mut self.taken));
        self.input.extend_from_slice(bytes);
    }

    /// Whether an end now would be in the middle of a frame.
    pub(crate) const fn is_torn(&self) -> bool {
        self.taken < self.input.len()
    }

    /// The next thing said as a whole; `None` if more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Said>, Violation> {
        loop {
            let unread = &self.input[self.taken..];
            if self.closed && !unread.is_empty() {
                return Err(Violation::AfterClose);
            }
            let Some((frame, length)) = WsFrame::parse(unread, |head| self.fault(head))? else {
                return Ok(None);
            };
            self.taken += length;
            self.frames += 1;
            if let Some(said) = self.take(frame)? {
                return Ok(Some(said));
            }
        }
    }

    fn fault(&self, head: &WsFrame) -> Option<Violation> {
        let compresses = matches!(head.opcode, opcode::TEXT | opcode::BINARY) && self.extended;
        let allowed = if compresses { RSV1 } else { 0 };
        let open = self.message.is_some();
        Some(match head.opcode {
            _ if head.reserved & !allowed != 0 => Violation::ReservedBits,
            3..=7 | 0xb..=0xf => Violation::ReservedOpcode,
            _ if self.from == Side::Server && head.mask.is_some() => Violation::Masked,
            _ if self.from == Side::Client && head.mask.is_none() => Violation::Unmasked,
            _ if head.is_control() && !head.fin => Violation::FragmentedControl,
            opcode::CONTINUATION if !open => Violation::StrayContinuation,
            opcode::TEXT | opcode::BINARY if open => Violation::Interleaved,
            _ => return None,
        })
    }

    fn take(&mut self, frame: WsFrame) -> Result<Option<Said>, Violation> {
        match frame.opcode {
            opcode::PING => return Ok(Some(Said::Ping(frame.payload))),
            opcode::PONG => return Ok(Some(Said::Pong(frame.payload))),
            opcode::CLOSE => {
                self.closed = true;
                return Close::parse(&frame.payload).map(|close| Some(Said::Close(close)));
            }
            opcode::CONTINUATION => {
                if let Some(Said::Message { payload, .. }) = &mut self.message {
                    payload.extend_from_slice(&frame.payload);
                }
            }
            _ => {
                self.message = Some(Said::Message {
                    text: frame.opcode == opcode::TEXT,
                    compressed: frame.reserved != 0,
                    payload: frame.payload,
                });
            }
        }
        if !frame.fin {
            return Ok(None);
        }
        let message = self.message.take();
        if let Some(Said::Message { text: true, compressed: false, payload }) = &message
            && std::str::from_utf8(payload).is_err()
        {
            return Err(Violation::NotUtf8);
        }
        Ok(message)
    }
}

// === impl Close ===

impl Close {
    fn parse(payload: &[u8]) -> Result<Self, Violation> {
        let Some((code, reason)) = payload.split_first_chunk() else {
            let empty = Self { code: NO_STATUS, reason: String::new() };
            return if payload.is_empty() { Ok(empty) } else { Err(Violation::CloseLength) };
        };
        let code = u16::from_be_bytes(*code);
        if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
            return Err(Violation::CloseCode(code));
        }
        let reason = String::from_utf8(reason.to_vec()).map_err(|_| Violation::NotUtf8)?;
        Ok(Self { code, reason })
    }
}
