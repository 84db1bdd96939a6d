//! Dialling an upstream.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout_at};

use crate::config::{HostPort, UpstreamAddr};

/// Why no connection was made.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// ECONNREFUSED, or ENOENT for a Unix socket: nobody accepts there.
    #[error("connection refused")]
    Refused,
    /// Neither accepted nor refused in time.
    #[error("no answer in time")]
    TimedOut,
    /// The name has no address.
    #[error("no address for {0:?}")]
    NoAddress(String),
    /// Anything else.
    #[error("connect failed")]
    Failed(#[source] io::Error),
}

/// A connection to an upstream, before anything is known of its protocol.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// Unix socket.
    Unix(UnixStream),
}

/// A connection to the app as hyper sees it; whoever pools it can still look at the socket.
#[derive(Debug)]
pub struct UpstreamIo {
    stream: Rc<RefCell<Stream>>,
    marks: Rc<Marks>,
}

/// What has passed on a connection since the latest request began.
#[derive(Debug, Default)]
pub struct Marks {
    /// Writing was tried.
    pub wrote: std::cell::Cell<bool>,
    /// A byte was written.
    pub sent: std::cell::Cell<bool>,
    /// A byte was read.
    pub read: std::cell::Cell<bool>,
    /// The app takes no more bytes.
    deaf: std::cell::Cell<bool>,
}

/// A look at a pooled connection's socket.
#[derive(Debug)]
pub struct Peek(Weak<RefCell<Stream>>);

/// An app on the same machine that does not answer within this is not going to.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause while a Unix socket's backlog is full (EAGAIN).
const BACKLOG_FULL: Duration = Duration::from_millis(10);
/// A listener that is being closed resets what is in its queue; after this it refuses, or its successor accepts.
pub const DYING: Duration = Duration::from_millis(20);

/// Connects to an upstream; names are resolved anew on every dial, off the worker's thread.
///
/// # Errors
/// [`DialError::Refused`] only if every address refused.
pub async fn dial(upstream: &UpstreamAddr) -> Result<Stream, DialError> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    match upstream {
        UpstreamAddr::Http(address) | UpstreamAddr::H2c(address) | UpstreamAddr::Auto(address) => {
            dial_tcp(address, deadline).await
        }
        // One app per inbound listener; outbound ones have their own way, see `remote`.
        UpstreamAddr::Tcp(hosts) => match hosts.first() {
            Some(address) => dial_tcp(address, deadline).await,
            None => Err(DialError::NoAddress(String::new())),
        },
        UpstreamAddr::Unix(path) => loop {
            match timeout_at(deadline, UnixStream::connect(path)).await {
                Ok(Ok(stream)) => return Ok(Stream::Unix(stream)),
                Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    sleep(BACKLOG_FULL).await;
                }
                Ok(Err(error)) => return Err(classify(error)),
                Err(_) => return Err(DialError::TimedOut),
            }
        },
    }
}

async fn dial_tcp(address: &HostPort, deadline: Instant) -> Result<Stream, DialError> {
    if let Ok(ip) = address.host.parse::<IpAddr>() {
        return dial_address(SocketAddr::new(ip, address.port), deadline).await;
    }
    let lookup = tokio::net::lookup_host((address.host.as_str(), address.port));
    let addresses = match timeout_at(deadline, lookup).await {
        Ok(Ok(addresses)) => addresses,
        Ok(Err(error)) => return Err(DialError::Failed(error)),
        Err(_) => return Err(DialError::TimedOut),
    };
    let mut errors = Vec::new();
    for address in addresses {
        match dial_address(address, deadline).await {
            Ok(stream) => return Ok(stream),
            Err(error) => errors.push(error),
        }
    }
    Err(all_told(errors).unwrap_or_else(|| DialError::NoAddress(address.host.clone())))
}

/// What the failures of all of a name's addresses come to. One that is merely slow or odd keeps the whole from counting
/// as refused; one that can't exist here (`::1` in a pod without IPv6) says nothing.
pub fn all_told(errors: Vec<DialError>) -> Option<DialError> {
    let weight = |error: &DialError| match error {
        DialError::NoAddress(_) => 0,
        DialError::Failed(error) if leads_nowhere(error) => 1,
        DialError::Refused => 2,
        DialError::TimedOut | DialError::Failed(_) => 3,
    };
    errors.into_iter().max_by_key(weight)
}

fn leads_nowhere(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::ADDRNOTAVAIL | Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::AFNOSUPPORT))
}

/// Connects to one address.
///
/// # Errors
/// [`DialError::Refused`] if it refused, [`DialError::TimedOut`] at the deadline.
pub async fn dial_address(address: SocketAddr, deadline: Instant) -> Result<Stream, DialError> {
    loop {
        match timeout_at(deadline, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // A port in the ephemeral range that nobody listens on can be connected to itself.
                if stream.local_addr().is_ok_and(|local| local == address) {
                    return Err(DialError::Refused);
                }
                // Fails only on a socket that is already broken, which the first write shows.
                let _ = stream.set_nodelay(true);
                return Ok(Stream::Tcp(stream));
            }
            Ok(Err(error)) if is_dying(&error) && Instant::now() + DYING < deadline => sleep(DYING).await,
            Ok(Err(error)) => return Err(classify(error)),
            Err(_) => return Err(DialError::TimedOut),
        }
    }
}

fn is_dying(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted)
}

fn classify(error: io::Error) -> DialError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => DialError::Refused,
        io::ErrorKind::TimedOut => DialError::TimedOut,
        _ => DialError::Failed(error),
    }
}

// === impl Stream ===

impl Stream {
    /// For a write half that is done: FIN.
    pub fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_finish(cx)
    }
}

// === impl UpstreamIo ===

impl UpstreamIo {
    /// Wraps a connection.
    pub fn new(stream: Stream) -> Self {
        Self { stream: Rc::new(RefCell::new(stream)), marks: Rc::default() }
    }

    /// What has passed on it.
    pub fn marks(&self) -> &Rc<Marks> {
        &self.marks
    }

    /// The connection itself, for bytes that are no HTTP; `None` if a request still holds it.
    pub fn into_stream(self) -> Option<Stream> {
        Rc::into_inner(self.stream).map(RefCell::into_inner)
    }

    /// An app may answer and close before it has read the request: what is written then fails, while the answer
    /// waits to be read. So the rest is thrown away, and reading tells how it ended.
    fn written(&self, result: io::Result<usize>, length: usize) -> io::Result<usize> {
        match result {
            Err(error)
                if self.marks.sent.get()
                    && matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                self.marks.deaf.set(true);
                Ok(length)
            }
            result => {
                if result.is_ok() {
                    self.marks.sent.set(true);
                }
                result
            }
        }
    }

    /// A look at the socket that does not keep it open.
    pub fn peek(&self) -> Peek {
        Peek(Rc::downgrade(&self.stream))
    }
}

impl AsyncRead for UpstreamIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut *self.stream.borrow_mut()).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.marks.read.set(true);
        }
        result
    }
}

impl AsyncWrite for UpstreamIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.marks.deaf.get() {
            return Poll::Ready(Ok(buf.len()));
        }
        self.marks.wrote.set(true);
        let result = ready!(Pin::new(&mut *self.stream.borrow_mut()).poll_write(cx, buf));
        Poll::Ready(self.written(result, buf.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = || bufs.iter().map(|buf| buf.len()).sum();
        if self.marks.deaf.get() {
            return Poll::Ready(Ok(length()));
        }
        self.marks.wrote.set(true);
        let result = ready!(Pin::new(&mut *self.stream.borrow_mut()).poll_write_vectored(cx, bufs));
        Poll::Ready(self.written(result, length()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.borrow_mut().poll_finish(cx)
    }
}

// === impl Marks ===

impl Marks {
    /// A request begins.
    pub fn reset(&self) {
        self.wrote.set(false);
        self.sent.set(false);
        self.read.set(false);
    }

    /// What was written last has been thrown away: the connection serves no more requests.
    pub fn is_deaf(&self) -> bool {
        self.deaf.get()
    }
}

// === impl Peek ===

impl Peek {
    /// The app has closed its side and everything before that was read.
    pub fn is_at_end(&self) -> bool {
        !matches!(self.look(), Some(Err(rustix::io::Errno::AGAIN) | Ok(1..)))
    }

    /// The connection is open and silent: good for one more request. An app that has closed it, or has sent bytes
    /// nobody asked for, shows at once on the same machine.
    pub fn is_fresh(&self) -> bool {
        matches!(self.look(), Some(Err(rustix::io::Errno::AGAIN)))
    }

    /// Bytes that wait, at most one; `None` if the connection is no more.
    fn look(&self) -> Option<Result<usize, rustix::io::Errno>> {
        use rustix::net::{RecvFlags, recv};
        let stream = self.0.upgrade()?;
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut byte = [0_u8; 1];
        let seen = match &*stream.borrow() {
            Stream::Tcp(stream) => recv(stream, &mut byte, flags),
            Stream::Unix(stream) => recv(stream, &mut byte, flags),
        };
        Some(seen.map(|(length, _)| length))
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    fn failed(errno: Errno) -> DialError {
        DialError::Failed(errno.into())
    }

    #[test]
    fn an_address_that_leads_nowhere_does_not_hide_a_refusal() {
        for errno in [Errno::ADDRNOTAVAIL, Errno::NETUNREACH, Errno::HOSTUNREACH, Errno::AFNOSUPPORT] {
            assert!(matches!(all_told(vec![failed(errno), DialError::Refused]), Some(DialError::Refused)));
            assert!(matches!(all_told(vec![DialError::Refused, failed(errno)]), Some(DialError::Refused)));
            assert!(matches!(all_told(vec![failed(errno)]), Some(DialError::Failed(_))));
        }
    }

    #[test]
    fn a_slow_or_odd_address_keeps_the_whole_from_being_refused() {
        assert!(matches!(all_told(vec![DialError::TimedOut, DialError::Refused]), Some(DialError::TimedOut)));
        assert!(matches!(all_told(vec![DialError::Refused, failed(Errno::ACCESS)]), Some(DialError::Failed(_))));
        assert!(all_told(Vec::new()).is_none());
    }
}
