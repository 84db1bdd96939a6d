//! Owns the record of what happened to a pod, on which tests assert order and counts.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::watch;

use crate::harness::process::Exit;
use crate::harness::wait::Mono;

/// A container of the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Who {
    Ebbtide,
    /// A sidecar declared after ebbtide, counted from 0.
    Sidecar(u8),
    App(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Started(Who),
    StartupPassed(Who),
    /// The readiness probe's verdict changed.
    Ready(bool),
    /// T0, with the real grace in seconds.
    Deleting(u64),
    /// All main containers of a Job have exited by themselves.
    MainsFinished,
    Restarting(Who),
    HookStarted(Who),
    HookReturned(Who, HookEnd),
    /// A sidecar stops waiting for those that must go before it.
    Turn(Who),
    Signalled(Who, Signal),
    Exited(Who, Exit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HookEnd {
    Ok,
    Failed,
    /// The grace ran out first; the hook itself goes on.
    TimedOut,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) at: Mono,
    pub(crate) event: Event,
    /// For a reader only.
    pub(crate) note: String,
}

#[derive(Debug)]
pub(crate) struct Timeline {
    start: Mono,
    entries: Mutex<Vec<Entry>>,
    length: watch::Sender<usize>,
}

// === impl Timeline ===

impl Timeline {
    pub(super) fn new() -> Self {
        Self { start: Mono::now(), entries: Mutex::new(Vec::new()), length: watch::Sender::new(0) }
    }

    pub(super) fn push(&self, event: Event) -> Mono {
        self.push_at(Mono::now(), event, String::new())
    }

    pub(super) fn push_at(&self, at: Mono, event: Event, note: String) -> Mono {
        let mut entries = self.entries.lock().expect("no writer panics");
        entries.push(Entry { at, event, note });
        self.length.send_replace(entries.len());
        at
    }

    pub(crate) fn all(&self) -> Vec<Entry> {
        self.entries.lock().expect("no writer panics").clone()
    }

    pub(crate) fn count(&self, wanted: impl Fn(Event) -> bool) -> usize {
        self.all().iter().filter(|one| wanted(one.event)).count()
    }

    /// The time of the first such event.
    pub(crate) fn find(&self, wanted: impl Fn(Event) -> bool) -> Option<Mono> {
        self.all().iter().find(|one| wanted(one.event)).map(|one| one.at)
    }

    /// The time of the first equal event; panics with the table if there is none.
    pub(crate) fn at(&self, event: Event) -> Mono {
        self.find(|one| one == event).unwrap_or_else(|| panic!("{event:?} did not happen\n{}", self.table()))
    }

    /// From the first of one event to the first of the other, zero if they came in the other order.
    pub(crate) fn between(&self, from: Event, to: Event) -> Duration {
        self.at(to).since(self.at(from))
    }

    /// Waits for an event, past ones count.
    pub(crate) async fn wait(&self, what: &str, deadline: Duration, wanted: impl Fn(Event) -> bool) -> Mono {
        let mut length = self.length.subscribe();
        let seen = tokio::time::timeout(deadline, async {
            loop {
                length.mark_unchanged();
                if let Some(at) = self.find(&wanted) {
                    return at;
                }
                // The sender lives in `self`.
                let _ = length.changed().await;
            }
        });
        match seen.await {
            Ok(at) => at,
            Err(_) => panic!("{what}: not within {deadline:?}\n{}", self.table()),
        }
    }

    pub(crate) async fn wait_for(&self, event: Event, deadline: Duration) -> Mono {
        self.wait(&format!("{event:?}"), deadline, |one| one == event).await
    }

    /// Panics unless each event stands somewhere after the one before it.
    pub(crate) fn assert_order(&self, events: &[Event]) {
        let mut entries = self.all();
        entries.sort_by_key(|one| one.at);
        let mut rest = entries.iter();
        for event in events {
            assert!(rest.any(|one| one.event == *event), "{event:?} is missing or too early\n{}", self.table());
        }
    }

    pub(crate) fn assert_never(&self, what: &str, unwanted: impl Fn(Event) -> bool) {
        assert!(self.find(unwanted).is_none(), "{what} happened\n{}", self.table());
    }

    /// One line per event; times count from the deletion if there was one.
    pub(crate) fn table(&self) -> String {
        let zero = self.find(|event| matches!(event, Event::Deleting(_) | Event::MainsFinished)).unwrap_or(self.start);
        let mut entries = self.all();
        entries.sort_by_key(|one| one.at);
        let mut table = String::new();
        for entry in entries {
            let offset = entry.at.nanos() as f64 - zero.nanos() as f64;
            table.push_str(&format!("{:>9.3} s  {:<40} {}\n", offset / 1e9, entry.event.to_string(), entry.note));
        }
        table
    }
}

// === impl Event ===

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(who) => write!(out, "{who} started"),
            Self::StartupPassed(who) => write!(out, "{who} passed its startup probe"),
            Self::Ready(ready) => write!(out, "readiness: {ready}"),
            Self::Deleting(grace) => write!(out, "T0, grace {grace} s"),
            Self::MainsFinished => write!(out, "all main containers finished"),
            Self::Restarting(who) => write!(out, "restart of {who} alone"),
            Self::HookStarted(who) => write!(out, "hook of {who} started"),
            Self::HookReturned(who, end) => write!(out, "hook of {who}: {end:?}"),
            Self::Turn(who) => write!(out, "turn of {who}"),
            Self::Signalled(who, signal) => {
                let name = format!("{signal:?}");
                let name = name.trim_matches('"').trim_start_matches("Signal::");
                write!(out, "SIG{name} to {who}")
            }
            Self::Exited(who, exit) => write!(out, "{who} exited, {exit}"),
        }
    }
}

// === impl Who ===

impl fmt::Display for Who {
    /// Also the name of the container's files.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ebbtide => write!(out, "ebbtide"),
            Self::Sidecar(number) => write!(out, "sidecar-{number}"),
            Self::App(number) => write!(out, "app-{number}"),
        }
    }
}
