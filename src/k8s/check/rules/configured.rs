//! Rules about ebbtide's configuration in a pod.

use serde_json::{Value, json};

use super::front::{self, Front};
use crate::config::{Mode, Origin};
use crate::k8s::check::{Input, Report, Rule, Severity};
use crate::k8s::workload::{List, SOME_ADDRESS, SOME_IPV6, Workload};

pub(super) static EB039: Rule = Rule {
    id: "EB039",
    name: "mode-does-not-fit",
    severity: Severity::Error,
    summary: "EBBTIDE_MODE does not fit the kind of container that ebbtide is.",
    why: "The mode says what a signal means, and can't be guessed. A native sidecar in plain mode takes its SIGTERM, which \
          comes after the app has exited, for the beginning: the app's hook is not held, and requests in flight are lost. \
          An ordinary container in sidecar mode waits for an app that is stopped at the same time.",
    fix: "EBBTIDE_MODE=sidecar in a native sidecar, plain (the default) anywhere else.",
    run: mode,
};

pub(super) static EB040: Rule = Rule {
    id: "EB040",
    name: "grace-period-differs",
    severity: Severity::Error,
    summary: "ebbtide's grace period is not the pod's terminationGracePeriodSeconds.",
    why: "A container can't read it from its pod. ebbtide divides the time it is told: if that is more than the pod has, \
          SIGKILL comes in the middle of the drain. If it is less, work is cut that still had time.",
    fix: "Set EBBTIDE_GRACE_PERIOD to the value of terminationGracePeriodSeconds.",
    run: grace_period,
};

pub(super) static EB041: Rule = Rule {
    id: "EB041",
    name: "configuration-refused",
    severity: Severity::Error,
    summary: "ebbtide does not take its configuration, or has a doubt about it.",
    why: "With a faulty configuration ebbtide exits at the start, and the app behind it is never started. A setting without \
          effect is not what somebody thinks it is.",
    fix: "Each finding says what is wrong with which value; docs/user/configuration.md has all settings.",
    run: configuration,
};

fn mode(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let Some(front) = front::of(workload) else { continue };
        let path = front.at_variable(workload, "EBBTIDE_MODE");
        let name = &front.place.container.name;
        match (front.place.is_native_sidecar(), front.mode()) {
            (true, Some(Mode::Plain)) => {
                let message = format!(
                    "{name} is a native sidecar in plain mode: it lets the app's hooks go at once, and begins its drain \
                     when the app has exited",
                );
                front.mend_variable(workload, report.add(workload, &path, message), "EBBTIDE_MODE", "sidecar");
            }
            (false, Some(Mode::Sidecar)) if front.place.list == List::Ordinary => {
                let message =
                    format!("{name} is an ordinary container in sidecar mode: nothing stops it after the app");
                report.add(workload, &path, message);
            }
            (true | false, _) => {}
        }
    }
}

fn grace_period(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let front = front::of(workload).filter(|front| front.place.is_native_sidecar());
        let Some((front, config)) = front.as_ref().and_then(|front| Some((front, front.config()?))) else { continue };
        let (told, real) = (config.drain.grace_period, workload.grace());
        if told == real || config.mode == Mode::Plain {
            continue;
        }
        let name = &front.place.container.name;
        let source = match has_own_value(front) {
            true => format!("{name} is told a grace period of {} s", told.as_secs_f64()),
            false => format!("{name} has no EBBTIDE_GRACE_PERIOD and takes {} s for it", told.as_secs_f64()),
        };
        let between = told.abs_diff(real).as_secs_f64();
        let (severity, then) = match told > real {
            true => (Severity::Error, format!("it is killed {between} s before the end it plans for")),
            false => (Severity::Warning, format!("it gives up {between} s before it must")),
        };
        let message = format!("{source}, the pod has {} s: {then}", real.as_secs());
        let path = front.at_variable(workload, "EBBTIDE_GRACE_PERIOD");
        let finding = report.add(workload, &path, message).severity(severity);
        if real.is_zero() {
            // No grace period at all: nothing that ebbtide could be told fits.
            continue;
        }
        front.mend_variable(workload, finding, "EBBTIDE_GRACE_PERIOD", &format!("{}s", real.as_secs()));
    }
}

fn has_own_value(front: &Front<'_>) -> bool {
    let Ok(loaded) = &front.loaded else { return false };
    let value = loaded.values.iter().find(|value| value.key == "drain.grace_period");
    value.is_some_and(|value| value.origin != Origin::Default)
}

fn configuration(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let Some(front) = front::of(workload) else { continue };
        let name = &front.place.container.name;
        if let Some(text) = &front.refused {
            let container = front.place.container;
            let field = if container.args.as_ref().is_some_and(|args| !args.is_empty()) { "/args" } else { "/command" };
            let message = format!("{name}: ebbtide does not take these arguments: {text}");
            report.add(workload, &workload.in_container(front.place, field), message);
        }
        unset(workload, &front, report);
        match &front.loaded {
            Ok(loaded) if front.whole => {
                for warning in &loaded.warnings {
                    let path = workload.in_container(front.place, "");
                    report.add(workload, &path, one_line(name, warning)).severity(Severity::Warning);
                }
            }
            Ok(_) => {}
            Err(errors) => {
                for error in errors.iter().filter(|error| front.whole || is_certain(&front, &error.origin)) {
                    let path = front.at_origin(workload, &error.origin);
                    report.add(workload, &path, one_line(name, error));
                }
            }
        }
    }
}

/// Settings that refer to a variable which the kubelet does not know at that place.
fn unset(workload: &Workload<'_>, front: &Front<'_>, report: &mut Report<'_>) {
    let container = front.place.container;
    let variables = container.env.as_deref().unwrap_or_default();
    if container.env_from.as_ref().is_some_and(|from| !from.is_empty()) {
        return;
    }
    for (index, variable) in variables.iter().enumerate().filter(|(_, one)| one.name.starts_with("EBBTIDE_")) {
        let text = variable.value.as_deref().unwrap_or_default();
        let is_set = |name: &str| variables[..index].iter().any(|before| before.name == name) || is_of_service(name);
        let Some(missing) = references(text).find(|name| !is_set(name)) else { continue };
        let is_later = variables[index..].iter().any(|later| later.name == missing);
        let when = if is_later { "is set only behind it" } else { "is not set" };
        let message = format!(
            "{}: {} refers to $({missing}), which {when}: the kubelet leaves the text as it is, and ebbtide does not take it",
            container.name, variable.name,
        );
        let path = workload.in_container(front.place, &format!("/env/{index}"));
        let finding = report.add(workload, &path, message);
        if missing != "POD_IP" {
            continue;
        }
        finding.fix(workload.object, |object| {
            let env = workload.in_container(front.place, "/env");
            let Some(env) = object.pointer_mut(&env).and_then(Value::as_array_mut) else { return };
            let moved = env.iter().position(|one| one["name"] == "POD_IP").map(|at| env.remove(at));
            let new = || json!({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}});
            env.insert(0, moved.unwrap_or_else(new));
        });
    }
}

/// The names in `$(NAME)`; `$$(NAME)` is text.
fn references(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices("$(").filter(|(at, _)| !text[..*at].ends_with('$'));
    starts.filter_map(|(at, _)| text[at + 2..].split_once(')').map(|(name, _)| name))
}

/// The kubelet sets some for each Service.
fn is_of_service(name: &str) -> bool {
    ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT"].iter().any(|part| name.contains(part))
}

/// On one line, without the address that stands for the pod's.
fn one_line(name: &str, fault: impl std::fmt::Display) -> String {
    format!("{name}: {fault}")
        .replace("\n  help: ", "; ")
        .replace(SOME_ADDRESS, "$(POD_IP)")
        .replace(SOME_IPV6, "$(POD_IP)")
}

/// Whether a value is wrong whatever the sources say that the manifest does not show.
fn is_certain(front: &Front<'_>, origin: &Origin) -> bool {
    match origin {
        Origin::Variable(name) => {
            front.variable(name).is_some_and(|value| !value.contains("$(") && value != "unknown")
                && !front.place.container.args.iter().flatten().any(|word| word.starts_with("--"))
        }
        Origin::Text { .. } | Origin::Flag(_) | Origin::Default | Origin::Whole(_) => false,
    }
}
