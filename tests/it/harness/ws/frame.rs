//! Owns the frames of RFC 6455 as bytes: building them, right or wrong, and taking them out of a buffer.

/// One frame, whatever it holds; the payload is never masked here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WsFrame {
    pub(crate) fin: bool,
    /// RSV1 is 4, RSV2 is 2, RSV3 is 1.
    pub(crate) reserved: u8,
    pub(crate) opcode: u8,
    pub(crate) mask: Option<[u8; 4]>,
    pub(crate) payload: Vec<u8>,
}

pub(crate) mod opcode {
    pub(crate) const CONTINUATION: u8 = 0x0;
    pub(crate) const TEXT: u8 = 0x1;
    pub(crate) const BINARY: u8 = 0x2;
    pub(crate) const CLOSE: u8 = 0x8;
    pub(crate) const PING: u8 = 0x9;
    pub(crate) const PONG: u8 = 0xa;
}

/// What permessage-deflate sets on the first frame of a compressed message.
pub(crate) const RSV1: u8 = 4;

/// Where a peer leaves RFC 6455.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Violation {
    ReservedBits,
    ReservedOpcode,
    /// A server masks.
    Masked,
    /// A client does not mask.
    Unmasked,
    LongControl,
    FragmentedControl,
    /// A length in more bytes than it needs, or with its highest bit set.
    LengthEncoding,
    /// A new message inside a fragmented one.
    Interleaved,
    StrayContinuation,
    /// Anything behind a Close.
    AfterClose,
    /// One byte, where a code has two.
    CloseLength,
    /// A code that must not be on the wire.
    CloseCode(u16),
    NotUtf8,
}

// === impl WsFrame ===

impl WsFrame {
    pub(crate) const fn new(opcode: u8, payload: Vec<u8>) -> Self {
        Self { fin: true, reserved: 0, opcode, mask: None, payload }
    }

    pub(crate) fn close(code: u16, reason: &str) -> Self {
        Self::new(opcode::CLOSE, [&code.to_be_bytes(), reason.as_bytes()].concat())
    }

    /// As a client must send it.
    #[must_use]
    pub(crate) fn masked(mut self) -> Self {
        self.mask = Some(fastrand::u32(..).to_be_bytes());
        self
    }

    /// Fragments follow.
    #[must_use]
    pub(crate) const fn open_ended(mut self) -> Self {
        self.fin = false;
        self
    }

    #[must_use]
    pub(crate) const fn reserved(mut self, bits: u8) -> Self {
        self.reserved = bits;
        self
    }

    pub(crate) const fn is_control(&self) -> bool {
        self.opcode >= opcode::CLOSE
    }

    /// Everything before the payload.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mask_bit = if self.mask.is_some() { 0x80 } else { 0 };
        let mut head = vec![u8::from(self.fin) << 7 | self.reserved << 4 | self.opcode];
        match self.payload.len() {
            short @ 0..=125 => head.push(mask_bit | short as u8),
            middle @ 126..=0xffff => {
                head.push(mask_bit | 126);
                head.extend_from_slice(&(middle as u16).to_be_bytes());
            }
            long => {
                head.push(mask_bit | 127);
                head.extend_from_slice(&(long as u64).to_be_bytes());
            }
        }
        head.extend_from_slice(self.mask.as_ref().map_or(&[], |mask| mask.as_slice()));
        head
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.head();
        let start = bytes.len();
        bytes.extend_from_slice(&self.payload);
        if let Some(mask) = self.mask {
            unmask(&mut bytes[start..], mask);
        }
        bytes
    }

    /// The first frame, if it is there as a whole, and its length; a wrong head is told as soon as it is there.
    pub(super) fn parse(
        bytes: &[u8],
        check: impl Fn(&Self) -> Option<Violation>,
    ) -> Result<Option<(Self, usize)>, Violation> {
        let Some(&[first, second]) = bytes.first_chunk() else { return Ok(None) };
        let wide = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let masked = second & 0x80 != 0;
        let start = 2 + wide + if masked { 4 } else { 0 };
        let Some(head) = bytes.get(..start) else { return Ok(None) };
        let length = match wide {
            0 => u64::from(second & 0x7f),
            _ => head[2..2 + wide].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        };
        let mask = masked.then(|| [head[start - 4], head[start - 3], head[start - 2], head[start - 1]]);
        let mut frame =
            Self { fin: first & 0x80 != 0, reserved: first >> 4 & 7, opcode: first & 0xf, mask, payload: Vec::new() };
        if let Some(violation) = check(&frame) {
            return Err(violation);
        }
        if frame.is_control() && wide != 0 {
            return Err(Violation::LongControl);
        }
        if (wide == 2 && length < 126) || (wide == 8 && (length <= 0xffff || length >> 63 != 0)) {
            return Err(Violation::LengthEncoding);
        }
        let end = start.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
        let Some(payload) = bytes.get(start..end) else { return Ok(None) };
        frame.payload = payload.to_vec();
        if let Some(mask) = mask {
            unmask(&mut frame.payload, mask);
        }
        Ok(Some((frame, end)))
    }
}

fn unmask(bytes: &mut [u8], mask: [u8; 4]) {
    for (byte, key) in bytes.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= key;
    }
}
