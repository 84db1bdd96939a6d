//! Rules about the grace period and what must fit into it.

use crate::k8s::check::{Input, Report, Rule, Severity};
use crate::k8s::hook;

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
        for place in workload.containers() {
            let Some(sleep) = hook::of(place.container).and_then(hook::sleep).filter(|sleep| *sleep >= grace) else {
                continue;
            };
            let path = workload.in_container(place, "/lifecycle/preStop");
            let message = format!(
                "container {} sleeps {} s before it stops, the grace period is {} s",
                place.container.name,
                sleep.as_secs(),
                grace.as_secs(),
            );
            report.add(workload, &path, message).fix(workload.object, |object| {
                if let Some(spec) = object.pointer_mut(&workload.in_spec("")) {
                    spec["terminationGracePeriodSeconds"] = (sleep.as_secs() + STOP).into();
                }
            });
        }
    }
}

/// Seconds that an app gets after its hook where nobody says what it needs.
const STOP: u64 = 15;
