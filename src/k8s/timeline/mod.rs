//! `ebbtide budget`: who does what at which second when a pod is deleted, from its manifest alone.

mod plan;
mod stops;
mod draw;

use serde::Serialize;

use self::plan::{Course, Drain, Plan, plan};
use self::stops::{NONE, Stops, stops};
use super::workload::Workload;
use crate::config::{Direction, Hold, Mode, ReadinessFails};
use crate::lifecycle::tick::Tick;

/// The termination of one workload's pods.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timeline {
    /// `Deployment/web`
    pub object: String,
    /// Empty if the manifest names none.
    pub namespace: String,
    /// Seconds that the pod is given.
    pub grace_period: f64,
    /// When the last SIGKILL comes, in seconds: 2 s later where SIGTERM comes only when the grace period is used up.
    pub sigkill: f64,
    /// ebbtide's part in it as it plans it; `None` without ebbtide, and where it drains nothing.
    pub ebbtide: Option<Phases>,
    /// Every container that is running when the pod is deleted.
    pub containers: Vec<Stop>,
    /// In the order of time.
    pub events: Vec<Event>,
    /// Seconds that are left when all has gone as slowly as it may; negative if it does not fit.
    pub left_over: f64,
    /// Whether all of it fits into the grace period; `misfits` is empty then.
    pub fits: bool,
    /// Parts of the budget had to shrink.
    pub shrunk: bool,
    /// What does not fit, and what is missing.
    pub misfits: Vec<String>,
    /// What can't be told from a manifest, or goes otherwise than one may believe.
    pub warnings: Vec<String>,
}

/// Ends of ebbtide's phases, in seconds after the deletion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Phases {
    /// Clients are told to go from here to the end of the (shortest) hold.
    pub notice: f64,
    /// The earliest end of the hold; the same as `hold_end` if it is fixed.
    pub hold_min: f64,
    /// The latest.
    pub hold_end: f64,
    /// What is in flight after this is ended by force.
    pub drain_deadline: f64,
    /// The app hooks are released here at the latest.
    pub hooks_released: f64,
}

/// How one container is stopped.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stop {
    /// Its name.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// What its preStop hook does.
    pub hook: String,
    /// When SIGTERM comes at the earliest, in seconds.
    pub sigterm_earliest: f64,
    /// At the latest.
    pub sigterm_latest: f64,
}

/// What a container is to a termination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Runs beside the others.
    App,
    /// A native sidecar: stopped after the apps.
    Sidecar,
    /// ebbtide as native sidecar.
    Ebbtide,
}

/// Something that happens.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Event {
    /// Seconds after the deletion.
    pub at: f64,
    /// `kubelet`, or a container's name.
    pub who: String,
    /// What.
    pub what: String,
}

/// The termination of a workload's pods.
#[must_use]
pub fn timeline(workload: &Workload<'_>) -> Timeline {
    let grace = workload.grace().as_secs_f64();
    let (mut misfits, mut warnings) = (Vec::new(), Vec::new());
    if grace == 0.0 {
        let what = "terminationGracePeriodSeconds is 0: no hook is called, and SIGKILL comes 2 s after SIGTERM";
        misfits.push(what.to_owned());
    }
    let plan = plan(workload, &mut misfits, &mut warnings);
    let Stops { stops, needed } = stops(workload, plan.as_ref(), &mut misfits, &mut warnings);
    let is_late = stops.iter().any(|stop| stop.sigterm_latest >= grace);
    let sigkill = if is_late { grace + LAST } else { grace };
    Timeline {
        object: workload.object.title(),
        namespace: workload.object.namespace.clone(),
        grace_period: grace,
        sigkill,
        ebbtide: plan.as_ref().and_then(Plan::phases),
        events: events(grace, sigkill, plan.as_ref(), &stops),
        containers: stops,
        left_over: round(grace - needed),
        fits: misfits.is_empty(),
        shrunk: plan.as_ref().and_then(Plan::drain).is_some_and(|drain| drain.budget.shrunk.is_some()),
        misfits,
        warnings,
    }
}

fn events(grace: f64, sigkill: f64, plan: Option<&Plan<'_>>, stops: &[Stop]) -> Vec<Event> {
    let drain = plan.and_then(Plan::drain);
    let mut events = vec![event(0.0, KUBELET, opening(stops, grace))];
    if let Some(plan) = plan {
        let all = of_ebbtide(plan).into_iter().filter(|(at, _)| *at < grace);
        events.extend(all.map(|(at, what)| event(at, &plan.place.container.name, what)));
    }
    for (index, stop) in stops.iter().enumerate() {
        // Those of the sidecars that are stopped before it.
        let before = stops[..index].iter().filter(|stop| stop.role != Role::App).map(|stop| stop.name.as_str());
        events.push(event(stop.sigterm_latest, &stop.name, sigterm(stop, drain, &before.collect::<Vec<_>>(), grace)));
    }
    if let (Some(plan), Some(drain)) = (plan, drain.filter(|drain| drain.released() > grace)) {
        let what = match drain.config.mode {
            Mode::Sidecar => "CLOSING: the real grace period is used up, what is still in flight is ended by force",
            Mode::Plain => "is stopped in the middle of its drain",
        };
        events.push(event(grace, &plan.place.container.name, what.to_owned()));
    }
    let kill = "SIGKILL for whatever still runs; a container that has only just got SIGTERM has 2 s more";
    if grace > 0.0 {
        events.push(event(grace, KUBELET, kill.to_owned()));
    }
    if sigkill > grace {
        events.push(event(sigkill, KUBELET, format!("SIGKILL for what got SIGTERM at {} s", round(grace))));
    }
    events.sort_by(|a, b| a.at.total_cmp(&b.at));
    events
}

fn opening(stops: &[Stop], grace: f64) -> String {
    let hooks: Vec<_> = stops.iter().filter(|stop| stop.hook != NONE).map(|stop| stop.name.as_str()).collect();
    let called = match hooks.is_empty() {
        true => "no preStop hook".to_owned(),
        false if grace == 0.0 => format!("no time, so preStop of {} is not called", hooks.join(", ")),
        false => format!("preStop of {} at once", hooks.join(", ")),
    };
    format!("pod deleted: {called}. The cluster begins to take the pod out of its Services")
}

fn of_ebbtide(plan: &Plan<'_>) -> Vec<(f64, String)> {
    let drain = match &plan.course {
        Course::Drains(drain) => drain,
        Course::Lingers => {
            let what = "LINGERING: without an inbound listener nothing is held, the apps' hooks return at once; outbound \
                        connections stay until the apps have exited";
            return vec![(0.0, what.to_owned())];
        }
        Course::Restart(..) | Course::Refused => return Vec::new(),
    };
    let Drain { config, budget, deadlines, .. } = &**drain;
    let at = |tick: Tick| tick.since_start().as_secs_f64();
    let in_words = |tick: Tick| round(at(tick));
    let hold = match budget.hold {
        Hold::Adaptive { quiet, .. } => format!(
            "HOLDING until nothing new has come for {} s, not before {} s, at the latest {} s: new work is taken as ever",
            round(quiet.as_secs_f64()),
            in_words(deadlines.hold_min),
            in_words(deadlines.hold_end),
        ),
        Hold::Fixed(_) => "HOLDING: new work is taken as ever".to_owned(),
    };
    let notice =
        format!("tells clients to go: Connection: close, GOAWAY, spread until {} s", in_words(deadlines.notice.end));
    let ready = match config.drain.readiness_fails {
        ReadinessFails::T0 => Tick::default(),
        ReadinessFails::Notice => deadlines.notice.start,
        ReadinessFails::Drain => deadlines.hold_end,
    };
    let t0 = Tick::default();
    let mut closes = Vec::new();
    let mut own = Vec::new();
    for (what, window) in [
        // Never within the hold.
        ("idle connections", budget.idle_window(t0).filter(|window| window.start > deadlines.hold_min)),
        ("WebSocket sessions", budget.session_window(t0)),
        ("event streams", budget.event_window(t0)),
    ] {
        match window {
            Some(window) => {
                own.push((at(window.start), format!("closes {what}, spread until {} s", in_words(window.end))));
            }
            None => closes.push(what),
        }
    }
    let spread = round(budget.close_spread.as_secs_f64());
    let closes =
        if closes.is_empty() { String::new() } else { format!("; closes {} over {spread} s", closes.join(", ")) };
    let draining = format!("DRAINING: waits for what is in flight{closes}");
    let has_outbound = config.listeners.iter().any(|listener| listener.direction == Direction::Outbound);
    let end = match config.mode {
        Mode::Plain if !has_outbound => "the apps' hooks are released, ebbtide exits",
        Mode::Plain | Mode::Sidecar => "LINGERING: the apps' hooks are released, outbound connections stay",
    };
    let mut events = vec![
        (0.0, hold),
        (at(deadlines.notice.start), notice),
        (at(ready), "/readyz turns to 503".to_owned()),
        (at(deadlines.hold_end), draining),
        (at(deadlines.drain_deadline), "CLOSING: what is still in flight is ended by force".to_owned()),
        (at(deadlines.close_deadline), end.to_owned()),
    ];
    events.extend(own);
    events
}

fn sigterm(stop: &Stop, drain: Option<&Drain>, before: &[&str], grace: f64) -> String {
    let early = stop.sigterm_earliest < stop.sigterm_latest;
    if stop.role != Role::App && stop.sigterm_earliest >= grace {
        return format!("SIGTERM; the grace period is used up, SIGKILL in {LAST} s");
    }
    if stop.role != Role::App {
        let then = if early { format!(", {} s at the earliest", stop.sigterm_earliest) } else { String::new() };
        let last = if stop.sigterm_latest < grace { format!(", {grace} s at the latest") } else { String::new() };
        let others: String = before.iter().map(|name| format!(" and {name}")).collect();
        return format!("SIGTERM as soon as the apps{others} have exited{then}{last}");
    }
    let early = match early {
        true => format!(" at the latest, {} s at the earliest", stop.sigterm_earliest),
        false => String::new(),
    };
    match drain {
        _ if stop.sigterm_latest >= grace => {
            format!("SIGTERM{early}; the grace period is used up, SIGKILL in {LAST} s")
        }
        Some(drain) if stop.sigterm_latest > 0.0 && drain.app_stop() > 0.0 => {
            format!("SIGTERM{early}; {} s are kept for it to stop", round(drain.app_stop()))
        }
        _ => {
            let left = grace - stop.sigterm_latest;
            format!("SIGTERM{early}; {} s are left for requests in flight and to stop", round(left))
        }
    }
}

fn event(at: f64, who: &str, what: String) -> Event {
    Event { at: round(at), who: who.to_owned(), what }
}

/// To hundredths.
fn round(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

/// `10s` as `10 s`, as everything else here is written.
fn spaced(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut spaced = String::new();
    for (at, char) in chars.iter().enumerate() {
        let is_unit = *char == 's'
            && at.checked_sub(1).is_some_and(|before| chars[before].is_ascii_digit())
            && chars.get(at + 1).is_none_or(|next| !next.is_alphanumeric());
        if is_unit {
            spaced.push(' ');
        }
        spaced.push(*char);
    }
    spaced
}

const KUBELET: &str = "kubelet";

/// Seconds that a container has between SIGTERM and SIGKILL, however little is left.
const LAST: f64 = 2.0;

#[cfg(test)]
mod tests;
