//! What goes into the machine and what comes out: rules, events, the world; actions, the snapshot, findings.

use std::time::Duration;

use serde::Serialize;

use crate::config::{Config, Direction, Mode, ReadinessFails};
use crate::lifecycle::budget::{Budget, Deadlines};
use crate::lifecycle::phase::{Outcome, Phase};
use crate::lifecycle::tick::{Tick, Window};
use crate::lifecycle::witness::Meaning;

/// What the machine needs from the configuration.
#[derive(Debug, Clone)]
pub struct Rules {
    /// What the pod spec around us looks like.
    pub mode: Mode,
    /// Number of inbound listeners.
    pub inbound: usize,
    /// There is an outbound listener.
    pub outbound: bool,
    /// How the grace period is divided.
    pub budget: Budget,
    /// When `/readyz` turns.
    pub readiness_fails: ReadinessFails,
    /// How long after an app hook another witness may come.
    pub witness_window: Duration,
    /// Longest time an app hook is held when only the app restarts.
    pub app_restart_wait: Duration,
    /// How long exit may wait for a scrape that starts after the drain.
    pub final_scrape: Option<Duration>,
}

/// Something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// All listeners are bound.
    Bound,
    /// `ebbtide drain`.
    OwnHook,
    /// `/app-stop`; `id` names the open call, `scope` the listener it is limited to.
    AppHook {
        /// Chosen by the driver, unique among open calls.
        id: u64,
        /// Index of an inbound listener; `None` is all.
        scope: Option<usize>,
    },
    /// SIGTERM, SIGINT or SIGQUIT.
    Signal,
    /// Time has passed, or something in the world has changed.
    Tick,
}

/// What the driver observed just before the step; counts are read after the gate was set.
#[derive(Debug, Clone, Copy, Default)]
pub struct World<'a> {
    /// One entry per inbound listener.
    pub upstreams: &'a [UpstreamView],
    /// Downstream connections open on inbound listeners.
    pub connections: u64,
    /// First byte of the latest arrival that counts (contract §3, "the hold").
    pub last_arrival: Option<Tick>,
    /// Connections open on outbound listeners.
    pub outbound_open: u64,
    /// When the latest outbound connection came.
    pub last_outbound: Option<Tick>,
    /// Closed connections whose last bytes are still being read away.
    pub lingering: u64,
    /// When the latest scrape of `/metrics` started.
    pub last_scrape: Option<Tick>,
    /// Endings by force so far.
    pub forced: u64,
}

/// One inbound upstream as last seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpstreamView {
    /// It has accepted a connection at some time.
    pub ever_accepted: bool,
    /// Since when every dial was refused.
    pub refusing_since: Option<Tick>,
    /// Work of ours that is in flight to it.
    pub in_flight: u64,
    /// The part of it that was in flight when the latest app hook came.
    pub in_flight_before_hook: u64,
}

/// What the driver must do now, in the order of the fields.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Actions {
    /// What the event meant, for the log.
    pub meaning: Option<Meaning>,
    /// Start counting what is in flight "before the hook" from here.
    pub mark_in_flight: bool,
    /// App hooks to answer.
    pub release: Vec<u64>,
    /// Log and write the report.
    pub report: bool,
    /// Step again at once, with the world read anew: the gate has just been closed.
    pub again: bool,
    /// The process is over.
    pub exit: Option<Outcome>,
}

/// Everything the rest of the process may know; published as one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Where we stand.
    pub phase: Phase,
    /// Since when.
    pub since: Tick,
    /// When the termination began.
    pub t0: Option<Tick>,
    /// What follows from it.
    pub deadlines: Option<Deadlines>,
    /// New requests are refused.
    pub gate_closed: bool,
    /// Idle connections are closed within this window.
    pub idle_close: Option<Window>,
    /// Tunnels and gRPC streams are ended within this window.
    pub stream_close: Option<Window>,
    /// WebSocket sessions are closed within this window.
    pub session_close: Option<Window>,
    /// Event streams are ended within this window.
    pub event_close: Option<Window>,
    /// What is still in flight is ended by force from here on.
    pub force_at: Option<Tick>,
    /// What still stands then is dropped.
    pub kill_at: Option<Tick>,
    /// Bit per inbound listener whose forwarding is paused (app restart).
    pub paused: u64,
    /// The process ends here even if everything hangs.
    pub exit_by: Option<Tick>,
    /// When `/readyz` turns after t0.
    pub unready_at: Option<Tick>,
}

/// Facts for the report that only the machine knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// The termination began with a signal although the mode is sidecar.
    pub own_hook_missing: bool,
    /// No app hook has joined the termination.
    pub app_hook_missing: bool,
    /// The kubelet's patience ended before the budget did, this long after t0 (whole milliseconds).
    pub grace_used_up_after_ms: Option<u64>,
    /// The hold ended here after t0, in milliseconds.
    pub hold_ms: Option<u64>,
    /// The drain (with closing) ended this long after the hold, in milliseconds.
    pub drain_ms: Option<u64>,
    /// App-only restarts seen.
    pub app_restarts: u32,
}

/// A connection refused for this long, and nothing in flight: gone.
pub const GONE_AFTER: Duration = Duration::from_millis(500);

// === impl Rules ===

impl Rules {
    /// The rules of a validated configuration.
    pub fn new(config: &Config, budget: Budget) -> Self {
        Self {
            mode: config.mode,
            inbound: config.listeners.iter().filter(|l| l.direction == Direction::Inbound).count(),
            outbound: config.listeners.iter().any(|l| l.direction == Direction::Outbound),
            budget,
            readiness_fails: config.drain.readiness_fails,
            witness_window: config.drain.witness_window,
            app_restart_wait: config.drain.app_restart_wait,
            final_scrape: config.final_scrape,
        }
    }
}

// === impl World ===

impl World<'_> {
    pub(super) fn in_flight(&self) -> u64 {
        self.upstreams.iter().map(|u| u.in_flight).sum()
    }

    pub(super) fn gone(&self, scope: Option<usize>, now: Tick) -> bool {
        let mut any = false;
        for (index, upstream) in self.upstreams.iter().enumerate() {
            if scope.is_none_or(|only| only == index) {
                any = true;
                if !upstream.is_gone(now) {
                    return false;
                }
            }
        }
        any
    }
}

// === impl UpstreamView ===

impl UpstreamView {
    /// Refusing for 500 ms, with no work of ours in flight to it.
    pub fn is_gone(&self, now: Tick) -> bool {
        self.in_flight == 0 && self.refusing_since.is_some_and(|since| now.since(since) >= GONE_AFTER)
    }
}

// === impl Snapshot ===

impl Snapshot {
    /// In `Starting`, at tick 0.
    pub fn starting() -> Self {
        Self {
            phase: Phase::Starting,
            since: Tick::default(),
            t0: None,
            deadlines: None,
            gate_closed: false,
            idle_close: None,
            stream_close: None,
            session_close: None,
            event_close: None,
            force_at: None,
            kill_at: None,
            paused: 0,
            exit_by: None,
            unready_at: None,
        }
    }

    /// What `/readyz` says, given that every inbound upstream is up.
    pub fn is_ready(&self, now: Tick) -> bool {
        match self.phase {
            Phase::Serving => true,
            Phase::Holding => self.unready_at.is_some_and(|at| now < at),
            Phase::Starting | Phase::Draining | Phase::Closing | Phase::Lingering | Phase::Terminated => false,
        }
    }
}
