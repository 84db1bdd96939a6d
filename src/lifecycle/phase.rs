//! The phases of a process and what each of them means for the outside.

use serde::Serialize;

/// Where the process stands. It only ever moves forward.
///
/// ```text
/// Starting ──every upstream accepted──▶ Serving ──t0──▶ Holding ──hold ends──▶ Draining
///     └────────────t0─────────────────────────────────▶    │                     │  │
///     │                        │                           │ rows 7, 9, 12       │  │ drain deadline
///     │                        │                           ▼                     ▼  │ rows 7, 9, 12
///     │                        │                        Closing ◀────────────────┘  │
///     │                        │                           │ nothing left, deadline │ quiet, gate closed,
///     └──no hold───────────────┴──no hold──▶ Lingering ◀───┴────────────────────────┘ nothing in flight
///                                                │        (Holding, Draining: also when the app is gone)
///                                                └──finish──▶ Terminated
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waiting for every inbound upstream to accept once.
    Starting,
    /// The ordinary life; waiting for t0.
    Serving,
    /// The pod terminates; work is taken as before while the cluster learns of it.
    Holding,
    /// Waiting for work in flight; late arrivals are still served.
    Draining,
    /// Out of time: what is left is ended by force.
    Closing,
    /// Inbound work is over, the app may go; outbound stays open until it has.
    Lingering,
    /// Over; the process exits.
    Terminated,
}

/// How a drain ended. Both exit with code 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything in flight came to its own end.
    Drained,
    /// Something was cut at the deadline.
    Forced,
}

impl Outcome {
    /// The name used in logs and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drained => "drained",
            Self::Forced => "forced",
        }
    }
}

impl Phase {
    /// All phases in order.
    pub const ALL: [Self; 7] = [
        Self::Starting,
        Self::Serving,
        Self::Holding,
        Self::Draining,
        Self::Closing,
        Self::Lingering,
        Self::Terminated,
    ];

    /// The name used in metrics, logs and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Holding => "holding",
            Self::Draining => "draining",
            Self::Closing => "closing",
            Self::Lingering => "lingering",
            Self::Terminated => "terminated",
        }
    }

    /// New requests are answered 503 and never forwarded.
    pub const fn refuses_requests(self) -> bool {
        match self {
            Self::Starting | Self::Serving | Self::Holding | Self::Draining => false,
            Self::Closing | Self::Lingering | Self::Terminated => true,
        }
    }

    /// The pod has begun to terminate: nothing is parked any more.
    pub const fn is_terminating(self) -> bool {
        match self {
            Self::Starting | Self::Serving => false,
            Self::Holding | Self::Draining | Self::Closing | Self::Lingering | Self::Terminated => true,
        }
    }

    /// The hold is over: every response tells its client to go.
    pub const fn is_past_hold(self) -> bool {
        match self {
            Self::Starting | Self::Serving | Self::Holding => false,
            Self::Draining | Self::Closing | Self::Lingering | Self::Terminated => true,
        }
    }
}
