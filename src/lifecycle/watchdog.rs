//! An OS thread that ends the process at its deadline even if every runtime hangs.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::tick::Tick;

/// Handle to the watchdog thread.
#[derive(Debug, Clone)]
pub struct Watchdog(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    deadline: Mutex<Option<Duration>>,
    changed: Condvar,
}

/// The driver gets this long to act on a deadline by itself.
const SLACK: Duration = Duration::from_millis(350);

// === impl Watchdog ===

impl Watchdog {
    /// Starts the thread. `expired` is called once, at the deadline plus a little slack; it must not return to a
    /// process that goes on.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(expired: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let watchdog = Self(Arc::default());
        let shared = Arc::clone(&watchdog.0);
        std::thread::Builder::new().name("watchdog".into()).spawn(move || shared.watch(expired))?;
        Ok(watchdog)
    }

    /// Moves the deadline; `None` takes it away. `now` is the moment of the call.
    pub fn set(&self, deadline: Option<Tick>, now: Tick) {
        let at = deadline.map(|tick| monotonic() + tick.since(now) + SLACK);
        *self.0.deadline.lock().unwrap_or_else(PoisonError::into_inner) = at;
        self.0.changed.notify_one();
    }
}

// === impl Shared ===

impl Shared {
    fn watch(&self, expired: impl FnOnce()) {
        let mut deadline = self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            deadline = match *deadline {
                None => self.changed.wait(deadline).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_sub(monotonic());
                    if left.is_zero() {
                        drop(deadline);
                        return expired();
                    }
                    self.changed.wait_timeout(deadline, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// The kernel's clock, not tokio's: a hanging or paused runtime must not stop it.
fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn it_fires_at_the_deadline_although_nobody_polls_anything() {
        let (sender, fired) = mpsc::channel();
        let watchdog = Watchdog::start(move || sender.send(()).unwrap()).unwrap();
        watchdog.set(Some(Tick::from_millis(50)), Tick::from_millis(0));
        fired.recv_timeout(Duration::from_secs(10)).expect("the watchdog must fire");
    }

    #[test]
    fn a_deadline_taken_away_does_not_fire() {
        let (sender, fired) = mpsc::channel();
        let watchdog = Watchdog::start(move || sender.send(()).unwrap()).unwrap();
        watchdog.set(Some(Tick::from_millis(0)), Tick::from_millis(0));
        watchdog.set(None, Tick::from_millis(0));
        assert!(fired.recv_timeout(SLACK * 3).is_err());
    }
}
