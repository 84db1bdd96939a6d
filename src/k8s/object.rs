//! Which objects an input holds, and where in them the pod templates are.

use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::document::{Document, Fault, Node};

/// One Kubernetes object of an input.
#[derive(Debug, Clone)]
pub struct Object {
    /// Index of its document.
    pub document: usize,
    /// JSON Pointer in the document: empty, or an item of a list.
    pub pointer: String,
    /// As in the manifest.
    pub api_version: String,
    /// As in the manifest.
    pub kind: String,
    /// Empty if the manifest names none.
    pub namespace: String,
    /// Empty if it has only a `generateName`.
    pub name: String,
    /// The whole object as it stands in the input.
    pub value: Value,
}

/// The objects of all documents, lists taken apart.
///
/// # Errors
/// A document that is no Kubernetes object, and an input without any.
pub fn objects(documents: &[Document]) -> Result<Vec<Object>, Fault> {
    let mut objects = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        if let Some(root) = &document.root {
            collect(document, index, root, String::new(), &mut objects)?;
        }
    }
    match (objects.is_empty(), documents.first()) {
        (true, Some(first)) => Err(Fault::whole(&first.file, "holds no Kubernetes object")),
        _ => Ok(objects),
    }
}

fn collect(
    document: &Document,
    index: usize,
    node: &Node,
    pointer: String,
    objects: &mut Vec<Object>,
) -> Result<(), Fault> {
    let value = node.to_value();
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("/apiVersion"), text("/kind"));
    if api_version.is_empty() || kind.is_empty() {
        let missing = if kind.is_empty() { "kind" } else { "apiVersion" };
        let message = format!("is no Kubernetes object: it has no {missing}");
        return Err(Fault::at(&document.file, node.place, message));
    }
    let items = node.find("/items").filter(|_| kind.ends_with("List"));
    if let Some(items) = items {
        let count = match &items.data {
            super::document::Data::Sequence(items) => items.len(),
            _ => return Err(Fault::at(&document.file, items.place, "items of a list must be a list")),
        };
        for item in 0..count {
            let path = format!("/items/{item}");
            if let Some(node) = node.find(&path) {
                collect(document, index, node, format!("{pointer}{path}"), objects)?;
            }
        }
        return Ok(());
    }
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    objects.push(Object { document: index, pointer, api_version, kind, namespace, name, value });
    Ok(())
}

/// Where pods of this kind have their template, as a JSON Pointer to what holds `metadata` and `spec`.
pub fn template_path(api_version: &str, kind: &str) -> Option<&'static str> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    match (group, kind) {
        ("", "Pod") => Some(""),
        ("", "PodTemplate") => Some("/template"),
        ("", "ReplicationController")
        | ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
        | ("batch", "Job")
        | ("argoproj.io", "Rollout")
        | ("apps.kruise.io", "CloneSet" | "StatefulSet" | "DaemonSet") => Some("/spec/template"),
        ("batch", "CronJob") => Some("/spec/jobTemplate/spec/template"),
        _ => None,
    }
}

/// The kinds that [`template_path`] knows, for messages.
pub const KINDS: &str = "Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController, Job, CronJob, Pod, \
                         PodTemplate, Argo Rollout, or any other kind with --template-path";

/// A JSON value as a type of the Kubernetes API.
///
/// # Errors
/// The JSON Pointer of the value that does not fit, and why.
pub fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, (String, String)> {
    read(value).map(|(decoded, _)| decoded)
}

/// The fields that this type of the Kubernetes API does not have, as JSON Pointers.
pub fn unknown_fields<T: DeserializeOwned>(value: &Value) -> Vec<String> {
    read::<T>(value).map(|(_, unknown)| unknown).unwrap_or_default()
}

/// A type of the Kubernetes API, and the fields of the value that it does not have.
///
/// # Errors
/// As [`decode`].
///
/// The only way in which these types are read: each other one would compile all of them once more.
pub fn read<T: DeserializeOwned>(value: &Value) -> Result<(T, Vec<String>), (String, String)> {
    let mut unknown = Vec::new();
    let mut note = |path: serde_ignored::Path<'_>| unknown.push(pointer_of(&path));
    let mut note: &mut dyn FnMut(serde_ignored::Path<'_>) = &mut note;
    let decoded = serde_path_to_error::deserialize(serde_ignored::Deserializer::new(value, &mut note));
    let decoded = decoded.map_err(|error: serde_path_to_error::Error<serde_json::Error>| {
        let path = error.path().iter().map(|segment| match segment {
            serde_path_to_error::Segment::Seq { index } => format!("/{index}"),
            serde_path_to_error::Segment::Map { key } => format!("/{}", escape(key)),
            serde_path_to_error::Segment::Enum { .. } | serde_path_to_error::Segment::Unknown => String::new(),
        });
        (path.collect(), error.inner().to_string())
    })?;
    Ok((decoded, unknown))
}

fn pointer_of(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}/{index}", pointer_of(parent)),
        Path::Map { parent, key } => format!("{}/{}", pointer_of(parent), escape(key)),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => pointer_of(parent),
    }
}

/// Whether two objects are in one namespace, as far as the manifests tell: one that names none goes where it is sent.
#[must_use]
pub fn same_namespace(a: &str, b: &str) -> bool {
    a == b || a.is_empty() || b.is_empty()
}

/// What of an object is a pod template: of a Pod that is not all.
pub fn as_template(object: &Value) -> Value {
    json!({"metadata": object.get("metadata"), "spec": object.get("spec")})
}

/// Whether a port's protocol is TCP, as it is without one.
pub fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|protocol| protocol == "TCP")
}

/// A token of a JSON Pointer.
pub fn escape(token: &str) -> String {
    token.replace('~', "~0").replace('/', "~1")
}

// === impl Object ===

impl Object {
    /// `Deployment/web`.
    #[must_use]
    pub fn title(&self) -> String {
        let name = if self.name.is_empty() { "(without a name)" } else { &self.name };
        format!("{}/{name}", self.kind)
    }

    /// Of its pod template, `None` if it has none; `other` is where kinds that are not known have theirs.
    #[must_use]
    pub fn template_path<'a>(&self, other: Option<&'a str>) -> Option<&'a str> {
        template_path(&self.api_version, &self.kind).or_else(|| {
            other.filter(|path| {
                self.value.pointer(path).is_some_and(|template| template.pointer("/spec/containers").is_some())
            })
        })
    }

    /// The pod template as a type, from what holds `metadata` and `spec`.
    ///
    /// # Errors
    /// Where it does not fit the type.
    pub fn template(&self, path: &str, document: &Document) -> Result<PodTemplateSpec, Fault> {
        let Some(template) = self.value.pointer(path).filter(|template| template.is_object()) else {
            return Err(self.fault(document, path, format!("{} has no pod template", self.title())));
        };
        let decoded: PodTemplateSpec = decode(&as_template(template)).map_err(|(at, reason)| {
            self.fault(document, &format!("{path}{at}"), format!("{}: {reason}", self.title()))
        })?;
        if let Some((at, reason)) = not_even_wrong(&decoded) {
            return Err(self.fault(document, &format!("{path}{at}"), format!("{}: {reason}", self.title())));
        }
        match decoded.spec.as_ref().is_some_and(|spec| !spec.containers.is_empty()) {
            true => Ok(decoded),
            false => Err(self.fault(document, &format!("{path}/spec"), format!("{} has no containers", self.title()))),
        }
    }

    /// A fault at a JSON Pointer in the object.
    #[must_use]
    pub fn fault(&self, document: &Document, pointer: &str, message: impl Into<String>) -> Fault {
        match &document.root {
            Some(root) => Fault::at(&document.file, root.place_of(&format!("{}{pointer}", self.pointer)), message),
            None => Fault::whole(&document.file, message),
        }
    }

    /// Whether this is an object of the core API of that kind.
    #[must_use]
    pub fn is(&self, api_group: &str, kind: &str) -> bool {
        self.kind == kind && self.api_version.split_once('/').map_or("", |(group, _)| group) == api_group
    }
}

/// What the types let pass and no tool can do anything with: containers without a name, ports that are none.
fn not_even_wrong(template: &PodTemplateSpec) -> Option<(String, String)> {
    let spec = template.spec.as_ref()?;
    let init = spec.init_containers.iter().flatten().enumerate().map(|(index, one)| ("initContainers", index, one));
    let ordinary = spec.containers.iter().enumerate().map(|(index, one)| ("containers", index, one));
    init.chain(ordinary).find_map(|(list, index, container)| {
        let at = format!("/spec/{list}/{index}");
        if container.name.is_empty() {
            return Some((at, "has a container without a name".to_owned()));
        }
        let mut ports = container.ports.iter().flatten().map(|port| port.container_port).enumerate();
        let (port, number) = ports.find(|(_, number)| !(1..=65_535).contains(number))?;
        let reason = format!("container {} has the port {number}, which is none", container.name);
        Some((format!("{at}/ports/{port}/containerPort"), reason))
    })
}

/// Whether an init container is a native sidecar (KEP-753).
pub fn is_native(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}
