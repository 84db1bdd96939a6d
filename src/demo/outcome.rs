//! What the demo counts, and when ebbtide has passed.

use std::collections::BTreeMap;
use std::ops::Add;

use serde::Serialize;

use super::table::grouped;

/// Both sides of the comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The app alone.
    pub without_ebbtide: Side,
    /// The app behind ebbtide.
    pub with_ebbtide: Side,
}

/// What one pod deletion did to the clients.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Side {
    /// Requests and failures of each kind of load.
    pub loads: BTreeMap<LoadKind, Counts>,
    /// Where the balancer sent new connections.
    pub flows: Flows,
    /// From the deletion to the SIGTERM of the app.
    pub app_sigterm_seconds: f64,
    /// From the deletion to the end of the pod's last process.
    pub pod_gone_seconds: f64,
    /// How ebbtide ended, if it was there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ebbtide: Option<SidecarEnd>,
}

/// How the deleted pod's ebbtide ended.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SidecarEnd {
    /// `None` if a signal killed it.
    pub exit_code: Option<i32>,
    /// The report it left behind; text that is no JSON stands here as a string.
    pub report: Option<serde_json::Value>,
    /// The last lines of its log, kept only if something was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_tail: Option<String>,
}

/// One kind of load, a row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadKind {
    /// POSTs on connections that are used again and again.
    KeepAlivePost,
    /// One connection per request.
    NewConnection,
    /// Answers that take seconds.
    SlowRequest,
    /// POSTs on HTTP/2 connections, several at once.
    Http2Request,
    /// gRPC calls with one message each way.
    GrpcUnary,
    /// gRPC calls that are answered with messages without an end.
    GrpcStream,
    /// Sessions with messages both ways.
    WebSocket,
    /// Answers of events without an end, each continued where the one before has ended.
    EventStream,
    /// Requests in bursts over TCP connections that are used again and again.
    RawTcp,
}

/// How a request failed, as its client saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// No connection could be made.
    Refused,
    /// The connection was reset before any byte of the answer.
    Reset,
    /// The connection was closed before any byte of the answer.
    NoAnswer,
    /// The connection ended inside the answer.
    CutShort,
    /// Status 500 to 599.
    ServerError,
    /// A gRPC status other than OK, or none.
    GrpcStatus,
    /// A WebSocket session ended without a close handshake: what its client calls 1006.
    NoClose,
    /// A message or event never arrived, or twice, though its session or stream had ended in order.
    Message,
    /// No whole answer in time.
    Timeout,
    /// Another status or body than expected, or an error of the load client's own.
    Other,
}

/// Requests of one kind of load.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// All that were begun.
    pub requests: u64,
    /// Those without the right answer.
    pub failed: u64,
    /// `failed`, by kind; kinds that did not occur are absent.
    pub failures: BTreeMap<Failure, u64>,
    /// Sent once more, because the server had said that it did not look at them (RFC 9113 §8.7).
    pub repeated: u64,
    /// Those without an end that were ended so that their clients connect again: a gRPC stream between two messages
    /// with UNAVAILABLE, a session with Close, events with a whole body, TCP between two requests. No loss.
    pub told: u64,
}

/// New connections through the balancers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Flows {
    /// To pod A before its deletion.
    pub to_a: u64,
    /// To pod A after its deletion, while the balancer did not know.
    pub to_a_late: u64,
    /// To pod B.
    pub to_b: u64,
}

// === impl Outcome ===

impl Outcome {
    /// The demo's exit code hangs on this: ebbtide lost nothing, and there was something to lose.
    pub fn lost_nothing(&self) -> bool {
        self.objection().is_none()
    }

    /// The result in one sentence.
    pub fn verdict(&self) -> String {
        let (requests, failed) = self.without_ebbtide.totals();
        let without = format!("{} of {} requests", grouped(failed), grouped(requests));
        match self.objection() {
            None => format!(
                "Lost without ebbtide: {without}; with ebbtide: none of {}.",
                grouped(self.with_ebbtide.totals().0)
            ),
            Some(objection) => format!("Not passed: with ebbtide {objection} (without it {without} failed)."),
        }
    }

    fn objection(&self) -> Option<String> {
        let side = &self.with_ebbtide;
        let (requests, failed) = side.totals();
        if failed > 0 {
            return Some(format!("{} of {} requests failed", grouped(failed), grouped(requests)));
        }
        if let Some(kind) = LoadKind::ALL.into_iter().find(|kind| side.counts(*kind).requests == 0) {
            return Some(format!("no {} was made", kind.label()));
        }
        if side.flows.to_a_late == 0 {
            return Some("no connection reached the pod after its deletion".to_owned());
        }
        match side.ebbtide.as_ref().map(|end| end.exit_code) {
            Some(Some(0)) => None,
            Some(Some(code)) => Some(format!("the exit code was {code}")),
            Some(None) => Some("the proxy was killed by a signal".to_owned()),
            None => Some("no sidecar was there".to_owned()),
        }
    }
}

// === impl Flows ===

impl Add for Flows {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { to_a: self.to_a + other.to_a, to_a_late: self.to_a_late + other.to_a_late, to_b: self.to_b + other.to_b }
    }
}

// === impl Side ===

impl Side {
    /// The counts of one kind of load; zeros if it did not run.
    pub fn counts(&self, kind: LoadKind) -> Counts {
        self.loads.get(&kind).cloned().unwrap_or_default()
    }

    /// Requests and failures of all kinds.
    pub fn totals(&self) -> (u64, u64) {
        self.loads
            .values()
            .fold((0, 0), |(requests, failed), counts| (requests + counts.requests, failed + counts.failed))
    }

    /// How many requests were sent once more, and how many streams were told to connect again.
    pub fn again(&self) -> (u64, u64) {
        self.loads.values().fold((0, 0), |(repeated, told), counts| (repeated + counts.repeated, told + counts.told))
    }
}

// === impl LoadKind ===

impl LoadKind {
    /// In the order of the table.
    pub const ALL: [Self; 9] = [
        Self::KeepAlivePost,
        Self::NewConnection,
        Self::SlowRequest,
        Self::Http2Request,
        Self::GrpcUnary,
        Self::GrpcStream,
        Self::WebSocket,
        Self::EventStream,
        Self::RawTcp,
    ];

    /// Its name in the table.
    pub fn label(self) -> &'static str {
        match self {
            Self::KeepAlivePost => "keep-alive POST",
            Self::NewConnection => "new connection",
            Self::SlowRequest => "slow request",
            Self::Http2Request => "HTTP/2 request",
            Self::GrpcUnary => "gRPC unary call",
            Self::GrpcStream => "gRPC server stream",
            Self::WebSocket => "WebSocket session",
            Self::EventStream => "server-sent events",
            Self::RawTcp => "raw TCP request",
        }
    }
}

// === impl Failure ===

impl Failure {
    /// In the order of the table.
    pub const ALL: [Self; 10] = [
        Self::Refused,
        Self::Reset,
        Self::NoAnswer,
        Self::CutShort,
        Self::ServerError,
        Self::GrpcStatus,
        Self::NoClose,
        Self::Message,
        Self::Timeout,
        Self::Other,
    ];

    /// Its name in the table.
    pub fn label(self) -> &'static str {
        match self {
            Self::Refused => "connection refused",
            Self::Reset => "reset",
            Self::NoAnswer => "closed without answer",
            Self::CutShort => "answer cut short",
            Self::ServerError => "5xx",
            Self::GrpcStatus => "gRPC error",
            Self::NoClose => "no close frame (1006)",
            Self::Message => "message lost or doubled",
            Self::Timeout => "timeout",
            Self::Other => "other",
        }
    }
}

// === impl Counts ===

impl Counts {
    /// Takes one finished request in.
    pub fn record(&mut self, result: Result<(), Failure>) {
        self.requests += 1;
        if let Err(failure) = result {
            self.failed += 1;
            *self.failures.entry(failure).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed() -> Outcome {
        let mut side = Side { flows: Flows { to_a: 1, to_a_late: 1, to_b: 1 }, ..Side::default() };
        for kind in LoadKind::ALL {
            side.loads.entry(kind).or_default().record(Ok(()));
        }
        let ebbtide = Some(SidecarEnd { exit_code: Some(0), ..SidecarEnd::default() });
        Outcome { without_ebbtide: side.clone(), with_ebbtide: Side { ebbtide, ..side } }
    }

    #[test]
    fn a_clean_run_passes_whatever_the_other_side_lost() {
        let mut outcome = passed();
        outcome.without_ebbtide.loads.entry(LoadKind::SlowRequest).or_default().record(Err(Failure::CutShort));
        assert!(outcome.lost_nothing());
        assert_eq!(outcome.verdict(), "Lost without ebbtide: 1 of 10 requests; with ebbtide: none of 9.");
    }

    #[test]
    fn one_lost_request_fails() {
        let mut outcome = passed();
        outcome.with_ebbtide.loads.entry(LoadKind::KeepAlivePost).or_default().record(Err(Failure::Reset));
        assert!(!outcome.lost_nothing());
        assert!(outcome.verdict().starts_with("Not passed: with ebbtide 1 of 10 requests failed ("));
    }

    #[test]
    fn a_demo_that_did_nothing_fails() {
        let mut outcome = passed();
        outcome.with_ebbtide.loads.remove(&LoadKind::SlowRequest);
        assert!(outcome.verdict().contains("no slow request was made"));
        let mut outcome = passed();
        outcome.with_ebbtide.flows.to_a_late = 0;
        assert!(!outcome.lost_nothing());
    }

    #[test]
    fn only_exit_code_0_passes() {
        for exit_code in [Some(1), None] {
            let mut outcome = passed();
            outcome.with_ebbtide.ebbtide = Some(SidecarEnd { exit_code, ..SidecarEnd::default() });
            assert!(!outcome.lost_nothing());
        }
        let mut outcome = passed();
        outcome.with_ebbtide.ebbtide = None;
        assert!(!outcome.lost_nothing());
    }

    #[test]
    fn json_names_kinds_in_snake_case() {
        let mut outcome = passed();
        outcome.with_ebbtide.loads.entry(LoadKind::KeepAlivePost).or_default().record(Err(Failure::NoAnswer));
        let json = serde_json::to_value(&outcome).expect("must serialize");
        assert_eq!(json["with_ebbtide"]["loads"]["keep_alive_post"]["failures"]["no_answer"], 1);
    }
}
