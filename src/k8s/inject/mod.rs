//! `ebbtide inject`: puts the sidecar into pod templates, keeps it up to date there, and takes it out.

mod options;
mod ports;
mod record;
mod services;
mod sidecar;
mod template;

use std::collections::{BTreeMap, BTreeSet};

use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::{PodTemplateSpec, Service};
use serde_json::{Value, json};

pub use self::options::{InjectOption, OPTIONS, PREFIX, clap_args, flags_from, is_annotation, refuses};
use self::ports::Front;
use self::record::Record;
use self::template::Subject;
use super::diff::diff;
use super::document::{Document, Fault};
use super::edit::edit;
use super::mesh;
use super::object::{self, Object, decode};
use super::workload::Workload;

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Options by name, see [`OPTIONS`].
    pub flags: BTreeMap<&'static str, String>,
    /// Take ebbtide out instead.
    pub remove: bool,
    /// Where kinds that are not known keep their pod template.
    pub template_path: Option<String>,
}

/// What has become of the input.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// One for each document, in their order.
    pub documents: Vec<Changed>,
    /// The objects that have changed.
    pub objects: Vec<ChangedObject>,
    /// How many objects the input holds.
    pub object_count: usize,
    /// What whoever applies it should know; each with the object it is about.
    pub notes: Vec<Fault>,
}

/// A document afterwards.
#[derive(Debug, Clone)]
pub struct Changed {
    /// Its text.
    pub text: String,
    /// The same as JSON; `None` if it holds nothing.
    pub value: Option<Value>,
}

/// An object and what has been done to it.
#[derive(Debug, Clone)]
pub struct ChangedObject {
    /// As it was.
    pub object: Object,
    /// What leads from what it was to what it is (RFC 6902).
    pub patch: Vec<PatchOperation>,
}

/// A workload and its template before any injection.
struct Prepared<'a> {
    workload: Workload<'a>,
    record: Option<Record>,
    before: Value,
    original: PodTemplateSpec,
}

/// A new template, and by container port where its traffic has to go.
struct Done {
    template: Value,
    fronts: Vec<Front>,
}

/// Does it to all workloads of an input and the Services that send to them.
///
/// # Errors
/// All reasons why some workload can't be changed; nothing is changed then.
pub fn run(documents: &[Document], request: &Request) -> Result<Outcome, Vec<Fault>> {
    let objects = object::objects(documents).map_err(|fault| vec![fault])?;
    let mut notes = Vec::new();
    let mut faults = Vec::new();
    let mut prepared = Vec::new();
    for object in &objects {
        match prepare(object, documents, request, &mut notes) {
            Ok(Some(one)) => prepared.push(one),
            Ok(None) => {}
            Err(fault) => faults.push(fault),
        }
    }
    if prepared.is_empty() && faults.is_empty() && notes.is_empty() {
        return Err(vec![nothing_to_do(documents, &objects)]);
    }
    let services = services_before(&objects, documents, &mut faults);
    let mut done = Vec::new();
    for one in &prepared {
        match change(one, &objects, &services, request, &mut notes) {
            Ok(changed) => done.push(changed),
            Err(found) => faults.extend(found),
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut after: Vec<Value> = objects.iter().map(|object| object.value.clone()).collect();
    for (one, changed) in prepared.iter().zip(&done) {
        set_template(&mut after[index_of(&objects, one.workload.object)], one.workload.path, &changed.template);
    }
    for (index, value, typed) in &services {
        after[*index] = send(value, typed, &prepared, &done, &objects[*index], documents, request, &mut notes);
    }
    Ok(outcome(documents, &objects, &after, notes))
}

fn prepare<'a>(
    object: &'a Object,
    documents: &'a [Document],
    request: &'a Request,
    notes: &mut Vec<Fault>,
) -> Result<Option<Prepared<'a>>, Fault> {
    let Some(workload) = Workload::of(object, documents, request.template_path.as_deref())? else { return Ok(None) };
    if let Some(owner) = object.value.pointer("/metadata/ownerReferences/0").filter(|owner| owner["controller"] == true)
    {
        let (kind, name) = (owner["kind"].as_str().unwrap_or("?"), owner["name"].as_str().unwrap_or("?"));
        notes.push(workload.fault("", format!("is left as it is: {kind}/{name} makes it, change that")));
        return Ok(None);
    }
    if !request.remove && template::is_declined(&workload) {
        notes.push(workload.fault("", format!("is left as it is: {PREFIX}inject says so")));
        return Ok(None);
    }
    if workload.spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return Err(workload.fault(&workload.in_spec("/os"), "runs on Windows, and ebbtide's image is for Linux"));
    }
    let now = template_of(object, workload.path);
    let record = Record::of(now).map_err(|reason| {
        workload.fault(&format!("{}/metadata/annotations", workload.path), format!("{reason}; mend or remove it"))
    })?;
    let before = record::restore(now, record.as_ref());
    let only = json!({"metadata": before.get("metadata"), "spec": before.get("spec")});
    let original: PodTemplateSpec =
        decode(&only).map_err(|(_, reason)| workload.fault(&workload.in_spec(""), reason))?;
    if original.spec.as_ref().is_none_or(|spec| spec.containers.is_empty()) {
        return Err(workload.fault(&workload.in_spec("/containers"), "has no container but ebbtide's"));
    }
    Ok(Some(Prepared { workload, record, before, original }))
}

fn change(
    one: &Prepared<'_>,
    objects: &[Object],
    services: &[(usize, Value, Service)],
    request: &Request,
    notes: &mut Vec<Fault>,
) -> Result<Done, Vec<Fault>> {
    let now = &one.workload;
    if request.remove {
        return Ok(Done { template: one.before.clone(), fronts: Vec::new() });
    }
    let original =
        Workload { template: one.original.clone(), spec: one.original.spec.clone().unwrap_or_default(), ..now.clone() };
    let selecting: Vec<_> = services
        .iter()
        .filter(|(index, _, service)| selects(&objects[*index], service, now))
        .map(|(.., service)| service)
        .collect();
    let annotations = original.template.metadata.as_ref().and_then(|metadata| metadata.annotations.clone());
    let remembered = one.record.as_ref().map(|record| record.options.clone()).unwrap_or_default();
    let options = options::parse(&request.flags, &annotations.unwrap_or_default(), &remembered).map_err(|reasons| {
        let at = format!("{}/metadata/annotations", now.path);
        reasons.into_iter().map(|reason| now.fault(&at, reason)).collect::<Vec<_>>()
    })?;
    let mesh = match options.text("mesh") {
        "istio" => Some(mesh::Mesh::Istio),
        "linkerd" => Some(mesh::Mesh::Linkerd),
        "none" => None,
        _ => mesh::of(&original.template, &now.object.namespace, objects),
    };
    let current = template_of(now.object, now.path);
    let subject = Subject {
        now,
        original: &original,
        before: &one.before,
        old: template::old_container(current),
        record: one.record.as_ref(),
        services: &selecting,
        mesh,
    };
    let injected = template::inject(&subject, &options)?;
    let template = keep_order(current, injected.template);
    if let Some(fault) = strictly(now, current, &template) {
        return Err(vec![fault]);
    }
    // Where nothing changes all has been said.
    if template != *current {
        let unsent = unsent(&original, &injected.fronts, &selecting);
        notes.extend(injected.notes.into_iter().chain(unsent).map(|note| now.fault("", note)));
    }
    Ok(Done { template, fronts: injected.fronts })
}

/// Nothing that inject writes may be unknown to the API, or of a wrong type.
fn strictly(workload: &Workload<'_>, before: &Value, after: &Value) -> Option<Fault> {
    let only = |template: &Value| json!({"metadata": template.get("metadata"), "spec": template.get("spec")});
    let reason = match decode::<PodTemplateSpec>(&only(after)) {
        Err((path, reason)) => Some(format!("{path}: {reason}")),
        Ok(_) => {
            let known: BTreeSet<_> = object::unknown_fields::<PodTemplateSpec>(&only(before)).into_iter().collect();
            object::unknown_fields::<PodTemplateSpec>(&only(after)).into_iter().find(|path| !known.contains(path))
        }
    };
    reason.map(|reason| {
        workload.fault(
            &workload.in_spec(""),
            format!("would be no valid pod any more: {reason}; this is a fault of ebbtide"),
        )
    })
}

/// Where nothing but its place in a list would change, it stays where it is.
fn keep_order(now: &Value, mut template: Value) -> Value {
    let mut keep = |path: &str, id: &str| {
        let (Some(old), Some(new)) =
            (now.pointer(path).and_then(Value::as_array), template.pointer_mut(path).and_then(Value::as_array_mut))
        else {
            return;
        };
        let place = |item: &Value| old.iter().position(|one| one[id] == item[id]).unwrap_or(usize::MAX);
        new.sort_by_key(place);
    };
    keep("/spec/volumes", "name");
    for index in 0..now.pointer("/spec/containers").and_then(Value::as_array).map_or(0, Vec::len) {
        keep(&format!("/spec/containers/{index}/ports"), "containerPort");
    }
    template
}

/// Fronted ports to which nothing in the input sends: somebody must see to that.
fn unsent(workload: &Workload<'_>, fronts: &[Front], services: &[&Service]) -> Vec<String> {
    let mut labels: Vec<_> = workload.labels().map(|(key, value)| format!("{key}={value}")).collect();
    labels.sort();
    let is_sent = |front: &Front| {
        ports::service_ports(services).any(|port| match ports::target(port) {
            k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(number) => number == i32::from(front.port),
            k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::String(name) => {
                front.name.as_deref() == Some(&name)
            }
        })
    };
    let left = fronts.iter().filter(|front| !is_sent(front));
    left.map(|front| match &front.name {
        Some(name) => format!(
            "Services that send to its port by the name {name} reach ebbtide by themselves; one that sends to the number {} (kubectl get services, selecting {}) must get targetPort: {}, or {name}",
            front.port,
            labels.join(","),
            front.listen,
        ),
        None => format!(
            "no Service in the input sends to its port {}: one that does (kubectl get services, selecting {}) must get targetPort: {}",
            front.port,
            labels.join(","),
            front.listen,
        ),
    })
    .collect()
}

/// The Services, with what they were before any injection.
fn services_before(
    objects: &[Object],
    documents: &[Document],
    faults: &mut Vec<Fault>,
) -> Vec<(usize, Value, Service)> {
    let mut services = Vec::new();
    for (index, object) in objects.iter().enumerate().filter(|(_, object)| object.is("", "Service")) {
        let document = &documents[object.document];
        let read = services::restore(&object.value)
            .map_err(|reason| ("/metadata/annotations".to_owned(), reason))
            .and_then(|value| Ok((decode::<Service>(&value)?, value)));
        match read {
            Ok((service, value)) => services.push((index, value, service)),
            Err((path, reason)) => faults.push(object.fault(document, &path, format!("{}: {reason}", object.title()))),
        }
    }
    services
}

fn selects(object: &Object, service: &Service, workload: &Workload<'_>) -> bool {
    let selector = service.spec.iter().filter_map(|spec| spec.selector.as_ref()).flatten();
    object::same_namespace(&object.namespace, &workload.object.namespace) && workload.is_selected(selector)
}

/// A Service afterwards.
#[expect(clippy::too_many_arguments, reason = "all of the input, and what has been done to it")]
fn send(
    before: &Value,
    typed: &Service,
    prepared: &[Prepared<'_>],
    done: &[Done],
    object: &Object,
    documents: &[Document],
    request: &Request,
    notes: &mut Vec<Fault>,
) -> Value {
    let selected: Vec<_> = prepared.iter().zip(done).filter(|(one, _)| selects(object, typed, &one.workload)).collect();
    if selected.is_empty() && !request.remove {
        // Its workload is not in this input, so nobody knows.
        return object.value.clone();
    }
    let mut moves: BTreeMap<u16, u16> = BTreeMap::new();
    for front in selected.iter().flat_map(|(_, done)| &done.fronts) {
        let to = *moves.entry(front.port).or_insert(front.listen);
        if to != front.listen {
            let message = format!(
                "selects workloads whose ports {} are fronted by different ones, {to} and {}: say --listen-port for each",
                front.port, front.listen
            );
            notes.push(object.fault(
                &documents[object.document],
                "/spec/selector",
                format!("{}: {message}", object.title()),
            ));
        }
    }
    let mut service = before.clone();
    let changed = services::retarget(&mut service, &moves);
    let is_headless = typed.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None");
    if is_headless && (changed || !moves.is_empty()) {
        let message = "is headless: clients take the pods' addresses from it and connect to the app's port itself, past ebbtide, unless they look up the port as well (SRV)";
        notes.push(object.fault(
            &documents[object.document],
            "/spec/clusterIP",
            format!("{}: {message}", object.title()),
        ));
    }
    service
}

fn outcome(documents: &[Document], objects: &[Object], after: &[Value], notes: Vec<Fault>) -> Outcome {
    let mut notes = notes;
    let mut changed = Vec::new();
    let texts = documents.iter().enumerate().map(|(index, document)| {
        let Some(root) = &document.root else { return Changed { text: document.text.clone(), value: None } };
        let before = root.to_value();
        let mut value = before.clone();
        for (object, new) in objects.iter().zip(after).filter(|(object, _)| object.document == index) {
            if let Some(place) = value.pointer_mut(&object.pointer) {
                *place = new.clone();
            }
        }
        let edited = edit(document, &before, &value);
        if edited.rewritten && document.text.contains('#') {
            let message = "could not be changed in place (anchors or an unusual layout), so this document was written anew, without its comments";
            notes.push(Fault::at(&document.file, root.place, message));
        }
        Changed { text: edited.text, value: Some(value) }
    });
    let texts = texts.collect();
    for (object, new) in objects.iter().zip(after).filter(|(object, new)| object.value != **new) {
        changed.push(ChangedObject { object: object.clone(), patch: diff(&object.value, new) });
    }
    Outcome { documents: texts, objects: changed, object_count: objects.len(), notes }
}

fn nothing_to_do(documents: &[Document], objects: &[Object]) -> Fault {
    let kinds: BTreeSet<_> = objects.iter().map(|object| object.kind.as_str()).collect();
    let first = &objects[0];
    let kinds: Vec<_> = kinds.into_iter().collect();
    let message = format!("holds nothing with a pod template ({}); taken are {}", kinds.join(", "), object::KINDS);
    first.fault(&documents[first.document], "", message)
}

fn template_of<'a>(object: &'a Object, path: &str) -> &'a Value {
    object.value.pointer(path).unwrap_or(&Value::Null)
}

/// Of a Pod only what a template has: the rest of it is not ours.
fn set_template(object: &mut Value, path: &str, template: &Value) {
    let Some(place) = object.pointer_mut(path) else { return };
    *place = template.clone();
}

#[cfg(test)]
mod tests;

fn index_of(objects: &[Object], object: &Object) -> usize {
    objects.iter().position(|one| std::ptr::eq(one, object)).unwrap_or_default()
}
