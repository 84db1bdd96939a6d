//! A TLS connection that never ends without a word: TCP alone can't tell an end from a cut (RFC 8446 §6.1).

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use rustix::net::{SendFlags, send};
use rustls::{CommonState, ConnectionCommon, HandshakeKind, SideData};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::transport::poll_write_parts;

/// A connection whose handshake is over.
#[derive(Debug)]
pub struct TlsStream {
    inner: tokio_rustls::TlsStream<Wire>,
    farewell: bool,
}

/// A socket of which the first bytes have been read already.
#[derive(Debug)]
pub struct Wire {
    socket: TcpStream,
    ahead: Bytes,
    records: Records,
}

/// Where the records of what is read end (RFC 8446 §5.1).
#[derive(Debug, Default)]
struct Records {
    head: [u8; 5],
    filled: u8,
    payload_left: u16,
}

/// Writes past the reactor, which may be gone by the time a connection is dropped.
struct AtOnce<'a>(&'a TcpStream);

// === impl TlsStream ===

impl TlsStream {
    /// After a handshake.
    pub fn new(inner: impl Into<tokio_rustls::TlsStream<Wire>>) -> Self {
        Self { inner: inner.into(), farewell: true }
    }

    /// The socket beneath.
    pub fn socket(&self) -> &TcpStream {
        &self.inner.get_ref().0.socket
    }

    /// The protocol agreed by ALPN.
    pub fn alpn(&self) -> Option<&[u8]> {
        self.state().alpn_protocol()
    }

    /// The handshake was spared by an earlier one.
    pub fn is_resumed(&self) -> bool {
        matches!(self.state().handshake_kind(), Some(HandshakeKind::Resumed))
    }

    /// The peer's own certificate, if it has shown one.
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        self.state().peer_certificates().and_then(<[_]>::first).map(|certificate| &**certificate)
    }

    /// The peer has begun to say something, of which nothing can be read yet.
    pub fn is_mid_record(&self) -> bool {
        self.inner.get_ref().0.records.is_inside()
    }

    /// The end will not be announced: what was sent must not look whole.
    pub fn no_farewell(&mut self) {
        self.farewell = false;
    }

    fn state(&self) -> &CommonState {
        self.inner.get_ref().1
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        if !self.farewell {
            return;
        }
        match &mut self.inner {
            tokio_rustls::TlsStream::Server(stream) => {
                let (wire, session) = stream.get_mut();
                farewell(wire, session);
            }
            tokio_rustls::TlsStream::Client(stream) => {
                let (wire, session) = stream.get_mut();
                farewell(wire, session);
            }
        }
    }
}

/// close_notify, unless it has been said before, behind whatever still waits.
fn farewell<S: SideData>(wire: &Wire, session: &mut ConnectionCommon<S>) {
    session.send_close_notify();
    while session.wants_write() && matches!(session.write_tls(&mut AtOnce(&wire.socket)), Ok(1..)) {}
}

impl AsyncRead for TlsStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let is_client_of_ours = matches!(self.inner, tokio_rustls::TlsStream::Server(_));
        match Pin::new(&mut self.inner).poll_read(cx, buf) {
            // Many clients hang up without a word, and what they say mostly has its own framing. What an app has left out
            // is missing: an answer may have no other end than this (RFC 9112 §9.8).
            Poll::Ready(Err(error)) if is_client_of_ours && error.kind() == io::ErrorKind::UnexpectedEof => {
                Poll::Ready(Ok(()))
            }
            result => result,
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.farewell {
            return Pin::new(&mut self.inner).poll_shutdown(cx);
        }
        ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        Pin::new(&mut self.inner.get_mut().0.socket).poll_shutdown(cx)
    }
}

// === impl Wire ===

impl Wire {
    /// `ahead` is read before what the socket has.
    pub fn new(socket: TcpStream, ahead: Bytes) -> Self {
        Self { socket, ahead, records: Records::default() }
    }

    /// The socket, for the end after a handshake that failed.
    pub fn into_socket(self) -> TcpStream {
        self.socket
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            let before = buf.filled().len();
            ready!(Pin::new(&mut self.socket).poll_read(cx, buf))?;
            self.records.advance(&buf.filled()[before..]);
            return Poll::Ready(Ok(()));
        }
        let length = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..length]);
        let Self { ahead, records, .. } = &mut *self;
        records.advance(&ahead[..length]);
        ahead.advance(length);
        if self.ahead.is_empty() {
            // An empty slice would still hold the whole buffer.
            self.ahead = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        poll_write_parts(Pin::new(&mut self.socket), cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

// === impl Records ===

impl Records {
    fn advance(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.payload_left > 0 {
                let skipped = bytes.len().min(usize::from(self.payload_left));
                self.payload_left -= skipped as u16;
                bytes = &bytes[skipped..];
                continue;
            }
            let filled = usize::from(self.filled);
            let taken = bytes.len().min(self.head.len() - filled);
            self.head[filled..filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken as u8;
            bytes = &bytes[taken..];
            if usize::from(self.filled) == self.head.len() {
                self.filled = 0;
                self.payload_left = u16::from_be_bytes([self.head[3], self.head[4]]);
            }
        }
    }

    const fn is_inside(&self) -> bool {
        self.filled > 0 || self.payload_left > 0
    }
}

// === impl AtOnce ===

impl Write for AtOnce<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_of_two_records_is_inside_one_or_between_them() {
        let bytes = [&[23, 3, 3, 0, 3, 1, 2, 3][..], &[21, 3, 3, 0, 0], &[22, 3, 1, 1, 0], &[9; 256]].concat();
        let between = [0, 8, 13, 13 + 5 + 256];
        for cut in 0..=bytes.len() {
            let mut records = Records::default();
            records.advance(&bytes[..cut]);
            assert_eq!(records.is_inside(), !between.contains(&cut), "after {cut} bytes");
            records.advance(&bytes[cut..]);
            assert!(!records.is_inside());
        }
    }
}
