//! Owns what all modes share: connecting, one HTTP/1 exchange, and the ways in which one fails.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest wait for an answer.
pub const PATIENCE: Duration = Duration::from_secs(8);

/// What the caller of an API would see go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fail {
    Refused,
    Connect,
    /// RST or EPIPE before any byte of the answer.
    Reset,
    /// FIN before any byte of the answer.
    Eof,
    /// An answer that began and did not end.
    Truncated,
    /// Not 200, or a gRPC status that is not 0.
    Status,
    Timeout,
    /// A WebSocket session that ended without a Close frame.
    Cut,
    /// A WebSocket message that never reached the app.
    Lost,
}

impl Fail {
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Connect => "connect_error",
            Self::Reset => "reset",
            Self::Eof => "eof",
            Self::Truncated => "truncated",
            Self::Status => "status",
            Self::Timeout => "timeout",
            Self::Cut => "cut",
            Self::Lost => "lost",
        }
    }
}

pub async fn connect(to: SocketAddr) -> Result<TcpStream, Fail> {
    match timeout(Duration::from_secs(5), TcpStream::connect(to)).await {
        Ok(Ok(stream)) => {
            let _ = stream.set_nodelay(true);
            Ok(stream)
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Err(Fail::Refused),
        Ok(Err(_)) => Err(Fail::Connect),
        Err(_) => Err(Fail::Timeout),
    }
}

/// What a connection looks like that nothing has been asked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    Open,
    Fin,
    Rst,
}

/// Asks the kernel, not tokio's cached readiness, which may lag when thousands of peers close at once.
pub fn look(stream: &TcpStream) -> Idle {
    let mut byte = [0u8; 1];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the descriptor is open as long as `stream` lives, and the buffer has one byte.
    let got = unsafe { libc::recv(stream.as_raw_fd(), byte.as_mut_ptr().cast(), 1, flags) };
    match got {
        0.. => Idle::Fin,
        _ if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock => Idle::Open,
        _ => Idle::Rst,
    }
}

pub fn request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: app.local\r\nuser-agent: loadc/1\r\naccept: */*\r\n\r\n").into_bytes()
}

/// The head of an answer with 200: its length, that of the body (none: chunked), and `Connection: close`.
pub struct Head {
    pub end: usize,
    pub body: Option<usize>,
    pub close: bool,
}

/// None as long as the head is not complete.
pub fn head(bytes: &[u8]) -> Result<Option<Head>, Fail> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut answer = httparse::Response::new(&mut headers);
    let end = match answer.parse(bytes) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Fail::Status),
    };
    if answer.code != Some(200) {
        return Err(Fail::Status);
    }
    let mut head = Head { end, body: Some(0), close: false };
    for header in answer.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            head.body = std::str::from_utf8(header.value).ok().and_then(|text| text.parse().ok());
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            head.body = None;
        } else if header.name.eq_ignore_ascii_case("connection") {
            head.close |= header.value.eq_ignore_ascii_case(b"close");
        }
    }
    Ok(Some(head))
}

/// Reads one whole answer; true if the server said that it will close the connection.
pub async fn answer<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut Vec<u8>) -> Result<bool, Fail> {
    buffer.clear();
    let mut found = None;
    loop {
        let first = buffer.is_empty();
        match stream.read_buf(buffer).await {
            Ok(0) if first => return Err(Fail::Eof),
            Err(_) if first => return Err(Fail::Reset),
            Ok(0) | Err(_) => return Err(Fail::Truncated),
            Ok(_) => {}
        }
        if found.is_none() {
            found = head(buffer)?;
        }
        match &found {
            Some(Head { end, body: Some(body), close }) if buffer.len() >= end + body => return Ok(*close),
            Some(Head { body: None, close, .. }) => {
                if buffer.ends_with(b"0\r\n\r\n") {
                    return Ok(*close);
                }
                // Only the tail matters.
                buffer.drain(..buffer.len() - buffer.len().min(16));
            }
            _ => {}
        }
    }
}

/// One request and its answer; true if the server said that it will close the connection.
pub async fn exchange<S>(stream: &mut S, path: &str, buffer: &mut Vec<u8>) -> Result<bool, Fail>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    stream.write_all(&request(path)).await.map_err(|_| Fail::Reset)?;
    timeout(PATIENCE, answer(stream, buffer)).await.unwrap_or(Err(Fail::Timeout))
}

/// The next line of stdin; none when it has ended.
pub async fn stdin_line(stdin: &mut tokio::io::BufReader<tokio::io::Stdin>) -> Option<String> {
    let mut line = String::new();
    match stdin.read_line(&mut line).await {
        Ok(read) if read > 0 => Some(line.trim().to_owned()),
        _ => None,
    }
}

pub fn stdin() -> tokio::io::BufReader<tokio::io::Stdin> {
    tokio::io::BufReader::new(tokio::io::stdin())
}

/// The value below which this share of all lies.
pub fn percentile(values: &mut [u32], share: f64) -> u32 {
    if values.is_empty() {
        return 0;
    }
    values.sort_unstable();
    values[((values.len() - 1) as f64 * share) as usize]
}

pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}
