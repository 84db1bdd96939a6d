//! The little HTTP/1.1 that the demo's clients, probes and hooks need.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::outcome::Failure;

/// A whole answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// The server will take another request on this connection.
    pub(super) keep_alive: bool,
    pub(super) body: Vec<u8>,
}

/// How an exchange ended without a whole answer.
#[derive(Debug)]
pub(super) enum Broken {
    /// The connection failed; `received` bytes of the answer had come.
    Failed { received: usize, source: io::Error },
    /// The peer closed; `received` bytes of the answer had come.
    Closed { received: usize },
    /// What came is no answer that this client understands.
    Garbled,
}

/// The parts of a head that matter here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) first_line: String,
    /// Bytes of the head with its blank line.
    pub(super) length: usize,
    pub(super) content_length: usize,
    /// The body has no length but chunks.
    pub(super) chunked: bool,
    pub(super) keep_alive: bool,
    fields: Vec<(String, String)>,
}

// === impl Broken ===

impl Broken {
    /// The kind of failure under which the table counts it.
    pub(super) fn failure(&self) -> Failure {
        match self {
            Self::Failed { received: 0, source } => by_error(source.kind()),
            Self::Closed { received: 0 } => Failure::NoAnswer,
            Self::Failed { .. } | Self::Closed { .. } => Failure::CutShort,
            Self::Garbled => Failure::Other,
        }
    }
}

// === impl Head ===

impl Head {
    /// The status of an answer.
    pub(super) fn status(&self) -> Result<u16, Broken> {
        status(&self.first_line).ok_or(Broken::Garbled)
    }

    /// The value of a header field.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// The kind of failure that an error of the socket is.
#[expect(clippy::wildcard_enum_match_arm, reason = "the standard library adds kinds; those that matter are named")]
pub(super) fn by_error(kind: io::ErrorKind) -> Failure {
    match kind {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => Failure::Reset,
        io::ErrorKind::ConnectionRefused => Failure::Refused,
        io::ErrorKind::TimedOut => Failure::Timeout,
        _ => Failure::Other,
    }
}

/// Sends one request and reads the whole answer. Never retries.
pub(super) async fn exchange(stream: &mut TcpStream, request: &[u8]) -> Result<Answer, Broken> {
    let (head, mut body) = begin(stream, request).await?;
    if head.chunked {
        // The app gives these answers a length, so one that has gone missing on the way is a fault.
        return Err(Broken::Garbled);
    }
    while body.len() < head.content_length {
        let received = head.length + body.len();
        receive(stream, &mut body, received).await?;
    }
    Ok(Answer { status: head.status()?, keep_alive: head.keep_alive, body })
}

/// Sends one request and reads the head of its answer, and what has come behind it.
pub(super) async fn begin(stream: &mut TcpStream, request: &[u8]) -> Result<(Head, Vec<u8>), Broken> {
    stream.write_all(request).await.map_err(|source| Broken::Failed { received: 0, source })?;
    let mut buffer = Vec::with_capacity(1024);
    loop {
        if let Some(head) = parse_head(&buffer).map_err(|Garbled| Broken::Garbled)? {
            let behind = buffer.split_off(head.length);
            return Ok((head, behind));
        }
        let received = buffer.len();
        receive(stream, &mut buffer, received).await?;
    }
}

/// Reads on, where `received` bytes of the answer have come.
pub(super) async fn receive(stream: &mut TcpStream, buffer: &mut Vec<u8>, received: usize) -> Result<(), Broken> {
    match stream.read_buf(buffer).await {
        Ok(0) => Err(Broken::Closed { received }),
        Ok(_) => Ok(()),
        Err(source) => Err(Broken::Failed { received, source }),
    }
}

/// A GET like the kubelet's, on a connection of its own; returns the status when the answer has ended.
pub(super) async fn get(address: SocketAddr, path: &str, user_agent: &str) -> io::Result<u16> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: {user_agent}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    status(&String::from_utf8_lossy(line)).ok_or_else(|| io::Error::other("the answer is not HTTP"))
}

/// What came can't be parsed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Garbled;

/// Parses a request or response head; `None` while it is incomplete.
pub(super) fn parse_head(bytes: &[u8]) -> Result<Option<Head>, Garbled> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return if bytes.len() > HEAD_LIMIT { Err(Garbled) } else { Ok(None) };
    };
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| Garbled)?;
    let mut lines = text.split("\r\n");
    let first_line = lines.next().unwrap_or_default().to_owned();
    let mut head = Head {
        keep_alive: first_line.contains("HTTP/1.1"),
        first_line,
        length: end + 4,
        content_length: 0,
        chunked: false,
        fields: Vec::new(),
    };
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(Garbled)?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            head.content_length = value.parse().map_err(|_| Garbled)?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            head.chunked = true;
        } else if name.eq_ignore_ascii_case("connection") {
            head.keep_alive &= !value.split(',').any(|option| option.trim().eq_ignore_ascii_case("close"));
        }
        head.fields.push((name.to_owned(), value.to_owned()));
    }
    Ok(Some(head))
}

fn status(first_line: &str) -> Option<u16> {
    let (version, rest) = first_line.split_once(' ')?;
    version.starts_with("HTTP/1.").then(|| rest.get(..3)?.parse().ok())?
}

const HEAD_LIMIT: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_parsed_when_whole() {
        let bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nConnection: foo, Close\r\n\r\nabc";
        let head = parse_head(bytes).expect("must parse").expect("must be whole");
        assert_eq!((head.length, head.content_length, head.keep_alive), (bytes.len() - 3, 3, false));
        assert_eq!(head.status().ok(), Some(200));
        assert_eq!((head.field("connection"), head.field("upgrade")), (Some("foo, Close"), None));
        assert_eq!(parse_head(b"HTTP/1.1 200 OK\r\nconte"), Ok(None));
    }

    #[test]
    fn version_1_0_closes_and_rubbish_is_garbled() {
        let head = parse_head(b"GET / HTTP/1.0\r\n\r\n").expect("must parse").expect("must be whole");
        assert!(!head.keep_alive);
        assert_eq!(parse_head(b"x\r\nno colon\r\n\r\n"), Err(Garbled));
        assert_eq!(status("SSH-2.0 200"), None);
        assert_eq!(status("HTTP/1.1 2"), None);
    }

    #[test]
    fn failures_are_told_apart_by_what_had_come() {
        let failed = |received, kind: io::ErrorKind| Broken::Failed { received, source: kind.into() }.failure();
        assert_eq!(failed(0, io::ErrorKind::ConnectionReset), Failure::Reset);
        assert_eq!(failed(0, io::ErrorKind::BrokenPipe), Failure::Reset);
        assert_eq!(failed(0, io::ErrorKind::ConnectionRefused), Failure::Refused);
        assert_eq!(failed(9, io::ErrorKind::ConnectionReset), Failure::CutShort);
        assert_eq!(failed(0, io::ErrorKind::AddrNotAvailable), Failure::Other);
        assert_eq!(Broken::Closed { received: 0 }.failure(), Failure::NoAnswer);
        assert_eq!(Broken::Closed { received: 1 }.failure(), Failure::CutShort);
        assert_eq!(Broken::Garbled.failure(), Failure::Other);
    }
}
