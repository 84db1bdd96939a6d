//! The app's bytes on their way to h2: looked at in passing, and empty DATA frames taken out.
//!
//! h2 ends a connection at the hundred-and-first DATA frame of its life that is empty and not the last of its stream
//! (RUSTSEC-2026-0258), with every stream that is open on it. Such a frame means nothing and takes no window, and there
//! are servers that flush with it, so h2 does not get to see it. One that is padded takes window and is left in.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connect::UpstreamIo;
use crate::detect::frames::FrameHead;

/// What the app's frames have shown.
#[derive(Debug, Default)]
pub struct Seen {
    frames: Cell<u32>,
    greeted: Cell<bool>,
    waits_for_greeting: RefCell<Option<Waker>>,
    not_http2: Cell<bool>,
    goaway: Cell<bool>,
}

/// A connection to the app, on loan to h2.
#[derive(Debug)]
pub struct WatchedIo {
    io: UpstreamIo,
    sieve: Sieve,
    seen: Rc<Seen>,
}

/// Takes the empty DATA frames out of a server's bytes, however they are cut.
#[derive(Debug, Default)]
struct Sieve {
    payload_left: u32,
    /// A head that has not come in full: what it is the head of is not known yet.
    held: [u8; FrameHead::LENGTH],
    filled: u8,
    /// How much of a full head in `held` has been handed on; all of it or nothing, most of the time.
    owed_from: Option<u8>,
}

// === impl Seen ===

impl Seen {
    /// The first bytes were no SETTINGS: something else is spoken there (RFC 9113 §3.4).
    pub fn is_not_http2(&self) -> bool {
        self.not_http2.get()
    }

    /// Ready when the app's first frame, its SETTINGS, has been handed on in full, or never will be.
    pub fn poll_greeted(&self, cx: &Context<'_>) -> Poll<()> {
        if self.greeted.get() {
            return Poll::Ready(());
        }
        self.waits_for_greeting.replace(Some(cx.waker().clone()));
        Poll::Pending
    }

    fn greeted(&self) {
        if !self.greeted.replace(true)
            && let Some(waker) = self.waits_for_greeting.take()
        {
            waker.wake();
        }
    }

    /// The app has said that it is leaving.
    pub fn has_said_goaway(&self) -> bool {
        self.goaway.get()
    }

    fn note(&self, head: FrameHead) {
        let frames = self.frames.get();
        self.frames.set(frames.saturating_add(1));
        if frames == 0 && head.kind != FrameHead::SETTINGS {
            self.not_http2.set(true);
        }
        if head.kind == FrameHead::GOAWAY {
            self.goaway.set(true);
        }
    }
}

// === impl WatchedIo ===

impl WatchedIo {
    /// Watches `io`; what is seen goes to `seen`.
    pub fn new(io: UpstreamIo, seen: Rc<Seen>) -> Self {
        Self { io, sieve: Sieve::default(), seen }
    }

    /// The rest of a head that was cut; false at the end of the connection.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let filled = usize::from(self.sieve.filled);
        let mut rest = ReadBuf::new(&mut self.sieve.held[filled..]);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut rest))?;
        let came = rest.filled().len();
        let seen = &self.seen;
        self.sieve.head_grew(came, |head| seen.note(head));
        Poll::Ready(Ok(came > 0))
    }
}

impl Drop for WatchedIo {
    fn drop(&mut self) {
        self.seen.greeted();
    }
}

impl AsyncRead for WatchedIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        // Nothing in the buffer would mean the end of the connection.
        while buf.filled().len() == before && buf.remaining() > 0 {
            if self.sieve.owes(buf) {
                continue;
            }
            if self.sieve.filled > 0 {
                // A head that is cut off by the end is no frame.
                if !ready!(self.poll_head(cx))? {
                    break;
                }
                continue;
            }
            ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
            let came = &mut buf.filled_mut()[before..];
            if came.is_empty() {
                break;
            }
            let Self { sieve, seen, .. } = &mut *self;
            let kept = sieve.pass(came, |head| seen.note(head));
            buf.set_filled(before + kept);
        }
        if self.seen.frames.get() > 1 || (self.seen.frames.get() == 1 && self.sieve.payload_left == 0) {
            self.seen.greeted();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WatchedIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

// === impl Sieve ===

impl Sieve {
    /// Closes the gaps in `bytes`; how many are left, counted from the front. Calls `each` for every head.
    fn pass(&mut self, bytes: &mut [u8], mut each: impl FnMut(FrameHead)) -> usize {
        let (mut at, mut kept) = (0, 0);
        while at < bytes.len() {
            let mut length = bytes.len().min(at + self.payload_left as usize) - at;
            if length > 0 {
                self.payload_left -= length as u32;
            } else if let Some(head) = bytes[at..].first_chunk() {
                length = FrameHead::LENGTH;
                if !self.begin(FrameHead::parse(head), &mut each) {
                    at += length;
                    continue;
                }
            } else {
                let cut = &bytes[at..];
                self.held[..cut.len()].copy_from_slice(cut);
                self.filled = cut.len() as u8;
                break;
            }
            if at > kept {
                bytes.copy_within(at..at + length, kept);
            }
            at += length;
            kept += length;
        }
        kept
    }

    /// So many more bytes of the head stand in `held`.
    fn head_grew(&mut self, by: usize, mut each: impl FnMut(FrameHead)) {
        self.filled += by as u8;
        if usize::from(self.filled) == FrameHead::LENGTH {
            self.filled = 0;
            let head = FrameHead::parse(&self.held);
            self.owed_from = self.begin(head, &mut each).then_some(0);
        }
    }

    /// Puts what is owed of a head into `buf`; false if nothing is.
    fn owes(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let Some(from) = self.owed_from else { return false };
        let owed = &self.held[usize::from(from)..];
        let length = owed.len().min(buf.remaining());
        buf.put_slice(&owed[..length]);
        self.owed_from = (length < owed.len()).then_some(from + length as u8);
        true
    }

    /// A frame begins; false if it is not handed on.
    fn begin(&mut self, head: FrameHead, each: &mut impl FnMut(FrameHead)) -> bool {
        each(head);
        self.payload_left = head.length;
        !head.is_empty_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.extend(payload);
        bytes
    }

    /// Bytes as they come, and as they are to be handed on.
    fn conversation() -> (Vec<u8>, Vec<u8>, usize) {
        const EMPTY: (u8, u8, &[u8]) = (FrameHead::DATA, 0, b"");
        let frames: [(u8, u8, &[u8]); 10] = [
            (FrameHead::SETTINGS, 0, &[0; 12]),
            EMPTY,
            EMPTY,
            (FrameHead::HEADERS, 4, b"head"),
            EMPTY,
            // Padded: five bytes of window.
            (FrameHead::DATA, 8, &[4, 0, 0, 0, 0]),
            // Looks like an empty frame inside.
            (FrameHead::DATA, 0, &[0; 20]),
            EMPTY,
            (FrameHead::DATA, 1, b""),
            EMPTY,
        ];
        let (mut all, mut kept) = (Vec::new(), Vec::new());
        for (kind, flags, payload) in frames {
            let bytes = frame(kind, flags, payload);
            if (kind, flags, payload) != EMPTY {
                kept.extend_from_slice(&bytes);
            }
            all.extend(bytes);
        }
        (all, kept, frames.len())
    }

    /// As `poll_read` does it, with a socket that has these pieces and a reader that takes `room` at once.
    fn sieved(pieces: &[&[u8]], room: usize) -> (Vec<u8>, usize) {
        let (mut sieve, mut out, mut heads) = (Sieve::default(), Vec::new(), 0);
        for piece in pieces {
            let mut piece = piece.to_vec();
            while !piece.is_empty() {
                if sieve.filled > 0 {
                    let filled = usize::from(sieve.filled);
                    let length = piece.len().min(FrameHead::LENGTH - filled);
                    sieve.held[filled..filled + length].copy_from_slice(&piece[..length]);
                    piece.drain(..length);
                    sieve.head_grew(length, |_| heads += 1);
                } else {
                    let mut front: Vec<u8> = piece.drain(..piece.len().min(room)).collect();
                    let kept = sieve.pass(&mut front, |_| heads += 1);
                    out.extend_from_slice(&front[..kept]);
                }
                loop {
                    let mut space = vec![0; room];
                    let mut buf = ReadBuf::new(&mut space);
                    if !sieve.owes(&mut buf) {
                        break;
                    }
                    out.extend_from_slice(buf.filled());
                }
            }
        }
        (out, heads)
    }

    #[test]
    fn empty_frames_go_wherever_the_bytes_are_cut() {
        let (all, kept, frames) = conversation();
        for cut in 0..=all.len() {
            for room in [1, 4, 9, 1000] {
                let (front, back) = all.split_at(cut);
                assert_eq!(sieved(&[front, back], room), (kept.clone(), frames), "cut at {cut}, room for {room}");
            }
        }
    }

    #[test]
    fn byte_by_byte_is_no_different() {
        let (all, kept, frames) = conversation();
        let pieces: Vec<&[u8]> = all.chunks(1).collect();
        assert_eq!(sieved(&pieces, 1), (kept, frames));
    }
}
