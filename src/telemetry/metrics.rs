//! Every metric of ebbtide in one table, and the handles to them.
//!
//! The data path counts in plain atomics; they, and the gauges that mirror state kept elsewhere, reach the recorder
//! when `/metrics` is rendered.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use metrics::{Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::lifecycle::Lifecycle;
use crate::lifecycle::budget::Budget;
use crate::lifecycle::in_flight::Work;
use crate::lifecycle::machine::Findings;
use crate::lifecycle::phase::Phase;

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// As exposed.
    pub name: &'static str,
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// One line.
    pub help: &'static str,
    /// Label name and its values; values `&[]` are names from the configuration.
    pub label: Option<(&'static str, &'static [&'static str])>,
}

macro_rules! label_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }
        impl $name {
            /// Label values in the order of the variants.
            pub const NAMES: &'static [&'static str] = &[$($text,)+];
            /// The label value.
            pub const fn name(self) -> &'static str { Self::NAMES[self as usize] }
        }
    };
}

label_enum! {
    /// How a request ended, for `ebbtide_requests_total`.
    RequestOutcome {
        /// 101 and a tunnel.
        Upgraded => "upgraded",
        /// The app answered 2xx.
        App2xx => "app_2xx",
        /// The app answered 3xx.
        App3xx => "app_3xx",
        /// The app answered 4xx.
        App4xx => "app_4xx",
        /// The app answered 5xx.
        App5xx => "app_5xx",
        /// 503 by ebbtide: nothing has reached the app.
        Unavailable => "unavailable",
        /// 502 by ebbtide: the app's connection broke before its answer.
        BadGateway => "bad_gateway",
        /// 504 by ebbtide at the drain deadline: sent to the app, no answer in time.
        GatewayTimeout => "gateway_timeout",
        /// 4xx or 505 by ebbtide: the request was not acceptable.
        Rejected => "rejected",
        /// The app's connection broke in the middle of the answer.
        Broken => "broken",
        /// Cut by ebbtide at the drain deadline in the middle of the answer.
        Cut => "cut",
        /// The client left before the end.
        Abandoned => "abandoned",
    }
}

label_enum! {
    /// What a downstream connection spoke, for `ebbtide_connections_total`.
    Protocol {
        /// HTTP/1.0 or 1.1.
        Http1 => "http1",
        /// An HTTP/2 preface.
        Http2 => "http2",
        /// Closed without a byte.
        Silent => "silent",
        /// An outbound relay.
        Outbound => "outbound",
    }
}

label_enum! {
    /// How clients were told to go, for `ebbtide_notices_total`.
    Notice {
        /// `Connection: close` on a response.
        ConnectionClose => "connection_close",
        /// An idle connection was closed.
        IdleClose => "idle_close",
        /// A tunnel was closed at a quiet moment.
        TunnelClose => "tunnel_close",
    }
}

label_enum! {
    /// What was ended by force, for `ebbtide_forced_endings_total`.
    Forced {
        /// 503: nothing had reached the app.
        RequestUnsent => "request_unsent",
        /// 504: the app had not answered.
        RequestUnanswered => "request_unanswered",
        /// A response was broken off.
        Response => "response",
        /// A tunnel was cut in the middle of traffic.
        Tunnel => "tunnel",
        /// A request head had not come in full: 408.
        RequestHead => "request_head",
        /// A client that did not read was dropped.
        Stalled => "stalled",
    }
}

label_enum! {
    /// What became of a parked request, for `ebbtide_parked_requests_total`.
    Parked {
        /// The app accepted again.
        Forwarded => "forwarded",
        /// `parking.wait_timeout` went by.
        TimedOut => "timed_out",
        /// `parking.max_requests` were waiting already.
        Full => "full",
        /// The termination began while it waited.
        Released => "released",
        /// The client left.
        Abandoned => "abandoned",
    }
}

label_enum! {
    /// Dials to inbound upstreams, for `ebbtide_upstream_connects_total`.
    Dial {
        /// Accepted.
        Ok => "ok",
        /// Refused.
        Refused => "refused",
        /// Any other failure.
        Failed => "failed",
    }
}

label_enum! {
    /// Why a downstream connection was closed by ebbtide before its time, for `ebbtide_connections_rejected_total`.
    Reject {
        /// The head did not come within `limits.header_timeout`.
        HeaderTimeout => "header_timeout",
        /// Not a valid HTTP/1 head.
        BadRequest => "bad_request",
        /// A head beyond `limits.header_bytes`.
        HeadTooLarge => "head_too_large",
        /// HTTP/2, which this version does not speak.
        Http2 => "http2",
    }
}

const PHASES: &[&str] = &["starting", "serving", "holding", "draining", "closing", "lingering", "terminated"];
const PARTS: &[&str] = &["grace_period", "hold", "drain", "close", "app_stop", "margin"];
const WORK: &[&str] = &["request", "tunnel"];

const fn counter(name: &'static str, help: &'static str) -> Row {
    Row { name, kind: "counter", help, label: None }
}

const fn gauge(name: &'static str, help: &'static str) -> Row {
    Row { name, kind: "gauge", help, label: None }
}

const fn by(row: Row, label: &'static str, values: &'static [&'static str]) -> Row {
    Row { label: Some((label, values)), ..row }
}

/// All metrics; docs/user/metrics.md has the same rows.
pub const TABLE: &[Row] = &[
    by(gauge("ebbtide_build_info", "1, with the version as label."), "version", &[env!("CARGO_PKG_VERSION")]),
    gauge("ebbtide_start_time_seconds", "Unix time of the process start."),
    by(gauge("ebbtide_phase", "1 for the phase the process is in, 0 for the others."), "phase", PHASES),
    by(gauge("ebbtide_in_flight", "Work in flight to the app."), "kind", WORK),
    gauge("ebbtide_connections", "Downstream connections open on inbound listeners."),
    gauge("ebbtide_connections_max", "Limit of downstream connections; beyond it they stay in the backlog."),
    gauge("ebbtide_outbound_connections", "Connections open on outbound listeners."),
    by(counter("ebbtide_connections_total", "Closed connections by what they spoke."), "protocol", Protocol::NAMES),
    by(
        counter("ebbtide_connections_rejected_total", "Connections closed for what they sent."),
        "reason",
        Reject::NAMES,
    ),
    by(counter("ebbtide_requests_total", "Finished requests by outcome."), "outcome", RequestOutcome::NAMES),
    by(counter("ebbtide_notices_total", "Clients told to go."), "kind", Notice::NAMES),
    by(counter("ebbtide_forced_endings_total", "Work ended by force at the drain deadline."), "kind", Forced::NAMES),
    gauge("ebbtide_parked_requests", "Requests waiting for the app to accept."),
    by(counter("ebbtide_parked_requests_total", "Parked requests by what became of them."), "outcome", Parked::NAMES),
    by(
        counter("ebbtide_upstream_connects_total", "Connections dialled to the app for requests."),
        "result",
        Dial::NAMES,
    ),
    counter("ebbtide_upstream_retries_total", "Requests sent again because a reused connection had died."),
    by(gauge("ebbtide_upstream_up", "1 while the app accepts."), "listener", &[]),
    counter("ebbtide_requests_after_termination_total", "Requests that arrived at or after t0 and were forwarded."),
    counter("ebbtide_late_arrivals_total", "Requests that arrived after the hold and were forwarded."),
    counter("ebbtide_late_refusals_total", "Requests that were refused because the drain was over."),
    counter("ebbtide_late_bytes_total", "Bytes that came after ebbtide had closed its side of a connection."),
    gauge("ebbtide_last_arrival_after_termination_seconds", "Latest arrival that counts, seconds after t0."),
    gauge("ebbtide_termination_start_time_seconds", "Unix time of t0; 0 before."),
    gauge("ebbtide_hold_duration_seconds", "How long the hold took; 0 before its end."),
    gauge("ebbtide_drain_duration_seconds", "How long the drain took after the hold; 0 before its end."),
    by(gauge("ebbtide_budget_seconds", "Parts of the grace period as they are used."), "part", PARTS),
    gauge("ebbtide_budget_shrunk", "1 if a part set by the user had to shrink to fit the grace period."),
    gauge("ebbtide_own_hook_missing", "1 if the termination began with a signal in sidecar mode."),
    gauge("ebbtide_app_hook_missing", "1 if no app hook has joined the termination in sidecar mode."),
    gauge("ebbtide_app_hooks_open", "Calls of /app-stop that are being held."),
    gauge("ebbtide_app_restarts", "App-only restarts announced by an app hook."),
    counter("ebbtide_accept_errors_total", "Failed accepts (out of descriptors or memory)."),
    counter("ebbtide_accept_pauses_total", "Times that accepting paused at the connection limit."),
];

/// All metrics of the process.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    sidecar: bool,
    /// By [`Protocol`].
    pub connections: Family,
    /// By [`Reject`].
    pub rejected: Family,
    /// By [`RequestOutcome`].
    pub requests: Family,
    /// By [`Notice`].
    pub notices: Family,
    /// By [`Forced`].
    pub forced: Family,
    /// By [`Parked`].
    pub parked: Family,
    /// By [`Dial`].
    pub dials: Family,
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
        let cells = row.label.map_or(1, |(_, values)| values.len());
        Self { row, cells: (0..cells).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts one of label value number `value`.
    pub fn add(&self, value: usize) {
        self.cells[value].fetch_add(1, Relaxed);
    }

    /// Counts `n` of a row without label.
    pub fn add_many(&self, n: u64) {
        self.cells[0].fetch_add(n, Relaxed);
    }

    /// The sum over all label values.
    pub fn total(&self) -> u64 {
        self.cells.iter().map(|cell| cell.load(Relaxed)).sum()
    }

    /// Label values that are not 0, with their counts.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = self.row.label.map_or(&[""] as &[&str], |(_, values)| values);
        names.iter().copied().zip(self.cells.iter().map(|cell| cell.load(Relaxed))).filter(|(_, n)| *n > 0)
    }

    fn publish(&self, recorder: &PrometheusRecorder) {
        for (index, cell) in self.cells.iter().enumerate() {
            let labels = self.row.label.map(|(key, values)| Label::new(key, values[index]));
            let key = Key::from_parts(self.row.name, labels.into_iter().collect::<Vec<_>>());
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
            requests: Family::new("ebbtide_requests_total"),
            notices: Family::new("ebbtide_notices_total"),
            forced: Family::new("ebbtide_forced_endings_total"),
            parked: Family::new("ebbtide_parked_requests_total"),
            dials: Family::new("ebbtide_upstream_connects_total"),
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
        };
        metrics.set("ebbtide_build_info", Some(("version", env!("CARGO_PKG_VERSION"))), 1.0);
        metrics.set("ebbtide_start_time_seconds", None, unix_now());
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
            &self.requests,
            &self.notices,
            &self.forced,
            &self.parked,
            &self.dials,
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
        let since_t0 = |t0| tallies.last_arrival().map_or(Duration::ZERO, |last| last.since(t0));
        let t0 = snapshot.t0.map_or(0.0, |t0| unix_now() - lifecycle.now().since(t0).as_secs_f64());
        let millis = |value: Option<u64>| value.unwrap_or(0) as f64 / 1000.0;
        let flag = |value: bool| f64::from(u8::from(value && self.sidecar));
        for (name, value) in [
            ("ebbtide_connections", tallies.connections.load(Relaxed) as f64),
            ("ebbtide_outbound_connections", tallies.outbound.load(Relaxed) as f64),
            ("ebbtide_parked_requests", tallies.parked.load(Relaxed) as f64),
            (
                "ebbtide_last_arrival_after_termination_seconds",
                snapshot.t0.map_or(Duration::ZERO, since_t0).as_secs_f64(),
            ),
            ("ebbtide_termination_start_time_seconds", t0),
            ("ebbtide_hold_duration_seconds", millis(findings.hold_ms)),
            ("ebbtide_drain_duration_seconds", millis(findings.drain_ms)),
            ("ebbtide_own_hook_missing", flag(findings.own_hook_missing)),
            ("ebbtide_app_hook_missing", flag(findings.app_hook_missing)),
            ("ebbtide_app_restarts", f64::from(findings.app_restarts)),
            ("ebbtide_app_hooks_open", self.app_hooks_open.load(Relaxed) as f64),
        ] {
            self.set(name, None, value);
        }
        self.handle.run_upkeep();
        self.handle.render()
    }

    fn set(&self, name: &'static str, label: Option<(&'static str, &'static str)>, value: f64) {
        let labels: Vec<Label> = label.map(|(key, value)| Label::new(key, value)).into_iter().collect();
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
fn unix_now() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
