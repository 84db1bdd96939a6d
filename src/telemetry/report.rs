//! What a termination leaves behind: one log event, and the same JSON as termination message for the kubelet.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::metrics::Metrics;
use crate::config::{Hold, Mode};
use crate::lifecycle::Lifecycle;
use crate::lifecycle::budget::{Budget, seconds};
use crate::lifecycle::machine::{Findings, Snapshot};
use crate::lifecycle::phase::Outcome;

/// The report, durations in seconds.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Drained, or forced.
    pub outcome: Outcome,
    /// Phase at the time of writing.
    pub phase: &'static str,
    /// From t0 to now.
    pub seconds_since_t0: f64,
    /// How long the hold took.
    pub hold_seconds: f64,
    /// How long the drain took.
    pub drain_seconds: f64,
    /// Requests forwarded at or after t0.
    pub requests_after_termination: u64,
    /// Of these, after the hold.
    pub late_arrivals: u64,
    /// Requests refused because the drain was over.
    pub late_refusals: u64,
    /// Latest arrival that counts, seconds after t0.
    pub last_arrival_seconds: f64,
    /// A hold that would have covered the latest new connection, whole seconds: so long did the cluster go on sending.
    pub hold_needed_seconds: u64,
    /// Clients told to go, by kind.
    pub notices: BTreeMap<&'static str, u64>,
    /// What was cut and why, by kind.
    pub forced: BTreeMap<&'static str, u64>,
    /// Finished requests by outcome, over the whole life.
    pub requests: BTreeMap<&'static str, u64>,
    /// Parts of the grace period as used, seconds.
    pub budget: BTreeMap<&'static str, f64>,
    /// What the operator should look at, in plain words.
    pub remarks: Vec<String>,
}

/// The kubelet keeps no more of a termination message.
const MESSAGE_BYTES: usize = 4096;
/// The kubelet's `terminationMessagePath` unless the pod spec says otherwise.
const DEFAULT_PATH: &str = "/dev/termination-log";

// === impl Report ===

impl Report {
    /// Puts the report together.
    pub fn new(
        lifecycle: Lifecycle,
        mode: Mode,
        budget: &Budget,
        metrics: &Metrics,
        snapshot: &Snapshot,
        findings: &Findings,
    ) -> Self {
        let now = lifecycle.now();
        let t0 = snapshot.t0.unwrap_or(now);
        let last = lifecycle.tallies().last_arrival().map_or(Duration::ZERO, |last| last.since(t0));
        let last_new = lifecycle.tallies().last_connection().map_or(Duration::ZERO, |last| last.since(t0));
        let too_short =
            last_new > hold_used(budget, findings) && lifecycle.upstreams().any(|(_, up)| up.ever_accepted());
        let forced: BTreeMap<_, _> = metrics.forced.counts().collect();
        let millis = |value: Option<u64>| value.unwrap_or(0) as f64 / 1000.0;
        Self {
            outcome: if forced.is_empty() { Outcome::Drained } else { Outcome::Forced },
            phase: snapshot.phase.name(),
            seconds_since_t0: round(now.since(t0)),
            hold_seconds: millis(findings.hold_ms),
            drain_seconds: millis(findings.drain_ms),
            requests_after_termination: metrics.after_termination.total(),
            late_arrivals: metrics.late_arrivals.total(),
            late_refusals: metrics.late_refusals.total(),
            last_arrival_seconds: round(last),
            hold_needed_seconds: last_new.as_secs_f64().ceil() as u64,
            notices: metrics.notices.counts().collect(),
            remarks: remarks(mode, budget, metrics, findings, too_short.then_some(last_new), &forced),
            forced,
            requests: metrics.requests.counts().collect(),
            budget: budget.parts().into_iter().map(|(name, length)| (name, round(length))).collect(),
        }
    }

    /// One log event, and the termination message.
    ///
    /// # Errors
    /// If the message can't be written; outside of Kubernetes its path rarely exists.
    pub fn publish(&self, path: &Path) -> io::Result<()> {
        let json = serde_json::to_string(self)?;
        tracing::info!(report = json, "termination report");
        let message = self.message(json);
        // The kubelet makes its file before the container starts; elsewhere none must appear in /dev.
        let create = path != Path::new(DEFAULT_PATH);
        OpenOptions::new().write(true).truncate(true).create(create).open(path)?.write_all(message.as_bytes())
    }

    /// The JSON, with the least important parts left out until it fits.
    fn message(&self, json: String) -> String {
        if json.len() <= MESSAGE_BYTES {
            return json;
        }
        let mut short = self.clone();
        short.requests.clear();
        short.remarks.truncate(3);
        short.remarks.iter_mut().for_each(|remark| remark.truncate(remark.floor_char_boundary(512)));
        serde_json::to_string(&short).unwrap_or_default()
    }
}

fn remarks(
    mode: Mode,
    budget: &Budget,
    metrics: &Metrics,
    findings: &Findings,
    came_too_late: Option<Duration>,
    forced: &BTreeMap<&'static str, u64>,
) -> Vec<String> {
    let mut remarks = Vec::new();
    if findings.own_hook_missing {
        remarks.push(
            "own hook missing: the termination was only seen by SIGTERM; give the ebbtide container the preStop \
             handler exec [\"/ebbtide\", \"drain\"]"
                .to_owned(),
        );
    }
    if mode == Mode::Sidecar && findings.app_hook_missing {
        remarks.push(
            "app hook missing: the app got its SIGTERM at once; give each app container the preStop handler httpGet \
             /app-stop on the admin port (as a number)"
                .to_owned(),
        );
    }
    if let Some(after) = findings.grace_used_up_after_ms {
        remarks.push(format!(
            "the real grace period ended {} after the termination began, {} are configured: node shutdown, eviction \
             or a shorter --grace-period",
            seconds(Duration::from_millis(after)),
            seconds(budget.grace_period),
        ));
    }
    if let Some(shrunk) = budget.shrunk.as_ref().filter(|shrunk| shrunk.user_set) {
        remarks.push(shrunk.message.clone());
    }
    remarks.extend(budget.too_late());
    let late = metrics.late_arrivals.total() + metrics.late_refusals.total();
    if late > 0 {
        remarks.push(late_remark(late, came_too_late));
    }
    if !forced.is_empty() {
        let list: Vec<String> = forced.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        remarks.push(format!("ended by force: {}", list.join(", ")));
    }
    remarks
}

/// A fixed hold that was cut short, since the app was gone or had never accepted, was still long enough.
fn hold_used(budget: &Budget, findings: &Findings) -> Duration {
    match budget.hold {
        Hold::Fixed(length) => length,
        Hold::Adaptive { .. } => Duration::from_millis(findings.hold_ms.unwrap_or(0)),
    }
}

/// With advice where a new connection came after the hold: a longer hold changes nothing for those that were open.
fn late_remark(late: u64, last_new: Option<Duration>) -> String {
    let requests = if late == 1 { "request or connection" } else { "requests and connections" };
    let advice = last_new.map(|at| {
        format!(
            ", the last new connection {} after the termination began: a hold of {}s would have covered it",
            seconds(at),
            at.as_secs_f64().ceil(),
        )
    });
    format!("{late} {requests} came after the hold{}", advice.unwrap_or_default())
}

fn round(length: Duration) -> f64 {
    (length.as_secs_f64() * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_requests_come_with_advice_only_where_a_longer_hold_helps() {
        assert_eq!(late_remark(1, None), "1 request or connection came after the hold");
        assert_eq!(
            late_remark(7, Some(Duration::from_millis(12_340))),
            "7 requests and connections came after the hold, the last new connection 12.34s after the termination \
             began: a hold of 13s would have covered it"
        );
    }
}
