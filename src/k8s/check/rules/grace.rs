//! Rules about the grace period and what must fit into it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::config::Mode;
use crate::k8s::check::{Input, Platform, Report, Rule, Severity, facts};
use crate::k8s::hook;
use crate::lifecycle::budget;

pub(super) static EB001: Rule = Rule {
    id: "EB001",
    name: "hook-not-shorter-than-grace",
    severity: Severity::Error,
    summary: "A preStop hook sleeps as long as the grace period, or longer.",
    why: "The grace period runs from the deletion on, hooks included. The kubelet kills the container in the middle of \
          its hook: the app never gets SIGTERM with time to act on it, and what is in flight is lost.",
    fix: "Raise terminationGracePeriodSeconds above the sleep and what the app needs to stop, or let ebbtide hold \
          SIGTERM back instead of the sleep.",
    run: hook_not_shorter,
};

fn hook_not_shorter(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let grace = workload.grace();
        let sleep = |place: &crate::k8s::workload::Place<'_>| hook::of(place.container).map(hook::at_least);
        let longest = workload.containers().filter_map(|place| sleep(&place)).max().unwrap_or_default();
        for place in workload.containers() {
            let Some(sleep) = sleep(&place).filter(|sleep| !sleep.is_zero() && *sleep >= grace) else { continue };
            let path = workload.in_container(place, "/lifecycle/preStop");
            let is_action = hook::of(place.container).is_some_and(|hook| hook.sleep.is_some());
            let refused = if is_action && sleep > grace { "; the API server refuses that" } else { "" };
            let message = format!(
                "container {} sleeps {} s before it stops, the grace period is {} s{refused}",
                place.container.name,
                sleep.as_secs(),
                grace.as_secs(),
            );
            report.add(workload, &path, message).fix(workload.object, |object| {
                facts::set(workload, object, GRACE, longest.as_secs() + STOP);
            });
        }
    }
}

pub(super) static EB002: Rule = Rule {
    id: "EB002",
    name: "parts-exceed-grace",
    severity: Severity::Error,
    summary: "What ebbtide is told to do does not fit into the grace period.",
    why: "Hold, drain, close, the app's own stop and the margin share one grace period. Where they do not fit, ebbtide \
          shrinks them, so that the pod is not killed half-way: the hold is then shorter than what was asked for, and \
          requests that arrive after it are lost.",
    fix: "Raise terminationGracePeriodSeconds (and EBBTIDE_GRACE_PERIOD with it) to the sum, or lower the hold.",
    run: parts_exceed,
};

fn parts_exceed(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let Some((place, config)) = facts::ebbtide(workload) else { continue };
        let Some(shrunk) = facts::divided(workload, config.mode, &config.drain).shrunk else { continue };
        let drain = &config.drain;
        let app_stop = if config.mode == Mode::Sidecar { drain.app_stop } else { Duration::ZERO };
        let sum = budget::longest(drain.hold) + budget::MIN_DRAIN + drain.close + app_stop + drain.margin;
        let needed = u64::try_from(sum.as_millis().div_ceil(1000)).unwrap_or(u64::MAX);
        let severity = if shrunk.user_set { Severity::Error } else { Severity::Warning };
        let grace = workload.grace();
        let (is_told_less, mut message) = (drain.grace_period < grace, shrunk.message);
        if is_told_less {
            message.push_str(&format!("; the pod has {} s, which ebbtide is not told", grace.as_secs()));
        }
        let path = match workload.spec.termination_grace_period_seconds {
            Some(_) if !is_told_less => workload.in_spec("/terminationGracePeriodSeconds"),
            _ => workload.in_container(place, "/name"),
        };
        let finding = report.add(workload, &path, message).severity(severity);
        let mut words = place.container.command.iter().chain(&place.container.args).flatten();
        if words.any(|word| word.starts_with("--grace-period")) {
            // It would beat the variable.
            continue;
        }
        let needed = needed.max(grace.as_secs());
        finding.fix(workload.object, |object| {
            facts::set(workload, object, GRACE, needed);
            let Some(container) = object.pointer_mut(&workload.in_container(place, "")) else { return };
            let told = json!({"name": PASSED_ON, "value": format!("{needed}s")});
            match container.get_mut("env").and_then(Value::as_array_mut) {
                Some(variables) => match variables.iter_mut().rfind(|variable| variable["name"] == PASSED_ON) {
                    Some(variable) => *variable = told,
                    None => variables.push(told),
                },
                None => container["env"] = json!([told]),
            }
        });
    }
}

pub(super) static EB017: Rule = Rule {
    id: "EB017",
    name: "grace-longer-than-nodes-live",
    severity: Severity::Warning,
    summary: "The grace period is longer than nodes wait for a pod.",
    why: "Who takes nodes away does not wait for every grace period: the cluster autoscaler kills pods after 600 s, \
          spot instances end two minutes after their notice, preemptible ones after 30 s or less. What is planned for \
          later is then cut without a word to anybody.",
    fix: "Plan with a shorter grace period (and end long sessions earlier, EBBTIDE_WEBSOCKET_AFTER), or keep such pods \
          on nodes that are not taken away. Say with --platform where the nodes come from.",
    run: longer_than_nodes,
};

fn longer_than_nodes(input: &Input<'_>, report: &mut Report<'_>) {
    let (limit, who) = match input.options.platform {
        Some(Platform::Preemptible) => (30, "a preemptible machine is gone 30 s after its notice, at the latest"),
        Some(Platform::Spot) => (120, "a spot instance is gone two minutes after its notice"),
        Some(Platform::Standard) | None => {
            (600, "the cluster autoscaler kills pods after 600 s, unless told otherwise")
        }
    };
    for workload in &input.workloads {
        let grace = workload.grace();
        if grace > Duration::from_secs(limit) {
            let message = format!("the grace period is {} s; {who}", grace.as_secs());
            report.add(workload, &workload.in_spec("/terminationGracePeriodSeconds"), message);
        }
    }
}

const GRACE: &str = "terminationGracePeriodSeconds";

/// Tells ebbtide the grace period, which it can't find out.
const PASSED_ON: &str = "EBBTIDE_GRACE_PERIOD";

/// Seconds that an app gets after its hook where nobody says what it needs.
const STOP: u64 = 15;
