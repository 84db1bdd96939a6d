//! `/status` and `ebbtide status`: the whole state as JSON, or as text for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering::SeqCst;

use serde::{Deserialize, Serialize};

use crate::lifecycle::Lifecycle;
use crate::lifecycle::in_flight::Work;
use crate::lifecycle::machine::Findings;
use crate::lifecycle::tick::Tick;

/// The state at one moment; times in seconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// Of ebbtide.
    pub version: String,
    /// Where the process stands.
    pub phase: String,
    /// For how long.
    pub seconds_in_phase: f64,
    /// What `/readyz` says.
    pub ready: bool,
    /// Since t0; absent before.
    pub seconds_since_t0: Option<f64>,
    /// Absent before t0.
    pub deadlines: Option<Schedule>,
    /// Work in flight by kind.
    pub in_flight: BTreeMap<String, u64>,
    /// Downstream connections.
    pub connections: u64,
    /// Connections on outbound listeners.
    pub outbound_connections: u64,
    /// Requests waiting for the app.
    pub parked: u64,
    /// Inbound listeners whose app accepts.
    pub upstreams: BTreeMap<String, bool>,
    /// App-only restarts announced by an app hook.
    pub app_restarts: u32,
}

/// Deadlines in seconds after t0, in the order of time.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Schedule {
    /// The hold ends at the latest.
    pub hold_end: f64,
    /// What is in flight after this is ended by force.
    pub drain_deadline: f64,
    /// App hooks are released at the latest.
    pub hook_release: f64,
}

// === impl Status ===

impl Status {
    /// The state now.
    pub fn now(lifecycle: Lifecycle, findings: Findings) -> Self {
        let snapshot = lifecycle.snapshot();
        let now = lifecycle.now();
        let tallies = lifecycle.tallies();
        let upstreams: BTreeMap<_, _> =
            lifecycle.upstreams().map(|(name, upstream)| (name.to_owned(), upstream.is_up())).collect();
        let deadlines = snapshot.deadlines.zip(snapshot.t0).map(|(deadlines, t0)| {
            let after = |tick: Tick| tick.since(t0).as_secs_f64();
            Schedule {
                hold_end: after(deadlines.hold_end),
                drain_deadline: after(deadlines.drain_deadline),
                hook_release: after(snapshot.kill_at.unwrap_or(deadlines.close_deadline)),
            }
        });
        let serving_app = snapshot.phase.is_terminating() || upstreams.values().all(|up| *up);
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            phase: snapshot.phase.name().to_owned(),
            seconds_in_phase: now.since(snapshot.since).as_secs_f64(),
            ready: snapshot.is_ready(now) && serving_app,
            seconds_since_t0: snapshot.t0.map(|t0| now.since(t0).as_secs_f64()),
            deadlines,
            in_flight: Work::ALL.into_iter().map(|work| (work.name().to_owned(), lifecycle.in_flight(work))).collect(),
            connections: tallies.connections.load(SeqCst),
            outbound_connections: tallies.outbound.load(SeqCst),
            parked: tallies.parked.load(SeqCst),
            upstreams,
            app_restarts: findings.app_restarts,
        }
    }

    /// One line of JSON.
    pub fn to_json(&self) -> String {
        // Numbers, strings and maps with string keys: nothing here can fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a String can't fail.
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<12} {value}");
        };
        line("phase", format!("{} for {:.1}s", self.phase, self.seconds_in_phase));
        line("ready", if self.ready { "yes".into() } else { "no".into() });
        if let (Some(since), Some(deadlines)) = (self.seconds_since_t0, &self.deadlines) {
            line("terminating", format!("for {since:.1}s"));
            line("", format!("hold_end at {:.2}s", deadlines.hold_end));
            line("", format!("drain_deadline at {:.2}s", deadlines.drain_deadline));
            line("", format!("hook_release at {:.2}s", deadlines.hook_release));
        }
        let in_flight: Vec<_> = self.in_flight.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        line("in flight", in_flight.join(", "));
        line("parked", self.parked.to_string());
        line("connections", format!("{} inbound, {} outbound", self.connections, self.outbound_connections));
        for (name, up) in &self.upstreams {
            line("app", format!("{name}: {}", if *up { "accepts" } else { "does not accept" }));
        }
        line("app restarts", format!("{} announced by its hook", self.app_restarts));
        line("version", self.version.clone());
        text
    }
}
