//! How clients reach ebbtide: the Services of the input, and what is left to do elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use super::existing::Existing;
use super::ports::{self, Front};
use super::{Done, Prepared, services};
use crate::k8s::document::{Document, Fault};
use crate::k8s::object::{self, Object, decode};
use crate::k8s::workload::Workload;

/// A Service of the input as it was before any injection.
pub(super) struct Before {
    /// Of its object.
    pub(super) index: usize,
    pub(super) value: Value,
    pub(super) typed: Service,
}

/// The Services, with what they were before any injection.
pub(super) fn services_before(objects: &[Object], documents: &[Document], faults: &mut Vec<Fault>) -> Vec<Before> {
    let mut found = Vec::new();
    for (index, object) in objects.iter().enumerate().filter(|(_, object)| object.is("", "Service")) {
        let read = services::restore(&object.value)
            .map_err(|reason| ("/metadata/annotations".to_owned(), reason))
            .and_then(|value| Ok((decode::<Service>(&value)?, value)));
        match read {
            Ok((typed, value)) => found.push(Before { index, value, typed }),
            Err((path, reason)) => {
                faults.push(object.fault(&documents[object.document], &path, format!("{}: {reason}", object.title())))
            }
        }
    }
    found
}

/// Whether a Service sends to a workload's pods.
pub(super) fn selects(object: &Object, service: &Service, workload: &Workload<'_>) -> bool {
    let selector = service.spec.iter().filter_map(|spec| spec.selector.as_ref()).flatten();
    object::same_namespace(&object.namespace, &workload.object.namespace) && workload.is_selected(selector)
}

/// The Services that send to a workload's pods.
pub(super) fn selecting<'s>(workload: &Workload<'_>, services: &'s [Before], objects: &[Object]) -> Vec<&'s Before> {
    services.iter().filter(|before| selects(&objects[before.index], &before.typed, workload)).collect()
}

/// The same as types.
pub(super) fn typed<'s>(services: &[&'s Before]) -> Vec<&'s Service> {
    services.iter().map(|before| &before.typed).collect()
}

/// Fronted ports to which nothing in the input sends: somebody must see to that.
pub(super) fn unsent(workload: &Workload<'_>, fronts: &[Front], services: &[&Service]) -> Vec<String> {
    let sends = |front: &Front| {
        ports::service_ports(services).any(|port| match ports::target(port) {
            IntOrString::Int(number) => [front.port, front.listen].map(i32::from).contains(&number),
            IntOrString::String(name) => front.name.as_deref() == Some(&name),
        })
    };
    let pods = pods(workload);
    let declared = ports::taken(workload);
    let is_known = |number: u16| {
        declared.contains(&number) || fronts.iter().any(|front| [front.port, front.listen].contains(&number))
    };
    let mut strange: Vec<u16> = ports::service_ports(services)
        .filter_map(|port| match ports::target(port) {
            IntOrString::Int(number) => u16::try_from(number).ok(),
            IntOrString::String(_) => None,
        })
        .filter(|number| !is_known(*number))
        .collect();
    strange.dedup();
    let strange = strange.into_iter().map(|number| {
        format!("a Service in the input sends to port {number}, which no container declares: if the app listens there, say so with --ports")
    });
    let left = fronts.iter().filter(|front| !sends(front));
    let unsent = left.map(|Front { port, listen, name, .. }| match name {
        Some(name) => format!(
            "Services that send to its port by the name {name} reach ebbtide by themselves; one that sends to the number {port} ({pods}) must get targetPort: {listen}, or {name}"
        ),
        None => format!(
            "no Service in the input sends to its port {port}: one that does ({pods}) must get targetPort: {listen}"
        ),
    });
    unsent.chain(strange).collect()
}

/// After ebbtide has gone: Services outside the input that go on sending to it.
pub(super) fn unsent_back(workload: &Workload<'_>, existing: &Existing, services: &[&Value]) -> Vec<String> {
    let sends = |port: u16| {
        let mut targets = services.iter().filter_map(|now| now.pointer("/spec/ports")?.as_array()).flatten();
        targets.any(|one| one["targetPort"] == port)
    };
    let pods = pods(workload);
    let left = existing.fronts.iter().filter(|known| !sends(known.listen));
    left.map(|known| {
        format!(
            "Services with targetPort {} ({pods}) must get targetPort: {} again, at the same time: nobody listens there any more",
            known.listen, known.port,
        )
    })
    .collect()
}

fn pods(workload: &Workload<'_>) -> String {
    let mut labels: Vec<_> = workload.labels().map(|(key, value)| format!("{key}={value}")).collect();
    labels.sort();
    match labels.is_empty() {
        true => "kubectl get services".to_owned(),
        false => format!("kubectl get services, selecting {}", labels.join(",")),
    }
}

/// NetworkPolicies of the input that let clients in to the app's port and not to ebbtide's.
pub(super) fn policies(workload: &Workload<'_>, fronts: &[Front], objects: &[Object]) -> Vec<String> {
    let mut notes = Vec::new();
    for object in objects.iter().filter(|object| object.is("networking.k8s.io", "NetworkPolicy")) {
        let Ok(policy) = decode::<NetworkPolicy>(&object.value) else { continue };
        let spec = policy.spec.unwrap_or_default();
        let selector = spec.pod_selector.unwrap_or_default();
        let labels = selector.match_labels.unwrap_or_default();
        let is_selected = (labels.is_empty() || workload.is_selected(&labels)) && selector.match_expressions.is_none();
        if !is_selected || !object::same_namespace(&object.namespace, &workload.object.namespace) {
            continue;
        }
        let allowed: Vec<_> = spec.ingress.iter().flatten().flat_map(|rule| rule.ports.iter().flatten()).collect();
        for front in fronts {
            let lets_in =
                |wanted: u16| allowed.iter().any(|port| port.port == Some(IntOrString::Int(i32::from(wanted))));
            if lets_in(front.port) && !lets_in(front.listen) {
                notes.push(format!(
                    "{} lets clients in to port {} and must let them in to {} as well",
                    object.title(),
                    front.port,
                    front.listen
                ));
            }
        }
    }
    notes
}

/// Where a Service has to send what went to these ports, one for each workload: to the name that they have, if they
/// have one. It means the app's port in old pods and ebbtide's in new ones, so that both are reached in a rollout.
fn target(fronts: &[&Front]) -> Result<Value, String> {
    let Some(first) = fronts.first() else { return Ok(Value::Null) };
    if let Some(name) = &first.name
        && fronts.iter().all(|front| front.name.as_ref() == Some(name))
    {
        return Ok(name.as_str().into());
    }
    match fronts.iter().find(|front| front.listen != first.listen) {
        None => Ok(first.listen.into()),
        Some(other) => Err(format!(
            "sends to workloads whose port {} is fronted by {} in one and {} in another: give the ports the same name, or say --listen-port",
            first.port, first.listen, other.listen,
        )),
    }
}

/// A Service afterwards.
///
/// # Errors
/// One that sends to pods which would need different ports of it.
pub(super) fn send(
    before: &Before,
    prepared: &[Prepared<'_>],
    done: &[Done],
    left: &[Workload<'_>],
    is_removal: bool,
    object: &Object,
) -> Result<(Value, Vec<String>), String> {
    let selected: Vec<_> =
        prepared.iter().zip(done).filter(|(one, _)| selects(object, &before.typed, &one.workload)).collect();
    if selected.is_empty() && !is_removal {
        // Its workload is not in this input, so nobody knows.
        return Ok((object.value.clone(), Vec::new()));
    }
    let mut by_port: BTreeMap<u16, Vec<&Front>> = BTreeMap::new();
    for front in selected.iter().flat_map(|(_, done)| &done.fronts) {
        by_port.entry(front.port).or_default().push(front);
    }
    let moves: BTreeMap<u16, Value> =
        by_port.iter().map(|(port, fronts)| Ok((*port, target(fronts)?))).collect::<Result<_, String>>()?;
    let mut service = before.value.clone();
    let changed = services::retarget(&mut service, &moves);
    let others: BTreeSet<_> = left
        .iter()
        .filter(|workload| selects(object, &before.typed, workload))
        .map(|workload| workload.object.title())
        .collect();
    let by_number = changed && moves.values().any(Value::is_number);
    if by_number && !others.is_empty() {
        let (with, without) =
            (selected[0].0.workload.object.title(), others.into_iter().collect::<Vec<_>>().join(", "));
        return Err(format!(
            "sends to {with}, which gets ebbtide, and to {without}, which does not: it can't send to ebbtide's port; inject both or neither"
        ));
    }
    let mut notes = Vec::new();
    if by_number && service != object.value {
        notes.push(
            "must change when the new pods are there and not before: pods without ebbtide have nobody on its port. Apply the workload, wait for the rollout, then apply the Service; or give the app's port a name first, which moves with each pod"
                .to_owned(),
        );
    }
    let is_headless = before.typed.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None");
    if is_headless && service != object.value {
        notes.push(
            "is headless: clients take the pods' addresses from it and connect to the app's port itself, past ebbtide, unless they look up the port as well (SRV)"
                .to_owned(),
        );
    }
    Ok((service, notes))
}
