//! Owns storms of random events on the pure lifecycle, in a random world, with the contract's promises checked at
//! every step. `SIM_SEED=n` repeats one storm with its story.

use std::collections::BTreeSet;
use std::time::Duration;

use ebbtide::config::{BudgetParts, DrainConfig, Hold, Mode, ReadinessFails};
use ebbtide::lifecycle::budget;
use ebbtide::lifecycle::machine::{Actions, Event, Machine, Rules, Snapshot, UpstreamView, World};
use ebbtide::lifecycle::phase::Phase;
use ebbtide::lifecycle::tick::Tick;
use ebbtide::lifecycle::witness::Meaning;
use fastrand::Rng;

/// One storm.
struct Storm {
    random: Rng,
    rules: Rules,
    machine: Machine,
    now: Tick,
    bound: bool,
    upstreams: Vec<Upstream>,
    last_arrival: Option<Tick>,
    outbound_open: u64,
    last_outbound: Option<Tick>,
    lingering: u64,
    /// Arrivals in this storm stop for good when it terminates.
    calms: bool,
    next_hook: u64,
    /// Open calls and when they came.
    held: Vec<(u64, Tick)>,
    released: BTreeSet<u64>,
    /// By when the process must be over.
    bound_for_exit: Option<(Tick, &'static str)>,
    joined: bool,
    exited: bool,
    story: Vec<String>,
}

#[derive(Default)]
struct Upstream {
    up: bool,
    ever: bool,
    refusing_since: Option<Tick>,
    /// Work from before the last mark, and later work.
    old: u64,
    new: u64,
}

fn millis(length: u64) -> Duration {
    Duration::from_millis(length)
}

fn random_rules(random: &mut Rng) -> Rules {
    let mode = if random.bool() { Mode::Sidecar } else { Mode::Plain };
    let hold = if random.bool() {
        Hold::Fixed(millis(random.u64(0..12_000)))
    } else {
        let min = random.u64(0..4000);
        let max = min + random.u64(0..8000);
        Hold::Adaptive { min: millis(min), quiet: millis(random.u64(0..3000)), max: millis(max) }
    };
    let drain = DrainConfig {
        grace_period: millis(random.u64(1000..40_000)),
        hold,
        notice_after: random.f64(),
        readiness_fails: ReadinessFails::Notice,
        quiet: millis(random.u64(0..2000)),
        close_spread: millis(random.u64(0..3000)),
        idle_after: random.bool().then(|| millis(random.u64(0..20_000))),
        websocket_after: None,
        sse_after: None,
        close: millis(random.u64(0..3000)),
        app_stop: millis(random.u64(0..6000)),
        margin: millis(random.u64(0..3000)),
        witness_window: millis(random.u64(0..3000)),
        app_restart_wait: millis(random.u64(1000..6000)),
        set_by_user: BudgetParts::default(),
    };
    let inbound = *random.choice(&[0, 1, 1, 1, 2, 3]).unwrap_or(&1);
    Rules {
        mode,
        inbound,
        outbound: inbound == 0 || random.bool(),
        budget: budget::divide(mode, &drain),
        readiness_fails: ReadinessFails::Notice,
        witness_window: drain.witness_window,
        app_restart_wait: drain.app_restart_wait,
        final_scrape: None,
    }
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let rules = random_rules(&mut random);
        Self {
            machine: Machine::new(rules.clone()),
            now: Tick::from_millis(1),
            bound: false,
            upstreams: (0..rules.inbound).map(|_| Upstream::default()).collect(),
            rules,
            last_arrival: None,
            outbound_open: 0,
            last_outbound: None,
            lingering: 0,
            calms: random.bool(),
            next_hook: 0,
            held: Vec::new(),
            released: BTreeSet::new(),
            bound_for_exit: None,
            joined: false,
            exited: false,
            story: Vec::new(),
            random,
        }
    }

    fn run(&mut self) {
        for _ in 0..6000 {
            let event = self.next_event();
            self.now = self.now + millis(self.random.u64(1..=TICK));
            self.world_moves();
            self.step(event);
            if self.exited {
                return;
            }
        }
    }

    /// Rare enough for every phase to be met, several at once from time to time.
    fn next_event(&mut self) -> Event {
        if !self.bound {
            self.bound = self.random.u8(..) < 100;
            return if self.bound { Event::Bound } else { Event::Tick };
        }
        let storms = self.machine.snapshot().t0.is_some() || self.random.u8(..) < 10;
        let dice = if storms { self.random.u16(0..600) } else { 1000 };
        match dice {
            0..2 => Event::OwnHook,
            2..4 => Event::Signal,
            4..10 => {
                self.next_hook += 1;
                let scope = if self.rules.inbound > 0 && self.random.bool() {
                    Some(self.random.usize(0..self.rules.inbound))
                } else {
                    None
                };
                Event::AppHook { id: self.next_hook, scope }
            }
            _ => Event::Tick,
        }
    }

    fn world_moves(&mut self) {
        let snapshot = self.machine.snapshot();
        for number in 0..self.upstreams.len() {
            let paused = snapshot.paused & (1 << number) != 0;
            let takes = self.upstreams[number].up && !snapshot.gate_closed && !paused;
            let quiet = self.calms && snapshot.t0.is_some();
            if !quiet && self.random.u8(..) < 90 {
                self.last_arrival = Some(self.now);
                if takes {
                    self.upstreams[number].new += 1;
                }
            }
            let chance = self.random.u8(..);
            let (turns, ends) = (self.random.u16(..) < 150, self.random.u16(..) < 25_000);
            let upstream = &mut self.upstreams[number];
            if turns {
                upstream.up = !upstream.up;
                upstream.ever |= upstream.up;
                upstream.refusing_since = if upstream.up { None } else { Some(self.now) };
            }
            if !upstream.up && chance < 200 {
                // Whatever it had is broken off.
                (upstream.old, upstream.new) = (0, 0);
            }
            if ends {
                upstream.old = upstream.old.saturating_sub(1);
                upstream.new = upstream.new.saturating_sub(2);
            }
        }
        match self.random.u8(..) {
            0..3 if self.rules.outbound => {
                self.outbound_open += 1;
                self.last_outbound = Some(self.now);
            }
            3..9 => self.outbound_open = self.outbound_open.saturating_sub(1),
            9..20 => self.lingering = self.random.u64(0..3),
            _ => {}
        }
    }

    /// As the driver: a tick only if one is wanted, and again when asked to.
    fn step(&mut self, mut event: Event) {
        if event == Event::Tick && !self.machine.wants_ticks() && self.random.u8(..) < 250 {
            return;
        }
        loop {
            let before = self.machine.snapshot();
            let views: Vec<UpstreamView> = self
                .upstreams
                .iter()
                .map(|one| UpstreamView {
                    ever_accepted: one.ever,
                    refusing_since: one.refusing_since,
                    in_flight: one.old + one.new,
                    in_flight_before_hook: one.old,
                })
                .collect();
            let world = World {
                upstreams: &views,
                connections: u64::from(self.last_arrival.is_some()),
                last_arrival: self.last_arrival,
                outbound_open: self.outbound_open,
                last_outbound: self.last_outbound,
                lingering: self.lingering,
                ..World::default()
            };
            let actions = self.machine.step(event, self.now, &world);
            if let Event::AppHook { id, .. } = event {
                self.held.push((id, self.now));
                self.joined |= actions.meaning == Some(Meaning::Joins);
            }
            self.joined |= before.t0 != self.machine.snapshot().t0 && !self.held.is_empty();
            if event != Event::Tick || before.phase != self.machine.snapshot().phase {
                let after = self.machine.snapshot();
                self.story.push(format!(
                    "{:?} {event:?} {:?} -> {:?} paused {:b}, {actions:?}",
                    self.now.since_start(),
                    before.phase,
                    after.phase,
                    after.paused
                ));
            }
            self.check(&before, &actions, &views);
            if actions.mark_in_flight {
                for upstream in self.upstreams.iter_mut().filter(|one| one.old == 0) {
                    upstream.old = std::mem::take(&mut upstream.new);
                }
            }
            self.exited = actions.exit.is_some();
            if !actions.again || self.exited {
                return;
            }
            // Somebody who had read the open gate is seen now.
            if self.random.bool()
                && let Some(upstream) = self.upstreams.iter_mut().find(|one| one.up)
            {
                upstream.new += 1;
            }
            event = Event::Tick;
        }
    }

    fn check(&mut self, before: &Snapshot, actions: &Actions, views: &[UpstreamView]) {
        let after = self.machine.snapshot();
        assert!(before.phase <= after.phase, "the phase went back");
        if before.t0.is_some() {
            assert_eq!((before.t0, before.deadlines), (after.t0, after.deadlines), "t0 moved");
            assert!(after.kill_at <= before.kill_at, "the close deadline moved later");
        }
        if before.force_at.is_some() {
            assert!(after.force_at <= before.force_at && after.force_at.is_some(), "force moved later");
        }
        assert!(after.gate_closed || !before.gate_closed, "the gate opened again");
        assert!(after.gate_closed || after.phase < Phase::Closing, "the gate is open in {:?}", after.phase);
        assert!(after.t0.is_none() || after.paused == 0, "paused after t0");
        assert!(after.t0.is_none_or(|t0| t0 <= self.now), "t0 lies ahead");
        self.check_hooks(&after, actions, views);
        self.check_drained(before, &after, views);
        self.check_exit(&after, actions);
    }

    fn check_hooks(&mut self, after: &Snapshot, actions: &Actions, views: &[UpstreamView]) {
        let some_app_gone = views.iter().any(|one| one.is_gone(self.now));
        for id in &actions.release {
            assert!(self.released.insert(*id), "hook {id} was released twice");
            assert!(self.held.iter().any(|(held, _)| held == id), "hook {id} was never held");
            let early = after.t0.is_some() && after.phase < Phase::Lingering;
            assert!(!early || some_app_gone, "released in {:?} by an app that is there", after.phase);
        }
        self.held.retain(|(id, _)| !actions.release.contains(id));
        if after.phase >= Phase::Lingering {
            assert!(self.held.is_empty(), "still held in {:?}: {:?}", after.phase, self.held);
        } else if after.t0.is_none() {
            let longest = self.rules.app_restart_wait.max(self.rules.witness_window + millis(500)) + millis(2 * TICK);
            for (id, came) in &self.held {
                assert!(self.now.since(*came) <= longest, "hook {id} is held for {:?}", self.now.since(*came));
            }
        }
    }

    /// Nobody lets go of a living app with work in flight before the close deadline.
    fn check_drained(&self, before: &Snapshot, after: &Snapshot, views: &[UpstreamView]) {
        let lets_go = before.phase < Phase::Lingering && after.phase >= Phase::Lingering;
        let drained = matches!(before.phase, Phase::Draining | Phase::Closing);
        let gone = views.iter().all(|one| one.is_gone(self.now));
        if lets_go && drained && !gone && after.kill_at.is_some_and(|at| self.now < at) {
            assert!(before.gate_closed, "the count was read before the gate closed");
            assert!(views.iter().all(|one| one.in_flight == 0), "work in flight");
        }
    }

    fn check_exit(&mut self, after: &Snapshot, actions: &Actions) {
        let (Some(t0), Some(deadlines)) = (after.t0, after.deadlines) else { return };
        let budget = &self.rules.budget;
        let usual = match self.rules.mode {
            Mode::Sidecar => (t0 + budget.grace_period + millis(5000), "5 s after the grace period"),
            Mode::Plain => (t0 + budget.grace_period.saturating_sub(budget.margin), "grace period minus margin"),
        };
        let bound = self.bound_for_exit.get_or_insert(usual);
        if actions.meaning == Some(Meaning::GraceUsedUp) && bound.0 > self.now + millis(1500) {
            *bound = (self.now + millis(1500), "1.5 s after the grace was used up");
        }
        let finish = (self.now + millis(1500)).max(deadlines.hold_end);
        if actions.meaning == Some(Meaning::Finish) && bound.0 > finish {
            *bound = (finish, "finish");
        }
        let (by, why) = *bound;
        let may_stay = self.rules.mode == Mode::Sidecar
            && why.starts_with("5 s")
            && self.outbound_open > 0
            && (self.joined || self.rules.inbound == 0);
        let over = after.phase == Phase::Terminated;
        // An outbound connection that came and went kept it; then the next tick must end it.
        assert!(over || may_stay || self.now <= by + millis(2 * TICK), "not over at {why}: {after:?}");
        assert_eq!(over, actions.exit.is_some());
    }
}

/// The storm's longest step in milliseconds.
const TICK: u64 = 50;

fn storm(seed: u64, tells: bool) -> Result<Storm, String> {
    let mut storm = Storm::new(seed);
    let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| storm.run()));
    if run.is_err() || tells {
        let story = storm.story[storm.story.len().saturating_sub(60)..].join("\n");
        eprintln!("--- SIM_SEED={seed} ---\n{:?}\n{story}", storm.rules);
    }
    run.map(|()| storm).map_err(|_| format!("SIM_SEED={seed}"))
}

#[test]
fn storms_of_events_break_no_promise() {
    if let Some(seed) = std::env::var_os("SIM_SEED").and_then(|text| text.to_str()?.parse().ok()) {
        storm(seed, true).expect("this storm");
        return;
    }
    let mut reached = BTreeSet::new();
    let (mut exits, mut hooks, mut restarts) = (0, 0, 0);
    for seed in 0..256 {
        let storm = storm(seed, false).unwrap_or_else(|seed| panic!("repeat it with {seed}"));
        exits += u32::from(storm.exited);
        hooks += storm.released.len();
        restarts += storm.machine.findings().app_restarts;
        for line in &storm.story {
            for phase in Phase::ALL {
                if line.contains(&format!("-> {phase:?} ")) {
                    reached.insert(phase);
                }
            }
        }
    }
    // Storms that meet nothing would prove nothing.
    assert_eq!(reached.len(), Phase::ALL.len(), "{reached:?}");
    assert!(exits > 200 && hooks > 500 && restarts > 50, "{exits} exits, {hooks} hooks, {restarts} restarts");
}
