//! What an injection has changed, kept as an annotation of the pod template, so that it can be taken back.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::LifecycleHandler;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::existing::{self, Existing};
use super::meshes;
use crate::k8s::hook;
use crate::k8s::mesh::{self, Mesh};
use crate::k8s::object::{self, decode, escape};

/// All by name, so that it stays true when somebody edits the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    /// Of the ebbtide that injected.
    pub(super) version: String,
    /// The grace period as it was, and as it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) grace: Option<(Option<i64>, i64)>,
    /// The `lifecycle` that a container had, null if none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) lifecycles: BTreeMap<String, Value>,
    /// By container: names that have moved from the app's port to ebbtide's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) names: BTreeMap<String, Vec<Moved>>,
    /// By container: probes that used such a name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) probes: BTreeMap<String, BTreeMap<String, String>>,
    /// By annotation: a mesh's list of ports.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) mesh: BTreeMap<String, Ports>,
    /// The volume that was made.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) volume: String,
    /// Istio has been told to run its proxy as a native sidecar.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) native_proxy: bool,
    /// Variables as they were written; what differs has been set by hand since.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) env: BTreeMap<String, String>,
    /// Options that were given by flags.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) options: BTreeMap<String, String>,
    /// JSON Pointers of mappings and lists that were there, and empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) empty: Vec<String>,
}

/// A port's name (empty if only its host port has moved), the app's port, ebbtide's port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Moved {
    pub(super) name: String,
    pub(super) from: u16,
    pub(super) to: u16,
}

/// A mesh's list of ports, as it was, and what was added to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ports {
    pub(super) was: Option<String>,
    pub(super) added: Vec<u16>,
}

// === impl Record ===

impl Record {
    /// The record of a template; `None` if it has none.
    ///
    /// # Errors
    /// One that is not understood.
    pub(super) fn of(template: &Value) -> Result<Option<Self>, String> {
        let Some(text) = template.pointer(&annotation(INJECTED)).and_then(Value::as_str) else { return Ok(None) };
        let record: Self = serde_json::from_str(text)
            .map_err(|error| format!("the annotation ebbtide.dev/{INJECTED} is damaged: {error}; mend or remove it"))?;
        if version(&record.version) > version(env!("CARGO_PKG_VERSION")) {
            return Err(format!(
                "was injected by ebbtide {}, which knows more than this {}: use that",
                record.version,
                env!("CARGO_PKG_VERSION")
            ));
        }
        Ok(Some(record))
    }

    /// What the template itself tells of names that have moved: a container declares both ebbtide's port and the app's
    /// behind it.
    pub(super) fn of_moved_names(template: &Value, existing: &Existing) -> Self {
        let mut record = Self::default();
        for container in template.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten() {
            let ports = || container["ports"].as_array().into_iter().flatten();
            for known in &existing.fronts {
                let ours = ports().find(|port| port["containerPort"] == known.listen && is_tcp(port));
                let app = ports().find(|port| port["containerPort"] == known.port && is_tcp(port));
                if let (Some(ours), Some(app)) = (ours, app)
                    && app.get("name").is_none()
                {
                    let name = ours["name"].as_str().unwrap_or_default().to_owned();
                    let owner = container["name"].as_str().unwrap_or_default().to_owned();
                    let moved = Moved { name, from: known.port, to: known.listen };
                    record.names.entry(owner).or_default().push(moved);
                }
            }
        }
        record
    }

    /// The mesh whose lists were changed.
    pub(super) fn mesh_was(&self) -> Option<Mesh> {
        [Mesh::Istio, Mesh::Linkerd].into_iter().find(|mesh| self.mesh.contains_key(mesh.excluded_ports()))
    }

    /// Leaves the record in a template.
    pub(super) fn store(&self, template: &mut Value) {
        let text = json!(self).to_string();
        object_at(template, "/metadata/annotations")
            .insert(format!("{}{INJECTED}", super::options::PREFIX), text.into());
    }
}

/// The template as it was before any injection. Without a record what is ebbtide's beyond doubt is taken out.
pub(super) fn restore(template: &Value, record: Option<&Record>, moved: Option<&Record>) -> Value {
    let were_empty = empty_places(template);
    let made = match record {
        Some(record) => record.volume.clone(),
        // By hand: the one in which nobody else keeps anything.
        None => only_ours(template).unwrap_or_default(),
    };
    let mut template = template.clone();
    let none = Record::default();
    let record = record.or(moved).unwrap_or(&none);
    for list in ["initContainers", "containers"] {
        if let Some(items) = template.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut) {
            items.retain(|item| !existing::is_ours(item));
            items.iter_mut().for_each(|item| restore_container(item, record));
        }
    }
    if let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) {
        restore_spec(spec, record, &made);
    }
    if let Some(annotations) = template.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.shift_remove(&format!("{}{INJECTED}", super::options::PREFIX));
        if record.native_proxy {
            annotations.shift_remove(mesh::NATIVE_PROXY);
        }
        meshes::restore(annotations, &record.mesh);
    }
    for place in PLACES {
        let is_empty = template.pointer(place).is_some_and(is_empty);
        // What has become empty by this was made by the injection.
        let was_there = were_empty.iter().chain(&record.empty).any(|one| one == place);
        let (parent, key) = place.rsplit_once('/').unwrap_or_default();
        if let Some(parent) =
            template.pointer_mut(parent).and_then(Value::as_object_mut).filter(|_| is_empty && !was_there)
        {
            parent.shift_remove(key);
        }
    }
    template
}

/// The places that an injection may fill, as far as they are there and empty.
pub(super) fn empty_places(template: &Value) -> Vec<String> {
    let empty = PLACES.into_iter().filter(|place| template.pointer(place).is_some_and(is_empty));
    empty.map(str::to_owned).collect()
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

/// The volume at `/run/ebbtide` of ebbtide's container, if no other container mounts it.
fn only_ours(template: &Value) -> Option<String> {
    let (own, others): (Vec<&Value>, Vec<&Value>) =
        existing::containers(template).partition(|item| existing::is_ours(item));
    let mounts = |items: &[&Value]| -> Vec<Value> {
        items.iter().filter_map(|item| item["volumeMounts"].as_array()).flatten().cloned().collect()
    };
    let mount = mounts(&own).into_iter().find(|mount| mount["mountPath"] == RUN)?;
    let is_shared = mounts(&others).iter().any(|other| other["name"] == mount["name"]);
    mount["name"].as_str().filter(|_| !is_shared).map(str::to_owned)
}

fn restore_spec(spec: &mut Map<String, Value>, record: &Record, made: &str) {
    if let Some((was, now)) = record.grace {
        let key = "terminationGracePeriodSeconds";
        // Somebody has set another one since: that stays.
        if spec.get(key).and_then(Value::as_i64) == Some(now) {
            match was {
                Some(was) => drop(spec.insert(key.to_owned(), was.into())),
                None => drop(spec.shift_remove(key)),
            }
        }
    }
    if let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) {
        volumes.retain(|volume| !(volume["name"] == *made && volume["emptyDir"].is_object()));
    }
}

fn restore_container(container: &mut Value, record: &Record) {
    let name = container["name"].as_str().unwrap_or_default().to_owned();
    let pre_stop = container.pointer("/lifecycle/preStop").and_then(|hook| decode::<LifecycleHandler>(hook).ok());
    if pre_stop.is_some_and(|hook| hook::is_app_stop(&hook)) {
        restore_lifecycle(container, record.lifecycles.get(&name));
    }
    for moved in record.names.get(&name).into_iter().flatten() {
        let Some(ports) = container.get_mut("ports").and_then(Value::as_array_mut) else { continue };
        let is_moved =
            |port: &Value| port["name"].as_str().unwrap_or_default() == moved.name && port["containerPort"] == moved.to;
        if let Some(index) = ports.iter().position(is_moved) {
            let removed = ports.remove(index);
            let app = ports.iter_mut().find(|port| port["containerPort"] == moved.from && is_tcp(port));
            if let Some(app) = app.and_then(Value::as_object_mut) {
                if !moved.name.is_empty() {
                    app.insert("name".to_owned(), moved.name.clone().into());
                }
                for key in ["hostPort", "hostIP"] {
                    removed.get(key).into_iter().for_each(|value| drop(app.insert(key.to_owned(), value.clone())));
                }
            }
        }
    }
    for (path, port_name) in record.probes.get(&name).into_iter().flatten() {
        let moved = record.names.get(&name).into_iter().flatten().find(|moved| moved.name == *port_name);
        let port = container.pointer_mut(path);
        if let (Some(moved), Some(port)) = (moved, port)
            && *port == moved.from
        {
            *port = port_name.clone().into();
        }
    }
}

fn restore_lifecycle(container: &mut Value, was: Option<&Value>) {
    let Some(container) = container.as_object_mut() else { return };
    let Some(lifecycle) = container.get_mut("lifecycle").and_then(Value::as_object_mut) else { return };
    match was.and_then(|was| was.get("preStop")) {
        Some(hook) => drop(lifecycle.insert("preStop".to_owned(), hook.clone())),
        None => drop(lifecycle.shift_remove("preStop")),
    }
    // An empty or null one is given back as it was.
    match was {
        Some(was) if lifecycle.is_empty() && !was.is_null() => {
            drop(container.insert("lifecycle".to_owned(), was.clone()))
        }
        _ if lifecycle.is_empty() => drop(container.shift_remove("lifecycle")),
        _ => {}
    }
}

pub(super) fn is_tcp(port: &Value) -> bool {
    object::is_tcp(port["protocol"].as_str())
}

fn version(text: &str) -> Vec<u64> {
    text.split('.')
        .map(|part| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0))
        .collect()
}

/// The mapping at a JSON Pointer, made if it is not there.
pub(super) fn object_at<'a>(value: &'a mut Value, pointer: &str) -> &'a mut Map<String, Value> {
    let node = pointer.split('/').skip(1).fold(value, |node, token| {
        if !node.is_object() {
            *node = json!({});
        }
        // An index into an object makes the entry.
        &mut node[token]
    });
    if !node.is_object() {
        *node = json!({});
    }
    match node {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

fn annotation(name: &str) -> String {
    format!("/metadata/annotations/{}", escape(&format!("{}{name}", super::options::PREFIX)))
}

/// What an injection may fill; the inner before the outer.
const PLACES: [&str; 4] = ["/spec/initContainers", "/spec/volumes", "/metadata/annotations", "/metadata"];

/// Name of the annotation, behind the prefix.
pub(super) const INJECTED: &str = "injected";

/// The volume of the control socket, where nothing else has that name.
pub(super) const VOLUME: &str = "ebbtide";

/// Where it is mounted.
pub(super) const RUN: &str = "/run/ebbtide";
