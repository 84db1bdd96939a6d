//! Owns the frames of HTTP/2 as bytes: building them, and taking them out of a buffer.

/// One frame, whatever it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Data,
    Headers,
    Priority,
    RstStream,
    Settings,
    PushPromise,
    Ping,
    Goaway,
    WindowUpdate,
    Continuation,
    Other(u8),
}

pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
pub(crate) const PADDED: u8 = 0x8;
pub(crate) const PRIORITY: u8 = 0x20;

/// Error codes, RFC 9113 §7.
pub(crate) mod code {
    pub(crate) const NO_ERROR: u32 = 0x0;
    pub(crate) const PROTOCOL_ERROR: u32 = 0x1;
    pub(crate) const INTERNAL_ERROR: u32 = 0x2;
    pub(crate) const FLOW_CONTROL_ERROR: u32 = 0x3;
    pub(crate) const STREAM_CLOSED: u32 = 0x5;
    pub(crate) const FRAME_SIZE_ERROR: u32 = 0x6;
    pub(crate) const REFUSED_STREAM: u32 = 0x7;
    pub(crate) const CANCEL: u32 = 0x8;
    pub(crate) const COMPRESSION_ERROR: u32 = 0x9;
    pub(crate) const ENHANCE_YOUR_CALM: u32 = 0xb;
    pub(crate) const HTTP_1_1_REQUIRED: u32 = 0xd;
}

/// Identifiers of settings, RFC 9113 §6.5.2 and RFC 8441 §3.
pub(crate) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 0x1;
    pub(crate) const ENABLE_PUSH: u16 = 0x2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 0x3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 0x4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 0x5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 0x6;
    pub(crate) const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
}

/// A header block in which every field is a literal that no table remembers, so blocks may be sent
/// in any order, or not at all, without harm to later ones.
pub(crate) fn header_block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            length(&mut block, text.len());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// An integer with a prefix of seven bits, RFC 7541 §5.1; the eighth says that no Huffman code is used.
fn length(block: &mut Vec<u8>, length: usize) {
    const PREFIX: usize = 0x7f;
    if length < PREFIX {
        block.push(length as u8);
        return;
    }
    block.push(PREFIX as u8);
    let mut rest = length - PREFIX;
    while rest >= 0x80 {
        block.push((rest % 0x80) as u8 | 0x80);
        rest /= 0x80;
    }
    block.push(rest as u8);
}

// === impl Frame ===

impl Frame {
    pub(crate) const fn new(kind: Kind, flags: u8, stream: u32, payload: Vec<u8>) -> Self {
        Self { kind, flags, stream, payload }
    }

    pub(crate) fn settings(values: &[(u16, u32)]) -> Self {
        let payload = values.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat());
        Self::new(Kind::Settings, 0, 0, payload.collect())
    }

    pub(crate) const fn settings_ack() -> Self {
        Self::new(Kind::Settings, ACK, 0, Vec::new())
    }

    /// A whole header block; [`Self::end_stream`] and [`Self::open_ended`] change its flags.
    pub(crate) fn headers(stream: u32, fields: &[(&str, &str)]) -> Self {
        Self::new(Kind::Headers, END_HEADERS, stream, header_block(fields))
    }

    pub(crate) const fn continuation(stream: u32, payload: Vec<u8>) -> Self {
        Self::new(Kind::Continuation, END_HEADERS, stream, payload)
    }

    pub(crate) fn data(stream: u32, bytes: &[u8]) -> Self {
        Self::new(Kind::Data, 0, stream, bytes.to_vec())
    }

    pub(crate) fn reset(stream: u32, code: u32) -> Self {
        Self::new(Kind::RstStream, 0, stream, code.to_be_bytes().to_vec())
    }

    pub(crate) fn ping(payload: [u8; 8]) -> Self {
        Self::new(Kind::Ping, 0, 0, payload.to_vec())
    }

    pub(crate) fn ping_ack(payload: &[u8]) -> Self {
        Self::new(Kind::Ping, ACK, 0, payload.to_vec())
    }

    /// Stream 0 is the connection.
    pub(crate) fn window_update(stream: u32, more: u32) -> Self {
        Self::new(Kind::WindowUpdate, 0, stream, more.to_be_bytes().to_vec())
    }

    pub(crate) fn goaway(last: u32, code: u32, debug: &[u8]) -> Self {
        let payload = [&last.to_be_bytes()[..], &code.to_be_bytes(), debug].concat();
        Self::new(Kind::Goaway, 0, 0, payload)
    }

    #[must_use]
    pub(crate) const fn end_stream(mut self) -> Self {
        self.flags |= END_STREAM;
        self
    }

    /// A CONTINUATION must follow.
    #[must_use]
    pub(crate) const fn open_ended(mut self) -> Self {
        self.flags &= !END_HEADERS;
        self
    }

    pub(crate) const fn is_ack(&self) -> bool {
        matches!(self.kind, Kind::Settings | Kind::Ping) && self.flags & ACK != 0
    }

    pub(crate) const fn ends_stream(&self) -> bool {
        matches!(self.kind, Kind::Headers | Kind::Data) && self.flags & END_STREAM != 0
    }

    pub(crate) const fn ends_headers(&self) -> bool {
        self.flags & END_HEADERS != 0
    }

    /// The payload without padding and priority.
    pub(crate) fn content(&self) -> &[u8] {
        let mut content = &self.payload[..];
        if !matches!(self.kind, Kind::Data | Kind::Headers | Kind::PushPromise) {
            return content;
        }
        if self.flags & PADDED != 0 {
            let padding = usize::from(content[0]);
            content = &content[1..content.len() - padding];
        }
        if self.kind == Kind::Headers && self.flags & PRIORITY != 0 {
            content = &content[5..];
        }
        content
    }

    /// The number that stands at this place of the payload; the reserved bit is left out.
    pub(crate) fn number(&self, at: usize) -> u32 {
        let bytes = self.payload.get(at..at + 4).and_then(|four| four.try_into().ok()).unwrap_or_default();
        u32::from_be_bytes(bytes) & 0x7fff_ffff
    }

    /// The pairs of a SETTINGS frame.
    pub(crate) fn settings_values(&self) -> Vec<(u16, u32)> {
        let pair =
            |six: &[u8]| (u16::from_be_bytes([six[0], six[1]]), u32::from_be_bytes([six[2], six[3], six[4], six[5]]));
        self.payload.chunks_exact(6).map(pair).collect()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let length = (self.payload.len() as u32).to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend_from_slice(&[self.kind.number(), self.flags]);
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    /// The first frame, if it is there as a whole, and its length.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let head = bytes.get(..HEAD)?;
        let end = HEAD + u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let payload = bytes.get(HEAD..end)?.to_vec();
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        Some((Self::new(Kind::of(head[3]), head[4], stream, payload), end))
    }
}

// === impl Kind ===

impl Kind {
    const NUMBERED: [Self; 10] = [
        Self::Data,
        Self::Headers,
        Self::Priority,
        Self::RstStream,
        Self::Settings,
        Self::PushPromise,
        Self::Ping,
        Self::Goaway,
        Self::WindowUpdate,
        Self::Continuation,
    ];

    fn of(number: u8) -> Self {
        Self::NUMBERED.get(usize::from(number)).copied().unwrap_or(Self::Other(number))
    }

    fn number(self) -> u8 {
        match self {
            Self::Other(number) => number,
            known => Self::NUMBERED.iter().position(|one| *one == known).map_or(0xff, |place| place as u8),
        }
    }
}

const HEAD: usize = 9;
