//! Transitions that time and the world bring about, and the way out.

use std::time::Duration;

use super::{Actions, Machine, NO_SIGNAL, World};
use crate::config::{Hold, Mode};
use crate::lifecycle::phase::{Outcome, Phase};
use crate::lifecycle::tick::Tick;

/// Silence that ends the 503s of a finish inside the hold.
const FINISH_QUIET: Duration = Duration::from_secs(1);
/// What the workers need to answer what waits in their accept queues.
const LAST_ANSWERS: Duration = Duration::from_millis(400);
/// Longest extra time of a finish for connections that are being read away.
const LINGER_AT_EXIT: Duration = Duration::from_millis(500);

impl Machine {
    /// Transitions that time and the world bring about; goes on until nothing changes.
    ///
    /// What the world says of work in flight ends a phase only if the gate was closed before the world was read.
    pub(super) fn advance(&mut self, now: Tick, world: &World<'_>, gate_was_closed: bool, actions: &mut Actions) {
        let drained = gate_was_closed && world.in_flight() == 0;
        self.release_hooks_of_the_gone(now, world, actions);
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
                Phase::Draining => self.advance_draining(now, world, drained, actions),
                Phase::Closing if drained || self.snapshot.kill_at.is_none_or(|at| now >= at) => {
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

    /// A hook that holds back an app which is gone holds back nobody.
    fn release_hooks_of_the_gone(&mut self, now: Tick, world: &World<'_>, actions: &mut Actions) {
        self.joined.retain(|(id, scope)| {
            let gone = world.gone(*scope, now);
            if gone {
                actions.release.push(*id);
            }
            !gone
        });
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

    fn advance_draining(&mut self, now: Tick, world: &World<'_>, drained: bool, actions: &mut Actions) {
        let Some(deadlines) = self.snapshot.deadlines else { return };
        if drained {
            self.enter(Phase::Lingering, now, actions);
        } else if now >= deadlines.drain_deadline {
            self.start_closing(now);
        } else if !self.snapshot.gate_closed {
            let spread_over = world.connections == 0 || self.snapshot.idle_close.is_none_or(|w| now >= w.end);
            let quiet = world.last_arrival.is_none_or(|last| now.since(last) >= self.rules.budget.quiet);
            self.snapshot.gate_closed = world.in_flight() == 0 && spread_over && quiet;
        }
    }

    fn advance_lingering(&mut self, now: Tick, world: &World<'_>, gone: bool, actions: &mut Actions) {
        let Some(deadlines) = self.snapshot.deadlines else { return };
        let finish = match self.rules.mode {
            Mode::Sidecar => self.may_finish,
            Mode::Plain if !self.rules.outbound => true,
            Mode::Plain if self.rules.inbound == 0 => {
                let unused_since = if world.outbound_open > 0 { now } else { self.outbound_unused.unwrap_or(now) };
                let unused_since = world.last_outbound.map_or(unused_since, |came| came.max(unused_since));
                self.outbound_unused = Some(unused_since);
                now.since(unused_since) >= FINISH_QUIET
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
                    // Never earlier than the machine itself would end it.
                    self.snapshot.exit_by.get_or_insert_with(|| (deadlines.grace_end + NO_SIGNAL).max(now));
                    now >= deadlines.grace_end + NO_SIGNAL
                }
            }
            Mode::Plain => now >= deadlines.end,
        };
        let killed_soon = self.findings.grace_used_up_after_ms.is_some();
        // SIGKILL is near: what waits in the accept queues must be answered before the promised exit as well.
        if out_of_time || (killed_soon && self.snapshot.exit_by.is_none_or(|at| now >= at - LAST_ANSWERS)) {
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

    pub(super) fn exit(&mut self, now: Tick, world: &World<'_>, actions: &mut Actions) {
        self.snapshot.phase = Phase::Terminated;
        self.snapshot.since = now;
        self.snapshot.gate_closed = true;
        let restarting = self.restart.abandon();
        actions.release.extend(self.joined.drain(..).chain(restarting).map(|(id, _)| id));
        let last_answers_by = now + LAST_ANSWERS + LAST_ANSWERS;
        if self.findings.grace_used_up_after_ms.is_none() {
            // The process is nearly over: a watchdog set to an earlier end would call that a hang, one set to a later
            // one would let a real hang go on.
            self.snapshot.exit_by = Some(last_answers_by);
        }
        actions.report |= world.forced > 0;
        actions.exit = Some(if world.forced > 0 { Outcome::Forced } else { Outcome::Drained });
    }

    /// Cheap enough for every debug step; the simulation relies on it.
    pub(super) fn check_invariants(&self) {
        let s = &self.snapshot;
        debug_assert!(s.t0.is_some() == s.deadlines.is_some(), "t0 and deadlines come together: {s:?}");
        debug_assert!(
            s.phase == Phase::Terminated || s.phase.is_terminating() == s.t0.is_some(),
            "t0 belongs to the terminating phases: {s:?}"
        );
        debug_assert!(!s.phase.refuses_requests() || s.gate_closed, "a refusing phase has its gate closed: {s:?}");
        debug_assert!(s.t0.is_none() || s.paused == 0, "nothing is paused after t0: {s:?}");
        debug_assert!(s.phase < Phase::Lingering || self.joined.is_empty(), "hooks are released: {s:?}");
        let waits_for_signal = s.phase == Phase::Lingering && self.rules.mode == Mode::Sidecar && !self.may_finish;
        debug_assert!(
            !waits_for_signal || s.exit_by.zip(s.deadlines).is_none_or(|(at, d)| at >= d.grace_end + NO_SIGNAL),
            "nothing but a signal ends a lingering sidecar early: {s:?}"
        );
        debug_assert!(s.phase != Phase::Closing || (s.force_at <= s.kill_at && s.force_at.is_some()), "{s:?}");
    }
}
