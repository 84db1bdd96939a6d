//! The waiting room: before t0 a request that finds the app not accepting waits here, its body unread.

use std::sync::atomic::Ordering::SeqCst;

use tokio::time::{Instant, timeout_at};

use crate::lifecycle::{Counted, Gate, Lifecycle};

/// Why waiting is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unparked {
    /// Look again: the app accepts, or the termination has begun.
    LookAgain,
    /// The app did not come back in time.
    TimedOut,
    /// There was no room.
    Full,
}

/// Waits until there is a reason to look again, at most until `deadline`.
///
/// `place` keeps a request counted from one wait to the next.
pub async fn park(
    lifecycle: Lifecycle,
    listener: usize,
    max_requests: usize,
    deadline: Instant,
    place: &mut Option<Counted>,
) -> Unparked {
    if place.is_none() {
        let parked = &lifecycle.tallies().parked;
        let counted = Counted::new(parked);
        if parked.load(SeqCst) > max_requests as u64 {
            return Unparked::Full;
        }
        *place = Some(counted);
    }
    let upstream = lifecycle.upstream(listener);
    loop {
        // Registered before the state is read, so that no change between the two is missed.
        let mut changed = std::pin::pin!(upstream.changed().notified());
        changed.as_mut().enable();
        if may_go_on(lifecycle, listener) {
            return Unparked::LookAgain;
        }
        if timeout_at(deadline, changed).await.is_err() {
            return if may_go_on(lifecycle, listener) { Unparked::LookAgain } else { Unparked::TimedOut };
        }
    }
}

fn may_go_on(lifecycle: Lifecycle, listener: usize) -> bool {
    match lifecycle.gate(listener) {
        Gate::Closed => true,
        Gate::Paused => lifecycle.snapshot().phase.is_terminating(),
        Gate::Open => lifecycle.upstream(listener).is_up() || lifecycle.snapshot().phase.is_terminating(),
    }
}
