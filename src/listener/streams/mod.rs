//! What is known of an HTTP/2 connection beside what every connection has: its open streams, how far its farewell is.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use super::conn::Ask;
use super::long::{Kind, Long};
use crate::detect::frames::{FrameHead, Frames};
use crate::lifecycle::Counted;
use crate::lifecycle::machine::Snapshot;
use crate::lifecycle::tick::Tick;
use crate::upstream::multiplex::Near;

/// The HTTP/2 side of a connection.
#[derive(Debug)]
pub struct Http2 {
    /// Where the client's bytes stand.
    frames: RefCell<Frames>,
    /// When the header block that is open now began.
    block_since: Cell<Option<Tick>>,
    /// When the first GOAWAY was handed to h2.
    told_at: Cell<Option<Tick>>,
    ack: Cell<Ack>,
    /// The notice does not wait for a moment without open streams any more.
    insists: Cell<bool>,
    resets: Resets,
    /// Where its latest stream went.
    pub near: Near,
    streams: RefCell<Vec<Rc<Stream>>>,
}

/// One exchange, as the sweep sees it.
#[derive(Debug)]
pub struct Stream {
    slot: Cell<usize>,
    /// Its moment in every window.
    pub share: f32,
    asked: Cell<Ask>,
    asked_since: Cell<Tick>,
    /// It may go on for ever, and can be ended in good order.
    pub long: Cell<Option<Long>>,
    /// The response is over, and not because all was said: the request's body is wanted no more.
    abandoned: Cell<bool>,
    response: RefCell<Option<Waker>>,
    request: RefCell<Option<Waker>>,
    _open: Option<Counted>,
}

/// The acknowledgement of h2's PING between the two GOAWAYs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ack {
    /// From the client; whether it has come is between the two of them.
    Awaited,
    /// The client had its time: h2 gets it from us at the next boundary.
    Owed,
    /// h2 has it.
    PutIn,
}

/// Streams opened and streams reset by the client, within one second.
#[derive(Debug, Default)]
struct Resets {
    since: Cell<Tick>,
    opened: Cell<u32>,
    reset: Cell<u32>,
}

/// Which half of an exchange waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// The request's body on its way to the app.
    Request,
    /// The response, or the wait for it.
    Response,
}

/// A PING is acknowledged within one round trip; whoever takes longer than this never will.
pub const ACK_TIMER: Duration = Duration::from_secs(1);
/// How long a gRPC message may go on after its stream was asked to end.
const MESSAGE_END: Duration = Duration::from_millis(500);
/// More resets than this in one second, and more than half of the streams opened in it, are no client's work.
const MOST_RESETS: u32 = 1000;

// === impl Http2 ===

impl Http2 {
    /// A connection whose preface has not been handed over yet.
    pub fn new() -> Self {
        Self {
            frames: RefCell::new(Frames::from_client()),
            block_since: Cell::new(None),
            told_at: Cell::new(None),
            ack: Cell::new(Ack::Awaited),
            insists: Cell::new(false),
            resets: Resets::default(),
            near: Near::default(),
            streams: RefCell::default(),
        }
    }

    /// The client's next bytes are on their way to h2.
    pub fn read(&self, bytes: &[u8], now: Tick) {
        let mut frames = self.frames.borrow_mut();
        frames.advance(bytes, |head| match head.kind {
            FrameHead::HEADERS => self.resets.opened(now),
            FrameHead::RST_STREAM => self.resets.reset(),
            _ => {}
        });
        if frames.is_in_block() {
            if self.block_since.get().is_none() {
                self.block_since.set(Some(now));
            }
        } else {
            self.block_since.set(None);
        }
    }

    /// The acknowledgement has to be put in here, between two of the client's frames. True once.
    pub fn take_owed_ack(&self) -> bool {
        let now = self.is_stuck() && self.frames.borrow().at_boundary();
        if now {
            self.ack.set(Ack::PutIn);
        }
        now
    }

    /// More of the client's streams are reset than a client has reason to.
    pub fn floods(&self) -> bool {
        self.resets.floods()
    }

    /// A header block has been open for `longest`.
    pub fn is_block_late(&self, longest: Duration, now: Tick) -> bool {
        self.block_since.get().is_some_and(|since| now.since(since) >= longest)
    }

    /// The notice need not wait until nothing is open.
    pub fn insists(&self) -> bool {
        self.insists.get()
    }

    /// Tell now, whatever is open. True if that is news.
    pub fn insist(&self) -> bool {
        !self.insists.replace(true)
    }

    /// The first GOAWAY is out.
    pub fn told(&self, now: Tick) {
        self.told_at.set(Some(now));
    }

    /// When the first GOAWAY went out.
    pub fn told_at(&self) -> Option<Tick> {
        self.told_at.get()
    }

    /// The client had its time: its acknowledgement is taken as read. True if that is news.
    pub fn ack_overdue(&self) -> bool {
        let news = self.ack.get() == Ack::Awaited;
        if news {
            self.ack.set(Ack::Owed);
        }
        news
    }

    /// The acknowledgement could not be put in: the client has stopped in the middle of a frame, or reads nothing.
    pub fn is_stuck(&self) -> bool {
        self.ack.get() == Ack::Owed
    }

    /// Nothing of ours is under way; h2 may still wait for the client to take the end of it.
    pub fn is_settled(&self) -> bool {
        self.streams.borrow().is_empty()
    }

    /// A stream with a moment of its own.
    pub fn open(&self, share: f32, now: Tick, open: Option<Counted>) -> Rc<Stream> {
        let mut streams = self.streams.borrow_mut();
        let stream = Rc::new(Stream {
            slot: Cell::new(streams.len()),
            share,
            asked: Cell::new(Ask::NOTHING),
            asked_since: Cell::new(now),
            long: Cell::new(None),
            abandoned: Cell::new(false),
            response: RefCell::new(None),
            request: RefCell::new(None),
            _open: open,
        });
        streams.push(Rc::clone(&stream));
        stream
    }

    /// The last part of an exchange is over. True if it was the last stream.
    pub fn close(&self, stream: &Stream) -> bool {
        let mut streams = self.streams.borrow_mut();
        let slot = stream.slot.get();
        if slot < streams.len() {
            streams.swap_remove(slot);
            if let Some(moved) = streams.get(slot) {
                moved.slot.set(slot);
            }
        }
        streams.is_empty()
    }

    /// Asks every stream for what it is time for.
    pub fn sweep_streams(&self, snapshot: &Snapshot, now: Tick) {
        for stream in self.streams.borrow().iter() {
            stream.ask(stream.due(snapshot, now), now);
        }
    }
}

impl Default for Http2 {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Stream ===

impl Stream {
    fn due(&self, snapshot: &Snapshot, now: Tick) -> Ask {
        if snapshot.force_at.is_some_and(|at| now >= at) {
            return Ask::FORCE;
        }
        let Some(long) = self.long.get() else { return Ask::NOTHING };
        let out_of_patience = self.asked.get() == Ask::CLOSE && now.since(self.asked_since.get()) >= MESSAGE_END;
        match long.due(self.share, snapshot, now) {
            Ask::CLOSE if long.kind == Kind::Call && out_of_patience => Ask::FORCE,
            ask => ask,
        }
    }

    fn ask(&self, ask: Ask, now: Tick) {
        if ask > self.asked.get() {
            self.asked.set(ask);
            self.asked_since.set(now);
            self.wake();
        }
    }

    /// What the sweep has asked.
    pub fn asked(&self) -> Ask {
        self.asked.get()
    }

    /// The response is over before all was said.
    pub fn abandon(&self) {
        self.abandoned.set(true);
        self.wake();
    }

    /// See [`Self::abandon`].
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.get()
    }

    /// Remembers whom to wake on the next ask; the halves of an exchange run in tasks of their own.
    pub fn wake_with(&self, half: Half, waker: &Waker) {
        let slot = match half {
            Half::Request => &self.request,
            Half::Response => &self.response,
        };
        let mut slot = slot.borrow_mut();
        if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }

    fn wake(&self) {
        for slot in [&self.request, &self.response] {
            if let Some(waker) = slot.borrow_mut().take() {
                waker.wake();
            }
        }
    }
}

// === impl Resets ===

impl Resets {
    fn opened(&self, now: Tick) {
        if now.since(self.since.get()) >= Duration::from_secs(1) {
            self.since.set(now);
            self.opened.set(0);
            self.reset.set(0);
        }
        self.opened.set(self.opened.get() + 1);
    }

    fn reset(&self) {
        self.reset.set(self.reset.get() + 1);
    }

    fn floods(&self) -> bool {
        self.reset.get() > MOST_RESETS && self.reset.get() > self.opened.get() / 2
    }
}

#[cfg(test)]
mod tests;
