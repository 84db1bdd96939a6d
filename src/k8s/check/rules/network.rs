//! Rules about what stands between clients, or the kubelet, and ebbtide.

use std::net::SocketAddr;

use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::front::{self, Front};
use super::{calls, select};
use crate::k8s::check::{Input, Report, Rule, Severity};
use crate::k8s::hook;
use crate::k8s::mesh;
use crate::k8s::object::{Object, escape, same_namespace};
use crate::k8s::workload::Workload;

pub(super) static EB042: Rule = Rule {
    id: "EB042",
    name: "host-network",
    severity: Severity::Warning,
    summary: "A pod with ebbtide runs in the node's network.",
    why: "ebbtide's ports are the node's: two such pods on one node take them from each other, as when a new one starts \
          while the old one still drains, and the admin port can be reached by whoever reaches the node.",
    fix: "Leave hostNetwork out, or see to it that one pod at a time runs on a node, on ports of its own.",
    run: host_network,
};

pub(super) static EB043: Rule = Rule {
    id: "EB043",
    name: "admin-port-in-mesh",
    severity: Severity::Warning,
    summary: "A service mesh intercepts ebbtide's admin port.",
    why: "The kubelet is in no mesh. Where only mutual TLS is let in, its call of the app's preStop hook is refused: the \
          hook fails, and SIGTERM comes at once. Linkerd lets probes pass, but not hooks. Istio turns probes, and from \
          1.25 on hooks, to the agent in its proxy's container. As a native sidecar (the default from 1.27 on) it is \
          there before ebbtide and until the apps are gone; as an ordinary container it starts too late for ebbtide's \
          startup probe, and is gone too early for the apps' hooks.",
    fix: "Add the admin port to traffic.sidecar.istio.io/excludeInboundPorts, or to config.linkerd.io/skip-inbound-ports, \
          on the pod template. With Istio before 1.27 also sidecar.istio.io/nativeSidecar: \"true\".",
    run: in_mesh,
};

pub(super) static EB054: Rule = Rule {
    id: "EB054",
    name: "network-policy-shuts-ebbtide-out",
    severity: Severity::Error,
    summary: "A NetworkPolicy lets clients reach the app's port and not ebbtide's.",
    why: "Clients come to ebbtide's port now. Nothing answers them there, and connections time out; the app's own port, past \
          ebbtide, stays open.",
    fix: "Name ebbtide's port in the policy, in place of the app's.",
    run: policy,
};

fn host_network(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in input.workloads.iter().filter(|workload| workload.spec.host_network == Some(true)) {
        let Some(front) = front::of(workload) else { continue };
        let mut ports: Vec<String> = front.inbound().map(|listener| listener.bind.port().to_string()).collect();
        ports.extend(front.admin().map(|admin| admin.port().to_string()));
        let ports = if ports.is_empty() { String::new() } else { format!(" {}", ports.join(", ")) };
        let message = format!(
            "hostNetwork: ebbtide's ports{ports} are the node's: another pod there can't take them, and anybody who reaches \
             the node reaches the admin port"
        );
        report.add(workload, &workload.in_spec("/hostNetwork"), message);
    }
}

fn in_mesh(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let Some(front) = front::of(workload).filter(|front| front.place.is_native_sidecar()) else { continue };
        let Some(mesh) = mesh::of(&workload.template, &workload.object.namespace, input.objects) else { continue };
        let Some(port) = front.admin().as_ref().map(SocketAddr::port) else { continue };
        if mesh == mesh::Mesh::Istio {
            ordinary_proxy(workload, &front, report);
        }
        if workload.spec.host_network == Some(true) || !mesh.intercepts(&workload.template, port) {
            continue;
        }
        let is_strict = mesh == mesh::Mesh::Istio && is_strict(input, workload.object);
        let name = mesh.excluded_ports();
        let message = format!(
            "{} intercepts the admin port {port}: {name} lacks it, and {} the kubelet's preStop calls fail",
            mesh.name(),
            if is_strict { "with the STRICT PeerAuthentication" } else { "where only mutual TLS is let in" },
        );
        let has_it = workload.annotation(name).is_some();
        let path = format!("{}/metadata/annotations/{}", workload.path, escape(name));
        let at = if has_it { path } else { format!("{}/metadata", workload.path) };
        let finding = report.add(workload, &at, message);
        if is_strict {
            finding.severity(Severity::Error);
        }
        let Some(ports) = mesh.with_excluded(workload.annotation(name), port) else { continue };
        finding.fix(workload.object, |object| {
            let template = match workload.path {
                "" => Some(object),
                path => object.pointer_mut(path),
            };
            let Some(template) = template else { return };
            if !template["metadata"].is_object() {
                template["metadata"] = json!({});
            }
            if !template["metadata"]["annotations"].is_object() {
                template["metadata"]["annotations"] = json!({});
            }
            template["metadata"]["annotations"][name] = ports.into();
        });
    }
}

/// Istio turns the probes of all containers, and from 1.25 on their hooks, to its agent. That must be there first and last.
fn ordinary_proxy(workload: &Workload<'_>, front: &Front<'_>, report: &mut Report<'_>) {
    let probe = front.place.container.startup_probe.as_ref().and_then(|probe| probe.http_get.as_ref());
    let Some(probe) = probe else { return };
    let is_turned = probe.path.as_deref().is_some_and(|path| path.starts_with(mesh::REWRITTEN_PROBE));
    let is_there = mesh::has_proxy(&workload.spec.containers) && is_turned;
    let will_be =
        workload.annotation(mesh::NATIVE_PROXY) == Some("false") && workload.annotation(REWRITE) != Some("false");
    if !is_there && !will_be {
        return;
    }
    let message = format!(
        "Istio's proxy is an ordinary container, and takes over {}'s startup probe: it is started after {0}, so that \
         neither starts; the apps' hooks would end with it, too",
        front.place.container.name,
    );
    if is_there {
        let path = workload.in_container(front.place, "/startupProbe/httpGet");
        report.add(workload, &path, message).severity(Severity::Error);
        return;
    }
    let path = format!("{}/metadata/annotations/{}", workload.path, escape(mesh::NATIVE_PROXY));
    report.add(workload, &path, message).severity(Severity::Error).fix(workload.object, |object| {
        if let Some(value) = object.pointer_mut(&path) {
            *value = "true".into();
        }
    });
}

/// Whether Istio lets in mutual TLS only, in the whole namespace or mesh.
fn is_strict(input: &Input<'_>, object: &Object) -> bool {
    input.objects.iter().filter(|one| one.is("security.istio.io", "PeerAuthentication")).any(|one| {
        (one.namespace == object.namespace || one.namespace == "istio-system")
            && one.value.pointer("/spec/selector").is_none()
            && one.value.pointer("/spec/mtls/mode").and_then(Value::as_str) == Some("STRICT")
    })
}

fn policy(input: &Input<'_>, report: &mut Report<'_>) {
    let policies = input.all::<NetworkPolicy>("networking.k8s.io", "NetworkPolicy");
    for workload in &input.workloads {
        let Some(front) = front::of(workload) else { continue };
        let of_pods: Vec<&(&Object, NetworkPolicy)> = policies
            .iter()
            .filter(|(object, policy)| {
                same_namespace(&object.namespace, &workload.object.namespace) && is_for(policy, workload)
            })
            .collect();
        for listener in front.inbound() {
            let Some(app) = front::app_port(listener) else { continue };
            let own = listener.bind.port();
            // What one policy lets in no other shuts out.
            if of_pods.iter().any(|(_, policy)| rule_for(policy, workload, own).is_some()) {
                continue;
            }
            let letting = of_pods.iter().find_map(|(object, policy)| Some((object, rule_for(policy, workload, app)?)));
            let Some((object, rule)) = letting else { continue };
            let message = format!(
                "lets clients reach port {app}, the app behind {}, and not port {own}, where ebbtide listens for it",
                workload.object.title(),
            );
            let path = format!("/spec/ingress/{rule}/ports");
            report.add_to(object, &path, message).fix(object, |object| {
                if let Some(ports) = object.pointer_mut(&path).and_then(Value::as_array_mut) {
                    ports.push(json!({"protocol": "TCP", "port": own}));
                }
            });
        }
    }
}

fn is_for(policy: &NetworkPolicy, workload: &Workload<'_>) -> bool {
    let Some(spec) = &policy.spec else { return false };
    let is_ingress = spec.policy_types.as_ref().is_none_or(|types| types.iter().any(|one| one == "Ingress"));
    is_ingress
        && spec.pod_selector.as_ref().is_none_or(|selector| select::matches(selector, &workload.labels().collect()))
}

/// The index of the first rule that lets this port in.
fn rule_for(policy: &NetworkPolicy, workload: &Workload<'_>, port: u16) -> Option<usize> {
    let rules = policy.spec.as_ref()?.ingress.as_ref()?;
    rules.iter().position(|rule| match rule.ports.as_deref().unwrap_or_default() {
        [] => true,
        ports => ports.iter().any(|one| lets_in(one, workload, i32::from(port))),
    })
}

fn lets_in(allowed: &NetworkPolicyPort, workload: &Workload<'_>, port: i32) -> bool {
    if allowed.protocol.as_deref().is_some_and(|protocol| protocol != "TCP") {
        return false;
    }
    match &allowed.port {
        None => true,
        Some(IntOrString::String(name)) if hook::number(&IntOrString::String(name.clone())).is_none() => {
            workload.containers().any(|place| calls::named(place.container, name) == Some(port))
        }
        Some(number) => {
            let first = hook::number(number).unwrap_or_default();
            (first..=allowed.end_port.unwrap_or(first)).contains(&port)
        }
    }
}

/// Whether Istio turns probes and hooks to its agent; it does by default.
const REWRITE: &str = "sidecar.istio.io/rewriteAppHTTPProbers";
