//! Bytes both ways between two streams, half-close kept: each direction ends with its own FIN.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Two streams and what is on its way between them.
#[derive(Debug)]
pub struct Relay<D, U> {
    downstream: D,
    upstream: U,
    to_upstream: Direction,
    to_downstream: Direction,
    moved: u64,
}

/// How a relay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Both directions have ended with FIN.
    Finished,
    /// One side broke.
    Broken,
    /// Stopped from outside.
    Killed,
}

#[derive(Debug)]
struct Direction {
    /// Read and not yet written.
    buffer: BytesMut,
    source: Source,
    fin_sent: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Open,
    /// It has sent FIN, or we have stopped listening to it.
    Ended,
}

/// Bytes of one direction in memory; more stays with the sender.
const BUFFER: usize = 16 * 1024;

// === impl Relay ===

impl<D, U> Relay<D, U>
where
    D: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    /// A relay that first passes on what has been read already.
    pub fn new(downstream: D, upstream: U, to_upstream: Bytes, to_downstream: Bytes) -> Self {
        Self {
            downstream,
            upstream,
            to_upstream: Direction::new(&to_upstream),
            to_downstream: Direction::new(&to_downstream),
            moved: 0,
        }
    }

    /// Bytes read so far, both ways.
    pub const fn moved(&self) -> u64 {
        self.moved
    }

    /// Nothing read is waiting to be written.
    pub fn is_empty(&self) -> bool {
        self.to_upstream.buffer.is_empty() && self.to_downstream.buffer.is_empty()
    }

    /// Reads no more; what was read goes out, then FIN both ways.
    pub fn finish(&mut self) {
        self.to_upstream.source = Source::Ended;
        self.to_downstream.source = Source::Ended;
    }

    /// The downstream half, when the relay has ended.
    pub fn into_downstream(self) -> D {
        self.downstream
    }

    /// Moves what can be moved; ready when both directions have ended or one has broken.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Flow> {
        let up = self.to_upstream.poll(&mut self.downstream, &mut self.upstream, &mut self.moved, cx);
        let down = self.to_downstream.poll(&mut self.upstream, &mut self.downstream, &mut self.moved, cx);
        match (up, down) {
            (Poll::Ready(Err(_)), _) | (_, Poll::Ready(Err(_))) => Poll::Ready(Flow::Broken),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Flow::Finished),
            _ => Poll::Pending,
        }
    }
}

// === impl Direction ===

impl Direction {
    fn new(first: &[u8]) -> Self {
        Self { buffer: BytesMut::from(first), source: Source::Open, fin_sent: false }
    }

    fn poll<R, W>(&mut self, from: &mut R, to: &mut W, moved: &mut u64, cx: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        // Bounded, so that one fast pair does not starve the other connections of the worker.
        for _ in 0..16 {
            while !self.buffer.is_empty() {
                let n = ready!(Pin::new(&mut *to).poll_write(cx, &self.buffer))?;
                if n == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.buffer.advance(n);
            }
            if self.source == Source::Ended {
                if !self.fin_sent {
                    ready!(Pin::new(&mut *to).poll_shutdown(cx))?;
                    self.fin_sent = true;
                }
                return Poll::Ready(Ok(()));
            }
            self.buffer.resize(BUFFER, 0);
            let mut read = ReadBuf::new(&mut self.buffer);
            let result = Pin::new(&mut *from).poll_read(cx, &mut read);
            let n = read.filled().len();
            self.buffer.truncate(n);
            match result {
                Poll::Ready(Ok(())) if n == 0 => self.source = Source::Ended,
                Poll::Ready(Ok(())) => *moved += n as u64,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    // An idle relay keeps no buffer.
                    self.buffer = BytesMut::new();
                    return Poll::Pending;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
