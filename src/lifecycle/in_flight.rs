//! What is in flight, counted by guards: nobody increments or decrements by hand.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use super::Lifecycle;

/// Kinds of work that hold a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// One HTTP/1 exchange, from its head to the last byte of the response.
    Request,
    /// One HTTP/2 exchange, likewise.
    Stream,
    /// One opaque relay: a TCP connection, or what follows an upgrade to anything but WebSocket.
    Tunnel,
    /// One WebSocket session.
    Session,
}

impl Work {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Request, Self::Stream, Self::Tunnel, Self::Session];

    /// The name used in metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Stream => "stream",
            Self::Tunnel => "tunnel",
            Self::Session => "session",
        }
    }
}

/// Counts of one inbound listener.
///
/// Two cells, so that "what was in flight when the app hook came" can be told from what came later: new permits count
/// in the current cell, [`Counts::mark`] makes the other one current.
#[derive(Debug, Default)]
pub(super) struct Counts {
    cells: [AtomicU64; 2],
    current: AtomicUsize,
    kinds: [AtomicU64; Work::ALL.len()],
}

/// One piece of work in flight to the app. Dropping it is the only way to end it.
#[derive(Debug)]
#[must_use = "work without a permit is not seen by the drain"]
pub struct Permit {
    lifecycle: Lifecycle,
    listener: usize,
    cell: usize,
    work: Work,
}

// === impl Counts ===

impl Counts {
    pub(super) fn total(&self) -> u64 {
        self.cells[0].load(SeqCst) + self.cells[1].load(SeqCst)
    }

    pub(super) fn before_mark(&self) -> u64 {
        self.cells[1 - self.current.load(SeqCst)].load(SeqCst)
    }

    pub(super) fn of(&self, work: Work) -> u64 {
        self.kinds[work as usize].load(SeqCst)
    }

    /// From here on new work counts apart. Where older work from before an earlier mark is still there, the mark
    /// stays where it is: the wait is then for that work alone.
    pub(super) fn mark(&self) {
        if self.before_mark() == 0 {
            self.current.fetch_xor(1, SeqCst);
        }
    }
}

// === impl Permit ===

impl Permit {
    /// Takes a permit. Read the gate only afterwards: the machine closes the gate first and reads the count then, so
    /// that one of the two sees the other (both are sequentially consistent).
    pub(super) fn new(lifecycle: Lifecycle, listener: usize, work: Work) -> Self {
        let counts = lifecycle.counts(listener);
        let cell = counts.current.load(SeqCst);
        counts.cells[cell].fetch_add(1, SeqCst);
        counts.kinds[work as usize].fetch_add(1, SeqCst);
        Self { lifecycle, listener, cell, work }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let counts = self.lifecycle.counts(self.listener);
        counts.kinds[self.work as usize].fetch_sub(1, SeqCst);
        counts.cells[self.cell].fetch_sub(1, SeqCst);
    }
}
