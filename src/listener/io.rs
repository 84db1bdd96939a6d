//! The downstream connection as hyper sees it: bytes already read come first, and the connection's state is kept true.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::conn::{Conn, Doing};
use crate::tls::stream::TlsStream;
use crate::transport::Transport;

/// A downstream connection with what was read ahead of its reader.
#[derive(Debug)]
pub struct Io {
    transport: Transport,
    ahead: Bytes,
    /// A head was taken to have begun, and nothing of it could be read yet.
    guessed: bool,
    conn: Rc<Conn>,
}

/// Which framing headers the head's bytes have shown (hyper drops Content-Length beside Transfer-Encoding).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Framing {
    /// The whole head was seen in one piece, from its first byte on.
    pub whole: bool,
    /// `Content-Length` stands in it.
    pub content_length: bool,
    /// `Transfer-Encoding` stands in it.
    pub transfer_encoding: bool,
}

/// Most bytes read to tell protocols apart; the rest stays in the kernel.
const FIRST_READ: usize = 8192;

// === impl Io ===

impl Io {
    /// Wraps an accepted connection. Boxed, since it is handed on from one to the next, and each would keep the space.
    pub fn new(transport: Transport, conn: Rc<Conn>) -> Box<Self> {
        Box::new(Self { transport, ahead: Bytes::new(), guessed: false, conn })
    }

    /// Puts back everything that was read since the end of the last request: it is read next.
    pub fn put_back(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            // It may still hold the whole buffer that it was cut from.
            return;
        }
        self.conn.head_began();
        self.conn.framing.set(scan(&bytes));
        self.ahead = if self.ahead.is_empty() { bytes } else { [bytes, self.take_ahead()].concat().into() };
    }

    /// What carries it, for options.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// What carries it, past everything that is kept here.
    pub fn transport_mut(&mut self) -> &mut Transport {
        &mut self.transport
    }

    /// What carries it, and what was put back and not read yet.
    pub fn into_parts(self) -> (Transport, Bytes) {
        (self.transport, self.ahead)
    }

    /// Reads some bytes behind those in `read`, which gets no larger than it must.
    ///
    /// # Errors
    /// As the connection gives them.
    pub fn poll_more(&mut self, cx: &mut Context<'_>, read: &mut BytesMut) -> Poll<io::Result<usize>> {
        let mut buffer = [MaybeUninit::uninit(); FIRST_READ];
        let mut buffer = ReadBuf::uninit(&mut buffer);
        ready!(self.poll_transport(cx, &mut buffer))?;
        self.guessed = false;
        read.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    }

    fn poll_transport(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.transport).poll_read(cx, buf);
        if polled.is_pending() && self.transport.tls().is_some_and(TlsStream::is_mid_record) {
            // Half a record is in TLS's own buffer, where nobody sees it.
            if self.conn.doing.get() == Doing::Idle {
                self.conn.head_began();
                self.guessed = true;
            }
        } else if polled.is_pending() && std::mem::take(&mut self.guessed) {
            // It was one of TLS's own.
            self.conn.set_doing(Doing::Idle);
        }
        polled
    }

    /// What was put back and not read yet.
    pub fn take_ahead(&mut self) -> Bytes {
        std::mem::take(&mut self.ahead)
    }
}

impl AsyncRead for Io {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let n = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead[..n]);
            self.ahead.advance(n);
            if self.ahead.is_empty() {
                // An empty slice would still hold the whole buffer, for as long as hyper has the connection.
                self.ahead = Bytes::new();
            }
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(self.poll_transport(cx, buf))?;
        let fresh = &buf.filled()[before..];
        if fresh.is_empty() {
            self.conn.eof.set(true);
        } else if std::mem::take(&mut self.guessed) {
            self.conn.framing.set(scan(fresh));
        } else {
            note_head(&self.conn, fresh);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.conn.flushed.set(false);
        Pin::new(&mut self.transport).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.conn.flushed.set(false);
        Pin::new(&mut self.transport).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    /// hyper flushes the socket only when its own buffer is empty, so this is where everything has been handed over.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.transport).poll_flush(cx))?;
        self.conn.flushed.set(true);
        self.conn.tail.take();
        Poll::Ready(Ok(()))
    }

    /// Nothing: the end of a connection is ours, not hyper's (see [`super::linger`]).
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Bytes that came between two requests are a head: remember when it began and what framing it claims.
fn note_head(conn: &Conn, bytes: &[u8]) {
    match conn.doing.get() {
        Doing::Idle => {
            conn.head_began();
            conn.framing.set(scan(bytes));
        }
        Doing::Head => {
            // A head in pieces: what both pieces show, but it is no longer whole.
            let seen = match bytes {
                // The end of a line or of the head: behind it may be the body, which must not be taken for a head.
                [b'\r' | b'\n', ..] => Framing::default(),
                bytes => scan(bytes),
            };
            let before = conn.framing.get();
            conn.framing.set(Framing {
                whole: false,
                content_length: before.content_length || seen.content_length,
                transfer_encoding: before.transfer_encoding || seen.transfer_encoding,
            });
        }
        Doing::Exchange | Doing::Http2 | Doing::Relay | Doing::Lingering => {}
    }
}

/// Looks for the two framing headers in the first head of `bytes`.
fn scan(bytes: &[u8]) -> Framing {
    let mut framing = Framing::default();
    // Empty lines before the request line are skipped, as the parser does (RFC 9112 §2.2).
    let start = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(bytes.len());
    let bytes = &bytes[start..];
    for end in memchr::memchr_iter(b'\n', bytes) {
        let rest = &bytes[end + 1..];
        match rest.first() {
            Some(b'\r' | b'\n') => {
                framing.whole = true;
                return framing;
            }
            Some(b'c' | b'C') => framing.content_length |= names(rest, b"content-length"),
            Some(b't' | b'T') => framing.transfer_encoding |= names(rest, b"transfer-encoding"),
            Some(_) | None => {}
        }
    }
    framing
}

fn names(line: &[u8], name: &[u8]) -> bool {
    line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
        && line.get(name.len()).is_some_and(|next| matches!(next, b':' | b' ' | b'\t'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framing(whole: bool, content_length: bool, transfer_encoding: bool) -> Framing {
        Framing { whole, content_length, transfer_encoding }
    }

    #[test]
    fn both_framing_headers_are_found_in_any_case_and_order() {
        let head = b"POST / HTTP/1.1\r\nhost: a\r\nContent-LENGTH: 3\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(scan(head), framing(true, true, true));
        let head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nhost: a\r\ncontent-length: 3\r\n\r\n";
        assert_eq!(scan(head), framing(true, true, true));
    }

    #[test]
    fn a_body_or_a_second_head_is_not_looked_at() {
        let head = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\ncontent-length: 9\r\n";
        assert_eq!(scan(head), framing(true, false, true));
    }

    #[test]
    fn empty_lines_before_a_head_are_not_its_end() {
        for blank in ["\r\n", "\r\n\r\n", "\n\n"] {
            let head = format!("{blank}POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n");
            assert_eq!(scan(head.as_bytes()), framing(true, true, true));
        }
        assert_eq!(scan(b"\r\n\r\n"), framing(false, false, false));
    }

    #[test]
    fn half_a_head_is_not_whole() {
        assert_eq!(scan(b"POST / HTTP/1.1\r\ncontent-length: 3\r\n"), framing(false, true, false));
        assert_eq!(scan(b"POST"), framing(false, false, false));
    }

    #[test]
    fn a_longer_name_is_another_header() {
        let head = b"GET / HTTP/1.1\r\ncontent-length-x: 3\r\ntransfer-encodings: no\r\n\r\n";
        assert_eq!(scan(head), framing(true, false, false));
    }
}
