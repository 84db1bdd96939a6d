//! Owns the bytes below a WebSocket client: a TCP connection, or a stream of an HTTP/2 connection.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::harness::SOON;
use crate::harness::client::{Ending, Failure};
use crate::harness::h2::RawH2;
use crate::harness::tls::Socket;
use crate::harness::wait::Mono;

/// Reads at most so many bytes, then waits; the socket's buffer is as small.
pub(super) type Pace = (usize, Duration);

#[derive(Debug)]
pub(super) enum Transport {
    Tcp(Tcp),
    Http2(Http2),
}

#[derive(Debug)]
pub(super) struct Tcp {
    stream: Socket,
    /// What waits for the socket: a write that blocked reading could lock both peers.
    output: Vec<u8>,
    pace: Option<Pace>,
    reads_again: Mono,
    /// A failed write has met the reset; a read would see a clean end.
    reset: bool,
}

#[derive(Debug)]
pub(super) struct Http2 {
    raw: Box<RawH2>,
    stream: u32,
    /// How much of the stream's body has been read.
    taken: usize,
}

// === impl Transport ===

impl Transport {
    /// Queued, and written as far as the peer takes it; the rest leaves while reading.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Tcp(tcp) => {
                tcp.output.extend_from_slice(bytes);
                tcp.try_flush();
                Ok(())
            }
            Self::Http2(http2) => http2.send(bytes).await,
        }
    }

    /// 0 is the peer's end; may be abandoned and called again.
    pub(super) async fn read(&mut self, into: &mut Vec<u8>) -> Result<usize, Failure> {
        match self {
            Self::Tcp(tcp) => tcp.read(into).await,
            Self::Http2(http2) => http2.read(into).await,
        }
    }

    /// Our end, after the peer's: FIN, or END_STREAM.
    pub(super) async fn finish(&mut self) {
        match self {
            Self::Tcp(tcp) => {
                let _ = tcp.stream.shutdown().await;
            }
            Self::Http2(http2) => {
                let _ = http2.raw.data(http2.stream, b"", true).await;
            }
        }
    }

    /// How an end came that [`Self::read`] has told.
    pub(super) fn ending(&self, end: &Result<usize, Failure>) -> Ending {
        match (self, end) {
            (_, Err(Failure::Timeout)) => Ending::StillOpen,
            (Self::Tcp(tcp), Ok(_)) if tcp.reset => Ending::Reset,
            (Self::Tcp(tcp), _) => tcp.stream.ending(),
            (Self::Http2(_), Ok(_)) => Ending::Fin,
            (Self::Http2(_), Err(_)) => Ending::Reset,
        }
    }
}

// === impl Tcp ===

impl Tcp {
    pub(super) const fn new(stream: Socket, pace: Option<Pace>) -> Self {
        Self { stream, output: Vec::new(), pace, reads_again: Mono::from_nanos(0), reset: false }
    }

    async fn read(&mut self, into: &mut Vec<u8>) -> Result<usize, Failure> {
        loop {
            let (stream, resumes) = (&self.stream, self.reads_again);
            let readable = async {
                resumes.reached().await;
                stream.readable().await
            };
            tokio::select! {
                ready = readable => ready?,
                ready = stream.writable(), if !self.output.is_empty() => {
                    ready?;
                    self.try_flush();
                    continue;
                }
            }
            let mut buffer = vec![0; self.pace.map_or(READ_SIZE, |(bytes, _)| bytes)];
            match self.stream.try_read(&mut buffer) {
                Ok(read) => {
                    into.extend_from_slice(&buffer[..read]);
                    if let Some((_, pause)) = self.pace {
                        self.reads_again = Mono::now() + pause;
                    }
                    return Ok(read);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn try_flush(&mut self) {
        while !self.output.is_empty() {
            match self.stream.try_write(&self.output) {
                Ok(written) => drop(self.output.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // A peer that no longer reads may still be read.
                Err(_) => {
                    self.reset = true;
                    self.output.clear();
                }
            }
        }
    }
}

// === impl Http2 ===

impl Http2 {
    pub(super) fn new(raw: RawH2, stream: u32) -> Self {
        Self { raw: Box::new(raw), stream, taken: 0 }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let mut left = bytes;
        while !left.is_empty() && self.raw.seen.answer(self.stream).reset.is_none() {
            let room = self.raw.seen.may_send(self.stream).min(MAX_DATA).min(left.len());
            if room == 0 {
                self.raw.next(SOON).await?;
                continue;
            }
            let (piece, rest) = left.split_at(room);
            left = rest;
            self.raw.data(self.stream, piece, false).await?;
        }
        Ok(())
    }

    async fn read(&mut self, into: &mut Vec<u8>) -> Result<usize, Failure> {
        loop {
            let answer = self.raw.seen.answers.entry(self.stream).or_default();
            let read = answer.body.len() - self.taken;
            if read > 0 {
                into.extend_from_slice(&answer.body[self.taken..]);
                self.taken += read;
                return Ok(read);
            }
            if answer.reset.is_some() {
                return Err(Failure::Reset);
            }
            if answer.ended {
                return Ok(0);
            }
            self.raw.next(FOREVER).await?;
        }
    }
}

const READ_SIZE: usize = 64 * 1024;
const MAX_DATA: usize = 16_384;
const FOREVER: Duration = Duration::from_secs(24 * 3600);
