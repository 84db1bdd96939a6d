//! Rules about how the kubelet's hooks and probes find their port: the requests come from the node.

use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::front;
use crate::k8s::check::{Input, KubeVersion, Report, Rule, Severity};
use crate::k8s::hook;
use crate::k8s::object::Object;

pub(super) static EB036: Rule = Rule {
    id: "EB036",
    name: "port-name-of-another-container",
    severity: Severity::Error,
    summary: "A hook or probe names a port that its own container does not have.",
    why: "The kubelet looks a name up among the ports of the container that has the hook or probe, not among those of its \
          neighbours. A hook fails, and SIGTERM comes at once; a probe fails for ever.",
    fix: "Write the number.",
    run: port_names,
};

pub(super) static EB037: Rule = Rule {
    id: "EB037",
    name: "host-in-hook-or-probe",
    severity: Severity::Warning,
    summary: "A hook or probe has a host.",
    why: "It is the kubelet that calls, from the node: localhost is the node, and the hook fails without a word. From \
          Kubernetes 1.34 on the Pod Security levels baseline and restricted refuse pods with such a field.",
    fix: "Leave the host out: the kubelet calls the pod's IP. What listens on loopback only needs an exec hook.",
    run: hosts,
};

pub(super) static EB038: Rule = Rule {
    id: "EB038",
    name: "admin-port-on-loopback",
    severity: Severity::Error,
    summary: "ebbtide's admin port listens on loopback, and the kubelet calls the pod's IP.",
    why: "The kubelet is not in the pod. Its call is refused: the app's hook fails and SIGTERM comes at once, and with the \
          startup probe the app is never started.",
    fix: "Let the admin port listen on all addresses, as it does by default.",
    run: loopback,
};

/// What the kubelet calls for a container.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'c> {
    /// `lifecycle/preStop`, `readinessProbe`
    pub(super) what: &'static str,
    /// `httpGet`, `tcpSocket` or `grpc`.
    pub(super) how: &'static str,
    /// `None` for gRPC, where it is a number always.
    pub(super) port: Option<&'c IntOrString>,
    pub(super) host: Option<&'c str>,
    pub(super) path: Option<&'c str>,
}

/// A container's probes that go over the network.
pub(super) fn probes(container: &Container) -> impl Iterator<Item = Call<'_>> {
    [
        ("startupProbe", container.startup_probe.as_ref()),
        ("readinessProbe", container.readiness_probe.as_ref()),
        ("livenessProbe", container.liveness_probe.as_ref()),
    ]
    .into_iter()
    .filter_map(|(what, probe)| of_probe(what, probe?))
}

fn of_probe<'c>(what: &'static str, probe: &'c Probe) -> Option<Call<'c>> {
    let get = probe.http_get.as_ref().map(|get| Call {
        what,
        how: "httpGet",
        port: Some(&get.port),
        host: get.host.as_deref(),
        path: get.path.as_deref(),
    });
    get.or_else(|| {
        let tcp = probe.tcp_socket.as_ref()?;
        let (port, host) = (Some(&tcp.port), tcp.host.as_deref());
        Some(Call { what, how: "tcpSocket", port, host, path: None })
    })
}

/// A container's hooks and probes that go over the network.
pub(super) fn all(container: &Container) -> impl Iterator<Item = Call<'_>> {
    let lifecycle = container.lifecycle.as_ref();
    let hooks = [
        ("lifecycle/postStart", lifecycle.and_then(|lifecycle| lifecycle.post_start.as_ref())),
        ("lifecycle/preStop", lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref())),
    ];
    let hooks = hooks.into_iter().filter_map(|(what, hook)| {
        let get = hook?.http_get.as_ref()?;
        let (port, host) = (Some(&get.port), get.host.as_deref());
        Some(Call { what, how: "httpGet", port, host, path: get.path.as_deref() })
    });
    hooks.chain(probes(container))
}

fn port_names(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        for place in workload.containers() {
            for call in all(place.container) {
                let Some(IntOrString::String(wanted)) = call.port else { continue };
                let has = |container: &Container| named(container, wanted);
                if wanted.parse::<i32>().is_ok() || has(place.container).is_some() {
                    continue;
                }
                let other = workload.containers().find_map(|other| Some((other, has(other.container)?)));
                let whose = match &other {
                    Some((other, number)) => format!("belongs to {} ({number})", other.container.name),
                    None => "no container of the pod has".to_owned(),
                };
                let what = call.what.trim_start_matches("lifecycle/");
                let message = format!(
                    "container {}: the {what} wants the port {wanted}, which {whose}: it is looked up among the \
                     container's own",
                    place.container.name
                );
                let path = workload.in_container(place, &format!("/{}/{}/port", call.what, call.how));
                let finding = report.add(workload, &path, message);
                if let Some((_, number)) = other {
                    finding.fix(workload.object, |object| {
                        if let Some(port) = object.pointer_mut(&path) {
                            *port = number.into();
                        }
                    });
                }
            }
        }
    }
}

/// The number of a container's port with this name.
pub(super) fn named(container: &Container, name: &str) -> Option<i32> {
    let mut ports = container.ports.iter().flatten();
    ports.find(|port| port.name.as_deref() == Some(name)).map(|port| port.container_port)
}

fn hosts(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let is_on_node = workload.spec.host_network == Some(true);
        for place in workload.containers() {
            for call in all(place.container) {
                let Some(host) = call.host.filter(|host| !host.is_empty()) else { continue };
                let is_loopback = front::is_loopback(host);
                let level = enforced(input, workload.object);
                let is_refused = matches!(level, Some("baseline" | "restricted"))
                    && input.options.kube_version.is_none_or(|version| version >= KubeVersion { minor: 34 });
                let is_old = input.options.kube_version.is_some_and(|version| version < KubeVersion { minor: 34 });
                if is_on_node || (is_old && !is_loopback) {
                    // On the node itself its loopback is the right one.
                    continue;
                }
                let then = match (is_refused, is_loopback, level) {
                    (true, _, Some(level)) => format!("its namespace enforces {level}, which refuses such pods"),
                    (_, true, _) => "that is the node, not the pod".to_owned(),
                    (_, false, _) => "Pod Security refuses that from Kubernetes 1.34 on".to_owned(),
                };
                let what = call.what.trim_start_matches("lifecycle/");
                let message = format!("container {}: the {what} has the host {host}: {then}", place.container.name);
                let path = workload.in_container(place, &format!("/{}/{}", call.what, call.how));
                let severity = if is_refused || is_loopback { Severity::Error } else { Severity::Warning };
                let finding = report.add(workload, &format!("{path}/host"), message).severity(severity);
                if call.path.is_some_and(|path| path.starts_with(hook::APP_STOP)) {
                    finding.fix(workload.object, |object| {
                        let call = object.pointer_mut(&path).and_then(serde_json::Value::as_object_mut);
                        call.and_then(|call| call.remove("host"));
                    });
                }
            }
        }
    }
}

/// The Pod Security level that an object's namespace enforces, if the Namespace is in the input.
pub(super) fn enforced<'i>(input: &'i Input<'_>, object: &Object) -> Option<&'i str> {
    let namespace = input.objects.iter().find(|one| one.is("", "Namespace") && one.name == object.namespace)?;
    namespace.value.pointer("/metadata/labels/pod-security.kubernetes.io~1enforce")?.as_str()
}

fn loopback(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let Some(front) = front::of(workload) else { continue };
        let Some(admin) = front.admin().filter(|admin| admin.ip().is_loopback()) else { continue };
        if workload.spec.host_network == Some(true) {
            continue;
        }
        let callers: Vec<String> = workload
            .containers()
            .flat_map(|place| {
                let calls = all(place.container).filter(|call| {
                    call.port.and_then(hook::number) == Some(i32::from(admin.port()))
                        && !call.host.is_some_and(front::is_loopback)
                });
                calls.map(move |call| {
                    format!("{}'s {}", place.container.name, call.what.trim_start_matches("lifecycle/"))
                })
            })
            .collect();
        if callers.is_empty() {
            continue;
        }
        let message = format!(
            "the admin port listens on {admin} only: the kubelet calls the pod's IP, and {} will fail",
            callers.join(", ")
        );
        let path = front.at_variable(workload, "EBBTIDE_ADMIN");
        front.mend_variable(
            workload,
            report.add(workload, &path, message),
            "EBBTIDE_ADMIN",
            &format!(":{}", admin.port()),
        );
    }
}
