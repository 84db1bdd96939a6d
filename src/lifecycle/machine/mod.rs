//! The lifecycle itself, pure: events and observations in, actions out. No clock, no IO, no runtime.
//!
//! One [`Machine`] takes a process through the contract's phases. The driver calls [`Machine::step`] on every event
//! and, while [`Machine::wants_ticks`], every few milliseconds; each step reads the world anew, so a missed
//! notification costs one tick and never correctness.

mod restart;

use std::time::Duration;

use serde::Serialize;

use super::budget::{Budget, Deadlines};
use super::phase::{Outcome, Phase};
use super::tick::{Tick, Window};
use super::witness::{self, Facts, Meaning, Witness};
use crate::config::{Config, Direction, Hold, Mode, ReadinessFails};
use restart::Restart;

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
    /// Tunnels are closed within this window.
    pub tunnel_close: Option<Window>,
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

/// The one owner of the lifecycle's state.
#[derive(Debug)]
pub struct Machine {
    rules: Rules,
    snapshot: Snapshot,
    bound: bool,
    own_hook: Option<Tick>,
    signals: u32,
    /// SIGTERM has come: reaching Lingering is enough to finish.
    may_finish: bool,
    finishing: Option<Tick>,
    restart: Restart,
    /// Open app hooks that joined the termination.
    joined: Vec<u64>,
    ever_joined: bool,
    /// The app was there at t0: of a finished or crashed one no hook is called.
    hook_expected: bool,
    draining_since: Option<Tick>,
    findings: Findings,
}

/// A connection refused for this long, and nothing in flight: gone.
pub const GONE_AFTER: Duration = Duration::from_millis(500);
/// Silence that ends the 503s of a finish inside the hold.
const FINISH_QUIET: Duration = Duration::from_secs(1);
/// Longest extra time of a finish for connections that are being read away.
const LINGER_AT_EXIT: Duration = Duration::from_millis(500);
/// Closing, when the kubelet's SIGKILL is 2 s away.
const SHORT_CLOSE: Duration = Duration::from_secs(1);
/// From the signal that says so to the exit.
const SHORT_EXIT: Duration = Duration::from_millis(1500);
/// A sidecar that no signal comes for ends this long after the grace period.
const NO_SIGNAL: Duration = Duration::from_secs(5);

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
    fn in_flight(&self) -> u64 {
        self.upstreams.iter().map(|u| u.in_flight).sum()
    }

    fn gone(&self, scope: Option<usize>, now: Tick) -> bool {
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
    /// What `/readyz` says, given that every inbound upstream is up.
    pub fn is_ready(&self, now: Tick) -> bool {
        match self.phase {
            Phase::Serving => true,
            Phase::Holding => self.unready_at.is_some_and(|at| now < at),
            Phase::Starting | Phase::Draining | Phase::Closing | Phase::Lingering | Phase::Terminated => false,
        }
    }
}

// === impl Machine ===

impl Machine {
    /// A machine in `Starting`, at tick 0.
    pub fn new(rules: Rules) -> Self {
        let snapshot = Snapshot {
            phase: Phase::Starting,
            since: Tick::default(),
            t0: None,
            deadlines: None,
            gate_closed: false,
            idle_close: None,
            tunnel_close: None,
            force_at: None,
            kill_at: None,
            paused: 0,
            exit_by: None,
            unready_at: None,
        };
        Self {
            restart: Restart::new(rules.witness_window, rules.app_restart_wait),
            rules,
            snapshot,
            bound: false,
            own_hook: None,
            signals: 0,
            may_finish: false,
            finishing: None,
            joined: Vec::new(),
            ever_joined: false,
            hook_expected: false,
            draining_since: None,
            findings: Findings::default(),
        }
    }

    /// The value to publish.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot
    }

    /// Facts for the report.
    pub fn findings(&self) -> Findings {
        Findings {
            // Known only in the end: it may come some milliseconds after the own hook.
            app_hook_missing: self.hook_expected && !self.ever_joined && self.snapshot.phase >= Phase::Lingering,
            app_restarts: self.restart.seen(),
            ..self.findings
        }
    }

    /// Time drives the next transition: step every few milliseconds, not only on events.
    pub fn wants_ticks(&self) -> bool {
        self.snapshot.t0.is_some() || self.restart.is_active()
    }

    /// Advances on one event.
    pub fn step(&mut self, event: Event, now: Tick, world: &World<'_>) -> Actions {
        let mut actions = Actions::default();
        if self.snapshot.phase == Phase::Terminated {
            if let Event::AppHook { id, .. } = event {
                actions.release.push(id);
            }
            return actions;
        }
        match event {
            Event::Bound => self.bound = true,
            Event::Tick => {}
            Event::OwnHook => self.on_own_hook(now, world, &mut actions),
            Event::AppHook { id, scope } => self.on_app_hook(id, scope, now, world, &mut actions),
            Event::Signal => self.on_signal(now, world, &mut actions),
        }
        self.advance(now, world, &mut actions);
        self.check_invariants();
        actions
    }

    fn facts(&self, scope: Option<usize>, now: Tick, world: &World<'_>) -> Facts {
        Facts {
            mode: self.rules.mode,
            bound: self.bound,
            phase: self.snapshot.phase,
            terminating: self.snapshot.t0.is_some(),
            own_hook_age: self.own_hook.map(|at| now.since(at)),
            app_hook_blocked: !self.joined.is_empty(),
            inbound: self.rules.inbound > 0,
            ever_accepted: world.upstreams.iter().any(|u| u.ever_accepted),
            gone: world.gone(scope, now),
            earlier_signals: self.signals,
        }
    }

    fn on_own_hook(&mut self, now: Tick, world: &World<'_>, actions: &mut Actions) {
        let meaning = witness::meaning(Witness::OwnHook, &self.facts(None, now, world));
        self.own_hook.get_or_insert(now);
        actions.meaning = Some(meaning);
        match meaning {
            Meaning::PodTermination => self.begin(now, world),
            Meaning::NothingToHold => {
                self.begin(now, world);
                self.enter(Phase::Lingering, now, actions);
            }
            _ => {}
        }
    }

    fn on_app_hook(&mut self, id: u64, scope: Option<usize>, now: Tick, world: &World<'_>, actions: &mut Actions) {
        let meaning = witness::meaning(Witness::AppHook, &self.facts(scope, now, world));
        actions.meaning = Some(meaning);
        match meaning {
            Meaning::Joins => {
                self.ever_joined = true;
                if self.snapshot.phase < Phase::Lingering {
                    self.joined.push(id);
                } else {
                    actions.release.push(id);
                }
            }
            Meaning::PerhapsRestart => {
                self.restart.hook_came(id, scope, now);
                actions.mark_in_flight = true;
            }
            _ => actions.release.push(id),
        }
    }

    fn on_signal(&mut self, now: Tick, world: &World<'_>, actions: &mut Actions) {
        let meaning = witness::meaning(Witness::Signal, &self.facts(None, now, world));
        self.signals += 1;
        actions.meaning = Some(meaning);
        match meaning {
            Meaning::LeaveAtOnce => self.exit(now, world, actions),
            Meaning::Hurry => self.close_early(now, self.rules.budget.close, now),
            Meaning::Finish => {
                self.begin(now, world);
                self.may_finish = true;
                self.finishing.get_or_insert(now);
                self.enter(Phase::Lingering, now, actions);
            }
            Meaning::GraceUsedUp => {
                self.may_finish = true;
                let t0 = self.snapshot.t0.unwrap_or(now);
                let after = u64::try_from(now.since(t0).as_millis()).unwrap_or(u64::MAX);
                self.findings.grace_used_up_after_ms.get_or_insert(after);
                self.close_early(now, SHORT_CLOSE, now);
                self.snapshot.exit_by = Some(now + SHORT_EXIT);
            }
            Meaning::OnlySidecarRestarts => self.may_finish = true,
            Meaning::NothingToHold => {
                self.begin(now, world);
                self.enter(Phase::Lingering, now, actions);
            }
            Meaning::SignalTermination => {
                self.findings.own_hook_missing = self.rules.mode == Mode::Sidecar;
                self.may_finish = true;
                self.begin(now, world);
            }
            _ => {}
        }
    }

    /// Sets t0 and everything that follows from it, once; open app hooks join.
    fn begin(&mut self, now: Tick, world: &World<'_>) {
        if self.snapshot.t0.is_some() {
            return;
        }
        let t0 = self.restart.earliest_open(now).unwrap_or(now);
        let open = self.restart.abandon();
        self.ever_joined |= !open.is_empty();
        self.hook_expected = world.upstreams.iter().any(|u| u.ever_accepted) && !world.gone(None, now);
        self.joined.extend(open);
        let deadlines = self.rules.budget.deadlines(t0);
        let spread = self.rules.budget.close_spread;
        self.snapshot.t0 = Some(t0);
        self.snapshot.deadlines = Some(deadlines);
        self.snapshot.paused = 0;
        self.snapshot.tunnel_close =
            Some(Window { start: deadlines.drain_deadline - spread, end: deadlines.drain_deadline });
        self.snapshot.kill_at = Some(deadlines.close_deadline);
        self.snapshot.unready_at = Some(match self.rules.readiness_fails {
            ReadinessFails::T0 => t0,
            ReadinessFails::Notice => deadlines.notice.start,
            ReadinessFails::Drain => deadlines.hold_end,
        });
        self.snapshot.exit_by = Some(match self.rules.mode {
            Mode::Sidecar => deadlines.close_deadline,
            Mode::Plain => deadlines.end,
        });
        self.snapshot.phase = Phase::Holding;
        self.snapshot.since = now;
    }

    /// Rows 7, 9, 12: closing begins now, without spread.
    fn close_early(&mut self, now: Tick, length: Duration, idle_from: Tick) {
        if self.snapshot.phase >= Phase::Lingering {
            return;
        }
        let deadline = self.snapshot.kill_at.map_or(now + length, |old| old.min(now + length));
        self.snapshot.kill_at = Some(deadline);
        self.snapshot.idle_close = Some(Window::from_start(idle_from, Duration::ZERO));
        self.snapshot.tunnel_close = Some(Window::from_start(now, Duration::ZERO));
        self.start_closing(now);
    }

    fn start_closing(&mut self, now: Tick) {
        if self.snapshot.phase == Phase::Holding {
            self.end_hold(now);
        }
        let deadline = self.snapshot.kill_at.unwrap_or(now);
        let force_at = now + deadline.since(now) / 2;
        self.snapshot.force_at = Some(self.snapshot.force_at.map_or(force_at, |old| old.min(force_at)));
        self.snapshot.gate_closed = true;
        if self.snapshot.phase < Phase::Closing {
            self.snapshot.phase = Phase::Closing;
            self.snapshot.since = now;
        }
    }

    fn end_hold(&mut self, now: Tick) {
        let t0 = self.snapshot.t0.unwrap_or(now);
        self.findings.hold_ms = Some(millis(now.since(t0)));
        self.draining_since = Some(now);
        self.snapshot.idle_close.get_or_insert_with(|| Window::from_start(now, self.rules.budget.close_spread));
    }

    fn enter(&mut self, phase: Phase, now: Tick, actions: &mut Actions) {
        if self.snapshot.phase >= phase {
            return;
        }
        if self.snapshot.phase == Phase::Holding {
            self.end_hold(now);
        }
        self.snapshot.phase = phase;
        self.snapshot.since = now;
        if phase >= Phase::Lingering {
            self.snapshot.gate_closed = true;
            self.snapshot.paused = 0;
            if let Some(since) = self.draining_since {
                self.findings.drain_ms = Some(millis(now.since(since)));
            }
            actions.release.append(&mut self.joined);
            actions.report = true;
            if let Some(deadlines) = self.snapshot.deadlines
                && self.findings.grace_used_up_after_ms.is_none()
            {
                self.snapshot.exit_by = Some(match self.rules.mode {
                    Mode::Sidecar => deadlines.grace_end + NO_SIGNAL,
                    Mode::Plain => deadlines.end,
                });
            }
        }
    }

    /// Transitions that time and the world bring about; goes on until nothing changes.
    fn advance(&mut self, now: Tick, world: &World<'_>, actions: &mut Actions) {
        loop {
            let before = self.snapshot.phase;
            let gone = world.gone(None, now);
            match self.snapshot.phase {
                Phase::Starting if self.bound && world.upstreams.iter().all(|u| u.ever_accepted) => {
                    self.enter(Phase::Serving, now, actions);
                }
                Phase::Starting | Phase::Serving => self.advance_restart(now, world, actions),
                Phase::Holding if gone => self.enter(Phase::Lingering, now, actions),
                Phase::Holding if self.hold_is_over(now, world) => {
                    self.end_hold(now);
                    self.enter_draining(now);
                }
                Phase::Holding => {}
                Phase::Draining if gone => self.enter(Phase::Lingering, now, actions),
                Phase::Draining => self.advance_draining(now, world, actions),
                Phase::Closing if world.in_flight() == 0 || self.snapshot.kill_at.is_none_or(|at| now >= at) => {
                    self.enter(Phase::Lingering, now, actions);
                }
                Phase::Closing => {}
                Phase::Lingering => self.advance_lingering(now, world, gone, actions),
                Phase::Terminated => {}
            }
            if self.snapshot.phase == before {
                return;
            }
        }
    }

    fn enter_draining(&mut self, now: Tick) {
        self.snapshot.phase = Phase::Draining;
        self.snapshot.since = now;
    }

    fn advance_restart(&mut self, now: Tick, world: &World<'_>, actions: &mut Actions) {
        self.restart.advance(now, world, &mut actions.release);
        self.snapshot.paused = self.restart.paused();
    }

    fn hold_is_over(&self, now: Tick, world: &World<'_>) -> bool {
        let Some(deadlines) = self.snapshot.deadlines else { return true };
        match self.rules.budget.hold {
            Hold::Fixed(_) => now >= deadlines.hold_end,
            Hold::Adaptive { quiet, .. } => {
                let silent = world.last_arrival.is_none_or(|last| now.since(last) >= quiet);
                now >= deadlines.hold_end || (now >= deadlines.hold_min && silent)
            }
        }
    }

    fn advance_draining(&mut self, now: Tick, world: &World<'_>, actions: &mut Actions) {
        let Some(deadlines) = self.snapshot.deadlines else { return };
        if self.snapshot.gate_closed {
            // The gate was closed in an earlier step, so this count has seen everything that slipped in.
            if world.in_flight() == 0 {
                self.enter(Phase::Lingering, now, actions);
            }
        } else {
            let spread_over = world.connections == 0 || self.snapshot.idle_close.is_none_or(|w| now >= w.end);
            let quiet = world.last_arrival.is_none_or(|last| now.since(last) >= self.rules.budget.quiet);
            if world.in_flight() == 0 && spread_over && quiet {
                self.snapshot.gate_closed = true;
                actions.again = true;
            }
        }
        if self.snapshot.phase == Phase::Draining && now >= deadlines.drain_deadline {
            self.start_closing(now);
        }
    }

    fn advance_lingering(&mut self, now: Tick, world: &World<'_>, gone: bool, actions: &mut Actions) {
        let Some(deadlines) = self.snapshot.deadlines else { return };
        let finish = match self.rules.mode {
            Mode::Sidecar => self.may_finish,
            Mode::Plain if !self.rules.outbound => true,
            Mode::Plain if self.rules.inbound == 0 => {
                world.outbound_open == 0 && world.last_outbound.is_none_or(|last| now.since(last) >= FINISH_QUIET)
            }
            Mode::Plain => gone,
        };
        if finish {
            self.finishing.get_or_insert(now);
        }
        let out_of_time = match self.rules.mode {
            Mode::Sidecar => {
                // The app may still need its network: while it uses it, wait for the signal.
                let in_use = world.outbound_open > 0 && (self.ever_joined || self.rules.inbound == 0);
                if in_use && self.finishing.is_none() && self.findings.grace_used_up_after_ms.is_none() {
                    self.snapshot.exit_by = None;
                    false
                } else {
                    self.snapshot.exit_by.get_or_insert(now + NO_SIGNAL);
                    now >= deadlines.grace_end + NO_SIGNAL
                }
            }
            Mode::Plain => now >= deadlines.end,
        };
        let killed_soon = self.findings.grace_used_up_after_ms.is_some();
        if out_of_time || (killed_soon && self.snapshot.exit_by.is_none_or(|at| now >= at)) {
            return self.exit(now, world, actions);
        }
        let Some(since) = self.finishing else { return };
        let silent = world.last_arrival.is_none_or(|last| now.since(last) >= FINISH_QUIET);
        let refusals_over = silent || now >= deadlines.hold_end;
        let read_away = world.lingering == 0 || now.since(since) >= LINGER_AT_EXIT;
        let scraped = self.rules.final_scrape.is_none_or(|longest| {
            world.last_scrape.is_some_and(|at| at >= self.snapshot.since)
                || now.since(since) >= longest
                || now >= deadlines.end
        });
        if refusals_over && read_away && scraped {
            self.exit(now, world, actions);
        }
    }

    fn exit(&mut self, now: Tick, world: &World<'_>, actions: &mut Actions) {
        self.snapshot.phase = Phase::Terminated;
        self.snapshot.since = now;
        self.snapshot.gate_closed = true;
        actions.release.append(&mut self.joined);
        actions.release.extend(self.restart.abandon());
        actions.report |= world.forced > 0;
        actions.exit = Some(if world.forced > 0 { Outcome::Forced } else { Outcome::Drained });
    }

    /// Cheap enough for every debug step; the simulation relies on it.
    fn check_invariants(&self) {
        let s = &self.snapshot;
        debug_assert!(s.t0.is_some() == s.deadlines.is_some(), "t0 and deadlines come together: {s:?}");
        debug_assert!(
            s.phase == Phase::Terminated || s.phase.is_terminating() == s.t0.is_some(),
            "t0 belongs to the terminating phases: {s:?}"
        );
        debug_assert!(!s.phase.refuses_requests() || s.gate_closed, "a refusing phase has its gate closed: {s:?}");
        debug_assert!(s.t0.is_none() || s.paused == 0, "nothing is paused after t0: {s:?}");
        debug_assert!(s.phase < Phase::Lingering || self.joined.is_empty(), "hooks are released: {s:?}");
        debug_assert!(s.phase != Phase::Closing || (s.force_at <= s.kill_at && s.force_at.is_some()), "{s:?}");
    }
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
