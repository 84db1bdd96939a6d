//! The machine on a bench: a world that the test owns, time that the test moves.

mod gate;
mod hold;
mod restart_alone;
mod table;

use std::time::Duration;

use super::*;
use crate::config::{BudgetParts, DrainConfig, Hold};
use crate::lifecycle::budget;

/// A machine with its clock and its world.
struct Bench {
    machine: Machine,
    now: Tick,
    upstreams: Vec<UpstreamView>,
    connections: u64,
    last_arrival: Option<Tick>,
    outbound_open: u64,
    next_hook: u64,
}

const fn ms(length: u64) -> Duration {
    Duration::from_millis(length)
}

const HERE: UpstreamView =
    UpstreamView { ever_accepted: true, refusing_since: None, in_flight: 0, in_flight_before_hook: 0 };

fn drain_config(grace: u64, hold: Hold) -> DrainConfig {
    DrainConfig {
        grace_period: ms(grace * 1000),
        hold,
        notice_after: 0.5,
        readiness_fails: ReadinessFails::Notice,
        quiet: ms(1000),
        close_spread: ms(2000),
        idle_after: None,
        websocket_after: None,
        sse_after: None,
        close: ms(2000),
        app_stop: ms(5000),
        margin: ms(2000),
        witness_window: ms(2000),
        app_restart_wait: ms(5000),
        set_by_user: BudgetParts::default(),
    }
}

/// One inbound listener, an outbound one beside it, the defaults for 30 s.
fn rules(mode: Mode) -> Rules {
    Rules {
        mode,
        inbound: 1,
        outbound: true,
        budget: budget::divide(mode, &drain_config(30, Hold::Fixed(ms(10_000)))),
        readiness_fails: ReadinessFails::Notice,
        witness_window: ms(2000),
        app_restart_wait: ms(5000),
        final_scrape: None,
    }
}

impl Bench {
    /// At 1 s, bound, an app that accepts behind each inbound listener: Serving.
    fn serving(rules: Rules) -> Self {
        let mut bench = Self::starting(rules);
        bench.upstreams.fill(HERE);
        let _ = bench.event(Event::Bound);
        assert_eq!(bench.phase(), Phase::Serving);
        bench
    }

    fn starting(rules: Rules) -> Self {
        Self {
            upstreams: vec![UpstreamView::default(); rules.inbound],
            machine: Machine::new(rules),
            now: Tick::from_millis(1000),
            connections: 0,
            last_arrival: None,
            outbound_open: 0,
            next_hook: 0,
        }
    }

    fn phase(&self) -> Phase {
        self.machine.snapshot().phase
    }

    fn paused(&self) -> u64 {
        self.machine.snapshot().paused
    }

    /// One step.
    fn event(&mut self, event: Event) -> Actions {
        let world = World {
            upstreams: &self.upstreams,
            connections: self.connections,
            last_arrival: self.last_arrival,
            outbound_open: self.outbound_open,
            ..World::default()
        };
        self.machine.step(event, self.now, &world)
    }

    fn app_hook(&mut self, scope: Option<usize>) -> Actions {
        let id = self.next_hook;
        self.next_hook += 1;
        self.event(Event::AppHook { id, scope })
    }

    /// Ticks every 10 ms as the driver does, up to and with this time after now; answers every hook that was released.
    fn pass(&mut self, length: u64) -> Vec<u64> {
        let mut released = Vec::new();
        for _ in 0..length / 10 {
            self.now = self.now + ms(10);
            released.extend(self.event(Event::Tick).release);
        }
        released
    }

    /// Ticks until the machine is in this phase; answers how long after t0 that was, in milliseconds.
    fn until(&mut self, phase: Phase) -> u64 {
        for _ in 0..10_000 {
            if self.phase() == phase {
                let t0 = self.machine.snapshot().t0.expect("it terminates");
                return millis(self.now.since(t0));
            }
            self.pass(10);
        }
        panic!("not {phase:?} but {:?}", self.machine.snapshot());
    }

    fn app_dies(&mut self) {
        let now = self.now;
        self.upstreams.fill(UpstreamView { refusing_since: Some(now), ..HERE });
    }
}
