//! Warnings that every request could give: at most one a second, by each worker for each listener.

use std::cell::Cell;
use std::time::Duration;

use crate::lifecycle::tick::Tick;

/// When there was one last, and how many were not given since.
#[derive(Debug, Default)]
pub struct Warnings {
    last: Cell<Option<Tick>>,
    suppressed: Cell<u64>,
}

const PAUSE: Duration = Duration::from_secs(1);

impl Warnings {
    /// The number suppressed since the last one, if it is time for one.
    pub fn turn(&self, now: Tick) -> Option<u64> {
        if self.last.get().is_some_and(|last| now.since(last) < PAUSE) {
            self.suppressed.set(self.suppressed.get() + 1);
            return None;
        }
        self.last.set(Some(now));
        Some(self.suppressed.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_a_second_and_the_rest_is_counted() {
        let warnings = Warnings::default();
        let turns = [0, 10, 999, 1000, 1500, 2100].map(|ms| warnings.turn(Tick::from_millis(ms)));
        assert_eq!(turns, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
