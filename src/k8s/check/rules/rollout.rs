//! Rules about how many pods are there while some of them are replaced.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use crate::k8s::check::{Finding, Input, Report, Rule, Severity, facts};
use crate::k8s::object::same_namespace;
use crate::k8s::workload::Workload;

pub(super) static EB011: Rule = Rule {
    id: "EB011",
    name: "rollout-takes-the-last-pod",
    severity: Severity::Warning,
    summary: "A rollout takes the last ready pod away before a new one is ready.",
    why: "With Recreate, or with a maxUnavailable as large as the number of pods, there is a time without any ready \
          pod in every rollout. No drain helps against that: there is nobody else to go to.",
    fix: "maxUnavailable: 0 with maxSurge: 1, so that a new pod is ready before an old one is told to go. Silence the \
          rule where two pods must not run at once.",
    run: takes_the_last,
};

fn takes_the_last(input: &Input<'_>, report: &mut Report<'_>) {
    takes_all_agents(input, report);
    for workload in input.workloads.iter().filter(|workload| workload.object.is("apps", "Deployment")) {
        if facts::front(input, workload).is_none() || claims_a_volume(workload) {
            continue;
        }
        if workload.object.value.pointer("/spec/strategy/type").and_then(Value::as_str) == Some("Recreate") {
            let message = "every rollout stops all pods before it starts a new one (Recreate)";
            report.add(workload, "/spec/strategy/type", message);
            continue;
        }
        let Some(pods) = facts::replicas(input, workload).filter(|pods| *pods > 0) else { continue };
        let Some(gone) = unavailable(workload, pods).filter(|gone| *gone >= pods) else { continue };
        let message = format!("a rollout may take {gone} of {pods} pods away before a new one is ready");
        let path = if workload.object.value.pointer(MAX_UNAVAILABLE).is_some() { MAX_UNAVAILABLE } else { STRATEGY };
        let finding = report.add(workload, path, message);
        if !has_port_of_node(workload) {
            surge_instead(workload, finding);
        }
    }
}

/// A DaemonSet that may lose all its pods at once.
fn takes_all_agents(input: &Input<'_>, report: &mut Report<'_>) {
    const PATH: &str = "/spec/updateStrategy/rollingUpdate/maxUnavailable";
    for workload in input.workloads.iter().filter(|workload| workload.object.is("apps", "DaemonSet")) {
        let is_all = workload.object.value.pointer(PATH).and_then(Value::as_str) == Some("100%");
        if is_all && facts::front(input, workload).is_some() {
            let message = "a rollout may take all pods away at once (maxUnavailable 100%)";
            report.add(workload, PATH, message);
        }
    }
}

/// On its node there is no room for a second pod, and there may be no other node.
fn has_port_of_node(workload: &Workload<'_>) -> bool {
    let mut ports = workload.containers().flat_map(|place| place.container.ports.iter().flatten());
    workload.spec.host_network == Some(true) || ports.any(|port| port.host_port.is_some())
}

/// A volume that may be attached once only: the old pod must go first.
fn claims_a_volume(workload: &Workload<'_>) -> bool {
    workload.spec.volumes.iter().flatten().any(|volume| volume.persistent_volume_claim.is_some())
}

/// How many pods a rollout may take away, as the Deployment controller works it out.
fn unavailable(workload: &Workload<'_>, pods: i64) -> Option<i64> {
    let read = |name: &str| -> IntOrString {
        let value = workload.object.value.pointer(&format!("{STRATEGY}/{name}")).cloned();
        value
            .and_then(|value| serde_json::from_value(value).ok())
            .unwrap_or_else(|| IntOrString::String("25%".to_owned()))
    };
    let gone = facts::share(&read("maxUnavailable"), pods, false)?;
    let surge = facts::share(&read("maxSurge"), pods, true)?;
    // Both 0 would be no rollout at all.
    Some(if gone == 0 && surge == 0 { 1 } else { gone.min(pods) })
}

fn surge_instead(workload: &Workload<'_>, finding: &mut Finding) {
    finding.fix(workload.object, |object| {
        let Some(spec) = object.get_mut("spec") else { return };
        if spec.get("strategy").is_none_or(Value::is_null) {
            spec["strategy"] = json!({});
        }
        if spec["strategy"].get("rollingUpdate").is_none_or(Value::is_null) {
            spec["strategy"]["rollingUpdate"] = json!({});
        }
        let rolling = &mut spec["strategy"]["rollingUpdate"];
        rolling["maxUnavailable"] = json!(0);
        let has_surge = rolling.get("maxSurge").is_none_or(|surge| *surge != json!(0) && *surge != json!("0%"));
        if !has_surge {
            rolling["maxSurge"] = json!(1);
        }
    });
}

pub(super) static EB013: Rule = Rule {
    id: "EB013",
    name: "disruption-budget-misread",
    severity: Severity::Warning,
    summary: "A PodDisruptionBudget that does not do what it was written for.",
    why: "A PodDisruptionBudget limits evictions (node drains) and nothing else: rollouts do not look at it. And one \
          that never allows an eviction stops every node drain until somebody loses patience and deletes the pods, or \
          the machine, by force.",
    fix: "Say in the Deployment's strategy what a rollout may take away, and let the budget allow one pod at least \
          (maxUnavailable: 1).",
    run: misread,
};

fn misread(input: &Input<'_>, report: &mut Report<'_>) {
    for (object, budget) in input.all::<PodDisruptionBudget>("policy", "PodDisruptionBudget") {
        let Some(spec) = &budget.spec else { continue };
        for workload in input.workloads.iter().filter(|workload| {
            same_namespace(&workload.object.namespace, &object.namespace)
                && spec.selector.as_ref().is_some_and(|selector| selects(selector, workload))
        }) {
            let pods = facts::replicas(input, workload).filter(|pods| *pods > 0);
            let (field, value, stays) = match (&spec.min_available, &spec.max_unavailable) {
                (Some(value), _) => ("minAvailable", value, pods.and_then(|pods| facts::share(value, pods, true))),
                (None, Some(value)) => {
                    let gone = |pods: i64| Some(pods - facts::share(value, pods, true)?);
                    ("maxUnavailable", value, pods.and_then(gone))
                }
                (None, None) => continue,
            };
            let (path, title) = (format!("/spec/{field}"), workload.object.title());
            let value = facts::written(value);
            let never = matches!((field, value.as_str()), ("maxUnavailable", "0" | "0%") | ("minAvailable", "100%"));
            if never || pods.zip(stays).is_some_and(|(pods, stays)| stays >= pods) {
                let of = pods.map(|pods| format!(" with {pods} {}", if pods == 1 { "pod" } else { "pods" }));
                let message = format!(
                    "{field} {value} never lets a pod of {title}{} be evicted: node drains wait for ever",
                    of.unwrap_or_default()
                );
                report.add_to(object, &path, message);
                continue;
            }
            let (Some(pods), Some(stays)) = (pods, stays) else { continue };
            let is_rolling = workload.object.is("apps", "Deployment")
                && workload.object.value.pointer("/spec/strategy/type").and_then(Value::as_str) != Some("Recreate");
            let gone = unavailable(workload, pods).filter(|gone| is_rolling && *gone < pods && pods - gone < stays);
            if let Some(gone) = gone {
                let message = format!(
                    "a rollout may take {gone} of {pods} pods away; {} keeps {stays}, but from evictions only",
                    object.title(),
                );
                let path = if workload.object.value.pointer(STRATEGY).is_some() { STRATEGY } else { "/spec" };
                surge_instead(workload, report.add(workload, path, message));
            }
        }
    }
}

/// An empty selector selects every pod of the namespace.
fn selects(selector: &LabelSelector, workload: &Workload<'_>) -> bool {
    let value = |key: &str| workload.labels().find(|(has, _)| *has == key).map(|(_, value)| value.to_owned());
    let labels = selector.match_labels.iter().flatten().all(|(key, wanted)| value(key).as_ref() == Some(wanted));
    let expressions = selector.match_expressions.iter().flatten().all(|one| {
        let found = value(&one.key);
        let is_in = found.as_ref().is_some_and(|found| one.values.iter().flatten().any(|value| value == found));
        match one.operator.as_str() {
            "In" => is_in,
            "NotIn" => !is_in,
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            _ => false,
        }
    });
    labels && expressions
}

const STRATEGY: &str = "/spec/strategy/rollingUpdate";
const MAX_UNAVAILABLE: &str = "/spec/strategy/rollingUpdate/maxUnavailable";
