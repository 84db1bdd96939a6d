//! Points in time as the lifecycle sees them: durations since the process started.

use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Serialize, Serializer};

/// Time since the process started. The pure core is handed ticks and never reads a clock.
///
/// In nanoseconds, which last for five centuries: every connection keeps several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Tick(u64);

impl Tick {
    /// The tick `since_start` after the start of the process.
    pub const fn new(since_start: Duration) -> Self {
        Self(nanoseconds(since_start))
    }

    /// A tick from whole milliseconds; for tests and tables.
    pub const fn from_millis(ms: u64) -> Self {
        Self::new(Duration::from_millis(ms))
    }

    /// Time since the process started.
    pub const fn since_start(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// As many as there can be.
const fn nanoseconds(duration: Duration) -> u64 {
    let nanoseconds = duration.as_nanos();
    if nanoseconds > u64::MAX as u128 { u64::MAX } else { nanoseconds as u64 }
}

// === impl Tick ===

impl Add<Duration> for Tick {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(nanoseconds(rhs)))
    }
}

impl Sub<Duration> for Tick {
    type Output = Self;
    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(nanoseconds(rhs)))
    }
}

impl Serialize for Tick {
    /// Seconds since the start of the process.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.since_start().as_secs_f64())
    }
}

/// A stretch of time over which closes or notices are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Window {
    /// First moment.
    pub start: Tick,
    /// Last moment, not before `start`.
    pub end: Tick,
}

impl Window {
    /// A window of length `length` from `start` on.
    pub fn from_start(start: Tick, length: Duration) -> Self {
        Self { start, end: start + length }
    }

    /// The moment that belongs to `share` (0.0 to 1.0) of the window.
    pub fn moment(self, share: f32) -> Tick {
        self.start + self.end.since(self.start).mul_f32(share.clamp(0.0, 1.0))
    }
}
