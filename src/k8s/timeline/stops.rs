//! When each container of a pod gets its SIGTERM.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::plan::{Course, Plan, has_own_hook};
use super::{Role, Stop, round};
use crate::k8s::hook;
use crate::k8s::workload::{List, Place, Workload, is_ebbtide};

/// Every running container's stop, the apps first, then sidecars in the order in which they are stopped.
pub(super) struct Stops {
    pub(super) stops: Vec<Stop>,
    /// The grace period that all of it would take.
    pub(super) needed: f64,
}

/// What a preStop hook holds SIGTERM back for.
enum Held {
    /// No hook, or one that returns at once.
    Not,
    /// As long at least, and at most.
    Between(f64, f64),
    /// ebbtide's blocking hook.
    UntilDrained,
    /// A command or call that takes as long as it takes.
    Unknown,
}

/// Of the containers that still run: init containers that are no sidecars have ended long ago.
pub(super) fn stops(
    workload: &Workload<'_>,
    plan: Option<&Plan<'_>>,
    misfits: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> Stops {
    let grace = workload.grace().as_secs_f64();
    let drain = plan.and_then(Plan::drain);
    let is_front = |place: Place<'_>| plan.is_some_and(|plan| plan.place.pointer() == place.pointer());
    let running = workload.containers().filter(|place| place.list == List::Ordinary || place.is_native_sidecar());
    let (mut apps, mut sidecars) = (Vec::new(), Vec::new());
    let (mut needed, mut gone, mut free, mut holds) = (0.0_f64, 0.0_f64, None, false);
    for place in running {
        let name = place.container.name.clone();
        let (held, hook) = held(place, plan, warnings);
        let (held, hook) = if grace > 0.0 { (held, hook) } else { (Held::Not, not_called(hook)) };
        let (earliest, latest) = match (&held, drain) {
            (Held::Not, _) => (0.0, 0.0),
            (Held::Between(least, most), _) => (*least, *most),
            (Held::UntilDrained, Some(drain)) => (drain.earliest(), drain.released()),
            (Held::UntilDrained | Held::Unknown, _) => (0.0, grace),
        };
        match &held {
            Held::Between(_, most) if *most >= grace => {
                let then = match most - grace {
                    more if more > 0.0 => format!("{} s and the time to stop are missing", round(more)),
                    _ => "the time to stop is missing".to_owned(),
                };
                misfits.push(format!(
                    "the hook of {name} takes {} s, the grace period is {grace} s: {then}",
                    round(*most)
                ));
            }
            Held::Unknown => {
                warnings.push(format!("how long the hook of {name} takes can't be told from its manifest"));
            }
            Held::Not | Held::Between(..) | Held::UntilDrained => {}
        }
        let role = match (place.is_native_sidecar(), is_front(place)) {
            (true, true) => Role::Ebbtide,
            (true, false) => Role::Sidecar,
            (false, _) => Role::App,
        };
        let stop = Stop {
            name,
            role,
            hook,
            sigterm_earliest: round(earliest.min(grace)),
            sigterm_latest: round(latest.min(grace)),
        };
        holds |= matches!(held, Held::UntilDrained);
        needed = needed.max(latest);
        if role != Role::App {
            sidecars.push((stop, earliest, latest));
            continue;
        }
        if !is_front(place) {
            // Only what is held back by ebbtide is known to be given a certain time.
            let stops = drain.map_or(0.0, super::plan::Drain::app_stop);
            needed = needed.max(latest + stops);
            let by = if matches!(held, Held::UntilDrained) && stops > 0.0 { latest + stops } else { grace };
            gone = gone.max(by);
            if !matches!(held, Held::UntilDrained) {
                free = Some(free.unwrap_or(0.0_f64).max(latest));
            }
        }
        apps.push(stop);
    }
    if let (Some(drain), Some(free), false) = (drain, free, holds) {
        warnings.push(format!(
            "no container waits for ebbtide's drain (preStop: httpGet /app-stop{}): SIGTERM comes at {} s, and ebbtide may \
             have requests for the app until {} s",
            drain.admin.map(|port| format!(", port {port}")).unwrap_or_default(),
            round(free.min(grace)),
            round(drain.released().min(grace)),
        ));
    }
    let earliest = apps.iter().map(|stop| stop.sigterm_earliest).fold(0.0, f64::max);
    // The last of the list is stopped first.
    for (mut stop, own_earliest, own_latest) in sidecars.into_iter().rev() {
        stop.sigterm_earliest = round(own_earliest.max(earliest).min(grace));
        stop.sigterm_latest = round(own_latest.max(gone).min(grace));
        apps.push(stop);
    }
    if let Some(drain) = drain.filter(|drain| holds && drain.released() + drain.app_stop() > grace) {
        misfits.push(format!(
            "the apps' hooks are released at {} s, and {} s are kept for the apps to stop: the grace period is {grace} s",
            round(drain.released()),
            round(drain.app_stop()),
        ));
    }
    Stops { stops: apps, needed }
}

fn not_called(hook: String) -> String {
    if hook == NONE { hook } else { "is not called".to_owned() }
}

fn held(place: Place<'_>, plan: Option<&Plan<'_>>, warnings: &mut Vec<String>) -> (Held, String) {
    let Some(hook) = hook::of(place.container) else { return (Held::Not, NONE.to_owned()) };
    if hook::is_app_stop(hook) {
        return app_stop(place, plan, warnings);
    }
    if let Some(length) = hook::sleep(hook) {
        let length = length.as_secs_f64();
        return (Held::Between(length, length), format!("sleeps {} s", round(length)));
    }
    if is_ebbtide(place.container) && has_own_hook(place) {
        return (Held::Not, "tells ebbtide that the pod terminates, returns at once".to_owned());
    }
    let what = if hook.exec.is_some() { "runs a command" } else { "calls over the network" };
    (Held::Unknown, what.to_owned())
}

/// ebbtide's blocking hook.
fn app_stop(place: Place<'_>, plan: Option<&Plan<'_>>, warnings: &mut Vec<String>) -> (Held, String) {
    let Some(plan) = plan else { return (Held::Not, "calls ebbtide, which is not there".to_owned()) };
    let wanted = match &plan.course {
        Course::Refused => return (Held::Not, "calls ebbtide, which would not start".to_owned()),
        Course::Lingers => return (Held::Not, "calls ebbtide, which returns at once".to_owned()),
        Course::Restart(least, most) => {
            let held = Held::Between(least.as_secs_f64(), most.as_secs_f64());
            return (held, "calls ebbtide, which does not know that the pod terminates".to_owned());
        }
        Course::Drains(drain) => drain.admin,
    };
    let get = hook::of(place.container).and_then(|hook| hook.http_get.as_ref());
    let port = get.and_then(|get| hook::number(&get.port).or_else(|| named(place, &get.port)));
    let is_right = match (port, wanted) {
        (Some(port), Some(wanted)) => port == i32::from(wanted),
        (port, None) => port.is_some(),
        (None, Some(_)) => false,
    };
    if is_right {
        return (Held::UntilDrained, "waits for ebbtide's drain".to_owned());
    }
    let called = match (port, get.map(|get| &get.port)) {
        (Some(port), _) => format!("port {port}"),
        (None, Some(IntOrString::String(name))) => format!("port {name}, a name that its container does not have"),
        (None, _) => "no port".to_owned(),
    };
    let has = wanted.map(|port| format!(", ebbtide's admin port is {port}")).unwrap_or_default();
    warnings.push(format!("the hook of {} calls {called}{has}: it holds nothing back", place.container.name));
    (Held::Not, format!("calls {called}, where ebbtide is not"))
}

/// The kubelet looks the name up in the hook's own container.
fn named(place: Place<'_>, port: &IntOrString) -> Option<i32> {
    let IntOrString::String(name) = port else { return None };
    let mut ports = place.container.ports.iter().flatten();
    ports.find(|port| port.name.as_ref() == Some(name)).map(|port| port.container_port)
}

/// What is said of a container without a hook.
pub(super) const NONE: &str = "none";
