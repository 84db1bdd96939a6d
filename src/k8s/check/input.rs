//! What the rules look at.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use k8s_openapi::api::core::v1::Service;
use serde_json::Value;

use crate::k8s::document::{Document, Fault};
use crate::k8s::object::{Object, decode, same_namespace};
use crate::k8s::workload::Workload;

/// Everything that was given to one call.
#[derive(Debug)]
pub struct Input<'a> {
    /// The documents of all files.
    pub documents: &'a [Document],
    /// The objects in them.
    pub objects: &'a [Object],
    /// Those that have pods.
    pub workloads: Vec<Workload<'a>>,
    /// The Services.
    pub services: Vec<(&'a Object, Service)>,
    /// Which of the Services send to which of the workloads.
    selected: Selected,
    /// What the caller says of the cluster.
    pub options: &'a Options,
}

/// What the manifests can't tell.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Version of the cluster.
    pub kube_version: Option<KubeVersion>,
    /// Where the nodes come from.
    pub platform: Option<Platform>,
    /// Where kinds that are not known keep their pod template.
    pub template_path: Option<String>,
}

/// `1.29`
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubeVersion {
    /// The second number; the first is always 1.
    pub minor: u32,
}

/// Where nodes end whether or not their pods have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Platform {
    /// Nodes that stay until they are drained.
    Standard,
    /// Spot instances that get two minutes' notice.
    Spot,
    /// Preemptible machines that get thirty seconds or less.
    Preemptible,
}

// === impl Input ===

impl<'a> Input<'a> {
    pub(super) fn new(documents: &'a [Document], objects: &'a [Object], options: &'a Options) -> Result<Self, Fault> {
        let mut workloads = Vec::new();
        let mut services = Vec::new();
        for object in objects.iter().filter(|object| !is_owned(object, objects)) {
            workloads.extend(Workload::of(object, documents, options.template_path.as_deref())?);
            if object.is("", "Service") {
                services.push((object, typed(object, documents)?));
            }
        }
        let selected = Selected::new(&workloads, &services);
        Ok(Self { documents, objects, workloads, services, selected, options })
    }

    /// The Services that send to a workload's pods.
    pub fn services_of<'s>(
        &'s self,
        workload: &Workload<'_>,
    ) -> impl Iterator<Item = &'s (&'a Object, Service)> + use<'s, 'a> {
        let indices = self.selected.services.get(&key(workload.object));
        indices.into_iter().flatten().filter_map(|index| self.services.get(*index))
    }

    /// The workloads to whose pods a Service sends.
    pub fn workloads_of<'s>(&'s self, service: &Object) -> impl Iterator<Item = &'s Workload<'a>> + use<'s, 'a> {
        let indices = self.selected.workloads.get(&key(service));
        indices.into_iter().flatten().filter_map(|index| self.workloads.get(*index))
    }

    /// The objects of a kind, as types. What does not fit the type is left out: it is no business of these rules.
    #[must_use]
    pub fn all<T: serde::de::DeserializeOwned>(&self, group: &str, kind: &str) -> Vec<(&'a Object, T)> {
        let objects = self.objects.iter().filter(|object| object.is(group, kind));
        objects.filter_map(|object| Some((object, decode(&object.value).ok()?))).collect()
    }
}

/// An object's document and its place there.
type Key = (usize, String);

fn key(object: &Object) -> Key {
    (object.document, object.pointer.clone())
}

/// Both ways, by indices.
#[derive(Debug, Default)]
struct Selected {
    services: HashMap<Key, Vec<usize>>,
    workloads: HashMap<Key, Vec<usize>>,
}

impl Selected {
    fn new<'a>(workloads: &[Workload<'a>], services: &[(&'a Object, Service)]) -> Self {
        let mut found = Self::default();
        let mut labelled: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
        for (index, workload) in workloads.iter().enumerate() {
            for label in workload.labels() {
                labelled.entry(label).or_default().push(index);
            }
        }
        for (service, (object, spec)) in services.iter().enumerate() {
            let selector = || spec.spec.iter().filter_map(|spec| spec.selector.as_ref()).flatten();
            // All of its labels must be there: the one that the fewest have leaves the least to look at.
            let candidates = selector().map(|(key, value)| {
                labelled.get(&(key.as_str(), value.as_str())).map(Vec::as_slice).unwrap_or_default()
            });
            for index in candidates.min_by_key(|candidates| candidates.len()).unwrap_or_default() {
                let workload = &workloads[*index];
                if same_namespace(&object.namespace, &workload.object.namespace) && workload.is_selected(selector()) {
                    let of = key(workload.object);
                    found.services.entry(of).or_default().push(service);
                    found.workloads.entry(key(object)).or_default().push(*index);
                }
            }
        }
        found
    }
}

/// Whether another object of these makes this one, as a Deployment its ReplicaSets: what is said of the one goes for the
/// other, and it is the owner that is changed.
pub(super) fn is_owned(object: &Object, all: &[Object]) -> bool {
    let owners = object.value.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().any(|owner| {
        let is = |field: &str, text: &str| owner.get(field).and_then(Value::as_str) == Some(text);
        all.iter().any(|one| {
            same_namespace(&one.namespace, &object.namespace) && is("kind", &one.kind) && is("name", &one.name)
        })
    })
}

fn typed<T: serde::de::DeserializeOwned>(object: &Object, documents: &[Document]) -> Result<T, Fault> {
    decode(&object.value).map_err(|(path, reason)| {
        object.fault(&documents[object.document], &path, format!("{}: {reason}", object.title()))
    })
}

// === impl KubeVersion ===

impl KubeVersion {
    /// Whether the cluster is known to be older than that.
    #[must_use]
    pub fn is_before(version: Option<Self>, minor: u32) -> bool {
        version.is_some_and(|version| version.minor < minor)
    }
}

impl FromStr for KubeVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix('v').unwrap_or(text).strip_prefix("1.");
        let minor = rest.and_then(|rest| rest.split(['.', '-', '+']).next()?.parse().ok());
        minor.map(|minor| Self { minor }).ok_or_else(|| format!("{text:?} is no version like 1.31 or v1.31.4"))
    }
}

impl fmt::Display for KubeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.minor)
    }
}
