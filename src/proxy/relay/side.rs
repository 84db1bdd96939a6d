//! One end of a relay.

use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use crate::transport::Transport;

/// A connection, or a stream of one.
#[derive(Debug)]
pub enum Side {
    /// A connection of its own.
    Own(Transport),
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
            Self::Own(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Self::Http2(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
        })?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Writes some of `bytes`.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Own(stream) => Pin::new(stream).poll_write(cx, bytes),
            // It copies all it is given, and takes a few such pieces before the client's window counts.
            Self::Http2(stream) => Pin::new(stream).poll_write(cx, &bytes[..bytes.len().min(PIECE)]),
        }
    }

    /// FIN, or what stands for it.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Own(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Http2(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    /// What was written is on its way; only TLS keeps anything back.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Own(transport) => Pin::new(transport).poll_flush(cx),
            Self::Http2(_) => Poll::Ready(Ok(())),
        }
    }

    /// The end is a FIN alone, where TLS would announce it.
    pub fn no_farewell(&mut self) {
        if let Self::Own(transport) = self {
            transport.no_farewell();
        }
    }

    /// The kernel can move its bytes by itself.
    pub const fn is_socket(&self) -> bool {
        matches!(self, Self::Own(Transport::Tcp(_) | Transport::Unix(_)))
    }

    /// As [`Transport::poll_io`].
    pub fn poll_io(
        &self,
        interest: Interest,
        cx: &mut Context<'_>,
        work: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Own(transport) => transport.poll_io(interest, cx, work),
            Self::Http2(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }
}

impl From<Transport> for Side {
    fn from(transport: Transport) -> Self {
        Self::Own(transport)
    }
}
