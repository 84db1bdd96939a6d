//! Owns what the API server takes: the types without an unknown field, and the rules about a pod that types can't say.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodTemplateSpec, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::harness::manifest::{list, name, protocol, resolve, template_path};

/// Why the API server would refuse this object; nothing if it would take it.
pub(super) fn refusals(object: &Value, other: Option<&str>) -> Vec<String> {
    let title = format!("{} {}", object["kind"], name(object));
    let mut found = match object["kind"].as_str().unwrap_or_default() {
        "Deployment" => unknown::<Deployment>(object),
        "StatefulSet" => unknown::<StatefulSet>(object),
        "DaemonSet" => unknown::<DaemonSet>(object),
        "ReplicaSet" => unknown::<ReplicaSet>(object),
        "Job" => unknown::<Job>(object),
        "CronJob" => unknown::<CronJob>(object),
        "Pod" => unknown::<Pod>(object),
        "Service" => unknown::<Service>(object),
        "ConfigMap" => unknown::<ConfigMap>(object),
        "ServiceAccount" => unknown::<ServiceAccount>(object),
        "HorizontalPodAutoscaler" => unknown::<HorizontalPodAutoscaler>(object),
        "PodDisruptionBudget" => unknown::<PodDisruptionBudget>(object),
        _ => Vec::new(),
    };
    if let Some(pointer) = template_path(object, other) {
        let template = object.pointer(pointer).unwrap_or(&Value::Null);
        if object["kind"] != "Pod" {
            found.extend(unknown::<PodTemplateSpec>(template));
        }
        let claims = list(&object["spec"], "volumeClaimTemplates");
        found.extend(pod(&template["spec"], claims));
        let selector = object["spec"]["selector"]["matchLabels"].as_object();
        let labels = &template["metadata"]["labels"];
        if selector.is_some_and(|selector| selector.iter().any(|(key, value)| labels[key] != *value)) {
            found.push("the selector does not select the template".to_owned());
        }
    }
    found.iter().map(|one| format!("{title}: {one}")).collect()
}

/// Unknown fields and wrong types.
fn unknown<T: DeserializeOwned>(value: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    let mut note = |path: serde_ignored::Path<'_>| unknown.push(format!("{path}: unknown field"));
    // One type of closure for all, or each of them would compile all the types once more.
    let note: &mut dyn FnMut(serde_ignored::Path<'_>) = &mut note;
    match serde_ignored::deserialize::<_, _, T>(value, note) {
        Ok(_) => unknown,
        Err(error) => vec![error.to_string()],
    }
}

fn pod(spec: &Value, claims: &[Value]) -> Vec<String> {
    let mut found = Vec::new();
    let init = list(spec, "initContainers");
    let all: Vec<&Value> = init.iter().chain(list(spec, "containers")).collect();
    if list(spec, "containers").is_empty() {
        found.push("no containers".to_owned());
    }
    unique("container", all.iter().map(|one| name(one).to_owned()), &mut found);
    let volumes = list(spec, "volumes");
    unique("volume", volumes.iter().map(|one| name(one).to_owned()), &mut found);
    let ports = || all.iter().flat_map(|one| list(one, "ports"));
    let host = ports().filter(|port| port["hostPort"].is_u64());
    unique("hostPort", host.map(|port| format!("{} {}", port["hostPort"], protocol(port))), &mut found);
    if spec["hostNetwork"] == true {
        let other = ports().filter(|port| port["hostPort"].is_u64() && port["hostPort"] != port["containerPort"]);
        found.extend(other.map(|port| format!("{port}: with hostNetwork both numbers are one")));
    }
    let mounted: BTreeSet<&str> = volumes.iter().chain(claims).map(name).collect();
    let grace = spec["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    for one in &all {
        let mut wrong = container(one, grace);
        let missing = list(one, "volumeMounts").iter().filter(|mount| !mounted.contains(name(mount)));
        wrong.extend(missing.map(|mount| format!("{mount}: no such volume")));
        found.extend(wrong.into_iter().map(|what| format!("container {}: {what}", name(one))));
    }
    for one in init.iter().filter(|one| one["restartPolicy"] != "Always") {
        let lasting = ["lifecycle", "startupProbe", "readinessProbe", "livenessProbe"];
        let has = lasting.into_iter().filter(|key| !one[key].is_null());
        found.extend(has.map(|key| format!("{key} in an init container that ends")));
    }
    found
}

fn container(one: &Value, grace: i64) -> Vec<String> {
    let mut found = Vec::new();
    let ports = list(one, "ports");
    let named = || ports.iter().map(name).filter(|name| !name.is_empty());
    unique("port name", named().map(str::to_owned), &mut found);
    for name in named() {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.len() > 15 || !name.chars().all(fits) || !name.contains(|c: char| c.is_ascii_lowercase()) {
            found.push(format!("{name:?} is no port name"));
        }
    }
    let out_of_range = ports.iter().filter(|port| !(1..=65535).contains(&port["containerPort"].as_i64().unwrap_or(0)));
    found.extend(out_of_range.map(|port| format!("{port}: no such port")));
    unique("mountPath", list(one, "volumeMounts").iter().map(|one| one["mountPath"].to_string()), &mut found);
    for variable in list(one, "env") {
        if name(variable).is_empty() || !variable["value"].is_null() && !variable["valueFrom"].is_null() {
            found.push(format!("{variable}: no variable"));
        }
    }
    let hooks = ["preStop", "postStart"].map(|key| (key, &one["lifecycle"][key]));
    let probes = ["startupProbe", "readinessProbe", "livenessProbe"].map(|key| (key, &one[key]));
    for (key, action) in hooks.into_iter().chain(probes).filter(|(_, action)| !action.is_null()) {
        let kinds =
            ["exec", "httpGet", "tcpSocket", "grpc", "sleep"].into_iter().filter(|kind| !action[kind].is_null());
        if kinds.count() != 1 {
            found.push(format!("{key}: {action}: one handler, not more and not less"));
        }
        for kind in ["httpGet", "tcpSocket", "grpc"].into_iter().filter(|kind| !action[kind].is_null()) {
            if resolve(&action[kind]["port"], ports).is_none() {
                found.push(format!("{key}: {}: no such port", action[kind]["port"]));
            }
        }
        if action["sleep"]["seconds"].as_i64().is_some_and(|seconds| seconds > grace) {
            found.push(format!("{key}: sleeps longer than the grace period"));
        }
    }
    found
}

fn unique(what: &str, all: impl Iterator<Item = String>, found: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for one in all {
        if !seen.insert(one.clone()) {
            found.push(format!("{what} {one} is there twice"));
        }
    }
}
