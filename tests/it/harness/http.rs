//! Owns the least HTTP/1 that toys need: reading heads and bodies, with faults told apart.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// A buffered reader of HTTP/1 messages.
#[derive(Debug)]
pub(crate) struct Wire<S> {
    io: S,
    buffer: Vec<u8>,
    position: usize,
}

/// The head of a request or a response, as it was on the wire.
#[derive(Clone, Debug, Default)]
pub(crate) struct Head {
    pub(crate) text: String,
    pub(crate) start: String,
    pub(crate) headers: Vec<(String, String)>,
}

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Nothing,
    Length(u64),
    Chunked,
    UntilClose,
}

/// Why a message could not be read.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The peer closed cleanly before the first byte.
    Eof,
    /// The peer closed cleanly in the middle.
    Truncated,
    /// Not HTTP/1.
    Garbage(String),
    Io(io::Error),
}

/// FNV-1a, enough to see a lost, doubled or misplaced byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sum(u64);

/// The byte at one place of every generated body.
pub(crate) const fn pattern_byte(index: u64) -> u8 {
    (index % 251) as u8
}

/// A generated body of this length.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64).map(pattern_byte).collect()
}

/// One piece of a chunked body; an empty one ends it.
pub(crate) fn chunk(piece: impl AsRef<[u8]>) -> Vec<u8> {
    let piece = piece.as_ref();
    [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()
}

// === impl Sum ===

impl Sum {
    pub(crate) const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut sum = Self::new();
        sum.add(bytes);
        sum
    }

    /// The sum of a generated body, without building it.
    pub(crate) fn of_pattern(length: u64) -> Self {
        let mut sum = Self::new();
        for index in 0..length {
            sum.add(&[pattern_byte(index)]);
        }
        sum
    }

    pub(crate) fn hex(self) -> String {
        format!("{:016x}", self.0)
    }
}

// === impl Head ===

impl Head {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let mut lines = text.split("\r\n");
        let start = lines.next().unwrap_or_default().to_owned();
        let mut headers = Vec::new();
        for line in lines.filter(|line| !line.is_empty()) {
            let Some((name, value)) = line.split_once(':') else {
                return Err(Fault::Garbage(format!("header line {line:?}")));
            };
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        Ok(Self { text, start, headers })
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub(crate) fn get<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next()
    }

    pub(crate) fn has_token<'a>(&'a self, name: &'a str, token: &str) -> bool {
        self.all(name).flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(token))
    }

    /// Method and path, of a request.
    pub(crate) fn request(&self) -> Result<(&str, &str), Fault> {
        let mut words = self.start.split(' ');
        match (words.next(), words.next(), words.next()) {
            (Some(method), Some(path), Some(version)) if version.starts_with("HTTP/1.") => Ok((method, path)),
            _ => Err(Fault::Garbage(self.start.clone())),
        }
    }

    /// The status, of a response.
    pub(crate) fn status(&self) -> Result<u16, Fault> {
        self.start
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.get(2..5))
            .and_then(|code| code.parse().ok())
            .ok_or_else(|| Fault::Garbage(self.start.clone()))
    }

    /// Whether the sender takes part in keep-alive after this message.
    pub(crate) fn keeps_alive(&self) -> bool {
        if self.start.starts_with("HTTP/1.0") || self.start.ends_with("HTTP/1.0") {
            self.has_token("connection", "keep-alive")
        } else {
            !self.has_token("connection", "close")
        }
    }

    pub(crate) fn request_framing(&self) -> Framing {
        match self.sized() {
            Framing::UntilClose => Framing::Nothing,
            sized => sized,
        }
    }

    pub(crate) fn response_framing(&self, method: &str) -> Framing {
        let status = self.status().unwrap_or(0);
        if method == "HEAD" || status < 200 || status == 204 || status == 304 {
            return Framing::Nothing;
        }
        self.sized()
    }

    fn sized(&self) -> Framing {
        if self.has_token("transfer-encoding", "chunked") {
            return Framing::Chunked;
        }
        match self.get("content-length").and_then(|text| text.parse().ok()) {
            Some(0) => Framing::Nothing,
            Some(length) => Framing::Length(length),
            None => Framing::UntilClose,
        }
    }
}

// === impl Wire ===

impl<S: AsyncRead + Unpin> Wire<S> {
    pub(crate) const fn new(io: S) -> Self {
        Self { io, buffer: Vec::new(), position: 0 }
    }

    pub(crate) const fn get_ref(&self) -> &S {
        &self.io
    }

    pub(crate) const fn get_mut(&mut self) -> &mut S {
        &mut self.io
    }

    /// Bytes that were read but belong to no message yet.
    pub(crate) fn unread(&self) -> &[u8] {
        self.buffer.get(self.position..).unwrap_or_default()
    }

    pub(crate) fn into_parts(self) -> (S, Vec<u8>) {
        let unread = self.unread().to_vec();
        (self.io, unread)
    }

    /// Reads once; 0 is the peer's FIN.
    pub(crate) async fn more(&mut self) -> Result<usize, Fault> {
        self.fill().await
    }

    /// Takes unread bytes out of the buffer.
    pub(crate) fn take(&mut self, length: usize) -> Vec<u8> {
        let taken = self.unread()[..length].to_vec();
        self.position += length;
        taken
    }

    pub(crate) async fn head(&mut self) -> Result<Head, Fault> {
        loop {
            let unread = self.unread();
            if let Some(end) = unread.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = Head::parse(&unread[..end]);
                self.position += end + 4;
                return head;
            }
            if unread.len() > MAX_HEAD {
                return Err(Fault::Garbage("a head without an end".to_owned()));
            }
            let nothing_yet = unread.is_empty();
            if self.fill().await? == 0 {
                return Err(if nothing_yet { Fault::Eof } else { Fault::Truncated });
            }
        }
    }

    /// Hands every piece of the body to `sink`; answers the length.
    pub(crate) async fn body(&mut self, framing: Framing, mut sink: impl FnMut(&[u8])) -> Result<u64, Fault> {
        match framing {
            Framing::Nothing => Ok(0),
            Framing::Length(length) => {
                self.exactly(length, &mut sink).await?;
                Ok(length)
            }
            Framing::Chunked => self.chunks(&mut sink).await,
            Framing::UntilClose => {
                let mut total = 0;
                loop {
                    let unread = self.unread();
                    total += unread.len() as u64;
                    sink(unread);
                    self.position = self.buffer.len();
                    if self.fill().await? == 0 {
                        return Ok(total);
                    }
                }
            }
        }
    }

    async fn chunks(&mut self, sink: &mut impl FnMut(&[u8])) -> Result<u64, Fault> {
        let mut total = 0;
        loop {
            let line = self.line().await?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let size = u64::from_str_radix(digits, 16).map_err(|_| Fault::Garbage(format!("chunk size {line:?}")))?;
            if size == 0 {
                while !self.line().await?.is_empty() {}
                return Ok(total);
            }
            self.exactly(size, sink).await?;
            total += size;
            if !self.line().await?.is_empty() {
                return Err(Fault::Garbage("chunk longer than its size".to_owned()));
            }
        }
    }

    async fn exactly(&mut self, length: u64, sink: &mut impl FnMut(&[u8])) -> Result<(), Fault> {
        let mut left = length;
        while left > 0 {
            let unread = self.unread();
            if unread.is_empty() {
                if self.fill().await? == 0 {
                    return Err(Fault::Truncated);
                }
                continue;
            }
            let take = unread.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            sink(&unread[..take]);
            self.position += take;
            left -= take as u64;
        }
        Ok(())
    }

    async fn line(&mut self) -> Result<String, Fault> {
        loop {
            let unread = self.unread();
            if let Some(end) = unread.windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8_lossy(&unread[..end]).into_owned();
                self.position += end + 2;
                return Ok(line);
            }
            if unread.len() > MAX_HEAD {
                return Err(Fault::Garbage("a line without an end".to_owned()));
            }
            if self.fill().await? == 0 {
                return Err(Fault::Truncated);
            }
        }
    }

    async fn fill(&mut self) -> Result<usize, Fault> {
        if self.position > 0 {
            self.buffer.drain(..self.position);
            self.position = 0;
        }
        self.buffer.reserve(READ_SIZE);
        self.io.read_buf(&mut self.buffer).await.map_err(Fault::Io)
    }
}

const MAX_HEAD: usize = 256 * 1024;
const READ_SIZE: usize = 8 * 1024;
