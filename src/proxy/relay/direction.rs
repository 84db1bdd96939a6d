//! One direction of a relay: what is read on one side and written to the other.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::Interest;

use super::gear::{Gear, Pipe};
use super::side::Side;
use crate::proxy::boundary::Boundary;
use crate::proxy::websocket::frames::Frames;

/// Bytes on their way one way.
#[derive(Debug, Default)]
pub struct Direction {
    /// Read, or put in by us, and not yet written.
    kept: BytesMut,
    /// Where a WebSocket's frames stand; `None` for opaque bytes.
    frames: Option<Frames>,
    fate: Fate,
    source: Source,
    fin: Fin,
    /// A pipe with bytes in it, or one that is about to get some.
    pipe: Option<Pipe>,
    /// What was written has not left yet: TLS keeps some of it back.
    behind: bool,
    /// The latest read was large.
    bulk: bool,
    /// The kernel moves the next bytes: since a large read, until a wake-up begins with a small one. The last piece of
    /// something large is small, and what follows it often as large again.
    by_kernel: bool,
    broken: bool,
    /// What TLS has to say against the side that is read.
    fault: Option<io::Error>,
    /// Nobody is there to write to any more.
    target_gone: bool,
    /// The Close was ours.
    put_in: bool,
    moved: u64,
    written: u64,
}

/// What becomes of what is read.
#[derive(Debug, Default)]
enum Fate {
    #[default]
    Pass,
    /// Passed up to the end of the frame that is open, then this.
    EndsWith(Bytes),
    Dropped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Source {
    #[default]
    Open,
    /// It has sent FIN, or has broken, or we have stopped listening to it.
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Fin {
    /// Follows the source's end.
    #[default]
    Follows,
    /// Is ours to send.
    Held,
    /// Goes out as soon as everything is written.
    Due,
    Sent,
}

/// Reads before other connections have their turn.
const TURNS: u32 = 16;
/// A read of this length says that more is coming.
const LARGE: usize = 16 * 1024;

// === impl Direction ===

impl Direction {
    /// Opaque bytes, of which `first` has been read already.
    pub fn opaque(first: &[u8]) -> Self {
        Self { kept: BytesMut::from(first), ..Self::default() }
    }

    /// Frames of a WebSocket; the last word is [`Self::hang_up`]'s if `holds_fin`.
    pub fn framed(first: &[u8], holds_fin: bool) -> Self {
        let mut frames = Frames::default();
        frames.advance(first);
        let fin = if holds_fin { Fin::Held } else { Fin::Follows };
        Self { frames: Some(frames), fin, ..Self::opaque(first) }
    }

    /// Bytes read so far.
    pub const fn moved(&self) -> u64 {
        self.moved
    }

    /// Nothing waits to be written.
    pub fn is_empty(&self) -> bool {
        !self.behind && self.kept.is_empty() && self.pipe.as_ref().is_none_or(|pipe| pipe.held() == 0)
    }

    /// The latest read was large: a transfer, of which more may follow.
    pub const fn is_bulk(&self) -> bool {
        self.bulk
    }

    /// Bytes that the other side has taken so far.
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Nothing more will be read.
    pub fn has_ended(&self) -> bool {
        self.source == Source::Ended
    }

    /// Nothing more will happen.
    pub fn is_done(&self) -> bool {
        self.has_ended() && self.is_fin_sent()
    }

    /// FIN is out, or can't be.
    pub fn is_fin_sent(&self) -> bool {
        self.fin == Fin::Sent
    }

    /// One of the two sides broke.
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    /// The side that is read broke.
    pub const fn is_source_broken(&self) -> bool {
        self.broken && !self.target_gone
    }

    /// An alert of the side that is read, or nonsense: it has not ended for no reason.
    pub const fn fault(&self) -> Option<&io::Error> {
        self.fault.as_ref()
    }

    /// No frames are followed.
    pub const fn is_opaque(&self) -> bool {
        self.frames.is_none()
    }

    /// What is written reaches nobody.
    pub const fn is_target_gone(&self) -> bool {
        self.target_gone
    }

    /// A Close frame has been passed on, or put in.
    pub fn has_closed(&self) -> bool {
        self.frames.as_ref().is_some_and(Frames::has_closed)
    }

    /// The Close was ours.
    pub const fn has_put_in(&self) -> bool {
        self.put_in
    }

    /// Not frames after all: nothing can be put in.
    pub fn is_lost(&self) -> bool {
        self.frames.as_ref().is_none_or(Frames::is_lost)
    }

    /// Nothing of a frame is on its way.
    pub fn at_boundary(&self) -> bool {
        matches!(self.fate, Fate::Pass) && self.frames.as_ref().is_some_and(Frames::at_boundary)
    }

    /// This Close frame is the last that is written: at once, or when the frame that is open has ended. What is read
    /// behind it is dropped, so that the sender never has to wait.
    pub fn end_with(&mut self, close: Bytes) {
        if self.at_boundary() {
            self.put(&close);
        } else {
            self.fate = Fate::EndsWith(close);
        }
    }

    fn put(&mut self, close: &[u8]) {
        self.kept.extend_from_slice(close);
        self.put_in = true;
        if let Some(frames) = &mut self.frames {
            frames.advance(close);
        }
        self.fate = Fate::Dropped;
    }

    /// What is read from now on is dropped.
    pub fn drop_the_rest(&mut self) {
        self.fate = Fate::Dropped;
    }

    /// FIN when all is written, whether the source goes on or not. True if that is news.
    pub fn hang_up(&mut self) -> bool {
        let news = matches!(self.fin, Fin::Follows | Fin::Held);
        if news {
            self.fin = Fin::Due;
        }
        news
    }

    /// Reads no more; what was read goes out, then FIN.
    pub fn finish(&mut self) {
        self.source = Source::Ended;
        let _ = self.hang_up();
    }

    /// Moves what can be moved; ready when this direction is done.
    pub fn poll(&mut self, from: &mut Side, to: &mut Side, gear: &Gear, cx: &mut Context<'_>) -> Poll<()> {
        for turn in 0..TURNS {
            let flushed = self.flush(to, cx);
            let drops = matches!(self.fate, Fate::Dropped);
            if flushed.is_pending() && !drops {
                return Poll::Pending;
            }
            if flushed.is_ready() && (self.fin == Fin::Due || (self.fin == Fin::Follows && self.has_ended())) {
                self.shut_down(to, cx);
            }
            if self.has_ended() {
                return if self.is_done() { Poll::Ready(()) } else { Poll::Pending };
            }
            let by_kernel = self.by_kernel && self.is_opaque() && from.is_socket() && to.is_socket();
            if by_kernel && self.pipe.is_none() {
                self.pipe = gear.pipe();
            }
            let moved = match self.pipe.take() {
                Some(pipe) if by_kernel => self.splice(pipe, from, gear, cx),
                Some(pipe) => {
                    gear.give_back(pipe);
                    self.copy(from, to, gear, cx)
                }
                None => self.copy(from, to, gear, cx),
            };
            ready!(moved);
            if self.bulk || turn == 0 {
                self.by_kernel = self.bulk;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn copy(&mut self, from: &mut Side, to: &mut Side, gear: &Gear, cx: &mut Context<'_>) -> Poll<()> {
        gear.with_buffer(|buffer| {
            match ready!(from.poll_read(cx, buffer)) {
                Ok(0) => self.source = Source::Ended,
                Ok(n) => {
                    self.moved += n as u64;
                    self.bulk = n >= LARGE;
                    let (passed, last) = self.pass(&buffer[..n]);
                    let unwritten = self.write(&buffer[..passed], to, cx);
                    self.kept.extend_from_slice(&buffer[passed - unwritten..passed]);
                    if let Some(close) = last {
                        self.put(&close);
                    }
                }
                Err(error) => {
                    self.fault = Some(error).filter(|error| error.kind() == io::ErrorKind::InvalidData);
                    self.break_off();
                }
            }
            Poll::Ready(())
        })
    }

    /// How many of the bytes just read are passed on, and what ends them.
    fn pass(&mut self, bytes: &[u8]) -> (usize, Option<Bytes>) {
        let passed = match (&self.fate, &mut self.frames) {
            (Fate::EndsWith(close), Some(frames)) => {
                let close = close.clone();
                let Some(end) = frames.advance_to_boundary(bytes) else { return (bytes.len(), None) };
                if frames.has_closed() {
                    // The frame that was open was a Close itself.
                    self.fate = Fate::Dropped;
                    return (end, None);
                }
                return (end, Some(close));
            }
            (Fate::Dropped, _) => 0,
            (Fate::Pass | Fate::EndsWith(_), _) => bytes.len(),
        };
        // Behind a Close nothing counts, and of a read that was cut the frames would not know the rest.
        if let Some(frames) = self.frames.as_mut().filter(|frames| !frames.has_closed()) {
            frames.advance(bytes);
        }
        (passed, None)
    }

    /// Writes directly; how many bytes would not go.
    fn write(&mut self, bytes: &[u8], to: &mut Side, cx: &mut Context<'_>) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() {
            match to.poll_write(cx, rest) {
                Poll::Ready(Ok(n)) if n > 0 => {
                    self.written += n as u64;
                    rest = &rest[n..];
                }
                Poll::Ready(_) => {
                    self.give_up();
                    return 0;
                }
                Poll::Pending => break,
            }
        }
        rest.len()
    }

    /// Everything that was read before goes out.
    fn flush(&mut self, to: &mut Side, cx: &mut Context<'_>) -> Poll<()> {
        let flushed = self.write_out(to, cx);
        self.behind = flushed.is_pending();
        flushed
    }

    fn write_out(&mut self, to: &mut Side, cx: &mut Context<'_>) -> Poll<()> {
        while !self.kept.is_empty() {
            match ready!(to.poll_write(cx, &self.kept)) {
                Ok(n) if n > 0 => {
                    self.written += n as u64;
                    self.kept.advance(n);
                }
                _ => self.give_up(),
            }
        }
        if self.kept.capacity() > 0 {
            // An idle relay keeps no buffer.
            self.kept = BytesMut::new();
        }
        while let Some(pipe) = self.pipe.as_mut().filter(|pipe| pipe.held() > 0) {
            match ready!(to.poll_io(Interest::WRITABLE, cx, |socket| pipe.empty(socket))) {
                Ok(n) if n > 0 => self.written += n as u64,
                _ => self.give_up(),
            }
        }
        if !self.target_gone && ready!(to.poll_flush(cx)).is_err() {
            self.give_up();
        }
        Poll::Ready(())
    }

    /// The kernel moves the bytes, through a pipe that goes back as soon as nothing more is there. The next flush takes
    /// them on.
    fn splice(&mut self, mut pipe: Pipe, from: &Side, gear: &Gear, cx: &mut Context<'_>) -> Poll<()> {
        match from.poll_io(Interest::READABLE, cx, |socket| pipe.fill(socket)) {
            Poll::Ready(Ok(n)) if n > 0 => {
                self.moved += n as u64;
                self.bulk = n >= LARGE;
                self.pipe = Some(pipe);
                return Poll::Ready(());
            }
            Poll::Ready(Ok(_)) => self.source = Source::Ended,
            Poll::Ready(Err(_)) => self.break_off(),
            Poll::Pending => {
                gear.give_back(pipe);
                return Poll::Pending;
            }
        }
        gear.give_back(pipe);
        Poll::Ready(())
    }

    fn shut_down(&mut self, to: &mut Side, cx: &mut Context<'_>) {
        if self.is_opaque() && self.is_source_broken() {
            // Nothing in these bytes says where they end: what was cut must not look whole.
            to.no_farewell();
        }
        match to.poll_shutdown(cx) {
            Poll::Ready(result) => {
                self.fin = Fin::Sent;
                if result.is_err() {
                    self.give_up();
                }
            }
            Poll::Pending => {}
        }
    }

    /// The side that is read broke; what it had sent goes on its way.
    fn break_off(&mut self) {
        self.source = Source::Ended;
        self.broken = true;
    }

    /// The side that is written to is gone. What the other side still says is read, so that it can come to its end.
    fn give_up(&mut self) {
        self.kept.clear();
        self.pipe = None;
        self.behind = false;
        self.broken = true;
        self.target_gone = true;
        self.fin = Fin::Sent;
        self.fate = Fate::Dropped;
    }
}
