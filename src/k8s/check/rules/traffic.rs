//! Rules about requests that arrive after the deletion.

use std::time::Duration;

use k8s_openapi::api::networking::v1::{Ingress, IngressBackend};
use serde_json::Value;

use crate::k8s::check::{Input, Report, Rule, Severity, facts};
use crate::k8s::hook;
use crate::k8s::object::{Object, same_namespace};
use crate::lifecycle::budget::seconds;

pub(super) static EB007: Rule = Rule {
    id: "EB007",
    name: "nothing-holds-sigterm-back",
    severity: Severity::Warning,
    summary: "An app that takes requests gets SIGTERM while they still arrive, or while its clients keep their connections.",
    why: "Endpoints, kube-proxy, balancers and clients learn of a deletion seconds after the kubelet does. Without a \
          hook the app stops listening first, and what arrives meanwhile is refused. A sleep bridges that time for new \
          connections, but a client that keeps its connection open does not look at endpoints: it sends on it until \
          the app closes it, and loses what it has just sent.",
    fix: "Let ebbtide stand in front: `ebbtide inject -f FILE`. Silence the rule where the app itself goes on for some \
          seconds after SIGTERM and tells its clients to go.",
    run: nothing_holds,
};

fn nothing_holds(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in input.workloads.iter().filter(|workload| workload.ebbtide().is_none()) {
        let Some(place) = facts::front(input, workload) else { continue };
        let name = &place.container.name;
        let services: Vec<String> = input.services_of(workload).map(|(object, _)| object.title()).collect();
        let from = match services.as_slice() {
            [] => String::new(),
            [first, ..] => format!(" from {first}"),
        };
        match hook::of(place.container) {
            None => {
                let message = format!(
                    "container {name} takes requests{from} and has no preStop hook: it gets SIGTERM while they still arrive"
                );
                report.add(workload, &workload.in_container(place, ""), message);
            }
            Some(found) => {
                let Some(sleep) = hook::sleep(found) else { continue };
                let message = format!(
                    "container {name} takes requests{from} and sleeps {} before SIGTERM: that covers new connections, \
                     clients that keep theirs are not told to go",
                    seconds(sleep),
                );
                report.add(workload, &workload.in_container(place, "/lifecycle/preStop"), message);
            }
        }
    }
}

pub(super) static EB014: Rule = Rule {
    id: "EB014",
    name: "hold-shorter-than-balancer",
    severity: Severity::Warning,
    summary: "A cloud balancer may use a pod for longer than the pod holds.",
    why: "A balancer that sends to pods learns of the deletion late, and lets connections that it has go on for its \
          deregistration delay or draining timeout. A pod that is gone earlier resets them; with node shutdowns it \
          may not have been taken out at all by then.",
    fix: "Raise the hold (EBBTIDE_HOLD) and the grace period above the balancer's time, or lower the balancer's.",
    run: shorter_than_balancer,
};

fn shorter_than_balancer(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in input.workloads.iter().filter(|workload| !facts::is_job(workload)) {
        let Some((place, hold, who)) = facts::hold(workload) else { continue };
        let services: Vec<&Object> = input.services_of(workload).map(|(object, _)| *object).collect();
        let longest = services.iter().flat_map(|service| balancers(input, service)).max_by_key(|(time, _)| *time);
        let Some((time, source)) = longest.filter(|(time, _)| *time > hold) else { continue };
        let message = format!("{who}, but {source} lets a balancer use its connections for {}", seconds(time));
        let path = match workload.ebbtide() {
            Some(_) => workload.in_container(place, "/env"),
            None => workload.in_container(place, "/lifecycle/preStop"),
        };
        report.add(workload, &path, message);
    }
}

/// The times that stand in annotations and policies of a Service, and where.
fn balancers(input: &Input<'_>, service: &Object) -> Vec<(Duration, String)> {
    let name = &service.name;
    let mut found: Vec<(Duration, String)> = Vec::new();
    let mut add = |seconds: Option<u64>, object: &Object, what: &str| {
        found.extend(seconds.map(|seconds| (Duration::from_secs(seconds), format!("{} ({what})", object.title()))));
    };
    let from = |object: &Object, annotation: &str| annotation_of(object, annotation).and_then(deregistration);
    for annotation in [NLB, ALB] {
        add(from(service, annotation), service, "deregistration_delay.timeout_seconds");
    }
    let is_near = |object: &Object| same_namespace(&object.namespace, &service.namespace);
    for (object, ingress) in input.all::<Ingress>("networking.k8s.io", "Ingress") {
        if is_near(object) && leads_to(&ingress, name) {
            add(from(object, ALB), object, "deregistration_delay.timeout_seconds");
            let is_on = annotation_of(object, "appgw.ingress.kubernetes.io/connection-draining") == Some("true");
            let azure = annotation_of(object, "appgw.ingress.kubernetes.io/connection-draining-timeout");
            add(azure.filter(|_| is_on).and_then(|text| text.parse().ok()), object, "connection-draining-timeout");
        }
    }
    let configs = ["cloud.google.com/backend-config", "beta.cloud.google.com/backend-config"];
    let names = configs.iter().find_map(|annotation| annotation_of(service, annotation)).unwrap_or_default();
    for object in input.objects.iter().filter(|object| is_near(object)) {
        let seconds = |path: &str| object.value.pointer(path).and_then(Value::as_u64);
        if object.is("cloud.google.com", "BackendConfig") && names.contains(&format!("\"{}\"", object.name)) {
            add(seconds("/spec/connectionDraining/drainingTimeoutSec"), object, "drainingTimeoutSec");
        }
        let target = object.value.pointer("/spec/targetRef/name").and_then(Value::as_str);
        if object.is("networking.gke.io", "GCPBackendPolicy") && target == Some(name) {
            add(seconds("/spec/default/connectionDraining/drainingTimeoutSec"), object, "drainingTimeoutSec");
        }
    }
    found
}

fn annotation_of<'a>(object: &'a Object, name: &str) -> Option<&'a str> {
    object.value.get("metadata")?.get("annotations")?.get(name)?.as_str()
}

/// The time in `stickiness.enabled=true,deregistration_delay.timeout_seconds=60`.
fn deregistration(attributes: &str) -> Option<u64> {
    let attribute =
        attributes.split(',').find_map(|one| one.trim().strip_prefix("deregistration_delay.timeout_seconds="));
    attribute?.trim().parse().ok()
}

fn leads_to(ingress: &Ingress, service: &str) -> bool {
    let Some(spec) = &ingress.spec else { return false };
    let paths = spec.rules.iter().flatten().filter_map(|rule| rule.http.as_ref()).flat_map(|http| &http.paths);
    let mut backends = paths.map(|path| &path.backend).chain(&spec.default_backend);
    backends.any(|backend: &IngressBackend| backend.service.as_ref().is_some_and(|found| found.name == service))
}

const NLB: &str = "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes";
const ALB: &str = "alb.ingress.kubernetes.io/target-group-attributes";
