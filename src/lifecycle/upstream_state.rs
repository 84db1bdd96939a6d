//! Whether an inbound upstream accepts connections, as dials have shown.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;

use super::machine::GONE_AFTER;
use super::tick::Tick;

/// Level-triggered: the flags are the truth, [`UpstreamState::changed`] only wakes those who look at them.
#[derive(Debug, Default)]
pub struct UpstreamState {
    ever_accepted: AtomicBool,
    /// Nanoseconds since the start of the process plus one; 0: not refusing.
    refusing_since: AtomicU64,
    last_accepted: AtomicU64,
    lives: AtomicU64,
    changed: Notify,
}

// === impl UpstreamState ===

impl UpstreamState {
    /// It has accepted a connection at some time.
    pub fn ever_accepted(&self) -> bool {
        self.ever_accepted.load(SeqCst)
    }

    /// Since when every dial was refused.
    pub fn refusing_since(&self) -> Option<Tick> {
        match self.refusing_since.load(SeqCst) {
            0 => None,
            nanos => Some(Tick::new(Duration::from_nanos(nanos - 1))),
        }
    }

    /// Requests may be forwarded.
    pub fn is_up(&self) -> bool {
        self.ever_accepted() && self.refusing_since().is_none()
    }

    /// When it last accepted.
    pub fn last_accepted(&self) -> Option<Tick> {
        match self.last_accepted.load(SeqCst) {
            0 => None,
            nanos => Some(Tick::new(Duration::from_nanos(nanos - 1))),
        }
    }

    /// How often it has begun to accept; another life may be another app.
    pub fn lives(&self) -> u64 {
        self.lives.load(SeqCst)
    }

    /// Wakes waiters when [`Self::is_up`] may have changed.
    pub fn changed(&self) -> &Notify {
        &self.changed
    }

    /// Wakes everybody who waits for the upstream, since the reason to wait may be gone.
    pub fn wake_waiters(&self) {
        self.changed.notify_waiters();
    }

    /// Whether this changed anything.
    pub(super) fn accepted(&self, now: Tick) -> bool {
        self.last_accepted.store(stored(now), SeqCst);
        let first = !self.ever_accepted.swap(true, SeqCst);
        let was_refusing = self.refusing_since.swap(0, SeqCst) != 0;
        if first || was_refusing {
            self.lives.fetch_add(1, SeqCst);
            self.changed.notify_waiters();
        }
        first || was_refusing
    }

    /// Whether this changed anything.
    pub(super) fn refused(&self, now: Tick) -> bool {
        self.refusing_since.compare_exchange(0, stored(now), SeqCst, SeqCst).is_ok()
    }

    /// A dial made because of a signal was refused: that is proof enough, no need to wait 500 ms.
    pub(super) fn refused_for_certain(&self, now: Tick) {
        self.refusing_since.fetch_min(stored(now - GONE_AFTER), SeqCst);
        let _ = self.refusing_since.compare_exchange(0, stored(now - GONE_AFTER), SeqCst, SeqCst);
    }
}

fn stored(tick: Tick) -> u64 {
    u64::try_from(tick.since_start().as_nanos()).unwrap_or(u64::MAX - 1) + 1
}
