//! Owns a socket that a library uses and we get back, so that it can be closed in order.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::harness::app::server::Io;

#[derive(Debug)]
pub(super) struct Lent<S>(Arc<Mutex<S>>);

// === impl Lent ===

impl<S: Io> Lent<S> {
    pub(super) fn new(io: S) -> Self {
        Self(Arc::new(Mutex::new(io)))
    }

    pub(super) fn again(&self) -> Self {
        Self(self.0.clone())
    }

    fn io(&self) -> MutexGuard<'_, S> {
        self.0.lock().expect("no holder panics")
    }
}

impl<S: Io> AsyncRead for Lent<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io()).poll_read(cx, buffer)
    }
}

impl<S: Io> AsyncWrite for Lent<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.io()).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.io()).poll_shutdown(cx)
    }
}
