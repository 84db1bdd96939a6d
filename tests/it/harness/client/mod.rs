//! Owns toy clients that never retry: one request and what became of it; the kinds are in the children.

mod bursts;

mod connection;

mod idle;

mod load;

mod pool;

mod raw;

mod summary;

pub(crate) use self::bursts::{BurstPlan, BurstRecord, BurstSummary, Bursts};
pub(crate) use self::connection::{Connection, Idle};
pub(crate) use self::idle::{Closed, IdleHolder};
pub(crate) use self::load::{How, Lane, Load, Pace, Plan};
pub(crate) use self::pool::Pool;
pub(crate) use self::raw::Raw;
pub(crate) use self::summary::{Record, Summary};

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::http::{Fault, Head, Sum, pattern};
use super::tls::Target;

/// A request that can be sent many times, each time with an id of its own.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Arc<[u8]>,
    pub(crate) chunked: bool,
    /// The body must have this sum.
    pub(crate) expect: Option<Sum>,
    /// Sends so many bytes at a time, with a pause after each.
    pub(crate) drip: Option<(usize, Duration)>,
}

/// A whole response.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: Head,
    /// Statuses of the 1xx responses before it.
    pub(crate) interim: Vec<u16>,
    pub(crate) length: u64,
    pub(crate) sum: Sum,
    /// The first 64 KiB.
    pub(crate) body: Vec<u8>,
    /// False if the body or the id belongs to something else.
    pub(crate) intact: bool,
}

/// Why a request failed, as a user of the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Failure {
    Refused,
    Reset,
    /// A clean close instead of a response.
    Eof,
    /// A clean close in the middle of a response.
    Truncated,
    Status(u16),
    Timeout,
    /// Not HTTP, or the response of another request.
    Garbage,
    /// A fatal TLS alert of the peer.
    Alert(u8),
    /// A certificate that a client must not take.
    BadCertificate,
    /// Any other fault of the peer's TLS, e.g. a protocol that was not offered.
    Tls,
    /// Anything else of the operating system, e.g. no free port.
    Other,
}

/// How a socket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Ending {
    /// Over TLS with a `close_notify` before it.
    Fin,
    Reset,
    /// Not within the deadline.
    StillOpen,
    /// TLS, and a FIN without a `close_notify`.
    Bare,
    /// A fatal TLS alert.
    Alert(u8),
    /// Any other fault of the peer's TLS.
    BadTls,
}

/// A request id that is unique in this test run.
pub(crate) fn fresh_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("one-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// One request on a connection of its own; `Connection: close` is not asked for.
pub(crate) async fn send(to: impl Into<Target>, request: &Request, deadline: Duration) -> Result<Reply, Failure> {
    let mut connection = Connection::open(to, deadline).await?;
    connection.exchange(request, &fresh_id(), deadline).await
}

// === impl Request ===

impl Request {
    pub(crate) fn new(method: &'static str, path: &str) -> Self {
        Self {
            method,
            path: path.to_owned(),
            headers: Vec::new(),
            body: Arc::from([]),
            chunked: false,
            expect: None,
            drip: None,
        }
    }

    pub(crate) fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    /// A POST whose body must come back.
    pub(crate) fn echo(length: usize) -> Self {
        let body = pattern(length);
        Self { expect: Some(Sum::of(&body)), body: body.into(), ..Self::new("POST", "/echo") }
    }

    /// A download that must be whole.
    pub(crate) fn bytes(length: u64, chunked: bool) -> Self {
        Self {
            expect: Some(Sum::of_pattern(length)),
            ..Self::get(&format!("/bytes?n={length}&chunked={}", u8::from(chunked)))
        }
    }

    #[must_use]
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    #[must_use]
    pub(crate) const fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    #[must_use]
    pub(crate) const fn drip(mut self, bytes: usize, pause: Duration) -> Self {
        self.drip = Some((bytes, pause));
        self
    }

    /// The bytes on the wire.
    pub(crate) fn encode(&self, host: &str, id: &str) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\nHost: {host}\r\nx-id: {id}\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let has_body = !self.body.is_empty() || self.method == "POST";
        if self.chunked {
            head.push_str("Transfer-Encoding: chunked\r\n");
        } else if has_body {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        if self.chunked {
            for piece in self.body.chunks(CHUNK) {
                bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                bytes.extend_from_slice(piece);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        } else {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}

// === impl Reply ===

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// How often the connection is said to close; a marked response has exactly one.
    pub(crate) fn closes(&self) -> usize {
        self.head
            .all("connection")
            .flat_map(|value| value.split(','))
            .filter(|token| token.trim().eq_ignore_ascii_case("close"))
            .count()
    }

    /// The status if all is well with it.
    pub(crate) const fn verdict(&self) -> Result<u16, Failure> {
        if self.status >= 400 {
            Err(Failure::Status(self.status))
        } else if self.intact {
            Ok(self.status)
        } else {
            Err(Failure::Garbage)
        }
    }
}

// === impl Failure ===

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(rustls::Error::AlertReceived(alert)) => return Self::Alert((*alert).into()),
            Some(rustls::Error::InvalidCertificate(_)) => return Self::BadCertificate,
            Some(_) => return Self::Tls,
            None => {}
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe => {
                Self::Reset
            }
            io::ErrorKind::UnexpectedEof => Self::Eof,
            io::ErrorKind::TimedOut => Self::Timeout,
            _ => Self::Other,
        }
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Eof => Self::Eof,
            Fault::Truncated => Self::Truncated,
            Fault::Garbage(_) => Self::Garbage,
            Fault::Io(error) => error.into(),
        }
    }
}

const CHUNK: usize = 1024;
