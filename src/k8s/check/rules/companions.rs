//! Rules about containers that serve the app and stand beside it as ordinary ones.

use k8s_openapi::api::core::v1::Container;
use serde_json::{Value, json};

use crate::k8s::check::{Finding, Input, KubeVersion, Report, Rule, Severity, facts};
use crate::k8s::hook;
use crate::k8s::workload::{Place, Workload, image_name};

pub(super) static EB006: Rule = Rule {
    id: "EB006",
    name: "proxy-leaves-first",
    severity: Severity::Warning,
    summary: "A proxy that the app needs stands among the ordinary containers and leaves when the pod is deleted.",
    why: "Ordinary containers are stopped all at once. The proxy gets its SIGTERM at the moment of the deletion, while \
          the app still has requests to finish: its connections to the database, to other services or to its clients \
          break under it.",
    fix: "Make it a native sidecar (an init container with restartPolicy: Always, Kubernetes 1.29 or later): it is then \
          stopped after the app. For Istio and Linkerd that is a setting of the mesh. Otherwise give it a preStop hook \
          as long as the app's.",
    run: leaves_first,
};

fn leaves_first(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in input.workloads.iter().filter(|workload| !facts::is_job(workload)) {
        let longest = |place: Place<'_>| hook::of(place.container).and_then(hook::sleep);
        let app_sleeps = workload.apps().filter(|place| helper(place.container).is_none()).filter_map(longest).max();
        if workload.apps().all(|place| helper(place.container).is_some()) {
            continue;
        }
        for place in workload.apps() {
            let Some((what, is_traffic)) = helper(place.container) else { continue };
            let leaves = match (hook::of(place.container), longest(place)) {
                (None, _) => "gets SIGTERM as soon as the pod is deleted".to_owned(),
                (Some(_), Some(sleep)) if app_sleeps.is_some_and(|app| app > sleep) => format!(
                    "leaves after {} s, the app sleeps {} s before it stops",
                    sleep.as_secs(),
                    app_sleeps.unwrap_or_default().as_secs()
                ),
                (Some(_), _) => continue,
            };
            if !is_traffic || waits_by_itself(workload, place.container) || is_stub(place.container) {
                continue;
            }
            let message = format!("container {} ({what}) {leaves}", place.container.name);
            let finding = report.add(workload, &workload.in_container(place, ""), message);
            make_native(input, workload, place, finding);
        }
    }
}

pub(super) static EB016: Rule = Rule {
    id: "EB016",
    name: "job-never-completes",
    severity: Severity::Error,
    summary: "A Job has a sidecar among its ordinary containers.",
    why: "A Job is done when all its ordinary containers have ended. A proxy or an agent does not end by itself: the \
          pod stays Running after the work is done, the Job never completes, and a CronJob's next run is skipped or \
          stands beside it.",
    fix: "Make it a native sidecar (an init container with restartPolicy: Always, Kubernetes 1.29 or later), which does \
          not count for the Job and is stopped when the work is done.",
    run: never_completes,
};

fn never_completes(input: &Input<'_>, report: &mut Report<'_>) {
    let jobs = input.workloads.iter().filter(|workload| matches!(workload.object.kind.as_str(), "Job" | "CronJob"));
    for workload in jobs {
        if workload.apps().all(|place| helper(place.container).is_some()) {
            continue;
        }
        for place in workload.apps() {
            let what = helper(place.container).map(|(what, _)| what);
            let Some(what) = what.filter(|_| !ends_by_itself(workload, place.container)) else { continue };
            let name = &place.container.name;
            let message =
                format!("container {name} ({what}) goes on when the work is done, so that the Job never completes");
            let finding = report.add(workload, &workload.in_container(place, ""), message);
            make_native(input, workload, place, finding);
        }
    }
}

/// What a container is if it is there for the app, and whether the app's traffic goes through it.
fn helper(container: &Container) -> Option<(&'static str, bool)> {
    let image = container.image.as_deref().unwrap_or_default();
    let is = |name: &str| container.name == name || image_name(image) == name;
    let found = match () {
        () if is("istio-proxy") || (image_name(image) == "proxyv2") => ("Istio's proxy", true),
        () if is("linkerd-proxy") || image.ends_with("linkerd/proxy") || image.contains("linkerd/proxy:") => {
            ("Linkerd's proxy", true)
        }
        () if is("cloud-sql-proxy") || is("cloudsql-proxy") || image_name(image) == "gce-proxy" => {
            ("the Cloud SQL proxy", true)
        }
        () if is("alloydb-auth-proxy") => ("the AlloyDB proxy", true),
        () if is("envoy") || is("envoy-sidecar") => ("Envoy", true),
        () if is("pgbouncer") => ("PgBouncer", true),
        () if is("oauth2-proxy") => ("oauth2-proxy", true),
        () if is("daprd") => ("Dapr", true),
        () if is("consul-dataplane") => ("Consul's proxy", true),
        () if is("vault-agent") => ("Vault's agent", false),
        () if is("fluent-bit")
            || is("fluentbit")
            || is("fluentd")
            || is("filebeat")
            || is("promtail")
            || is("vector") =>
        {
            ("a log shipper", false)
        }
        () => return None,
    };
    Some(found)
}

/// Settings by which a proxy stays until its connections are closed.
fn waits_by_itself(workload: &Workload<'_>, container: &Container) -> bool {
    let waits = ["max-sigterm-delay", "term_timeout", "MAX_SIGTERM_DELAY", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS"];
    let in_mesh = workload.annotation("proxy.istio.io/config").is_some_and(|text| {
        text.contains("EXIT_ON_ZERO_ACTIVE_CONNECTIONS") || text.contains("terminationDrainDuration")
    });
    let in_linkerd = workload.annotation("config.alpha.linkerd.io/proxy-wait-before-exit-seconds").is_some();
    words(container).any(|word| waits.iter().any(|part| word.contains(part))) || in_mesh || in_linkerd
}

/// Settings by which the work can end a helper.
fn ends_by_itself(workload: &Workload<'_>, container: &Container) -> bool {
    let ends = ["quitquitquit", "exit-after-auth", "exit_after_auth", "run-once"];
    let is_told = |container: &Container| {
        words(container).any(|word| ends.iter().any(|part| word.contains(part)) || word.contains("linkerd-await"))
    };
    is_told(container) || workload.ordinary().any(|place| is_told(place.container))
}

fn words(container: &Container) -> impl Iterator<Item = &str> {
    let arguments = container.command.iter().flatten().chain(container.args.iter().flatten());
    arguments.map(String::as_str).chain(container.env.iter().flatten().map(|variable| variable.name.as_str()))
}

/// A mesh's injector makes the real container of it, and puts it where it likes.
fn is_stub(container: &Container) -> bool {
    container.image.as_deref().is_none_or(|image| image.is_empty() || image == "auto")
}

/// Moves the container behind the init containers, where all that started before it still does. A mesh's own place is
/// the mesh's business, and so is what an older cluster can't do.
fn make_native(input: &Input<'_>, workload: &Workload<'_>, place: Place<'_>, finding: &mut Finding) {
    let is_mesh =
        helper(place.container).is_some_and(|(what, _)| what.starts_with("Istio") || what.starts_with("Linkerd"));
    if is_mesh
        || KubeVersion::is_before(input.options.kube_version, 29)
        || facts::is_found_by_name(input, workload, place.container)
    {
        return;
    }
    finding.fix(workload.object, |object| {
        let Some(spec) = object.pointer_mut(&workload.in_spec("")) else { return };
        let Some(ordinary) = spec["containers"].as_array_mut() else { return };
        let mut moved = ordinary.remove(place.index);
        moved["restartPolicy"] = json!("Always");
        match spec.get_mut("initContainers").and_then(Value::as_array_mut) {
            Some(init) => init.push(moved),
            None => spec["initContainers"] = json!([moved]),
        }
    });
}
