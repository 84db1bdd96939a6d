//! The lifecycle itself, pure: events and observations in, actions out. No clock, no IO, no runtime.
//!
//! One [`Machine`] takes a process through the contract's phases. The driver calls [`Machine::step`] on every event
//! and, while [`Machine::wants_ticks`], every few milliseconds; each step reads the world anew, so a missed
//! notification costs one tick and never correctness.

mod advance;
mod model;
mod restart;

use std::time::Duration;

use super::phase::Phase;
use super::tick::{Tick, Window};
use super::witness::{self, Facts, Meaning, Witness};
use crate::config::{Mode, ReadinessFails};
pub use model::{Actions, Event, Findings, GONE_AFTER, Rules, Snapshot, UpstreamView, World};
use restart::Restart;

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
    /// Open app hooks that joined the termination, with the listener each is limited to.
    joined: Vec<(u64, Option<usize>)>,
    ever_joined: bool,
    /// The app was there at t0: of a finished or crashed one no hook is called.
    hook_expected: bool,
    draining_since: Option<Tick>,
    /// Without inbound listeners, since when nobody uses the network through us.
    outbound_unused: Option<Tick>,
    findings: Findings,
}

/// Closing, when the kubelet's SIGKILL is 2 s away.
const SHORT_CLOSE: Duration = Duration::from_secs(1);
/// From the signal that says so to the exit.
const SHORT_EXIT: Duration = Duration::from_millis(1500);
/// A sidecar that no signal comes for ends this long after the grace period.
const NO_SIGNAL: Duration = Duration::from_secs(5);

// === impl Machine ===

impl Machine {
    /// A machine in `Starting`, at tick 0.
    pub fn new(rules: Rules) -> Self {
        Self {
            restart: Restart::new(rules.witness_window, rules.app_restart_wait),
            rules,
            snapshot: Snapshot::starting(),
            bound: false,
            own_hook: None,
            signals: 0,
            may_finish: false,
            finishing: None,
            joined: Vec::new(),
            ever_joined: false,
            hook_expected: false,
            draining_since: None,
            outbound_unused: None,
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
        let gate_was_closed = self.snapshot.gate_closed;
        match event {
            Event::Bound => self.bound = true,
            Event::Tick => {}
            Event::OwnHook => self.on_own_hook(now, world, &mut actions),
            Event::AppHook { id, scope } => self.on_app_hook(id, scope, now, world, &mut actions),
            Event::Signal => self.on_signal(now, world, &mut actions),
        }
        self.advance(now, world, gate_was_closed, &mut actions);
        actions.again = self.snapshot.gate_closed && !gate_was_closed;
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
                    self.joined.push((id, scope));
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
        if self.snapshot.t0.is_none() && self.bound {
            self.findings.own_hook_missing = self.rules.mode == Mode::Sidecar;
        }
        match meaning {
            Meaning::LeaveAtOnce => self.exit(now, world, actions),
            Meaning::Hurry => self.close_early(now, self.rules.budget.close),
            Meaning::Finish => {
                self.begin(now, world);
                self.may_finish = true;
                self.finishing.get_or_insert(now);
                self.enter(Phase::Lingering, now, actions);
            }
            Meaning::GraceUsedUp => {
                self.may_finish = true;
                let t0 = self.snapshot.t0.unwrap_or(now);
                if self.findings.grace_used_up_after_ms.is_none() {
                    self.findings.grace_used_up_after_ms = Some(millis(now.since(t0)));
                    self.snapshot.exit_by = Some(now + SHORT_EXIT);
                }
                self.close_early(now, SHORT_CLOSE);
            }
            Meaning::OnlySidecarRestarts => self.may_finish = true,
            Meaning::NothingToHold => {
                self.begin(now, world);
                self.enter(Phase::Lingering, now, actions);
            }
            Meaning::SignalTermination => {
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
        self.snapshot.stream_close =
            Some(Window { start: deadlines.drain_deadline - spread, end: deadlines.drain_deadline });
        self.snapshot.session_close = self.rules.budget.session_window(t0);
        self.snapshot.event_close = self.rules.budget.event_window(t0);
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
    fn close_early(&mut self, now: Tick, length: Duration) {
        if self.snapshot.phase >= Phase::Lingering {
            return;
        }
        let deadline = self.snapshot.kill_at.map_or(now + length, |old| old.min(now + length));
        self.snapshot.kill_at = Some(deadline);
        let at_once = Some(Window::from_start(now, Duration::ZERO));
        self.snapshot.idle_close = at_once;
        self.snapshot.stream_close = at_once;
        self.snapshot.session_close = at_once;
        self.snapshot.event_close = at_once;
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
        let spread = Window::from_start(now, self.rules.budget.close_spread);
        // Never within the hold, which may have ended early.
        let idle = self.rules.budget.idle_window(t0).filter(|window| window.start > now).unwrap_or(spread);
        self.snapshot.idle_close.get_or_insert(idle);
        self.snapshot.session_close.get_or_insert(spread);
        self.snapshot.event_close.get_or_insert(spread);
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
            if self.snapshot.idle_close.is_some_and(|window| window.start > now) {
                // They were left open for answers, and none can come any more.
                self.snapshot.idle_close = Some(Window::from_start(now, self.rules.budget.close_spread));
            }
            self.snapshot.paused = 0;
            if let Some(since) = self.draining_since {
                self.findings.drain_ms = Some(millis(now.since(since)));
            }
            actions.release.extend(self.joined.drain(..).map(|(id, _)| id));
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
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
