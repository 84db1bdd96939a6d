//! Every metric of ebbtide, in one table.

use super::labels::{
    Dial, Forced, GrpcCode, Handshake, Notice, Parked, Protocol, Reject, Reload, RequestOutcome, SessionEnd, Spoken,
};

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
    /// A second label; its values come first in the order of the cells.
    pub outer: Option<(&'static str, &'static [&'static str])>,
}

impl Row {
    /// Values of the label that is not the outer one; 1 without labels.
    pub fn inner_len(&self) -> usize {
        self.label.map_or(1, |(_, values)| values.len())
    }
}

const PHASES: &[&str] = &["starting", "serving", "holding", "draining", "closing", "lingering", "terminated"];
const PARTS: &[&str] = &["grace_period", "hold", "drain", "close", "app_stop", "margin"];
const WORK: &[&str] = &["request", "stream", "tunnel", "session"];

const fn counter(name: &'static str, help: &'static str) -> Row {
    Row { name, kind: "counter", help, label: None, outer: None }
}

const fn gauge(name: &'static str, help: &'static str) -> Row {
    Row { name, kind: "gauge", help, label: None, outer: None }
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
    gauge(
        "ebbtide_connections_max",
        "Limit of downstream connections and HTTP/2 streams together; beyond it connections stay in the backlog.",
    ),
    gauge("ebbtide_outbound_connections", "Connections open on outbound listeners."),
    by(counter("ebbtide_connections_total", "Closed connections by what they spoke."), "protocol", Protocol::NAMES),
    by(
        counter("ebbtide_connections_rejected_total", "Connections closed for what they sent, or did not send."),
        "reason",
        Reject::NAMES,
    ),
    by(
        counter("ebbtide_tls_handshakes_total", "TLS handshakes of clients by how they ended."),
        "result",
        Handshake::NAMES,
    ),
    by(
        gauge("ebbtide_tls_files_refused", "1 while changed certificate files can't be used and the old ones stay."),
        "listener",
        &[],
    ),
    by(
        counter("ebbtide_tls_reloads_total", "Changed certificate files, by what became of them."),
        "result",
        Reload::NAMES,
    ),
    Row {
        outer: Some(("listener", &[])),
        ..by(
            gauge(
                "ebbtide_tls_certificate_expiry_timestamp_seconds",
                "Unix time until which a certificate, or the first of its chain, is good.",
            ),
            "path",
            &[],
        )
    },
    Row {
        outer: Some(("protocol", Spoken::NAMES)),
        ..by(
            counter(
                "ebbtide_requests_total",
                "Finished requests by outcome; abandoned: the client was found gone while it was being answered.",
            ),
            "outcome",
            RequestOutcome::NAMES,
        )
    },
    by(
        counter("ebbtide_grpc_calls_total", "Finished gRPC calls by status; none: ended without one."),
        "code",
        GrpcCode::NAMES,
    ),
    by(
        counter("ebbtide_websocket_sessions_total", "Finished WebSocket sessions by how they ended."),
        "outcome",
        SessionEnd::NAMES,
    ),
    by(counter("ebbtide_notices_total", "Clients told to go."), "kind", Notice::NAMES),
    by(
        counter(
            "ebbtide_forced_endings_total",
            "Work ended by force: at the drain deadline, or a WebSocket whose client did not answer.",
        ),
        "kind",
        Forced::NAMES,
    ),
    gauge("ebbtide_parked_requests", "Requests waiting for the app to accept."),
    by(
        counter(
            "ebbtide_parked_requests_total",
            "Parked requests by what became of them; abandoned: the client's connection broke, a mere hang-up does not \
             show.",
        ),
        "outcome",
        Parked::NAMES,
    ),
    by(
        counter("ebbtide_upstream_connects_total", "Connections dialled to the app for requests."),
        "result",
        Dial::NAMES,
    ),
    by(
        counter("ebbtide_outbound_connects_total", "Connections dialled for outbound listeners."),
        "result",
        Dial::NAMES,
    ),
    counter(
        "ebbtide_upstream_retries_total",
        "Requests sent again: a reused connection had died, or the app had not looked at them.",
    ),
    by(gauge("ebbtide_upstream_up", "1 while the app accepts."), "listener", &[]),
    counter(
        "ebbtide_requests_after_termination_total",
        "Requests and TCP connections that came at or after t0 and were forwarded.",
    ),
    counter("ebbtide_late_arrivals_total", "Requests and TCP connections that came after the hold and were forwarded."),
    counter("ebbtide_late_refusals_total", "Requests that were refused because the drain was over."),
    counter("ebbtide_late_bytes_total", "Bytes that came after ebbtide had closed its side of a connection."),
    gauge("ebbtide_last_arrival_after_termination_seconds", "Latest arrival that counts, seconds after t0."),
    gauge(
        "ebbtide_last_connection_after_termination_seconds",
        "Latest new connection that counts, seconds after t0: a hold of that length would have covered it.",
    ),
    gauge("ebbtide_termination_start_time_seconds", "Unix time of t0; 0 before."),
    gauge("ebbtide_hold_duration_seconds", "How long the hold took; 0 before its end."),
    gauge("ebbtide_drain_duration_seconds", "How long the drain took after the hold; 0 before its end."),
    by(gauge("ebbtide_budget_seconds", "Parts of the grace period as they are used."), "part", PARTS),
    gauge("ebbtide_budget_shrunk", "1 if a part set by the user had to shrink to fit the grace period."),
    gauge("ebbtide_own_hook_missing", "1 if the termination began with a signal in sidecar mode."),
    gauge("ebbtide_app_hook_missing", "1 if no app hook has joined the termination in sidecar mode."),
    gauge(
        "ebbtide_grace_used_up_after_seconds",
        "When SIGTERM came although the app still ran, seconds after t0: the real grace period; 0 if it did not.",
    ),
    gauge("ebbtide_app_hooks_open", "Calls of /app-stop that are being held."),
    gauge("ebbtide_app_restarts", "App-only restarts announced by an app hook."),
    counter("ebbtide_accept_errors_total", "Failed accepts (out of descriptors or memory)."),
    counter("ebbtide_accept_pauses_total", "Times that accepting paused at the connection limit."),
];
