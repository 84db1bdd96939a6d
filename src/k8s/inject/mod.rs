//! `ebbtide inject`: puts the sidecar into pod templates, keeps it up to date there, and takes it out.

mod existing;
mod meshes;
mod options;
mod ports;
mod protocol;
mod record;
mod services;
mod sidecar;
mod template;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};

use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::Value;

use self::existing::Existing;
pub use self::options::{InjectOption, OPTIONS, PREFIX, clap_args, flags_from, is_annotation, refuses};
use self::ports::Front;
use self::record::Record;
use self::template::Subject;
use self::traffic::Before;
use super::diff::diff;
use super::document::{Document, Fault};
use super::edit::edit;
use super::mesh;
use super::object::{self, Object, as_template, decode};
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
    /// The same as types.
    original: Workload<'a>,
    /// ebbtide's container as it stands, and what it listens on.
    old: Option<&'a Value>,
    existing: Existing,
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
    let mut left = Vec::new();
    for object in &objects {
        match prepare(object, documents, request) {
            Ok(Some(Verdict::Take(one))) => prepared.push(*one),
            Ok(Some(Verdict::Leave(workload, reason))) => {
                notes.push(workload.fault("", reason));
                left.push(*workload);
            }
            Ok(None) => {}
            Err(fault) => faults.push(fault),
        }
    }
    let services = traffic::services_before(&objects, documents, &mut faults);
    let gives_back = services.iter().any(|before| request.remove && before.value != objects[before.index].value);
    if prepared.is_empty() && faults.is_empty() && left.is_empty() && !gives_back {
        return Err(vec![nothing_to_do(documents, &objects)]);
    }
    leave_without_ports(&mut prepared, &mut left, &objects, &services, request, &mut notes);
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
    for before in &services {
        let object = &objects[before.index];
        let fault =
            |message| object.fault(&documents[object.document], "/spec", format!("{}: {message}", object.title()));
        match traffic::send(before, &prepared, &done, &left, request.remove, object) {
            Ok((value, said)) => {
                after[before.index] = value;
                notes.extend(said.into_iter().map(fault));
            }
            Err(reason) => faults.push(fault(reason)),
        }
    }
    if faults.is_empty() { Ok(outcome(documents, &objects, &after, notes)) } else { Err(faults) }
}

/// Jobs and the like among others are no reason to refuse all; alone they are told what to say.
fn leave_without_ports<'a>(
    prepared: &mut Vec<Prepared<'a>>,
    left: &mut Vec<Workload<'a>>,
    objects: &[Object],
    services: &[Before],
    request: &Request,
    notes: &mut Vec<Fault>,
) {
    if request.remove || request.flags.contains_key("outbound") {
        return;
    }
    let is_silent = |one: &Prepared<'a>| {
        let says = |name: &str| one.workload.annotation(&format!("{PREFIX}{name}")).is_some();
        let selecting = traffic::typed(&traffic::selecting(&one.workload, services, objects));
        one.workload.ebbtide().is_none()
            && !says("ports")
            && !says("outbound")
            && !ports::has_any(&one.workload, &selecting)
    };
    if prepared.iter().all(is_silent) {
        return;
    }
    for one in std::mem::take(prepared) {
        if is_silent(&one) {
            let reason = "is left as it is: none of its containers declares a port; the annotations ebbtide.dev/ports or ebbtide.dev/outbound say what ebbtide is to do for it";
            notes.push(one.workload.fault("", reason));
            left.push(one.workload);
        } else {
            prepared.push(one);
        }
    }
}

/// What is to be done with a workload.
enum Verdict<'a> {
    Take(Box<Prepared<'a>>),
    /// Why it stays as it is.
    Leave(Box<Workload<'a>>, String),
}

fn prepare<'a>(
    object: &'a Object,
    documents: &'a [Document],
    request: &'a Request,
) -> Result<Option<Verdict<'a>>, Fault> {
    let Some(workload) = Workload::of(object, documents, request.template_path.as_deref())? else { return Ok(None) };
    if let Some(owner) = object.value.pointer("/metadata/ownerReferences/0").filter(|owner| owner["controller"] == true)
    {
        let (kind, name) = (owner["kind"].as_str().unwrap_or("?"), owner["name"].as_str().unwrap_or("?"));
        let reason = format!("is left as it is: {kind}/{name} makes it, change that");
        return Ok(Some(Verdict::Leave(Box::new(workload), reason)));
    }
    match workload.annotation(&format!("{PREFIX}inject")) {
        None | Some("true" | "enabled" | "yes") => {}
        Some("false" | "disabled" | "no") if request.remove => {}
        Some("false" | "disabled" | "no") => {
            let reason = format!("is left as it is: {PREFIX}inject says so");
            return Ok(Some(Verdict::Leave(Box::new(workload), reason)));
        }
        Some(other) => {
            let at = format!("{}/metadata/annotations", workload.path);
            return Err(workload.fault(&at, format!("{PREFIX}inject is {other:?}; it takes \"true\" or \"false\"")));
        }
    }
    let os = workload.spec.os.as_ref().map(|os| os.name.as_str());
    let selector = workload.spec.node_selector.as_ref().and_then(|labels| labels.get("kubernetes.io/os"));
    if os.or_else(|| selector.map(String::as_str)) == Some("windows") {
        return Err(workload.fault(&workload.in_spec(""), "runs on Windows, and ebbtide's image is for Linux"));
    }
    let now = template_of(object, workload.path);
    let record =
        Record::of(now).map_err(|reason| workload.fault(&format!("{}/metadata/annotations", workload.path), reason))?;
    for list in ["initContainers", "containers"] {
        let containers = now.pointer(&format!("/spec/{list}")).and_then(Value::as_array);
        if let Some(reason) = containers.and_then(|containers| existing::doubtful(containers)) {
            return Err(workload.fault(&workload.in_spec(&format!("/{list}")), reason));
        }
    }
    let old = existing::container_of(now);
    let existing = Existing::of(old);
    // Without a record: names that somebody has moved already, by hand or by an injection whose annotation is gone.
    let moved = record.is_none().then(|| Record::of_moved_names(now, &existing));
    let before = record::restore(now, record.as_ref(), moved.as_ref());
    let template: PodTemplateSpec =
        decode(&as_template(&before)).map_err(|(_, reason)| workload.fault(&workload.in_spec(""), reason))?;
    let spec = template.spec.clone().unwrap_or_default();
    if spec.containers.is_empty() {
        return Err(workload.fault(&workload.in_spec("/containers"), "has no container but ebbtide's"));
    }
    let original = Workload { template, spec, ..workload.clone() };
    Ok(Some(Verdict::Take(Box::new(Prepared { workload, record, before, original, old, existing }))))
}

fn change(
    one: &Prepared<'_>,
    objects: &[Object],
    services: &[Before],
    request: &Request,
    notes: &mut Vec<Fault>,
) -> Result<Done, Vec<Fault>> {
    let (now, original) = (&one.workload, &one.original);
    let current = template_of(now.object, now.path);
    let selecting = traffic::selecting(now, services, objects);
    if request.remove {
        let values: Vec<_> = selecting.iter().map(|before| &objects[before.index].value).collect();
        let back = traffic::unsent_back(now, &one.existing, &values);
        notes.extend(back.into_iter().map(|note| now.fault("", note)));
        return Ok(Done { template: one.before.clone(), fronts: Vec::new() });
    }
    let selecting = traffic::typed(&selecting);
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
        // The namespace that says so may not be in this input.
        _ => mesh::of(&original.template, &now.object.namespace, objects).or_else(|| one.record.as_ref()?.mesh_was()),
    };
    let subject = Subject {
        now,
        original,
        before: &one.before,
        old: one.old,
        existing: &one.existing,
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
        let unsent = traffic::unsent(original, &injected.fronts, &selecting);
        let policies = traffic::policies(original, &injected.fronts, objects);
        notes.extend(injected.notes.into_iter().chain(unsent).chain(policies).map(|note| now.fault("", note)));
    }
    Ok(Done { template, fronts: injected.fronts })
}

/// Nothing that inject writes may be unknown to the API, or of a wrong type.
fn strictly(workload: &Workload<'_>, before: &Value, after: &Value) -> Option<Fault> {
    let unknown = |template| object::read::<PodTemplateSpec>(&as_template(template)).map(|(_, unknown)| unknown);
    let reason = match unknown(after) {
        Err((path, reason)) => Some(format!("{path}: {reason}")),
        Ok(found) => {
            let known = unknown(before).unwrap_or_default();
            found.into_iter().find(|path| !known.contains(path))
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
