//! Rules about probes: what restarts an app, and what says that a pod is ready.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

use crate::config::{Direction, Hold, HostPort, ReadinessFails, UpstreamAddr};
use crate::k8s::check::{Input, Report, Rule, Severity, facts};
use crate::k8s::hook;
use crate::k8s::workload::{Place, Workload};
use crate::lifecycle::budget::seconds;

pub(super) static EB009: Rule = Rule {
    id: "EB009",
    name: "liveness-cuts-or-hangs",
    severity: Severity::Warning,
    summary: "A liveness probe that cuts a working app, or that takes the pod's long grace period for a hung one.",
    why: "A failed liveness probe stops the container with everything it is serving. It must not fail by one slow \
          answer, nor by the state of a proxy in front of the app. And the stop may take as long as the pod's grace \
          period, hooks included: an app that hangs is then gone for all that time before it is started anew.",
    fix: "Probe the app's own port, let it fail several times, and give the probe a terminationGracePeriodSeconds of \
          its own where the pod's is long.",
    run: liveness,
};

fn liveness(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in input.workloads.iter().filter(|workload| !facts::is_job(workload)) {
        let fronted = fronted(workload);
        let admin = facts::ebbtide(workload).map(|(_, config)| i32::from(config.admin.bind.port()));
        for place in workload.apps() {
            let Some(probe) = &place.container.liveness_probe else { continue };
            let name = &place.container.name;
            let path = workload.in_container(place, "/livenessProbe");
            if let Some((port, app)) = port(place, probe).and_then(|port| fronted.iter().find(|one| one.0 == port)) {
                let message = format!(
                    "the liveness probe of container {name} goes to port {port}, which is ebbtide's: the app is \
                     restarted for what ebbtide says while it drains; the app's own port is {app}"
                );
                report.add(workload, &path, message).fix(workload.object, |object| {
                    for kind in ["httpGet", "tcpSocket", "grpc"] {
                        if let Some(action) = object.pointer_mut(&format!("{path}/{kind}")) {
                            action["port"] = json!(app);
                        }
                    }
                });
            }
            if let Some(port) = port(place, probe).filter(|port| Some(*port) == admin) {
                let message = format!(
                    "the liveness probe of container {name} goes to port {port}, ebbtide's admin port: it says nothing of \
                     the app, which is restarted for what ebbtide says"
                );
                report.add(workload, &path, message);
            }
            if probe.failure_threshold == Some(1) {
                let wait = probe.timeout_seconds.unwrap_or(1);
                let message = format!(
                    "the liveness probe of container {name} restarts it after a single answer that takes more than \
                     {wait} s (failureThreshold 1), with all that it is serving"
                );
                report.add(workload, &format!("{path}/failureThreshold"), message).fix(workload.object, |object| {
                    if let Some(probe) = object.pointer_mut(&path) {
                        probe["failureThreshold"] = json!(3);
                    }
                });
            }
            if workload.grace() > LONG && probe.termination_grace_period_seconds.is_none() {
                let message = format!(
                    "the liveness probe of container {name} has no terminationGracePeriodSeconds: an app that hangs \
                     may take the pod's {} s to be restarted",
                    workload.grace().as_secs(),
                );
                report.add(workload, &path, message).fix(workload.object, |object| {
                    if let Some(probe) = object.pointer_mut(&path) {
                        probe["terminationGracePeriodSeconds"] = json!(OWN);
                    }
                });
            }
        }
    }
}

/// ebbtide's inbound ports, with the app's behind them.
fn fronted(workload: &Workload<'_>) -> Vec<(i32, u16)> {
    let Some((_, config)) = facts::ebbtide(workload) else { return Vec::new() };
    let inbound = config.listeners.iter().filter(|listener| listener.direction == Direction::Inbound);
    let pairs = inbound.filter_map(|listener| {
        let app: &HostPort = match &listener.upstream {
            UpstreamAddr::Http(app) | UpstreamAddr::H2c(app) | UpstreamAddr::Auto(app) | UpstreamAddr::Https(app) => {
                app
            }
            UpstreamAddr::Tcp(all) | UpstreamAddr::Tls(all) => all.first()?,
            UpstreamAddr::Unix(_) => return None,
        };
        Some((i32::from(listener.bind.port()), app.port))
    });
    pairs.collect()
}

/// The port that a probe goes to; a name is looked up in its own container.
fn port(place: Place<'_>, probe: &Probe) -> Option<i32> {
    let port = match (&probe.http_get, &probe.tcp_socket, &probe.grpc) {
        (Some(get), ..) => &get.port,
        (None, Some(socket), _) => &socket.port,
        (None, None, Some(grpc)) => return Some(grpc.port),
        (None, None, None) => return None,
    };
    match port {
        IntOrString::String(name) if hook::number(port).is_none() => {
            let mut ports = place.container.ports.iter().flatten();
            ports.find(|one| one.name.as_deref() == Some(name)).map(|one| one.container_port)
        }
        port => hook::number(port),
    }
}

pub(super) static EB010: Rule = Rule {
    id: "EB010",
    name: "readiness-slower-than-hold",
    severity: Severity::Warning,
    summary: "ebbtide's readiness probe fails too late for its hold.",
    why: "At a node shutdown or an eviction by the kubelet the pod is not deleted, and nothing but its readiness takes \
          it out of its Services. ebbtide's readiness fails within the hold; the kubelet must notice before the hold \
          ends, or requests go on arriving at a pod that stops.",
    fix: "periodSeconds: 2 and failureThreshold: 1 on ebbtide's readiness probe, or a longer hold.",
    run: readiness,
};

fn readiness(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in input.workloads.iter().filter(|workload| !facts::is_job(workload)) {
        let Some((place, config)) = facts::ebbtide(workload) else { continue };
        // Of a sidecar's probes EB055 speaks.
        let probe = place.container.readiness_probe.as_ref().filter(|_| !place.is_native_sidecar());
        let Some(probe) = probe else { continue };
        let drain = &config.drain;
        let hold = match facts::divided(workload, config.mode, drain).hold {
            Hold::Fixed(length) => length,
            Hold::Adaptive { min, .. } => min,
        };
        let left = match drain.readiness_fails {
            ReadinessFails::T0 => hold,
            ReadinessFails::Notice => hold.mul_f64(1.0 - drain.notice_after),
            ReadinessFails::Drain => continue,
        };
        let count =
            |value: Option<i32>, default: u32| value.and_then(|value| value.try_into().ok()).unwrap_or(default).max(1);
        let (period, failures) = (count(probe.period_seconds, 10), count(probe.failure_threshold, 3));
        let noticed = Duration::from_secs(u64::from(period) * u64::from(failures));
        if noticed <= left {
            continue;
        }
        let path = workload.in_container(place, "/readinessProbe");
        let message = format!(
            "ebbtide's readiness probe notices a failure after {period} s x {failures} = {}, the hold leaves {}",
            seconds(noticed),
            seconds(left),
        );
        let finding = report.add(workload, &path, message);
        if left >= Duration::from_secs(1) {
            finding.fix(workload.object, |object| {
                if let Some(probe) = object.pointer_mut(&path) {
                    probe["periodSeconds"] = json!(u64::from(period).min(left.as_secs()).min(2));
                    probe["failureThreshold"] = json!(1);
                }
            });
        }
    }
}

pub(super) static EB012: Rule = Rule {
    id: "EB012",
    name: "ready-without-asking",
    severity: Severity::Warning,
    summary: "New pods count as ready before anybody has asked the app.",
    why: "Without a readiness probe a container is ready as soon as its process runs. A rollout then sends requests to \
          pods whose app does not listen yet, and takes the old pods away meanwhile.",
    fix: "Give the container a readiness probe, or ebbtide its own, which waits for the app; minReadySeconds is a poor \
          replacement.",
    run: without_asking,
};

fn without_asking(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let asked =
            |place: &Place<'_>| place.container.readiness_probe.is_some() || place.container.startup_probe.is_some();
        let rolls = matches!(workload.object.kind.as_str(), "Deployment" | "StatefulSet" | "Rollout" | "DaemonSet");
        let waits = workload.object.value.pointer("/spec/minReadySeconds").is_some_and(|seconds| *seconds != json!(0));
        let asks = workload.apps().any(|place| asked(&place))
            || workload.ebbtide().is_some_and(|place| place.container.readiness_probe.is_some());
        if !rolls || waits || asks {
            continue;
        }
        let Some(place) = facts::front(input, workload) else { continue };
        let from: Vec<String> = input.services_of(workload).map(|(object, _)| object.title()).take(1).collect();
        let message = format!(
            "container {} takes requests from {} and has no readiness probe",
            place.container.name,
            from.concat(),
        );
        report.add(workload, &workload.in_container(place, ""), message);
    }
}

/// A hung app is worth a shorter grace period than this.
const LONG: Duration = Duration::from_secs(60);

/// Seconds, for the probe itself: the default of a pod.
const OWN: u64 = 30;
