//! Rules about ebbtide's place in a pod.

use serde_json::{Value, json};

use super::front;
use crate::k8s::check::{Input, KubeVersion, Report, Rule, Severity, facts};
use crate::k8s::mesh;
use crate::k8s::workload::{List, Place, Workload};

pub(super) static EB030: Rule = Rule {
    id: "EB030",
    name: "ebbtide-is-ordinary-container",
    severity: Severity::Error,
    summary: "ebbtide stands under containers instead of initContainers.",
    why: "An ordinary container starts with the app and is stopped with it: at the start the app may find no way out, at \
          the end ebbtide may be gone while the app still answers. In a Job it is worse: the pod stays Running when the \
          work is done, and the Job never completes.",
    fix: "Move it to initContainers, with restartPolicy: Always: a native sidecar, Kubernetes 1.29 or later.",
    run: ordinary,
};

pub(super) static EB031: Rule = Rule {
    id: "EB031",
    name: "ebbtide-without-restart-policy",
    severity: Severity::Error,
    summary: "ebbtide's init container has no restartPolicy: Always.",
    why: "Without it this is no sidecar but an init container that must end before the app starts, and ebbtide never ends. \
          With probes or hooks the API server refuses the pod; without them it stays in Init for ever. Operators and \
          tools that were built on an older API drop the field without a word.",
    fix: "Set restartPolicy: Always on the container, and find out who drops it if it was there.",
    run: restart_policy,
};

pub(super) static EB032: Rule = Rule {
    id: "EB032",
    name: "ebbtide-position",
    severity: Severity::Warning,
    summary: "ebbtide is not the first among the init containers, or stands before those of a service mesh.",
    why: "Sidecars are stopped in the reverse order of the list. One that stands before ebbtide outlives it, and can't use \
          it any more when it stops. A mesh is the other way round: ebbtide's own connections need the mesh's proxy and \
          its redirections, so these must be there before it.",
    fix: "Put ebbtide first, directly behind istio-init, istio-validation, istio-proxy or linkerd's where there are any.",
    run: position,
};

pub(super) static EB033: Rule = Rule {
    id: "EB033",
    name: "ebbtide-twice",
    severity: Severity::Error,
    summary: "A pod has more than one ebbtide.",
    why: "Both take the same ports and the same control socket, and one of them does not start. Where they don't clash, an \
          app's hook waits for one of them only. It comes from an injection on top of one by hand.",
    fix: "Keep one. One ebbtide fronts several apps, with one listener each in EBBTIDE_CONFIG_YAML.",
    run: twice,
};

pub(super) static EB047: Rule = Rule {
    id: "EB047",
    name: "no-native-sidecars",
    severity: Severity::Error,
    summary: "The cluster's version has no native sidecars.",
    why: "They came with 1.28 behind the feature gate SidecarContainers and without an order of termination, are on by \
          default from 1.29 (beta), and stable from 1.33. An older API server drops or refuses the container's \
          restartPolicy.",
    fix: "Run ebbtide on Kubernetes 1.29 or later.",
    run: version,
};

fn ordinary(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        // Alone in its pod it is no sidecar at all.
        let has_app = workload.apps().next().is_some();
        let has_native = front::all(workload).any(|place| place.is_native_sidecar());
        for place in front::all(workload).filter(|place| place.list == List::Ordinary && has_app) {
            let name = &place.container.name;
            let what = match workload.object.kind.as_str() {
                "Job" | "CronJob" => {
                    "the pod stays Running when its work is done, and the Job never completes".to_owned()
                }
                _ => "it gets its SIGTERM together with the app instead of after it".to_owned(),
            };
            let message = format!("container {name} is ebbtide, as an ordinary container: {what}");
            let finding = report.add(workload, &workload.in_container(place, ""), message);
            if has_native || facts::is_found_by_name(input, workload, place.container) {
                continue;
            }
            let to = mesh::position(workload.spec.init_containers.as_deref().unwrap_or_default());
            finding.fix(workload.object, |object| {
                let Some(spec) = object.pointer_mut(&workload.in_spec("")) else { return };
                let Some(from) = spec.get_mut("containers").and_then(Value::as_array_mut) else { return };
                let mut container = from.remove(place.index);
                container["restartPolicy"] = "Always".into();
                match spec.get_mut("initContainers").and_then(Value::as_array_mut) {
                    Some(init) => init.insert(to.min(init.len()), container),
                    None => spec["initContainers"] = json!([container]),
                }
            });
        }
    }
}

fn restart_policy(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        for place in front::all(workload).filter(|place| place.list == List::Init && !place.is_native_sidecar()) {
            let container = place.container;
            let has_probe = container.lifecycle.is_some()
                || container.startup_probe.is_some()
                || container.readiness_probe.is_some()
                || container.liveness_probe.is_some();
            let then = match has_probe {
                true => "the API server refuses hooks and probes on such an init container",
                false => "the app is never started, since this container never ends",
            };
            let version = match input.options.kube_version {
                Some(version) if version < NATIVE => format!("; Kubernetes {version} has no native sidecars, 1.29 has"),
                _ => String::new(),
            };
            let message = format!("init container {} has no restartPolicy: Always: {then}{version}", container.name);
            report.add(workload, &workload.in_container(place, ""), message).fix(workload.object, |object| {
                if let Some(container) = object.pointer_mut(&workload.in_container(place, "")) {
                    container["restartPolicy"] = "Always".into();
                }
            });
        }
    }
}

fn position(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let Some(front) = front::of(workload).filter(|front| front.place.is_native_sidecar()) else { continue };
        let init = workload.spec.init_containers.as_deref().unwrap_or_default();
        let (is, wanted) = (front.place.index, mesh::position(init));
        // Meshes put what sets up the redirections last where their proxy is an ordinary container.
        let is_first_with_ordinary_proxy = is < wanted && !mesh::has_proxy(init);
        if is == wanted || is_first_with_ordinary_proxy || front::all(workload).count() > 1 {
            continue;
        }
        let name = &front.place.container.name;
        let names = |places: &[Place<'_>]| {
            places.iter().map(|place| place.container.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let others: Vec<Place<'_>> = workload.containers().filter(|place| place.list == List::Init).collect();
        let message = if is < wanted {
            let behind: Vec<_> =
                others.iter().filter(|o| o.index > is && mesh::is_mesh(&o.container.name)).copied().collect();
            format!("{name} stands before {}: it starts before the mesh works, and is stopped after it", names(&behind))
        } else {
            let before = others.iter().filter(|o| o.index < is && !mesh::is_mesh(&o.container.name));
            // What ends before ebbtide starts needs it only as a way out.
            let is_in_the_way = |o: &&Place<'_>| o.is_native_sidecar() || !front.inbound_only();
            let before: Vec<_> = before.filter(is_in_the_way).copied().collect();
            if before.is_empty() {
                continue;
            }
            format!(
                "{name} stands behind {}: they start without it, and sidecars among them outlive it",
                names(&before)
            )
        };
        report.add(workload, &workload.in_container(front.place, ""), message).fix(workload.object, |object| {
            let init = object.pointer_mut(&workload.in_spec("/initContainers")).and_then(Value::as_array_mut);
            if let Some(init) = init {
                let container = init.remove(is);
                init.insert(wanted.min(init.len()), container);
            }
        });
    }
}

fn twice(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let mut places = front::all(workload);
        let Some(first) = places.next() else { continue };
        for place in places {
            let list = match first.list {
                List::Init => "initContainers",
                List::Ordinary => "containers",
            };
            let (name, other) = (&place.container.name, &first.container.name);
            let message = format!("container {name} is ebbtide, and so is {other} in {list}");
            report.add(workload, &workload.in_container(place, ""), message);
        }
    }
}

fn version(input: &Input<'_>, report: &mut Report<'_>) {
    let Some(version) = input.options.kube_version.filter(|version| *version < NATIVE) else { return };
    for workload in &input.workloads {
        let Some(place) = workload.containers().find(Place::is_native_sidecar) else { continue };
        let gate = match version.minor {
            28 => "has them behind the feature gate SidecarContainers only, and stops them in no order",
            _ => "does not know them",
        };
        let message = format!("{} is a native sidecar, Kubernetes {version} {gate}", place.container.name);
        report.add(workload, &at_policy(workload, place), message);
    }
}

fn at_policy(workload: &Workload<'_>, place: Place<'_>) -> String {
    workload.in_container(place, "/restartPolicy")
}

/// Native sidecars are on by default, and stopped in order.
const NATIVE: KubeVersion = KubeVersion { minor: 29 };
