//! Rules about Services: whether they lead to ebbtide, past it, or nowhere.

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use super::calls;
use super::front::{self, Front};
use crate::k8s::check::{Input, KubeVersion, Report, Rule, Severity};
use crate::k8s::hook;
use crate::k8s::mesh;
use crate::k8s::object::{Object, escape, is_tcp};
use crate::k8s::workload::Workload;

pub(super) static EB044: Rule = Rule {
    id: "EB044",
    name: "service-leads-past-ebbtide",
    severity: Severity::Error,
    summary: "A Service sends to the app's port, past ebbtide.",
    why: "What does not come through ebbtide is neither held nor drained: it is lost at every termination, as without \
          ebbtide, while all else looks right.",
    fix: "Set the Service's targetPort to ebbtide's port, as a number.",
    run: past,
};

pub(super) static EB045: Rule = Rule {
    id: "EB045",
    name: "service-leads-nowhere",
    severity: Severity::Error,
    summary: "A Service sends to a port of its pods where nobody listens.",
    why: "Clients are refused. It happens where the Service was changed for ebbtide and the pods were not, or the other way \
          round. With a name that no container has, the Service has no endpoint at all.",
    fix: "Inject ebbtide into the pods, or set the Service's targetPort to the port that is there.",
    run: nowhere,
};

pub(super) static EB046: Rule = Rule {
    id: "EB046",
    name: "target-port-name-of-sidecar",
    severity: Severity::Error,
    summary: "A Service's targetPort is a name that only a sidecar has.",
    why: "Before Kubernetes 1.33 the names of a native sidecar's ports were not looked up for Services \
          (kubernetes/kubernetes#127958, not ported back): the Service has no endpoint for the port, and no error says so.",
    fix: "Write the number as targetPort.",
    run: sidecar_name,
};

/// Where a port of a Service leads in a pod.
enum Target {
    Number(i32),
    /// By the name of an ordinary container's port.
    Named(i32),
    /// By the name of a native sidecar's port.
    Sidecar(i32),
    /// By a name that nobody has.
    Unknown(String),
}

fn target(workload: &Workload<'_>, port: &ServicePort) -> Target {
    let name = match &port.target_port {
        None => return Target::Number(port.port),
        Some(IntOrString::String(name)) => name,
        Some(number) => return Target::Number(hook::number(number).unwrap_or(port.port)),
    };
    if let Some(number) = workload.ordinary().find_map(|place| calls::named(place.container, name)) {
        return Target::Named(number);
    }
    let mut sidecars = workload.containers().filter(crate::k8s::workload::Place::is_native_sidecar);
    match sidecars.find_map(|place| calls::named(place.container, name)) {
        Some(number) => Target::Sidecar(number),
        None => Target::Unknown(name.clone()),
    }
}

/// The TCP ports of a Service that are sent on to pods.
fn ports(service: &Service) -> impl Iterator<Item = (usize, &ServicePort)> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten()).enumerate();
    ports.filter(|(_, port)| is_tcp(port.protocol.as_deref()))
}

/// Its clients dial the pods' ports themselves, whatever it says of them.
fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None")
}

fn set_target(object: &Object, finding: &mut crate::k8s::check::Finding, index: usize, number: u16) {
    finding.fix(object, |service| {
        if let Some(port) = service.pointer_mut(&format!("/spec/ports/{index}")) {
            port["targetPort"] = number.into();
        }
    });
}

fn at(port: &ServicePort, index: usize) -> String {
    match port.target_port {
        Some(_) => format!("/spec/ports/{index}/targetPort"),
        None => format!("/spec/ports/{index}"),
    }
}

fn past(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let Some(front) = front::of(workload) else { continue };
        for (object, service) in input.services_of(workload).filter(|(_, service)| !is_headless(service)) {
            for (index, port) in ports(service) {
                let number = match target(workload, port) {
                    Target::Number(number) | Target::Named(number) => number,
                    Target::Sidecar(_) | Target::Unknown(_) => continue,
                };
                let Some(listener) = front.listener_for(number) else { continue };
                if front.listener_at(number).is_some() {
                    continue;
                }
                let own = listener.bind.port();
                let by_name = match &port.target_port {
                    Some(IntOrString::String(name)) => format!(" by the name {name}"),
                    _ => String::new(),
                };
                let message = format!(
                    "port {} sends to {number}{by_name}, the app's own port in {}, past ebbtide on {own}",
                    port.port,
                    workload.object.title(),
                );
                set_target(object, report.add_to(object, &at(port, index), message), index, own);
            }
        }
    }
}

fn nowhere(input: &Input<'_>, report: &mut Report<'_>) {
    for (object, service) in &input.services {
        let pods: Vec<&Workload<'_>> = input.workloads_of(object).collect();
        let is_single = ports(service).count() == 1;
        for (index, port) in ports(service) {
            let reasons: Vec<(Severity, String)> =
                pods.iter().filter_map(|workload| why_nobody(workload, object, port, is_single)).collect();
            // Where some of several workloads have it, it may be meant for them.
            let Some((severity, reason)) = reasons.first().filter(|_| reasons.len() == pods.len()) else { continue };
            let message = format!("port {} {reason}", port.port);
            report.add_to(object, &at(port, index), message).severity(*severity);
        }
    }
}

/// Why nobody in these pods listens where a Service's port leads.
fn why_nobody(
    workload: &Workload<'_>,
    service: &Object,
    port: &ServicePort,
    is_single: bool,
) -> Option<(Severity, String)> {
    let title = workload.object.title();
    let number = match target(workload, port) {
        Target::Number(number) => number,
        Target::Named(_) | Target::Sidecar(_) => return None,
        Target::Unknown(name) => {
            let reason = format!("sends to the port {name}, a name that no container of {title} has");
            return Some((Severity::Error, reason));
        }
    };
    let front = front::of(workload);
    let declared: Vec<i32> = workload
        .containers()
        .flat_map(|place| place.container.ports.iter().flatten())
        .filter(|port| is_tcp(port.protocol.as_deref()))
        .map(|port| port.container_port)
        .collect();
    if let Some(front) = &front {
        if let Some(listener) = front.listener_at(number) {
            let is_shut = listener.bind.ip().is_loopback();
            return is_shut.then(|| {
                (
                    Severity::Error,
                    format!("sends to {number}, where ebbtide in {title} listens on {} only", listener.bind.ip()),
                )
            });
        }
        if front.config().is_none() || is_taken(front, number) {
            return None;
        }
        if is_ebbtides(number) && !declared.contains(&number) {
            let listens: Vec<String> = front.inbound().map(|listener| listener.bind.port().to_string()).collect();
            let listens = if listens.is_empty() {
                "has no listener for clients".to_owned()
            } else {
                format!("listens on {}", listens.join(", "))
            };
            return Some((Severity::Error, format!("sends to {number}, and ebbtide in {title} {listens}")));
        }
    }
    if declared.contains(&number) {
        return None;
    }
    let was_ours =
        service.value.pointer(&format!("/metadata/annotations/{}", escape(ORIGINALS))).is_some_and(Value::is_string);
    if front.is_none() && (is_ebbtides(number) || was_ours) {
        return Some((Severity::Error, format!("sends to {number}, ebbtide's port, and {title} has no ebbtide")));
    }
    // Ports need not be declared: where one container declares none, it may be its.
    let mut apps = workload.apps().filter(|place| !mesh::is_mesh(&place.container.name));
    if apps.any(|place| place.container.ports.as_ref().is_none_or(Vec::is_empty)) {
        return None;
    }
    let mut declared: Vec<String> = declared.iter().map(i32::to_string).collect();
    declared.dedup();
    is_single.then(|| {
        let declared = declared.join(", ");
        (Severity::Warning, format!("sends to {number}, and the containers of {title} declare only {declared}"))
    })
}

/// Whether somebody in ebbtide's configuration has the port.
fn is_taken(front: &Front<'_>, number: i32) -> bool {
    let is_admin = front.admin().is_some_and(|admin| i32::from(admin.port()) == number);
    is_admin || front.listener_for(number).is_some()
}

/// Whether a port is one that ebbtide takes where nobody says another.
fn is_ebbtides(number: i32) -> bool {
    (14080..14090).contains(&number) || number == 14443
}

fn sidecar_name(input: &Input<'_>, report: &mut Report<'_>) {
    let severity = match input.options.kube_version {
        Some(version) if version >= KubeVersion { minor: 33 } => return,
        Some(_) => Severity::Error,
        None => Severity::Warning,
    };
    for workload in &input.workloads {
        for (object, service) in input.services_of(workload) {
            for (index, port) in ports(service) {
                let (Target::Sidecar(number), Some(IntOrString::String(name))) =
                    (target(workload, port), &port.target_port)
                else {
                    continue;
                };
                let message = format!(
                    "port {} sends to the port {name}, which only a sidecar of {} has ({number}): before Kubernetes 1.33 no \
                     Service finds it",
                    port.port,
                    workload.object.title(),
                );
                let finding = report.add_to(object, &at(port, index), message);
                finding.severity(severity);
                if let Ok(number) = u16::try_from(number) {
                    set_target(object, finding, index, number);
                }
            }
        }
    }
}

/// What `ebbtide inject` leaves on a Service that it has changed.
const ORIGINALS: &str = "ebbtide.dev/original-target-ports";
