//! One end of a relay.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::upstream::connect::Stream;

/// A connection, or a stream of one.
#[derive(Debug)]
pub enum Side {
    /// A connection of its own.
    Socket(Stream),
    /// A stream of an HTTP/2 connection.
    Http2(Box<TokioIo<Upgraded>>),
}

/// Bytes written to an HTTP/2 stream at once.
const PIECE: usize = 16 * 1024;

// === impl Side ===

impl Side {
    /// Reads into `buffer`; 0 at the end.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        ready!(match self {
            Self::Socket(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Self::Http2(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
        })?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Writes some of `bytes`.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Socket(stream) => Pin::new(stream).poll_write(cx, bytes),
            // It copies all it is given, and takes a few such pieces before the client's window counts.
            Self::Http2(stream) => Pin::new(stream).poll_write(cx, &bytes[..bytes.len().min(PIECE)]),
        }
    }

    /// FIN, or what stands for it.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Socket(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Http2(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    /// The kernel can move its bytes by itself.
    pub const fn is_socket(&self) -> bool {
        matches!(self, Self::Socket(_))
    }

    /// Has the kernel do `work` when the socket is ready for it; an attempt that would block waits for the next time.
    pub fn poll_io(
        &self,
        interest: Interest,
        cx: &mut Context<'_>,
        mut work: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let Self::Socket(stream) = self else { return Poll::Ready(Err(io::ErrorKind::Unsupported.into())) };
        loop {
            ready!(match (stream, interest.is_readable()) {
                (Stream::Tcp(stream), true) => stream.poll_read_ready(cx),
                (Stream::Tcp(stream), false) => stream.poll_write_ready(cx),
                (Stream::Unix(stream), true) => stream.poll_read_ready(cx),
                (Stream::Unix(stream), false) => stream.poll_write_ready(cx),
            })?;
            let done = match stream {
                Stream::Tcp(stream) => stream.try_io(interest, || work(stream.as_fd())),
                Stream::Unix(stream) => stream.try_io(interest, || work(stream.as_fd())),
            };
            match done {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

impl From<TcpStream> for Side {
    fn from(stream: TcpStream) -> Self {
        Self::Socket(Stream::Tcp(stream))
    }
}

impl From<Stream> for Side {
    fn from(stream: Stream) -> Self {
        Self::Socket(stream)
    }
}
