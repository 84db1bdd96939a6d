//! Where an HTTP/2 byte stream stands, followed from outside: nothing is decoded but the frame heads. Pure.

/// The head of a frame (RFC 9113 §4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    /// Bytes of payload.
    pub length: u32,
    /// The frame's type.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// The stream it belongs to; 0 is the connection.
    pub stream: u32,
}

/// Follows one direction of a connection.
#[derive(Debug, Clone)]
pub struct Frames {
    /// Bytes of the preface that have not come yet.
    preface_left: u8,
    head: [u8; FrameHead::LENGTH],
    filled: u8,
    payload_left: u32,
    /// A header block has begun and not ended: only CONTINUATION may follow.
    in_block: bool,
}

// === impl FrameHead ===

impl FrameHead {
    /// Bytes of a frame's head.
    pub const LENGTH: usize = 9;

    /// DATA.
    pub const DATA: u8 = 0;
    /// HEADERS.
    pub const HEADERS: u8 = 1;
    /// RST_STREAM.
    pub const RST_STREAM: u8 = 3;
    /// SETTINGS.
    pub const SETTINGS: u8 = 4;
    const PUSH_PROMISE: u8 = 5;
    /// GOAWAY.
    pub const GOAWAY: u8 = 7;
    const CONTINUATION: u8 = 9;

    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;

    /// From its bytes.
    pub fn parse(bytes: &[u8; Self::LENGTH]) -> Self {
        Self {
            length: u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]),
            kind: bytes[3],
            flags: bytes[4],
            stream: u32::from_be_bytes([bytes[5] & 0x7f, bytes[6], bytes[7], bytes[8]]),
        }
    }

    /// DATA without a byte that does not end its stream either: h2 takes no more than a hundred of them in a
    /// connection's whole life.
    pub fn is_empty_data(&self) -> bool {
        self.kind == Self::DATA && self.length == 0 && self.flags & Self::END_STREAM == 0
    }

    fn leaves_block_open(&self) -> Option<bool> {
        matches!(self.kind, Self::HEADERS | Self::PUSH_PROMISE | Self::CONTINUATION)
            .then_some(self.flags & Self::END_HEADERS == 0)
    }
}

// === impl Frames ===

impl Frames {
    /// From a client: the preface comes first.
    pub fn from_client() -> Self {
        Self { preface_left: super::preface::HTTP2.len() as u8, ..Self::from_server() }
    }

    /// From a server.
    pub const fn from_server() -> Self {
        Self { preface_left: 0, head: [0; FrameHead::LENGTH], filled: 0, payload_left: 0, in_block: false }
    }

    /// Follows `bytes`; calls `each` at the end of every frame's head.
    pub fn advance(&mut self, mut bytes: &[u8], mut each: impl FnMut(FrameHead)) {
        let preface = bytes.len().min(usize::from(self.preface_left));
        self.preface_left -= preface as u8;
        bytes = &bytes[preface..];
        while !bytes.is_empty() {
            if self.payload_left > 0 {
                let skipped = bytes.len().min(self.payload_left as usize);
                self.payload_left -= skipped as u32;
                bytes = &bytes[skipped..];
                continue;
            }
            let filled = usize::from(self.filled);
            let taken = bytes.len().min(FrameHead::LENGTH - filled);
            self.head[filled..filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken as u8;
            bytes = &bytes[taken..];
            if usize::from(self.filled) == FrameHead::LENGTH {
                let head = FrameHead::parse(&self.head);
                self.filled = 0;
                self.payload_left = head.length;
                if let Some(open) = head.leaves_block_open() {
                    self.in_block = open;
                }
                each(head);
            }
        }
    }

    /// A frame may be put in here: none is half through, and no header block is open.
    pub fn at_boundary(&self) -> bool {
        self.preface_left == 0 && self.filled == 0 && self.payload_left == 0 && !self.in_block
    }

    /// A header block has begun and its last frame has not: the connection can do nothing else meanwhile.
    pub fn is_in_block(&self) -> bool {
        self.in_block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::preface;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn conversation() -> (Vec<u8>, Vec<FrameHead>, Vec<usize>) {
        let frames = [
            frame(FrameHead::SETTINGS, 0, 0, &[0; 12]),
            frame(FrameHead::HEADERS, 0, 1, b"half"),
            frame(FrameHead::CONTINUATION, FrameHead::END_HEADERS, 1, b"and half"),
            frame(FrameHead::DATA, 0, 1, b""),
            frame(FrameHead::DATA, FrameHead::END_STREAM, 1, b"body"),
            frame(6, 1, 0, &[7; 8]),
        ];
        let mut bytes = preface::HTTP2.to_vec();
        let mut boundaries = vec![bytes.len()];
        let mut heads = Vec::new();
        for frame in &frames {
            heads.push(FrameHead::parse(frame[..9].try_into().unwrap()));
            bytes.extend(frame);
            // Behind the first HEADERS only CONTINUATION may come.
            if heads.len() != 2 {
                boundaries.push(bytes.len());
            }
        }
        (bytes, heads, boundaries)
    }

    #[test]
    fn every_cut_in_two_finds_the_same_frames() {
        let (bytes, heads, boundaries) = conversation();
        for cut in 0..=bytes.len() {
            let mut frames = Frames::from_client();
            let mut seen = Vec::new();
            frames.advance(&bytes[..cut], |head| seen.push(head));
            assert_eq!(frames.at_boundary(), boundaries.contains(&cut), "after {cut} bytes");
            frames.advance(&bytes[cut..], |head| seen.push(head));
            assert_eq!(seen, heads, "cut at {cut}");
        }
    }

    #[test]
    fn byte_by_byte_finds_the_same_frames() {
        let (bytes, heads, boundaries) = conversation();
        let mut frames = Frames::from_client();
        let mut seen = Vec::new();
        for (at, byte) in bytes.iter().enumerate() {
            frames.advance(&[*byte], |head| seen.push(head));
            assert_eq!(frames.at_boundary(), boundaries.contains(&(at + 1)), "after byte {at}");
        }
        assert_eq!(seen, heads);
        assert_eq!(seen.iter().filter(|head| head.is_empty_data()).count(), 1);
    }

    #[test]
    fn an_open_header_block_is_no_boundary() {
        let mut frames = Frames::from_server();
        frames.advance(&frame(FrameHead::HEADERS, 0, 1, b"half"), |_| {});
        assert!(frames.is_in_block() && !frames.at_boundary());
    }

    #[test]
    fn the_reserved_bit_is_no_part_of_the_stream() {
        let mut frames = Frames::from_server();
        frames.advance(&frame(FrameHead::DATA, 0, 0x8000_0005, b""), |head| assert_eq!(head.stream, 5));
    }
}
