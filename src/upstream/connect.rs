//! Dialling an upstream.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, io};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout_at};

use crate::config::{HostPort, UpstreamAddr};
use crate::tls::client::{ClientTls, Offer};
use crate::transport::Transport;

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
    /// It accepted, and TLS came to nothing.
    #[error("the TLS handshake failed")]
    Handshake(#[source] io::Error),
    /// Anything else.
    #[error("connect failed")]
    Failed(#[source] io::Error),
}

/// An upstream, and how it is spoken to.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// As it stands in the configuration.
    pub address: UpstreamAddr,
    tls: Option<ClientTls>,
}

/// A connection to the app as hyper sees it; whoever pools it can still look at the socket.
#[derive(Debug)]
pub struct UpstreamIo {
    stream: Rc<RefCell<Transport>>,
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
pub struct Peek(Weak<RefCell<Transport>>);

/// An app on the same machine that does not answer within this is not going to.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause while a Unix socket's backlog is full (EAGAIN).
const BACKLOG_FULL: Duration = Duration::from_millis(10);
/// A listener that is being closed resets what is in its queue; after this it refuses, or its successor accepts.
pub const DYING: Duration = Duration::from_millis(20);
/// Handshakes in a row that end like that before it is taken for the app's answer.
const DEATHS: u32 = 3;

/// Connects to an upstream; names are resolved anew on every dial, off the worker's thread. Where TLS is spoken `offer`
/// is what is offered by ALPN.
///
/// # Errors
/// [`DialError::Refused`] only if every address refused.
pub async fn dial(upstream: &Upstream, offer: Offer) -> Result<Transport, DialError> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    if let UpstreamAddr::Unix(path) = &upstream.address {
        return dial_unix(path, deadline).await;
    }
    // One app per inbound listener; outbound ones have their own way, see `remote`.
    match upstream.address.hosts().first() {
        Some(host) => dial_host(upstream, host, offer, deadline).await,
        None => Err(DialError::NoAddress(String::new())),
    }
}

async fn dial_unix(path: &Path, deadline: Instant) -> Result<Transport, DialError> {
    loop {
        match timeout_at(deadline, UnixStream::connect(path)).await {
            Ok(Ok(stream)) => return Ok(Transport::Unix(stream)),
            Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                sleep(BACKLOG_FULL).await;
            }
            Ok(Err(error)) => return Err(classify(error)),
            Err(_) => return Err(DialError::TimedOut),
        }
    }
}

async fn dial_host(
    upstream: &Upstream,
    host: &HostPort,
    offer: Offer,
    deadline: Instant,
) -> Result<Transport, DialError> {
    let HostPort { host, port } = host;
    if let Ok(ip) = host.parse::<IpAddr>() {
        return upstream.connect_to(host, SocketAddr::new(ip, *port), offer, deadline).await;
    }
    let addresses = match timeout_at(deadline, tokio::net::lookup_host((host.as_str(), *port))).await {
        Ok(Ok(addresses)) => addresses,
        Ok(Err(error)) => return Err(DialError::Failed(error)),
        Err(_) => return Err(DialError::TimedOut),
    };
    let mut errors = Vec::new();
    for address in addresses {
        match upstream.connect_to(host, address, offer, deadline).await {
            Ok(stream) => return Ok(stream),
            Err(error) => errors.push(error),
        }
    }
    Err(all_told(errors).unwrap_or_else(|| DialError::NoAddress(host.clone())))
}

/// What the failures of all of a name's addresses come to. One that is merely slow or odd keeps the whole from counting
/// as refused; one that can't exist here (`::1` in a pod without IPv6) says nothing.
pub fn all_told(errors: Vec<DialError>) -> Option<DialError> {
    let weight = |error: &DialError| match error {
        DialError::NoAddress(_) => 0,
        DialError::Failed(error) if leads_nowhere(error) => 1,
        DialError::Refused => 2,
        DialError::TimedOut | DialError::Handshake(_) | DialError::Failed(_) => 3,
    };
    errors.into_iter().max_by_key(weight)
}

fn leads_nowhere(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::ADDRNOTAVAIL | Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::AFNOSUPPORT))
}

async fn dial_address(address: SocketAddr, deadline: Instant) -> Result<TcpStream, DialError> {
    loop {
        match timeout_at(deadline, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // A port in the ephemeral range that nobody listens on can be connected to itself.
                if stream.local_addr().is_ok_and(|local| local == address) {
                    return Err(DialError::Refused);
                }
                // Fails only on a socket that is already broken, which the first write shows.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
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

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe)
}

fn classify(error: io::Error) -> DialError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => DialError::Refused,
        io::ErrorKind::TimedOut => DialError::TimedOut,
        _ => DialError::Failed(error),
    }
}

// === impl Upstream ===

impl Upstream {
    /// The upstream of one listener.
    pub const fn new(address: UpstreamAddr, tls: Option<ClientTls>) -> Self {
        Self { address, tls }
    }

    /// Connects to one address of `host`, within the deadline; with a handshake where TLS is spoken.
    ///
    /// # Errors
    /// [`DialError::Refused`] if it refused, [`DialError::TimedOut`] at the deadline.
    pub async fn connect_to(
        &self,
        host: &str,
        address: SocketAddr,
        offer: Offer,
        deadline: Instant,
    ) -> Result<Transport, DialError> {
        let mut deaths = 0;
        loop {
            let socket = dial_address(address, deadline).await?;
            let Some(tls) = &self.tls else { return Ok(Transport::Tcp(socket)) };
            match timeout_at(deadline, tls.connect(socket, host, offer)).await {
                Ok(Ok(stream)) => return Ok(Transport::Tls(Box::new(stream))),
                // The kernel had accepted it for a listener that is being closed.
                Ok(Err(error)) if deaths < DEATHS && (is_dying(&error) || is_end(&error)) => {
                    deaths += 1;
                    sleep(DYING).await;
                }
                Ok(Err(error)) => return Err(DialError::Handshake(error)),
                Err(_) => return Err(DialError::TimedOut),
            }
        }
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

// === impl UpstreamIo ===

impl UpstreamIo {
    /// Wraps a connection.
    pub fn new(stream: Transport) -> Self {
        Self { stream: Rc::new(RefCell::new(stream)), marks: Rc::default() }
    }

    /// What has passed on it.
    pub fn marks(&self) -> &Rc<Marks> {
        &self.marks
    }

    /// The connection itself, for bytes that are no HTTP; `None` if a request still holds it.
    pub fn into_transport(self) -> Option<Transport> {
        Rc::into_inner(self.stream).map(RefCell::into_inner)
    }

    /// An app may answer and close before it has read the request: what is written then fails, while the answer
    /// waits to be read. So the rest is thrown away, and reading tells how it ended.
    fn is_deaf_by(&self, error: &io::Error) -> bool {
        let is_gone = matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
        let deaf = is_gone && self.marks.sent.get();
        self.marks.deaf.set(deaf);
        deaf
    }

    fn written(&self, result: io::Result<usize>, length: usize) -> io::Result<usize> {
        match result {
            Err(error) if self.is_deaf_by(&error) => Ok(length),
            Err(error) => Err(error),
            Ok(n) => {
                self.marks.sent.set(true);
                Ok(n)
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

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.marks.deaf.get() {
            return Poll::Ready(Ok(()));
        }
        let result = ready!(Pin::new(&mut *self.stream.borrow_mut()).poll_flush(cx));
        Poll::Ready(result.or_else(|error| if self.is_deaf_by(&error) { Ok(()) } else { Err(error) }))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_shutdown(cx)
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
        Some(self.0.upgrade()?.borrow().peek())
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
