//! ebbtide as it stands in a template already: what it listens on stays, whoever has decided it.

use k8s_openapi::api::core::v1::Container;
use serde_json::Value;

use super::ports::POD_IP;
use super::sidecar::NAME;
use crate::config::Direction;
use crate::k8s::hook;
use crate::k8s::object::decode;
use crate::k8s::workload::{self, SOME_ADDRESS, SOME_IPV6, image_name, is_ebbtide};

/// Ports that are in use, as far as the manifest tells.
#[derive(Debug, Clone, Default)]
pub(super) struct Existing {
    pub(super) admin: Option<u16>,
    pub(super) fronts: Vec<Known>,
    /// Ports of outbound listeners.
    pub(super) outbound: Vec<u16>,
}

/// An inbound listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) port: u16,
    pub(super) listen: u16,
    pub(super) scheme: String,
    /// As inject would write it.
    pub(super) host: String,
}

impl Existing {
    /// Of ebbtide's container; nothing if its configuration can't be read from the manifest.
    pub(super) fn of(container: Option<&Value>) -> Self {
        let container = container.and_then(|container| decode::<Container>(container).ok());
        let Some(loaded) = container.and_then(|container| workload::configuration(&container).ok()) else {
            return Self::default();
        };
        let config = loaded.config;
        let (inbound, outbound): (Vec<_>, Vec<_>) =
            config.listeners.iter().partition(|listener| listener.direction == Direction::Inbound);
        let fronts = inbound.into_iter().filter_map(|listener| {
            let url = listener.upstream.to_string();
            let (scheme, _) = url.split_once("://")?;
            let address = listener.upstream.hosts().first()?;
            let host = match address.host.as_str() {
                SOME_ADDRESS => POD_IP.to_owned(),
                SOME_IPV6 => format!("[{POD_IP}]"),
                host => host.to_owned(),
            };
            Some(Known { port: address.port, listen: listener.bind.port(), scheme: scheme.to_owned(), host })
        });
        Self {
            admin: Some(config.admin.bind.port()),
            fronts: fronts.collect(),
            outbound: outbound.iter().map(|listener| listener.bind.port()).collect(),
        }
    }

    /// The listener in front of a port of the app.
    pub(super) fn front(&self, port: u16) -> Option<&Known> {
        self.fronts.iter().find(|known| known.port == port)
    }
}

/// Whether a container is ebbtide beyond doubt, so that it may be replaced: it has one of its settings or its hook, or
/// it is its image and runs nothing else.
fn is_surely_ebbtide(container: &Container) -> bool {
    let drain = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let command =
        drain.and_then(|hook| hook.exec.as_ref()).and_then(|exec| exec.command.as_deref()).unwrap_or_default();
    let drains = matches!(command, [program, word, ..] if hook::base_name(program) == "ebbtide" && word == "drain");
    let words = container.command.iter().flatten().skip(1).chain(container.args.iter().flatten());
    let runs = words.map(String::as_str).next().is_none_or(|first| first == "run" || first.starts_with('-'));
    let image = container.image.as_deref().unwrap_or_default();
    container.env.iter().flatten().any(|variable| variable.name == "EBBTIDE_MODE")
        || drains
        || (image_name(image) == "ebbtide" && runs)
}

/// The same of a container in a template.
pub(super) fn is_ours(container: &Value) -> bool {
    decode::<Container>(container).is_ok_and(|container| is_surely_ebbtide(&container))
}

/// All containers of a template, those that run first in front.
pub(super) fn containers(template: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["initContainers", "containers"].into_iter();
    lists.filter_map(|list| template.get("spec")?.get(list)?.as_array()).flatten()
}

/// ebbtide's container as it stands in a template.
pub(super) fn container_of(template: &Value) -> Option<&Value> {
    let ours = || containers(template).filter(|container| is_ours(container));
    ours().find(|container| container["name"] == NAME).or_else(|| ours().next())
}

/// A container of which nobody can say whether it is ebbtide.
pub(super) fn doubtful(containers: &[Value]) -> Option<String> {
    let typed = containers.iter().filter_map(|item| decode::<Container>(item).ok());
    let mut doubtful = typed.filter(|container| is_ebbtide(container) && !is_surely_ebbtide(container));
    doubtful.next().map(|container| {
        format!(
            "container {} has ebbtide's name or image and does not look like ebbtide (no EBBTIDE_MODE, no hook that runs ebbtide drain): give it another name, or take it out",
            container.name,
        )
    })
}
