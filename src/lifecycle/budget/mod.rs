//! How the grace period is divided: hold, drain, close, app stop and margin, worked out once from one `now`.

use std::time::Duration;

use serde::Serialize;

use crate::config::{DrainConfig, Hold, Mode};
use crate::lifecycle::tick::{Tick, Window};

/// A drain shorter than this makes the budget "too small".
pub const MIN_DRAIN: Duration = Duration::from_secs(5);

/// The parts as they will really be used; their sum is the grace period or less.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// The whole, as configured.
    pub grace_period: Duration,
    /// As configured or shrunk; an adaptive hold counts as its `max`.
    pub hold: Hold,
    /// Share of the hold after which clients are told to go.
    pub notice_after: f64,
    /// From the end of the (longest) hold to the drain deadline.
    pub drain: Duration,
    /// For forced endings.
    pub close: Duration,
    /// What the app gets between its SIGTERM and the end; 0 in plain mode.
    pub app_stop: Duration,
    /// Unused rest.
    pub margin: Duration,
    /// Window for idle closes.
    pub close_spread: Duration,
    /// Silence that ends the drain.
    pub quiet: Duration,
    /// When idle HTTP/1 connections are closed, after t0 but not within the hold; `None` is its end.
    pub idle_after: Option<Duration>,
    /// When WebSocket sessions are closed, after t0; `None` is the end of the hold.
    pub websocket_after: Option<Duration>,
    /// When event streams are ended, likewise.
    pub sse_after: Option<Duration>,
    /// What the operator should know if parts had to shrink.
    pub shrunk: Option<Shrunk>,
}

/// The parts did not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shrunk {
    /// A part that the user set himself had to shrink: worth a warning, otherwise it is the defaults' business.
    pub user_set: bool,
    /// One sentence: the sum, the grace period, what became of the parts, the way out.
    pub message: String,
}

/// The points in time that follow from t0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Deadlines {
    /// Clients are told to go within this window.
    pub notice: Window,
    /// The hold ends here at the latest; an adaptive hold not before `hold_min`.
    pub hold_end: Tick,
    /// The earliest end of an adaptive hold; equal to `hold_end` for a fixed one.
    pub hold_min: Tick,
    /// What is in flight after this is ended by force.
    pub drain_deadline: Tick,
    /// App hooks are released at the latest here.
    pub close_deadline: Tick,
    /// grace period minus margin: in plain mode nothing goes on after it.
    pub end: Tick,
    /// The end of the configured grace period.
    pub grace_end: Tick,
}

/// Divides the grace period.
///
/// Where the parts fit, drain gets the rest. Where it would get less than 5 s, margin and close shrink to at most a
/// fifth and a tenth of the grace period and the rest is shared hold : 5 s : app stop.
pub fn divide(mode: Mode, config: &DrainConfig) -> Budget {
    let grace = config.grace_period;
    let app_stop = match mode {
        Mode::Sidecar => config.app_stop,
        Mode::Plain => Duration::ZERO,
    };
    let hold = longest(config.hold);
    let taken = hold + config.close + app_stop + config.margin;
    let budget = |hold, drain: Duration, close, app_stop, margin, shrunk| Budget {
        grace_period: grace,
        hold,
        notice_after: config.notice_after,
        drain,
        close,
        app_stop,
        margin,
        close_spread: config.close_spread.min(drain / 2),
        quiet: config.quiet.min(drain / 2),
        idle_after: config.idle_after,
        websocket_after: config.websocket_after,
        sse_after: config.sse_after,
        shrunk,
    };
    if needed(mode, config) <= grace {
        return budget(config.hold, grace - taken, config.close, app_stop, config.margin, None);
    }
    let margin = config.margin.min(grace / 5);
    let close = config.close.min(grace / 10);
    let rest = grace - margin - close;
    let share = rest.as_secs_f64() / (hold + MIN_DRAIN + app_stop).as_secs_f64();
    let new_hold = scale(config.hold, share);
    let new_app_stop = app_stop.mul_f64(share);
    let drain = rest.saturating_sub(longest(new_hold) + new_app_stop);
    let set = config.set_by_user;
    let shrunk = Shrunk {
        user_set: (set.hold && hold > longest(new_hold))
            || (set.close && config.close > close)
            || (set.app_stop && app_stop > new_app_stop)
            || (set.margin && config.margin > margin),
        message: shrunk_message(mode, config, app_stop, &new_hold, close, new_app_stop, margin),
    };
    budget(new_hold, drain, close, new_app_stop, margin, Some(shrunk))
}

/// The shortest grace period in which no part has to shrink.
pub fn needed(mode: Mode, config: &DrainConfig) -> Duration {
    let app_stop = match mode {
        Mode::Sidecar => config.app_stop,
        Mode::Plain => Duration::ZERO,
    };
    longest(config.hold) + MIN_DRAIN + config.close + app_stop + config.margin
}

/// The length an adaptive hold may reach, or that of a fixed one.
pub fn longest(hold: Hold) -> Duration {
    match hold {
        Hold::Fixed(length) => length,
        Hold::Adaptive { max, .. } => max,
    }
}

// === impl Budget ===

impl Budget {
    /// The deadlines of a termination that began at `t0`.
    pub fn deadlines(&self, t0: Tick) -> Deadlines {
        let (shortest, longest) = match self.hold {
            Hold::Fixed(length) => (length, length),
            Hold::Adaptive { min, max, .. } => (min, max),
        };
        let hold_end = t0 + longest;
        let drain_deadline = hold_end + self.drain;
        Deadlines {
            notice: Window { start: t0 + shortest.mul_f64(self.notice_after), end: t0 + shortest },
            hold_end,
            hold_min: t0 + shortest,
            drain_deadline,
            close_deadline: drain_deadline + self.close,
            end: t0 + self.grace_period.saturating_sub(self.margin),
            grace_end: t0 + self.grace_period,
        }
    }

    /// The window of idle connections, if they have a time of their own: so early that the drain can still end in quiet.
    /// Within the hold it does not count.
    pub fn idle_window(&self, t0: Tick) -> Option<Window> {
        self.own_window(self.idle_after, t0, self.quiet)
    }

    /// The window of WebSocket sessions, if they have a time of their own; spread before the drain deadline at the latest.
    pub fn session_window(&self, t0: Tick) -> Option<Window> {
        self.own_window(self.websocket_after, t0, Duration::ZERO)
    }

    /// The window of event streams, likewise.
    pub fn event_window(&self, t0: Tick) -> Option<Window> {
        self.own_window(self.sse_after, t0, Duration::ZERO)
    }

    fn own_window(&self, after: Option<Duration>, t0: Tick, before_the_deadline: Duration) -> Option<Window> {
        let latest = self.deadlines(t0).drain_deadline - before_the_deadline - self.close_spread;
        Some(Window::from_start((t0 + after?).min(latest), self.close_spread))
    }

    /// Times of such kinds that the drain deadline comes before; one line each.
    pub fn too_late(&self) -> Vec<String> {
        let t0 = Tick::default();
        let kinds = [
            ("idle_after", "idle connections", self.idle_after, self.idle_window(t0)),
            ("websocket_after", "WebSocket sessions", self.websocket_after, self.session_window(t0)),
            ("sse_after", "event streams", self.sse_after, self.event_window(t0)),
        ];
        kinds
            .into_iter()
            .filter_map(|(name, what, after, window)| Some((name, what, after?, window?.start.since_start())))
            .filter(|(_, _, after, start)| start < after)
            .map(|(name, what, after, start)| {
                let deadline = self.deadlines(t0).drain_deadline.since_start();
                format!(
                    "drain.{name} {} leaves no time before the drain deadline, {} after the termination began: {what} are \
                     ended from {} on; raise the grace period or lower drain.{name}",
                    seconds(after),
                    seconds(deadline),
                    seconds(start),
                )
            })
            .collect()
    }

    /// The parts by name, in seconds, for the metric and the report.
    pub fn parts(&self) -> [(&'static str, Duration); 6] {
        [
            ("grace_period", self.grace_period),
            ("hold", longest(self.hold)),
            ("drain", self.drain),
            ("close", self.close),
            ("app_stop", self.app_stop),
            ("margin", self.margin),
        ]
    }
}

fn scale(hold: Hold, share: f64) -> Hold {
    match hold {
        Hold::Fixed(length) => Hold::Fixed(length.mul_f64(share)),
        Hold::Adaptive { min, quiet, max } => {
            Hold::Adaptive { min: min.mul_f64(share), quiet: quiet.mul_f64(share), max: max.mul_f64(share) }
        }
    }
}

fn shrunk_message(
    mode: Mode,
    config: &DrainConfig,
    app_stop: Duration,
    new_hold: &Hold,
    close: Duration,
    new_app_stop: Duration,
    margin: Duration,
) -> String {
    let hold = longest(config.hold);
    let mut parts = vec![("hold", hold), ("drain", MIN_DRAIN), ("close", config.close)];
    if mode == Mode::Sidecar {
        parts.push(("app_stop", app_stop));
    }
    parts.push(("margin", config.margin));
    let sum: Duration = parts.iter().map(|(_, length)| *length).sum();
    let list: Vec<String> = parts.iter().map(|(name, length)| format!("{name} {}", seconds(*length))).collect();
    let became: Vec<String> = [
        ("hold", hold, longest(*new_hold)),
        ("close", config.close, close),
        ("app_stop", app_stop, new_app_stop),
        ("margin", config.margin, margin),
    ]
    .iter()
    .filter(|(_, old, new)| old > new)
    .map(|(name, _, new)| format!("{name} {}", seconds(*new)))
    .collect();
    let needed = sum.as_secs_f64().ceil();
    let raise = match mode {
        Mode::Sidecar => format!("terminationGracePeriodSeconds to {needed}"),
        Mode::Plain => format!("grace_period to {needed}s (and what stops the process)"),
    };
    format!(
        "{} = {} exceed the grace period of {}; shrunk to {}: raise {raise} or lower hold",
        list.join(" + "),
        seconds(sum),
        seconds(config.grace_period),
        became.join(", "),
    )
}

/// `13s`, `9.75s`, `0.35s`: at most two decimals.
pub fn seconds(length: Duration) -> String {
    let text = format!("{:.2}", length.as_secs_f64());
    format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests;
