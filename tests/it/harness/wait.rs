//! Owns time in tests: a clock shared by all processes, and bounded waits.

use std::fmt::Debug;
use std::future::Future;
use std::ops::{Add, Sub};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A moment on the machine's monotonic clock, comparable between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Mono(u64);

/// Polls until the closure answers `Ok`; panics with the last `Err` at the deadline.
pub(crate) async fn eventually<T, E: Debug>(
    what: &str,
    deadline: Duration,
    mut poll: impl FnMut() -> Result<T, E>,
) -> T {
    eventually_async(what, deadline, || std::future::ready(poll())).await
}

/// As [`eventually`], for a condition that must itself be awaited; each attempt is bounded as well.
pub(crate) async fn eventually_async<T, E: Debug, F: Future<Output = Result<T, E>>>(
    what: &str,
    deadline: Duration,
    mut poll: impl FnMut() -> F,
) -> T {
    let end = Mono::now() + deadline;
    let mut last = None;
    loop {
        let left = end.since(Mono::now()).max(Duration::from_millis(1));
        match tokio::time::timeout(left, poll()).await {
            Ok(Ok(value)) => return value,
            Ok(Err(value)) => last = Some(value),
            Err(_) => {}
        }
        if Mono::now() >= end {
            panic!("{what}: not within {deadline:?}; last seen: {last:?}");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Awaits with a bound; panics with the sentence if it is passed.
pub(crate) async fn within<T>(what: &str, deadline: Duration, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(deadline, work).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {deadline:?}"),
    }
}

/// The greatest number of moments in any slice of this width.
pub(crate) fn densest(moments: impl Iterator<Item = Mono>, slice: Duration) -> usize {
    let mut times: Vec<Mono> = moments.collect();
    times.sort_unstable();
    let width = |from: usize| times[from..].partition_point(|at| at.since(times[from]) < slice);
    (0..times.len()).map(width).max().unwrap_or(0)
}

// === impl Mono ===

impl Mono {
    pub(crate) fn now() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        Self(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
    }

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) const fn nanos(self) -> u64 {
        self.0
    }

    /// Zero if `earlier` is in fact later.
    pub(crate) const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    pub(crate) fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// Returns at this moment, or at once if it has passed.
    pub(crate) async fn reached(self) {
        tokio::time::sleep(self.since(Self::now())).await;
    }
}

impl Add<Duration> for Mono {
    type Output = Self;

    fn add(self, more: Duration) -> Self {
        Self(self.0 + more.as_nanos() as u64)
    }
}

impl Sub for Mono {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}
