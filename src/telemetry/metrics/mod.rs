//! The metrics of the process: handles to count with, and the exposition.
//!
//! The data path counts in plain atomics; they, and the gauges that mirror state kept elsewhere, reach the recorder
//! when `/metrics` is rendered.

mod labels;
mod table;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metrics::{Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

pub use self::labels::{
    Dial, Forced, GrpcCode, Handshake, Notice, Parked, Protocol, Reject, Reload, RequestOutcome, SessionEnd, Spoken,
};
pub use self::table::{Row, TABLE};
use crate::lifecycle::Lifecycle;
use crate::lifecycle::budget::Budget;
use crate::lifecycle::in_flight::Work;
use crate::lifecycle::machine::Findings;
use crate::lifecycle::phase::Phase;
use crate::lifecycle::tick::Tick;

/// All metrics of the process.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    sidecar: bool,
    /// Unix time of the start.
    started: f64,
    /// By [`Protocol`].
    pub connections: Family,
    /// By [`Reject`].
    pub rejected: Family,
    /// By [`Handshake`].
    pub tls_handshakes: Family,
    /// By [`Reload`].
    pub tls_reloads: Family,
    /// By [`Spoken`] and [`RequestOutcome`].
    pub requests: Family,
    /// By [`GrpcCode`].
    pub grpc_calls: Family,
    /// By [`SessionEnd`].
    pub sessions: Family,
    /// By [`Notice`].
    pub notices: Family,
    /// By [`Forced`].
    pub forced: Family,
    /// By [`Parked`].
    pub parked: Family,
    /// By [`Dial`].
    pub dials: Family,
    /// By [`Dial`].
    pub outbound_dials: Family,
    /// Requests sent again.
    pub retries: Family,
    /// Requests forwarded after t0.
    pub after_termination: Family,
    /// Requests forwarded after the hold.
    pub late_arrivals: Family,
    /// Requests refused after the drain.
    pub late_refusals: Family,
    /// Bytes after our FIN.
    pub late_bytes: Family,
    /// Failed accepts.
    pub accept_errors: Family,
    /// Pauses at the connection limit.
    pub accept_pauses: Family,
    /// Held calls of `/app-stop`.
    pub app_hooks_open: AtomicU64,
}

/// The counters of one row, one per label value; plain atomics, so that counting allocates and resolves nothing.
#[derive(Debug)]
pub struct Family {
    row: &'static Row,
    cells: Vec<AtomicU64>,
}

// === impl Family ===

impl Family {
    fn new(name: &'static str) -> Self {
        let row = TABLE.iter().find(|row| row.name == name).unwrap_or(&TABLE[0]);
        debug_assert_eq!(row.name, name, "a counter stands in the table");
        let cells = row.inner_len() * row.outer.map_or(1, |(_, values)| values.len());
        Self { row, cells: (0..cells).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts one of label value number `value`.
    pub fn add(&self, value: usize) {
        self.cells[value].fetch_add(1, Relaxed);
    }

    /// Counts one of a row with two labels.
    pub fn add_pair(&self, outer: usize, value: usize) {
        self.cells[outer * self.row.inner_len() + value].fetch_add(1, Relaxed);
    }

    /// Counts `n` of a row without label.
    pub fn add_many(&self, n: u64) {
        self.cells[0].fetch_add(n, Relaxed);
    }

    /// The sum over all label values.
    pub fn total(&self) -> u64 {
        self.cells.iter().map(|cell| cell.load(Relaxed)).sum()
    }

    /// Label values that are not 0, with their counts; over all values of a second label.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = self.row.label.map_or(&[""] as &[&str], |(_, values)| values);
        let sum =
            |value: usize| self.cells.iter().skip(value).step_by(names.len()).map(|cell| cell.load(Relaxed)).sum();
        names.iter().copied().enumerate().map(move |(value, name)| (name, sum(value))).filter(|(_, n)| *n > 0)
    }

    fn publish(&self, recorder: &PrometheusRecorder) {
        for (index, cell) in self.cells.iter().enumerate() {
            let inner = self.row.inner_len();
            let outer = self.row.outer.map(|(key, values)| Label::new(key, values[index / inner]));
            let label = self.row.label.map(|(key, values)| Label::new(key, values[index % inner]));
            let key = Key::from_parts(self.row.name, outer.into_iter().chain(label).collect::<Vec<_>>());
            recorder.register_counter(&key, &METADATA).absolute(cell.load(Relaxed));
        }
    }
}

// === impl Metrics ===

impl Metrics {
    /// All counters at 0, and the gauges that never change set.
    pub fn new(budget: &Budget, max_connections: usize, sidecar: bool) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        for row in TABLE {
            let name = metrics::KeyName::from_const_str(row.name);
            match row.kind {
                "counter" => recorder.describe_counter(name, None, row.help.into()),
                _ => recorder.describe_gauge(name, None, row.help.into()),
            }
        }
        let metrics = Self {
            connections: Family::new("ebbtide_connections_total"),
            rejected: Family::new("ebbtide_connections_rejected_total"),
            tls_handshakes: Family::new("ebbtide_tls_handshakes_total"),
            tls_reloads: Family::new("ebbtide_tls_reloads_total"),
            requests: Family::new("ebbtide_requests_total"),
            grpc_calls: Family::new("ebbtide_grpc_calls_total"),
            sessions: Family::new("ebbtide_websocket_sessions_total"),
            notices: Family::new("ebbtide_notices_total"),
            forced: Family::new("ebbtide_forced_endings_total"),
            parked: Family::new("ebbtide_parked_requests_total"),
            dials: Family::new("ebbtide_upstream_connects_total"),
            outbound_dials: Family::new("ebbtide_outbound_connects_total"),
            retries: Family::new("ebbtide_upstream_retries_total"),
            after_termination: Family::new("ebbtide_requests_after_termination_total"),
            late_arrivals: Family::new("ebbtide_late_arrivals_total"),
            late_refusals: Family::new("ebbtide_late_refusals_total"),
            late_bytes: Family::new("ebbtide_late_bytes_total"),
            accept_errors: Family::new("ebbtide_accept_errors_total"),
            accept_pauses: Family::new("ebbtide_accept_pauses_total"),
            app_hooks_open: AtomicU64::new(0),
            handle: recorder.handle(),
            recorder,
            sidecar,
            started: unix_now(),
        };
        metrics.set("ebbtide_build_info", Some(("version", env!("CARGO_PKG_VERSION"))), 1.0);
        metrics.set("ebbtide_start_time_seconds", None, metrics.started);
        metrics.set("ebbtide_connections_max", None, max_connections as f64);
        for (part, length) in budget.parts() {
            metrics.set("ebbtide_budget_seconds", Some(("part", part)), length.as_secs_f64());
        }
        let shrunk = budget.shrunk.as_ref().is_some_and(|shrunk| shrunk.user_set);
        metrics.set("ebbtide_budget_shrunk", None, f64::from(u8::from(shrunk)));
        metrics
    }

    /// The exposition in Prometheus text format, with everything brought up to date.
    pub fn render(&self, lifecycle: Lifecycle, findings: &Findings) -> String {
        for family in [
            &self.connections,
            &self.rejected,
            &self.tls_handshakes,
            &self.tls_reloads,
            &self.requests,
            &self.grpc_calls,
            &self.sessions,
            &self.notices,
            &self.forced,
            &self.parked,
            &self.dials,
            &self.outbound_dials,
            &self.retries,
            &self.after_termination,
            &self.late_arrivals,
            &self.late_refusals,
            &self.late_bytes,
            &self.accept_errors,
            &self.accept_pauses,
        ] {
            family.publish(&self.recorder);
        }
        let snapshot = lifecycle.snapshot();
        let tallies = lifecycle.tallies();
        for phase in Phase::ALL {
            let value = if phase == snapshot.phase { 1.0 } else { 0.0 };
            self.set("ebbtide_phase", Some(("phase", phase.name())), value);
        }
        for work in Work::ALL {
            self.set("ebbtide_in_flight", Some(("kind", work.name())), lifecycle.in_flight(work) as f64);
        }
        for (name, upstream) in lifecycle.upstreams() {
            self.set("ebbtide_upstream_up", Some(("listener", name)), f64::from(u8::from(upstream.is_up())));
        }
        let since_t0 =
            |last: Option<Tick>| last.zip(snapshot.t0).map_or(0.0, |(last, t0)| last.since(t0).as_secs_f64());
        let t0 = snapshot.t0.map_or(0.0, |t0| self.started + t0.since_start().as_secs_f64());
        let millis = |value: Option<u64>| value.unwrap_or(0) as f64 / 1000.0;
        let flag = |value: bool| f64::from(u8::from(value && self.sidecar));
        for (name, value) in [
            ("ebbtide_connections", tallies.connections.load(Relaxed) as f64),
            ("ebbtide_outbound_connections", tallies.outbound.load(Relaxed) as f64),
            ("ebbtide_parked_requests", tallies.parked.load(Relaxed) as f64),
            ("ebbtide_last_arrival_after_termination_seconds", since_t0(tallies.last_arrival())),
            ("ebbtide_last_connection_after_termination_seconds", since_t0(tallies.last_connection())),
            ("ebbtide_termination_start_time_seconds", t0),
            ("ebbtide_hold_duration_seconds", millis(findings.hold_ms)),
            ("ebbtide_drain_duration_seconds", millis(findings.drain_ms)),
            ("ebbtide_own_hook_missing", flag(findings.own_hook_missing)),
            ("ebbtide_app_hook_missing", flag(findings.app_hook_missing)),
            ("ebbtide_grace_used_up_after_seconds", millis(findings.grace_used_up_after_ms)),
            ("ebbtide_app_restarts", f64::from(findings.app_restarts)),
            ("ebbtide_app_hooks_open", self.app_hooks_open.load(Relaxed) as f64),
        ] {
            self.set(name, None, value);
        }
        self.handle.run_upkeep();
        self.handle.render()
    }

    /// Until when a listener's certificate is good, Unix time in seconds.
    pub fn set_certificate_expiry(&self, listener: &str, path: &str, at: f64) {
        let labels = vec![Label::new("listener", listener.to_owned()), Label::new("path", path.to_owned())];
        self.set_gauge("ebbtide_tls_certificate_expiry_timestamp_seconds", labels, at);
    }

    /// Whether changed certificate files of a listener wait to be usable.
    pub fn set_files_refused(&self, listener: &str, refused: bool) {
        let labels = vec![Label::new("listener", listener.to_owned())];
        self.set_gauge("ebbtide_tls_files_refused", labels, f64::from(u8::from(refused)));
    }

    fn set(&self, name: &'static str, label: Option<(&'static str, &'static str)>, value: f64) {
        self.set_gauge(name, label.map(|(key, value)| Label::new(key, value)).into_iter().collect(), value);
    }

    fn set_gauge(&self, name: &'static str, labels: Vec<Label>, value: f64) {
        self.recorder.register_gauge(&Key::from_parts(name, labels), &METADATA).set(value);
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics(..)")
    }
}

const METADATA: Metadata<'static> = Metadata::new("ebbtide", Level::INFO, None);

/// Seconds since 1970, for metrics only.
pub fn unix_now() -> f64 {
    // A clock before 1970 is no clock.
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
