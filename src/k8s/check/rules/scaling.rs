//! Rules about autoscalers.

use k8s_openapi::api::core::v1::Container;

use crate::k8s::check::{Input, Report, Rule, Severity, facts};
use crate::k8s::object::Object;
use crate::k8s::workload::{List, Workload, is_ebbtide};
use serde_json::{Value, json};

pub(super) static EB015: Rule = Rule {
    id: "EB015",
    name: "autoscaler-without-requests",
    severity: Severity::Warning,
    summary: "An autoscaler works with a share of what is requested, and a container requests nothing.",
    why: "Utilisation is usage divided by request, over all containers of a pod, native sidecars included. Where one \
          has no request the autoscaler can't work it out and does not scale at all: the pods that are there take all \
          the load.",
    fix: "Give every container a request for that resource.",
    run: without_requests,
};

fn without_requests(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        for scaler in facts::scalers(input, workload) {
            for resource in by_share(&scaler.value) {
                look_at(workload, scaler, resource, report);
            }
        }
    }
}

/// The resources of which a share is wanted, of the pod as a whole.
fn by_share(scaler: &Value) -> Vec<&str> {
    let metrics = scaler.pointer("/spec/metrics").and_then(Value::as_array);
    let resources = metrics.into_iter().flatten().filter_map(|metric| metric.get("resource"));
    let mut found: Vec<&str> = resources
        .filter(|resource| resource.pointer("/target/type").and_then(Value::as_str) == Some("Utilization"))
        .filter_map(|resource| resource.get("name")?.as_str())
        .collect();
    let old = scaler.pointer("/spec/targetCPUUtilizationPercentage").is_some();
    // Without any metric the API server fills in 80 % of the CPU.
    if old || (found.is_empty() && metrics.is_none_or(Vec::is_empty)) {
        found.push("cpu");
    }
    found
}

fn look_at(workload: &Workload<'_>, scaler: &Object, resource: &str, report: &mut Report<'_>) {
    if workload.spec.resources.as_ref().and_then(|of_pod| of_pod.requests.as_ref()?.get(resource)).is_some() {
        return;
    }
    let counted = workload.containers().filter(|place| place.list == List::Ordinary || place.is_native_sidecar());
    for place in counted.filter(|place| !requests(place.container, resource)) {
        let message = format!(
            "container {} requests no {resource}, of which {} wants to know the utilisation: it can't scale {}",
            place.container.name,
            scaler.title(),
            workload.object.title(),
        );
        let path = workload.in_container(place, "/resources");
        let finding = report.add(workload, &path, message);
        let known = match resource {
            "cpu" => Some("50m"),
            "memory" => Some("32Mi"),
            _ => None,
        };
        if let Some(amount) = known.filter(|_| is_ebbtide(place.container)) {
            finding.fix(workload.object, |object| {
                let Some(container) = object.pointer_mut(&workload.in_container(place, "")) else { return };
                if container.get("resources").is_none_or(Value::is_null) {
                    container["resources"] = json!({});
                }
                if container["resources"].get("requests").is_none_or(Value::is_null) {
                    container["resources"]["requests"] = json!({});
                }
                container["resources"]["requests"][resource] = json!(amount);
            });
        }
    }
}

/// A limit alone is taken for the request too.
fn requests(container: &Container, resource: &str) -> bool {
    container.resources.as_ref().is_some_and(|resources| {
        [&resources.requests, &resources.limits]
            .iter()
            .any(|amounts| amounts.iter().flatten().any(|(name, _)| name == resource))
    })
}
