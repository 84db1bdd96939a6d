//! Rules about probes of ebbtide, and about probes of the app that go through it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::calls::{self, Call};
use super::front::{self, Front};
use crate::config::{Config, ReadinessFails};
use crate::k8s::check::{Input, Report, Rule, Severity, facts};
use crate::k8s::hook;
use crate::k8s::mesh;
use crate::k8s::workload::{Place, Workload};
use crate::lifecycle::budget;

pub(super) static EB055: Rule = Rule {
    id: "EB055",
    name: "probes",
    severity: Severity::Warning,
    summary: "A probe of ebbtide is missing, too slow or harmful, or a probe of the app goes through ebbtide.",
    why: "Without a startup probe the app starts, and may be ready, before ebbtide listens. Node shutdown and eviction take \
          a pod out of its Services by its readiness alone, and that must fail within the hold. A liveness probe restarts \
          ebbtide and cuts everything that it carries. An app's probe through ebbtide asks about ebbtide: it waits while the \
          app is down, and fails while the pod drains.",
    fix: "On port 14090 a startupProbe for /startupz and a readinessProbe for /readyz with periodSeconds 2 and \
          failureThreshold 1, no livenessProbe; the app's own probes go to the app's own port.",
    run: probes,
};

fn probes(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let Some(front) = front::of(workload).filter(|front| front.place.is_native_sidecar()) else { continue };
        startup(workload, &front, report);
        readiness(workload, &front, report);
        liveness(workload, &front, report);
        for place in workload.apps() {
            // Of liveness EB009 speaks.
            let is_said = |call: &Call<'_>| call.what == "livenessProbe" && !facts::is_job(workload);
            for call in calls::probes(place.container).filter(|call| !is_said(call)) {
                through(workload, &front, place, call, report);
            }
        }
    }
}

/// What a probe asks ebbtide for, if it asks by HTTP.
fn asked(probe: &Probe) -> Option<(&str, Option<i32>)> {
    let get = probe.http_get.as_ref()?;
    Some((get.path.as_deref().unwrap_or("/"), hook::number(&get.port)))
}

fn set_probe(
    workload: &Workload<'_>,
    front: &Front<'_>,
    finding: &mut crate::k8s::check::Finding,
    name: &str,
    probe: Value,
) {
    finding.fix(workload.object, |object| {
        if let Some(container) = object.pointer_mut(&workload.in_container(front.place, "")) {
            container[name] = probe;
        }
    });
}

fn startup(workload: &Workload<'_>, front: &Front<'_>, report: &mut Report<'_>) {
    let (container, admin) = (front.place.container, front.admin().map(|admin| admin.port()));
    let wanted = admin.map(
        |port| json!({"httpGet": {"path": "/startupz", "port": port}, "periodSeconds": 1, "failureThreshold": 30}),
    );
    let finding = match &container.startup_probe {
        None => {
            let message = format!("{} has no startup probe: the app starts before ebbtide listens", container.name);
            report.add(workload, &workload.in_container(front.place, ""), message)
        }
        // It would wait for the app, which waits for it.
        Some(probe) if asked(probe).is_some_and(|(path, port)| path == "/readyz" && is_admin(port, admin)) => {
            let message = format!(
                "{}'s startup probe asks /readyz, which waits for the app; the app waits for this probe, and neither starts",
                container.name
            );
            let path = workload.in_container(front.place, "/startupProbe/httpGet/path");
            report.add(workload, &path, message).severity(Severity::Error)
        }
        Some(probe) => match to_nobody(front, probe, "startup") {
            Some(message) => {
                let message = format!("{message}, and the app never starts");
                report
                    .add(workload, &workload.in_container(front.place, "/startupProbe"), message)
                    .severity(Severity::Error)
            }
            None => return,
        },
    };
    if let Some(wanted) = wanted {
        set_probe(workload, front, finding, "startupProbe", wanted);
    }
}

/// What is to be said of a probe of ebbtide that goes to a port where ebbtide does not answer it.
fn to_nobody(front: &Front<'_>, probe: &Probe, what: &str) -> Option<String> {
    let (config, container) = (front.config()?, front.place.container);
    let port = match (&probe.http_get, &probe.tcp_socket) {
        (Some(get), _) => &get.port,
        (None, socket) => &socket.as_ref()?.port,
    };
    let number = match port {
        IntOrString::String(name) if hook::number(port).is_none() => calls::named(container, name)?,
        port => hook::number(port)?,
    };
    let admin = config.admin.bind.port();
    if asked(probe).is_some_and(|(path, _)| path.starts_with(mesh::REWRITTEN_PROBE)) {
        // As Istio rewrites it in a running pod.
        return None;
    }
    let is_own_path = asked(probe).is_some_and(|(path, _)| matches!(path, "/startupz" | "/readyz" | "/livez"));
    let is_listener = config.listeners.iter().any(|listener| i32::from(listener.bind.port()) == number);
    (number != i32::from(admin) && (is_own_path || !is_listener)).then(|| {
        format!("{}'s {what} probe goes to port {number}, ebbtide's admin port is {admin}: it fails", container.name)
    })
}

fn is_admin(port: Option<i32>, admin: Option<u16>) -> bool {
    port.is_some() && port == admin.map(i32::from)
}

fn readiness(workload: &Workload<'_>, front: &Front<'_>, report: &mut Report<'_>) {
    let (container, admin) = (front.place.container, front.admin().map(|admin| admin.port()));
    let wanted = admin
        .map(|port| json!({"httpGet": {"path": "/readyz", "port": port}, "periodSeconds": 2, "failureThreshold": 1}));
    if front.is_outbound_only() {
        // No Service leads to it.
        return;
    }
    let Some(probe) = &container.readiness_probe else {
        let message = format!(
            "{} has no readiness probe: node shutdown and eviction don't take the pod out of its Services",
            container.name
        );
        let finding = report.add(workload, &workload.in_container(front.place, ""), message);
        if let Some(wanted) = wanted {
            set_probe(workload, front, finding, "readinessProbe", wanted);
        }
        return;
    };
    let path = workload.in_container(front.place, "/readinessProbe");
    if let Some((asked, port)) = asked(probe)
        && is_admin(port, admin)
        && asked != "/readyz"
    {
        let message =
            format!("{}'s readiness probe asks {asked}; only /readyz fails while the pod drains", container.name);
        let finding = report.add(workload, &format!("{path}/httpGet/path"), message);
        if let Some(wanted) = wanted {
            set_probe(workload, front, finding, "readinessProbe", wanted);
        }
        return;
    }
    if let Some(message) = to_nobody(front, probe, "readiness") {
        let message = format!("{message}, and the pod is never ready");
        let finding = report.add(workload, &path, message).severity(Severity::Error);
        if let Some(wanted) = wanted {
            set_probe(workload, front, finding, "readinessProbe", wanted);
        }
        return;
    }
    let Some(window) = front.config().map(window).filter(|window| !window.is_zero()) else { return };
    let (period, failures) = (probe.period_seconds.unwrap_or(10), probe.failure_threshold.unwrap_or(3));
    let takes = Duration::from_secs(u64::try_from(i64::from(period) * i64::from(failures)).unwrap_or_default());
    if takes > window {
        let message = format!(
            "{}'s readiness takes {} s to fail (periodSeconds {period}, failureThreshold {failures}); of the hold {} s are \
             left by then",
            container.name,
            takes.as_secs(),
            window.as_secs_f64(),
        );
        let finding = report.add(workload, &path, message);
        if window >= FASTEST {
            finding.fix(workload.object, |object| {
                if let Some(probe) = object.pointer_mut(&path) {
                    (probe["periodSeconds"], probe["failureThreshold"]) = (2.into(), 1.into());
                }
            });
        }
    }
}

/// From the moment when `/readyz` turns to the end of the hold.
fn window(config: &Config) -> Duration {
    let hold = budget::longest(config.drain.hold);
    match config.drain.readiness_fails {
        ReadinessFails::T0 => hold,
        ReadinessFails::Notice => hold.mul_f64((1.0 - config.drain.notice_after).clamp(0.0, 1.0)),
        ReadinessFails::Drain => Duration::ZERO,
    }
}

fn liveness(workload: &Workload<'_>, front: &Front<'_>, report: &mut Report<'_>) {
    let container = front.place.container;
    if container.liveness_probe.is_none() {
        return;
    }
    let message =
        format!("{} has a liveness probe: a restart of ebbtide cuts everything that it carries", container.name);
    let path = workload.in_container(front.place, "/livenessProbe");
    report.add(workload, &path, message).fix(workload.object, |object| {
        let container = object.pointer_mut(&workload.in_container(front.place, "")).and_then(Value::as_object_mut);
        container.and_then(|container| container.remove("livenessProbe"));
    });
}

/// A probe of the app that asks ebbtide.
fn through(workload: &Workload<'_>, front: &Front<'_>, place: Place<'_>, call: Call<'_>, report: &mut Report<'_>) {
    let number = match call.port {
        Some(IntOrString::String(name)) => calls::named(place.container, name),
        Some(port) => hook::number(port),
        None => None,
    };
    let Some((number, listener)) = number.and_then(|number| Some((number, front.listener_at(number)?))) else { return };
    let message = format!(
        "container {}: the {} goes to {number}, which is ebbtide: it asks the app through ebbtide, waits while the app is \
         down, and fails while the pod drains",
        place.container.name, call.what,
    );
    let path = workload.in_container(place, &format!("/{}/{}/port", call.what, call.how));
    let finding = report.add(workload, &path, message);
    if let Some(app) = front::app_port(listener) {
        finding.fix(workload.object, |object| {
            if let Some(port) = object.pointer_mut(&path) {
                *port = app.into();
            }
        });
    }
}

/// What the probe that the documentation gives takes to fail.
const FASTEST: Duration = Duration::from_secs(2);
