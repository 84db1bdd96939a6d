//! What several rules ask of a workload.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Service};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use super::Input;
use crate::config::{Config, DrainConfig, Mode};
use crate::k8s::hook;
use crate::k8s::object::{Object, same_namespace};
use crate::k8s::workload::{Place, Workload, settings};
use crate::lifecycle::budget;

/// Whether its pods end by themselves.
pub(super) fn is_job(workload: &Workload<'_>) -> bool {
    matches!(workload.object.kind.as_str(), "Job" | "CronJob")
        || workload.spec.restart_policy.as_deref().is_some_and(|policy| policy != "Always")
}

/// The app's container that takes requests; `None` if nothing says that there is one. With a Service among the
/// manifests that is the container to whose port it sends, or else the first with a port; without one it must have a
/// readiness probe too.
pub(super) fn front<'w>(input: &Input<'_>, workload: &'w Workload<'_>) -> Option<Place<'w>> {
    if is_job(workload) {
        return None;
    }
    let serves =
        |place: &Place<'_>| place.container.ports.iter().flatten().any(|port| !is_metrics(port.name.as_deref()));
    let is_agent = |service: &Service| workload.object.kind == "DaemonSet" && is_headless(service);
    let mut services = input
        .services_of(workload)
        .filter(|(_, service)| !is_for_metrics(service) && !is_agent(service))
        .map(|(_, service)| service)
        .peekable();
    let mut serving = workload.apps().filter(serves);
    if services.peek().is_none() {
        return serving.find(|place| place.container.readiness_probe.is_some());
    }
    let mut targets = services
        .flat_map(|service| service.spec.iter().flat_map(|spec| spec.ports.iter().flatten()))
        .filter(|port| !is_metrics(port.name.as_deref()))
        .map(|port| port.target_port.clone().unwrap_or(IntOrString::Int(port.port)));
    let meant = targets.find_map(|target| workload.apps().find(|place| has_port(place.container, &target)));
    meant.or_else(|| serving.next()).or_else(|| workload.apps().next())
}

fn has_port(container: &Container, wanted: &IntOrString) -> bool {
    container.ports.iter().flatten().any(|port| match wanted {
        IntOrString::Int(number) => port.container_port == *number,
        IntOrString::String(name) => port.name.as_ref() == Some(name) || port.container_port.to_string() == *name,
    })
}

/// In front of a DaemonSet: a list of agents for somebody who asks each of them.
fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.cluster_ip.as_deref() == Some("None"))
}

fn is_for_metrics(service: &Service) -> bool {
    let mut ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten()).peekable();
    ports.peek().is_some() && ports.all(|port| is_metrics(port.name.as_deref()))
}

fn is_metrics(port: Option<&str>) -> bool {
    port.is_some_and(|name| ["metric", "prom", "monitor"].iter().any(|part| name.contains(part)))
}

/// Whether a Service finds this container by the name of a port, which it does not among init containers before
/// Kubernetes 1.33.
pub(super) fn is_found_by_name(input: &Input<'_>, workload: &Workload<'_>, container: &Container) -> bool {
    let has = |name: &String| container.ports.iter().flatten().any(|port| port.name.as_ref() == Some(name));
    input.services_of(workload).any(|(_, service)| {
        let mut ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
        ports.any(|port| matches!(&port.target_port, Some(IntOrString::String(name)) if has(name)))
    })
}

/// How many pods there are; `None` where nobody in these manifests says so.
pub(super) fn replicas(input: &Input<'_>, workload: &Workload<'_>) -> Option<i64> {
    if let Some(scaler) = scalers(input, workload).next() {
        return Some(scaler.value.pointer("/spec/minReplicas").and_then(Value::as_i64).unwrap_or(1));
    }
    match workload.object.value.pointer("/spec/replicas") {
        Some(replicas) => replicas.as_i64(),
        None if workload.object.is("apps", "Deployment") => Some(1),
        None => None,
    }
}

/// The autoscalers that have this workload for their target.
pub(super) fn scalers<'i>(input: &Input<'i>, workload: &Workload<'_>) -> impl Iterator<Item = &'i Object> {
    let wanted = (workload.object.kind.as_str(), workload.object.name.as_str());
    input.objects.iter().filter(move |object| {
        let target = |field: &str| {
            object.value.pointer(&format!("/spec/scaleTargetRef/{field}")).and_then(Value::as_str).unwrap_or_default()
        };
        object.is("autoscaling", "HorizontalPodAutoscaler")
            && same_namespace(&object.namespace, &workload.object.namespace)
            && (target("kind"), target("name")) == wanted
    })
}

/// `3` or `25%` of so many; `None` if it is neither.
pub(super) fn share(value: &IntOrString, of: i64, is_rounded_up: bool) -> Option<i64> {
    match value {
        IntOrString::Int(number) => Some((*number).into()),
        IntOrString::String(text) => {
            let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
            Some((percent * of + if is_rounded_up { 99 } else { 0 }) / 100)
        }
    }
}

/// How it is written.
pub(super) fn written(value: &IntOrString) -> String {
    match value {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => text.clone(),
    }
}

/// What ebbtide in this workload runs with, its grace period being the pod's; `None` without ebbtide, or if not all of
/// its settings stand in the manifest.
pub(super) fn ebbtide<'w>(workload: &'w Workload<'_>) -> Option<(Place<'w>, Config)> {
    let place = workload.ebbtide()?;
    let names_file = place.container.env.iter().flatten().any(|one| one.name == "EBBTIDE_CONFIG")
        || place.container.args.iter().flatten().any(|argument| argument.starts_with("--config"));
    let settings = settings(place.container);
    let is_known = !names_file && settings.refused.is_none();
    Some((place, settings.loaded.ok().filter(|_| is_known)?.config))
}

/// How the grace period would be divided: what ebbtide is told, but for what the pod does not have.
pub(super) fn divided(workload: &Workload<'_>, mode: Mode, drain: &DrainConfig) -> budget::Budget {
    let grace_period = workload.grace().min(drain.grace_period);
    budget::divide(mode, &DrainConfig { grace_period, ..drain.clone() })
}

/// How long the pod goes on after its deletion as if nothing had happened, and what makes it do so.
pub(super) fn hold<'w>(workload: &'w Workload<'_>) -> Option<(Place<'w>, Duration, String)> {
    if let Some((place, config)) = ebbtide(workload) {
        let hold = budget::longest(config.drain.hold);
        return Some((place, hold, format!("ebbtide holds for {}", budget::seconds(hold))));
    }
    let sleeping = workload.apps().filter_map(|place| Some((place, hook::of(place.container).and_then(hook::sleep)?)));
    let (place, sleep) = sleeping.max_by_key(|(_, sleep)| *sleep)?;
    Some((place, sleep, format!("container {} sleeps for {}", place.container.name, budget::seconds(sleep))))
}

/// Sets a field of the pod spec in a copy of the object.
pub(super) fn set(workload: &Workload<'_>, object: &mut Value, field: &str, value: impl Into<Value>) {
    if let Some(spec) = object.pointer_mut(&workload.in_spec("")) {
        spec[field] = value.into();
    }
}

/// The whole command line of a container, if the manifest says what the program is.
pub(super) fn command(container: &Container) -> Option<Vec<&str>> {
    let command = container.command.as_ref().filter(|command| !command.is_empty())?;
    Some(command.iter().chain(container.args.iter().flatten()).map(String::as_str).collect())
}
