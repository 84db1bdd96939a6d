//! Feeds the machine with events, time and observations, and performs what it asks for.

use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::machine::{Actions, Event, Findings, Machine, Rules, UpstreamView, World};
use super::phase::Outcome;
use super::watchdog::Watchdog;
use super::witness::Meaning;
use super::{CLOSED, Lifecycle, Message};
use crate::lifecycle::machine::Snapshot;

/// Owner of the machine; runs on the control thread.
#[derive(Debug)]
pub struct Driver {
    machine: Machine,
    lifecycle: Lifecycle,
    messages: mpsc::UnboundedReceiver<Message>,
    watchdog: Watchdog,
    hooks: HashMap<u64, oneshot::Sender<()>>,
    next_hook: u64,
    hook_lines: u32,
    views: Vec<UpstreamView>,
}

/// What the process around the driver is told.
pub trait Observer {
    /// The phase or a deadline has changed.
    fn changed(&mut self, snapshot: &Snapshot, findings: &Findings);
    /// The drain is over, or the process is: leave the report.
    fn report(&mut self, snapshot: &Snapshot, findings: &Findings);
}

/// Most lines about app hooks in one life.
const HOOK_LINES: u32 = 4096;
/// While time drives the machine.
const TICK: Duration = Duration::from_millis(10);

// === impl Driver ===

impl Driver {
    /// A driver with its handle. One per process: the handle's memory is never freed.
    pub fn new(rules: Rules, inbound_names: Vec<String>, watchdog: Watchdog) -> (Self, Lifecycle) {
        let machine = Machine::new(rules);
        let (lifecycle, messages) = Lifecycle::new(inbound_names, machine.snapshot());
        let driver = Self {
            machine,
            lifecycle,
            messages,
            watchdog,
            hooks: HashMap::new(),
            next_hook: 0,
            hook_lines: 0,
            views: Vec::new(),
        };
        (driver, lifecycle)
    }

    /// Runs until the machine says that the process is over.
    pub async fn run(mut self, observer: &mut impl Observer) -> Outcome {
        loop {
            let message = if self.machine.wants_ticks() {
                tokio::time::timeout(TICK, self.messages.recv()).await.unwrap_or(Some(Message::Poke))
            } else {
                self.messages.recv().await
            };
            let event = self.event_of(message.unwrap_or(Message::Poke));
            if let Some(outcome) = self.step(event, observer) {
                return outcome;
            }
        }
    }

    fn event_of(&mut self, message: Message) -> Event {
        match message {
            Message::Bound => Event::Bound,
            Message::OwnHook => Event::OwnHook,
            Message::Signal(name) => {
                tracing::info!(signal = name, "signal received");
                Event::Signal
            }
            Message::Poke => Event::Tick,
            Message::AppHook { scope, released } => {
                let id = self.next_hook;
                self.next_hook += 1;
                self.hooks.insert(id, released);
                Event::AppHook { id, scope }
            }
        }
    }

    fn step(&mut self, mut event: Event, observer: &mut impl Observer) -> Option<Outcome> {
        loop {
            let before = self.machine.snapshot();
            let now = self.lifecycle.now();
            self.observe();
            let tallies = self.lifecycle.tallies();
            let world = World {
                upstreams: &self.views,
                connections: tallies.connections.load(SeqCst),
                last_arrival: tallies.last_arrival(),
                outbound_open: tallies.outbound.load(SeqCst),
                last_outbound: tallies.last_outbound(),
                lingering: tallies.lingering.load(SeqCst),
                last_scrape: tallies.last_scrape(),
                forced: tallies.forced.load(SeqCst),
            };
            let actions = self.machine.step(event, now, &world);
            let again = actions.again;
            self.perform(&before, &actions, observer);
            if actions.exit.is_some() || !again {
                return actions.exit;
            }
            event = Event::Tick;
        }
    }

    fn observe(&mut self) {
        self.views.clear();
        self.views.extend(self.lifecycle.0.inbound.iter().map(|inbound| UpstreamView {
            ever_accepted: inbound.upstream.ever_accepted(),
            refusing_since: inbound.upstream.refusing_since(),
            in_flight: inbound.counts.total(),
            in_flight_before_hook: inbound.counts.before_mark(),
        }));
    }

    fn perform(&mut self, before: &Snapshot, actions: &Actions, observer: &mut impl Observer) {
        let snapshot = self.machine.snapshot();
        let shared = self.lifecycle.0;
        let closed = if snapshot.gate_closed { CLOSED } else { 0 };
        // Before the next observation: the count that the machine reads then has seen everybody who passed.
        shared.gate.store(closed | (snapshot.paused & !CLOSED), SeqCst);
        if actions.mark_in_flight {
            shared.inbound.iter().for_each(|inbound| inbound.counts.mark());
        }
        if let Some(meaning) = actions.meaning {
            self.log_meaning(meaning, &snapshot);
        }
        if *before != snapshot {
            shared.snapshot.send_replace(snapshot);
            self.watchdog.set(snapshot.exit_by, self.lifecycle.now());
            if before.phase != snapshot.phase || before.paused != snapshot.paused {
                // Parked requests look again: forward, or be refused.
                shared.inbound.iter().for_each(|inbound| inbound.upstream.wake_waiters());
            }
            if before.phase != snapshot.phase {
                tracing::info!(
                    from = before.phase.name(),
                    to = snapshot.phase.name(),
                    seconds_since_t0 = snapshot.t0.map(|t0| self.lifecycle.now().since(t0).as_secs_f64()),
                    "phase changed"
                );
            }
            observer.changed(&snapshot, &self.machine.findings());
        }
        if actions.report {
            observer.report(&snapshot, &self.machine.findings());
        }
        for id in &actions.release {
            if let Some(released) = self.hooks.remove(id) {
                // A hook call that was given up by its caller needs no answer.
                let _ = released.send(());
            }
        }
        let worth_a_line = self.hook_lines <= HOOK_LINES || before.phase != snapshot.phase;
        if !actions.release.is_empty() && worth_a_line {
            tracing::info!(hooks = actions.release.len(), phase = snapshot.phase.name(), "app hooks released");
        }
    }

    fn log_meaning(&mut self, meaning: Meaning, snapshot: &Snapshot) {
        // Anybody can call /app-stop: the first calls tell all there is to tell.
        if matches!(meaning, Meaning::Joins | Meaning::PerhapsRestart | Meaning::HookReturns) {
            self.hook_lines += 1;
            if self.hook_lines > HOOK_LINES {
                return;
            }
        }
        let text = match meaning {
            Meaning::LeaveAtOnce => "signal before the listeners were bound: leaving at once",
            Meaning::Joins => "one more witness of the same termination",
            Meaning::NothingToHold => "termination without inbound work: no hold",
            Meaning::PodTermination => "own hook: the pod terminates",
            Meaning::HookReturns => "app hook while the app is gone: it returns at once",
            Meaning::PerhapsRestart => "app hook alone: an app restart, unless the own hook or a signal follows",
            Meaning::Hurry => "second signal: closing now",
            Meaning::Nothing => "repeated signal: nothing more to shorten",
            Meaning::Finish => "signal with nothing left to do: finishing",
            Meaning::GraceUsedUp => {
                "signal while the app still runs: the real grace period is used up, SIGKILL follows; closing now"
            }
            Meaning::OnlySidecarRestarts => {
                "signal right after the own hook: only ebbtide restarts, the schedule stands"
            }
            Meaning::KeepSchedule => "first signal of a termination under way: the schedule stands",
            Meaning::SignalTermination => "termination by signal",
        };
        match meaning {
            Meaning::GraceUsedUp => tracing::warn!(phase = snapshot.phase.name(), "{text}"),
            _ => tracing::info!(phase = snapshot.phase.name(), "{text}"),
        }
    }
}
