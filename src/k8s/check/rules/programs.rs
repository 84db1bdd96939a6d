//! Rules about what a preStop hook needs to run at all.

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use serde_json::json;

use crate::k8s::check::{Input, KubeVersion, Report, Rule, Severity};
use crate::k8s::hook;
use crate::k8s::workload::is_ebbtide;

pub(super) static EB003: Rule = Rule {
    id: "EB003",
    name: "hook-needs-a-shell",
    severity: Severity::Warning,
    summary: "A preStop hook runs a shell or sleep in an image that has neither, by its name.",
    why: "Distroless and other minimal images have no shell and no sleep. The hook then fails at once (event \
          FailedPreStopHook), nothing waits, and the app gets SIGTERM while requests still arrive. No deployment fails \
          by it, so it goes unnoticed.",
    fix: "Use the sleep action, which the kubelet does itself (Kubernetes 1.30 or later), or ebbtide's hook, which \
          needs nothing in the app's image.",
    run: needs_shell,
};

fn needs_shell(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        for place in workload.containers().filter(|place| !is_ebbtide(place.container)) {
            let container = place.container;
            let Some((hook, program)) = hook::of(container).and_then(|hook| Some((hook, program(hook)?))) else {
                continue;
            };
            let image = container.image.as_deref().unwrap_or_default();
            if !lacks_shell(image) {
                continue;
            }
            let message = format!(
                "the preStop hook of container {} runs {program}, which the image {image} lacks by its name; it then \
                 fails, and SIGTERM comes at once",
                container.name
            );
            let finding = report.add(workload, &workload.in_container(place, "/lifecycle/preStop"), message);
            let has_action = !KubeVersion::is_before(input.options.kube_version, 30);
            if let Some(sleep) = hook::sleep(hook).filter(|_| has_action) {
                finding.fix(workload.object, |object| {
                    if let Some(hook) = object.pointer_mut(&workload.in_container(place, "/lifecycle/preStop")) {
                        *hook = json!({"sleep": {"seconds": sleep.as_millis().div_ceil(1000) as u64}});
                    }
                });
            }
        }
    }
}

/// What an exec hook starts, if it is something that only a userland has.
fn program(hook: &LifecycleHandler) -> Option<&str> {
    let first = hook.exec.as_ref()?.command.as_ref()?.first()?;
    let name = hook::base_name(first);
    (hook::is_shell(first) || matches!(name, "sleep" | "curl" | "wget" | "kill" | "pkill" | "killall")).then_some(name)
}

/// Only what is known: a custom image says nothing by its name.
fn lacks_shell(image: &str) -> bool {
    let image = image.split('@').next().unwrap_or_default().to_ascii_lowercase();
    let last = image.rsplit('/').next().unwrap_or_default();
    let (name, tag) = last.split_once(':').unwrap_or((last, ""));
    let is_word = |word: &str| image.split(['/', ':', '-', '.', '_']).any(|part| part == word);
    // `distroless/base-debian12` is named after where its packages come from.
    let systems = ["alpine", "bullseye", "bookworm", "buster", "ubuntu", "debian"];
    let has_system = !is_word("distroless") && systems.iter().any(|part| last.contains(part));
    if has_system || ["debug", "-dev", "busybox"].iter().any(|part| last.contains(part)) {
        return false;
    }
    let is_chainguard = image.starts_with("cgr.dev/chainguard/") && !matches!(name, "wolfi-base" | "bash");
    // Their makers build them on distroless or scratch.
    let is_known = matches!(name, "cloud-sql-proxy" | "fluent-bit" | "coredns" | "opentelemetry-collector" | "pause")
        && image.contains('/')
        && !tag.contains("shell");
    is_word("distroless") || is_word("scratch") || is_chainguard || is_known
}

pub(super) static EB004: Rule = Rule {
    id: "EB004",
    name: "sleep-action-not-there",
    severity: Severity::Error,
    summary: "A sleep action that this cluster does not have, or refuses.",
    why: "The sleep action came with Kubernetes 1.29 behind a feature gate and is there by default from 1.30 on; 0 \
          seconds are taken from 1.33 on. An older API server refuses the object, or takes the hook for an empty one.",
    fix: "Upgrade the cluster, or let an exec hook sleep if the image has sleep. ebbtide's hook is an httpGet, which \
          every version has.",
    run: sleep_action,
};

fn sleep_action(input: &Input<'_>, report: &mut Report<'_>) {
    let version = input.options.kube_version;
    for workload in &input.workloads {
        for place in workload.containers() {
            let Some(seconds) = sleep_seconds(place.container) else { continue };
            let name = &place.container.name;
            let (severity, message) = match (seconds, version) {
                (..0, _) => (Severity::Error, format!("container {name} sleeps {seconds} s, which is refused")),
                (_, Some(version @ KubeVersion { minor: 29 })) => (
                    Severity::Error,
                    format!(
                        "container {name} has a sleep action; Kubernetes {version} has it behind the feature gate PodLifecycleSleepAction only"
                    ),
                ),
                (_, Some(version)) if version.minor < 29 => (
                    Severity::Error,
                    format!("container {name} has a sleep action, which Kubernetes {version} does not know"),
                ),
                (0, Some(version)) if version.minor < 33 => (
                    Severity::Error,
                    format!("container {name} sleeps 0 s, which Kubernetes {version} refuses (1.33 and later take it)"),
                ),
                (0, None) => {
                    (Severity::Warning, format!("container {name} sleeps 0 s, which Kubernetes before 1.33 refuses"))
                }
                _ => continue,
            };
            report.add(workload, &workload.in_container(place, "/lifecycle/preStop/sleep"), message).severity(severity);
        }
    }
}

fn sleep_seconds(container: &Container) -> Option<i64> {
    Some(hook::of(container)?.sleep.as_ref()?.seconds)
}
