//! Bytes both ways between two sides, half-close kept: each direction ends with its own FIN.

pub mod direction;
pub mod gear;
pub mod side;

use std::task::{Context, Poll};

pub use self::direction::Direction;
pub use self::gear::Gear;
pub use self::side::Side;

/// Two sides and what is on its way between them.
#[derive(Debug)]
pub struct Relay {
    downstream: Side,
    upstream: Side,
    /// From the client to the app.
    pub up: Direction,
    /// From the app to the client.
    pub down: Direction,
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

// === impl Relay ===

impl Relay {
    /// A relay between two sides.
    pub fn new(downstream: impl Into<Side>, upstream: impl Into<Side>, up: Direction, down: Direction) -> Self {
        Self { downstream: downstream.into(), upstream: upstream.into(), up, down }
    }

    /// Bytes read from the client and from the app, and written to either of them.
    pub const fn stand(&self) -> (u64, u64, u64) {
        (self.up.moved(), self.down.moved(), self.up.written() + self.down.written())
    }

    /// Nothing read is waiting to be written.
    pub fn is_empty(&self) -> bool {
        self.up.is_empty() && self.down.is_empty()
    }

    /// One side has sent FIN, and the other has not.
    pub fn is_half_closed(&self) -> bool {
        self.up.has_ended() != self.down.has_ended()
    }

    /// Reads no more; what was read goes out, then FIN both ways.
    pub fn finish(&mut self) {
        self.up.finish();
        self.down.finish();
    }

    /// Was stopped with bytes on their way: neither side may take what it got for the whole.
    pub fn cut_off(&mut self) {
        self.downstream.no_farewell();
        self.upstream.no_farewell();
    }

    /// One side broke: the other one must not take what it got for the whole, unless it is.
    pub fn cut_off_what_is_missing(&mut self) {
        let is_whole = |direction: &Direction| direction.is_done() && !direction.is_broken();
        if !is_whole(&self.down) {
            self.downstream.no_farewell();
        }
        if !is_whole(&self.up) {
            self.upstream.no_farewell();
        }
    }

    /// The downstream side.
    pub const fn downstream(&self) -> &Side {
        &self.downstream
    }

    /// The downstream side, when the relay has ended.
    pub fn into_downstream(self) -> Side {
        self.downstream
    }

    /// Moves what can be moved; ready when both directions have ended.
    pub fn poll(&mut self, gear: &Gear, cx: &mut Context<'_>) -> Poll<Flow> {
        // In this order what the client says last is known to be last: no answer to it can have been read.
        let down = self.down.poll(&mut self.upstream, &mut self.downstream, gear, cx);
        if self.down.is_target_gone() && self.up.is_opaque() {
            // The write has taken the error: to our reading a reset would look like an end.
            self.upstream.no_farewell();
        }
        let up = self.up.poll(&mut self.downstream, &mut self.upstream, gear, cx);
        let opaque = self.up.is_opaque();
        match (down, up) {
            // What broke under our reading takes no bytes either.
            (Poll::Ready(()), Poll::Pending) if opaque && self.down.is_source_broken() => Poll::Ready(Flow::Broken),
            (Poll::Pending, Poll::Ready(())) if opaque && self.up.is_source_broken() => Poll::Ready(Flow::Broken),
            // The app is gone, and has said its last word.
            (Poll::Ready(()), Poll::Pending) if opaque && self.up.is_target_gone() => Poll::Ready(Flow::Broken),
            // A client that is gone takes no answer; and an app that stands still would never hear of it.
            (Poll::Pending, _) | (_, Poll::Pending) if opaque && self.down.is_target_gone() => {
                Poll::Ready(Flow::Broken)
            }
            (Poll::Ready(()), Poll::Ready(())) if self.up.is_broken() || self.down.is_broken() => {
                Poll::Ready(Flow::Broken)
            }
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Flow::Finished),
            _ => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests;
