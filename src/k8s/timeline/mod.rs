//! `ebbtide budget`: who does what at which second when a pod is deleted, from its manifest alone.

mod draw;

use std::time::Duration;

use serde::Serialize;

use super::hook;
use super::workload::{self, List, Place, Workload, is_ebbtide};
use crate::config::{Config, Mode, ReadinessFails};
use crate::lifecycle::budget::{self, Budget, Deadlines, seconds};
use crate::lifecycle::tick::Tick;

/// The termination of one workload's pods.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timeline {
    /// `Deployment/web`
    pub object: String,
    /// Empty if the manifest names none.
    pub namespace: String,
    /// Seconds from the deletion to SIGKILL.
    pub grace_period: f64,
    /// ebbtide's part in it; `None` without ebbtide.
    pub ebbtide: Option<Phases>,
    /// Every container that is running when the pod is deleted.
    pub containers: Vec<Stop>,
    /// In the order of time.
    pub events: Vec<Event>,
    /// Seconds that are left when all has gone as slowly as it may; negative if it does not fit.
    pub left_over: f64,
    /// Parts of the budget had to shrink.
    pub shrunk: bool,
    /// What does not fit, or can't be told from a manifest.
    pub warnings: Vec<String>,
}

/// Ends of ebbtide's phases, in seconds after the deletion.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
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

/// What a preStop hook holds SIGTERM back for.
enum Held {
    /// No hook, or one that returns at once.
    Not,
    For(Duration),
    /// ebbtide's blocking hook.
    UntilDrained,
    /// A command or call that takes as long as it takes.
    Unknown,
}

/// The termination of a workload's pods.
#[must_use]
pub fn timeline(workload: &Workload<'_>) -> Timeline {
    let grace = workload.grace();
    let mut warnings = Vec::new();
    let plan = workload.ebbtide().and_then(|place| plan(workload, place, &mut warnings));
    let phases = plan.as_ref().map(|(_, deadlines, _)| phases(deadlines));
    let stops = stops(workload, plan.as_ref().map(|(budget, deadlines, _)| (budget, deadlines)), &mut warnings);
    let mut events = vec![event(0.0, "kubelet", opening(&stops))];
    let app_stop = plan.as_ref().map_or(Duration::ZERO, |(budget, ..)| budget.app_stop);
    if let (Some(phases), Some((budget, _, config))) = (&phases, &plan) {
        events.extend(of_ebbtide(phases, budget, config));
    }
    for stop in &stops {
        events.push(event(stop.sigterm_latest, &stop.name, sigterm(stop, phases.as_ref(), app_stop, grace)));
    }
    let last = stops.iter().filter(|stop| stop.role == Role::App).map(|stop| stop.sigterm_latest).fold(0.0, f64::max);
    let needs = if phases.is_some() { app_stop.as_secs_f64() } else { 0.0 };
    let left_over = grace.as_secs_f64() - last - needs;
    events.push(event(
        grace.as_secs_f64(),
        "kubelet",
        "SIGKILL for whatever still runs; a container that has only just got SIGTERM has 2 s more".to_owned(),
    ));
    events.sort_by(|a, b| a.at.total_cmp(&b.at));
    Timeline {
        object: workload.object.title(),
        namespace: workload.object.namespace.clone(),
        grace_period: grace.as_secs_f64(),
        ebbtide: phases,
        containers: stops,
        events,
        left_over: round(left_over),
        shrunk: plan.is_some_and(|(budget, ..)| budget.shrunk.is_some()),
        warnings,
    }
}

/// ebbtide's budget, if its configuration can be read.
fn plan(workload: &Workload<'_>, place: Place<'_>, warnings: &mut Vec<String>) -> Option<(Budget, Deadlines, Config)> {
    if !place.is_native_sidecar() {
        warnings.push(
            "ebbtide is no native sidecar here: it gets SIGTERM when the others do; see ebbtide check".to_owned(),
        );
    }
    let config = match workload::configuration(place.container) {
        Ok(loaded) => loaded.config,
        Err(errors) => {
            warnings.extend(errors.iter().map(|error| format!("ebbtide would not start: {error}")));
            return None;
        }
    };
    if config.mode == Mode::Plain {
        warnings.push(
            "EBBTIDE_MODE is not sidecar, so ebbtide takes SIGTERM for the beginning of the termination".to_owned(),
        );
    }
    if config.drain.grace_period != workload.grace() {
        warnings.push(format!(
            "ebbtide is told a grace period of {} and the pod has {}",
            seconds(config.drain.grace_period),
            seconds(workload.grace()),
        ));
    }
    let budget = budget::divide(config.mode, &config.drain);
    warnings.extend(budget.shrunk.as_ref().map(|shrunk| shrunk.message.clone()));
    warnings.extend(budget.too_late());
    let deadlines = budget.deadlines(Tick::default());
    Some((budget, deadlines, config))
}

fn phases(deadlines: &Deadlines) -> Phases {
    let at = |tick: Tick| round(tick.since_start().as_secs_f64());
    Phases {
        notice: at(deadlines.notice.start),
        hold_min: at(deadlines.hold_min),
        hold_end: at(deadlines.hold_end),
        drain_deadline: at(deadlines.drain_deadline),
        hooks_released: at(deadlines.close_deadline),
    }
}

/// Of the containers that still run: init containers that are no sidecars have ended long ago.
fn stops(workload: &Workload<'_>, plan: Option<(&Budget, &Deadlines)>, warnings: &mut Vec<String>) -> Vec<Stop> {
    let phases = plan.map(|(_, deadlines)| phases(deadlines));
    let grace = workload.grace().as_secs_f64();
    let running = workload.containers().filter(|place| place.list == List::Ordinary || place.is_native_sidecar());
    let mut stops: Vec<Stop> = Vec::new();
    let mut sidecars = Vec::new();
    for place in running {
        let (held, hook) = held(place, phases.is_some());
        let (earliest, latest) = match (&held, &phases) {
            (Held::Not, _) => (0.0, 0.0),
            (Held::For(length), _) => (length.as_secs_f64().min(grace), length.as_secs_f64().min(grace)),
            (Held::UntilDrained, Some(phases)) => (drained(phases.hold_min, plan), phases.hooks_released),
            (Held::UntilDrained | Held::Unknown, _) => (0.0, grace),
        };
        let name = place.container.name.clone();
        match &held {
            Held::For(length) if length.as_secs_f64() >= grace => {
                warnings.push(format!(
                    "the hook of {name} takes {} s, the grace period is {grace} s",
                    round(length.as_secs_f64()),
                ));
            }
            Held::Unknown => {
                warnings.push(format!("how long the hook of {name} takes can't be told from its manifest"))
            }
            Held::Not | Held::For(_) | Held::UntilDrained => {}
        }
        let role = match (place.is_native_sidecar(), is_ebbtide(place.container)) {
            (true, true) => Role::Ebbtide,
            (true, false) => Role::Sidecar,
            (false, _) => Role::App,
        };
        let stop = Stop { name, role, hook, sigterm_earliest: round(earliest), sigterm_latest: round(latest) };
        if role == Role::App { stops.push(stop) } else { sidecars.push(stop) }
    }
    let apps = |pick: fn(&Stop) -> f64| stops.iter().map(pick).fold(0.0, f64::max);
    let (earliest, latest) = (apps(|stop| stop.sigterm_earliest), apps(|stop| stop.sigterm_latest));
    let latest = latest + plan.map_or(0.0, |(budget, _)| budget.app_stop.as_secs_f64());
    // The last of the list is stopped first.
    for mut sidecar in sidecars.into_iter().rev() {
        sidecar.sigterm_earliest = round(sidecar.sigterm_earliest.max(earliest));
        sidecar.sigterm_latest = round(sidecar.sigterm_latest.max(latest).min(grace));
        stops.push(sidecar);
    }
    stops
}

/// The drain ends when nothing is in flight, idle connections have been closed, and nothing new has come for a while.
fn drained(hold: f64, plan: Option<(&Budget, &Deadlines)>) -> f64 {
    hold + plan.map_or(0.0, |(budget, _)| budget.close_spread.max(budget.quiet).as_secs_f64())
}

fn held(place: Place<'_>, has_ebbtide: bool) -> (Held, String) {
    let Some(hook) = hook::of(place.container) else { return (Held::Not, "none".to_owned()) };
    if hook::is_app_stop(hook) {
        return match has_ebbtide {
            true => (Held::UntilDrained, "waits for ebbtide's drain".to_owned()),
            false => (Held::Not, "calls ebbtide, which is not there".to_owned()),
        };
    }
    if let Some(length) = hook::sleep(hook) {
        return (Held::For(length), format!("sleeps {} s", round(length.as_secs_f64())));
    }
    let command = hook.exec.as_ref().and_then(|exec| exec.command.as_deref()).unwrap_or_default();
    if is_ebbtide(place.container) && command.last().is_some_and(|word| word == "drain") {
        return (Held::Not, "tells ebbtide that the pod terminates, returns at once".to_owned());
    }
    (Held::Unknown, if command.is_empty() { "calls over the network".to_owned() } else { "runs a command".to_owned() })
}

fn opening(stops: &[Stop]) -> String {
    let hooks: Vec<_> = stops.iter().filter(|stop| stop.hook != "none").map(|stop| stop.name.as_str()).collect();
    match hooks.is_empty() {
        true => "pod deleted: no preStop hook. The cluster begins to take the pod out of its Services".to_owned(),
        false => format!(
            "pod deleted: preStop of {} at once. The cluster begins to take the pod out of its Services",
            hooks.join(", "),
        ),
    }
}

fn of_ebbtide(phases: &Phases, budget: &Budget, config: &Config) -> Vec<Event> {
    let ready = match config.drain.readiness_fails {
        ReadinessFails::T0 => 0.0,
        ReadinessFails::Notice => phases.notice,
        ReadinessFails::Drain => phases.hold_end,
    };
    let hold = if phases.hold_min < phases.hold_end {
        format!(
            "HOLDING until {} s after quiet, at the latest {} s: new work is taken as ever",
            phases.hold_min, phases.hold_end
        )
    } else {
        "HOLDING: new work is taken as ever".to_owned()
    };
    vec![
        event(0.0, NAME, hold),
        event(
            phases.notice,
            NAME,
            format!("tells clients to go: Connection: close, GOAWAY, spread until {} s", phases.hold_min),
        ),
        event(ready, NAME, "/readyz turns to 503".to_owned()),
        event(
            phases.hold_end,
            NAME,
            format!(
                "DRAINING: waits for what is in flight; closes idle connections, WebSocket sessions and event streams over {} s",
                round(budget.close_spread.as_secs_f64()),
            ),
        ),
        event(phases.drain_deadline, NAME, "CLOSING: what is still in flight is ended by force".to_owned()),
        event(
            phases.hooks_released,
            NAME,
            "LINGERING: the apps' hooks are released, outbound connections stay".to_owned(),
        ),
    ]
}

fn sigterm(stop: &Stop, phases: Option<&Phases>, app_stop: Duration, grace: Duration) -> String {
    let early = match stop.sigterm_earliest < stop.sigterm_latest {
        true => format!(" at the latest, {} s at the earliest", stop.sigterm_earliest),
        false => String::new(),
    };
    match (stop.role, phases) {
        (Role::App, Some(_)) if stop.sigterm_latest > 0.0 => {
            format!("SIGTERM{early}; {} s are kept for it to stop", round(app_stop.as_secs_f64()))
        }
        (Role::App, _) => {
            let left = (grace.as_secs_f64() - stop.sigterm_latest).max(0.0);
            format!("SIGTERM{early}; {} s are left for requests in flight and to stop", round(left))
        }
        (Role::Sidecar | Role::Ebbtide, _) => {
            format!("SIGTERM as soon as the apps have exited{}", early.replace(" at the latest", ""))
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

const NAME: &str = "ebbtide";

#[cfg(test)]
mod tests;
