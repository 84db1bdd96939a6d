//! The socket on loan to h2: followed frame by frame, and returned when h2 is done with it.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::listener::conn::Conn;
use crate::listener::io::Io;
use crate::listener::streams::Http2;

/// hyper's HTTP/2 server does not give its socket back, so it falls back by itself.
#[derive(Debug)]
pub(super) struct LentIo {
    /// `None` only while it is being dropped.
    io: Option<Box<Io>>,
    conn: Rc<Conn>,
    /// How much of the acknowledgement that is being put in has been handed over.
    put_in: Option<usize>,
    returned: Rc<RefCell<Option<Box<Io>>>>,
}

/// The PING acknowledgement that h2 0.4 waits for before its final GOAWAY; a test pins it.
pub(super) const SHUTDOWN_ACK: [u8; 17] = [0, 0, 8, 6, 1, 0, 0, 0, 0, 0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54];

// === impl LentIo ===

impl LentIo {
    /// The loan, and the place it comes back to.
    pub(super) fn new(io: Box<Io>, conn: Rc<Conn>) -> (Self, Rc<RefCell<Option<Box<Io>>>>) {
        let returned: Rc<RefCell<Option<Box<Io>>>> = Rc::default();
        (Self { io: Some(io), conn, put_in: None, returned: Rc::clone(&returned) }, returned)
    }

    fn io(&mut self) -> io::Result<Pin<&mut Io>> {
        self.io.as_deref_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for LentIo {
    fn drop(&mut self) {
        self.returned.replace(self.io.take());
    }
}

impl AsyncRead for LentIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.put_in.is_none() && self.conn.http2().is_some_and(Http2::take_owed_ack) {
            self.put_in = Some(0);
        }
        if let Some(from) = self.put_in {
            let to = SHUTDOWN_ACK.len().min(from + buf.remaining());
            buf.put_slice(&SHUTDOWN_ACK[from..to]);
            self.put_in = (to < SHUTDOWN_ACK.len()).then_some(to);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(self.io()?.poll_read(cx, buf))?;
        if let Some(http2) = self.conn.http2() {
            http2.read(&buf.filled()[before..], self.conn.worker().coarse_now());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LentIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.io()?.poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io()?.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.as_deref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io()?.poll_shutdown(cx)
    }
}
