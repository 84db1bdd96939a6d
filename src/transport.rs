//! What carries a connection's bytes: TCP, a Unix socket, or TLS over TCP. The same on both sides of the proxy.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::tls::stream::TlsStream;

/// A connection, before anything is known of what is spoken on it.
#[derive(Debug)]
pub enum Transport {
    /// TCP.
    Tcp(TcpStream),
    /// Unix socket.
    Unix(UnixStream),
    /// TLS over TCP. Dropped it says farewell, as far as the socket takes it at once.
    Tls(Box<TlsStream>),
}

/// Most bytes that are copied to make one part of several.
const JOINED: usize = 1024;

// === impl Transport ===

impl Transport {
    /// The TCP socket, also beneath TLS.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
            Self::Tls(stream) => Some(stream.socket()),
            Self::Unix(_) => None,
        }
    }

    /// TLS, if it is spoken here.
    pub fn tls(&self) -> Option<&TlsStream> {
        if let Self::Tls(stream) = self { Some(stream) } else { None }
    }

    /// The address that the peer has connected to.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.tcp().and_then(|socket| socket.local_addr().ok())
    }

    /// What waits in the kernel: 1 for any number of bytes, 0 at the end.
    ///
    /// # Errors
    /// [`Errno::AGAIN`](rustix::io::Errno::AGAIN) if nothing does, others if the connection is broken.
    pub fn peek(&self) -> Result<usize, rustix::io::Errno> {
        let (length, _) = recv(self.as_fd(), &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
        Ok(length)
    }

    /// Writes what is taken at once; the rest of it is lost.
    pub fn write_now(&mut self, bytes: &[u8]) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut this = Pin::new(self);
        if this.as_mut().poll_write(&mut cx, bytes).is_ready() {
            // Whoever does not read need not be told.
            let _ = this.poll_flush(&mut cx);
        }
    }

    /// Ends with a reset instead of a farewell when it is dropped: what was sent must not look whole.
    pub fn reset_when_dropped(&mut self) {
        self.no_farewell();
        if let Some(socket) = self.tcp() {
            // Fails only if the peer is gone, which is what we want.
            let _ = socket.set_zero_linger();
        }
    }

    /// Ends with a FIN alone: under TLS a cut, as the peer can tell.
    pub fn no_farewell(&mut self) {
        if let Self::Tls(stream) = self {
            stream.no_farewell();
        }
    }

    /// Has the kernel do `work` when the socket is ready for it; an attempt that would block waits for the next time.
    /// Of no use for TLS.
    pub fn poll_io(
        &self,
        interest: Interest,
        cx: &mut Context<'_>,
        mut work: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            std::task::ready!(match (self, interest.is_readable()) {
                (Self::Tcp(stream), true) => stream.poll_read_ready(cx),
                (Self::Tcp(stream), false) => stream.poll_write_ready(cx),
                (Self::Unix(stream), true) => stream.poll_read_ready(cx),
                (Self::Unix(stream), false) => stream.poll_write_ready(cx),
                (Self::Tls(_), _) => return Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
            })?;
            let done = match self {
                Self::Tcp(stream) => stream.try_io(interest, || work(stream.as_fd())),
                Self::Unix(stream) => stream.try_io(interest, || work(stream.as_fd())),
                Self::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
            };
            match done {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

/// Writes to a socket: most messages are a head with a short body, and one `send` costs the kernel less than `writev`
/// and the copy together.
pub fn poll_write_parts(
    socket: Pin<&mut impl AsyncWrite>,
    cx: &mut Context<'_>,
    parts: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    if let [only] = parts {
        return socket.poll_write(cx, only);
    }
    if parts.iter().map(|part| part.len()).sum::<usize>() > JOINED {
        return socket.poll_write_vectored(cx, parts);
    }
    let mut joined = [0; JOINED];
    let mut length = 0;
    for part in parts {
        joined[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    }
    socket.poll_write(cx, &joined[..length])
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.socket().as_fd(),
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => poll_write_parts(Pin::new(stream), cx, bufs),
            Self::Unix(stream) => poll_write_parts(Pin::new(stream), cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Only TLS keeps anything back.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(_) | Self::Unix(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    /// FIN, under TLS behind a close_notify.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
