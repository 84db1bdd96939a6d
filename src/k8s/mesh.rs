//! Service meshes: whether a pod is in one, and what ebbtide must leave to it.

use super::object::{Object, escape};
use super::workload::is_ebbtide;
use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};

/// A service mesh whose proxy intercepts a pod's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mesh {
    /// Istio with sidecars; in ambient mode nothing stands in the pod.
    Istio,
    /// Linkerd.
    Linkerd,
}

/// The mesh whose proxy will be in the pods of this template: it stands there already, or labels and annotations of
/// the pods, or of their Namespace if it is in the input, ask for it. A pod's word beats its namespace's.
#[must_use]
pub fn of(template: &PodTemplateSpec, namespace: &str, objects: &[Object]) -> Option<Mesh> {
    let spec = template.spec.iter();
    let mut containers = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    if let Some(mesh) = containers.find_map(|container| proxy_of(&container.name)) {
        return Some(mesh);
    }
    let metadata = template.metadata.as_ref();
    let label = |name: &str| metadata?.labels.as_ref()?.get(name).map(String::as_str);
    let annotation = |name: &str| metadata?.annotations.as_ref()?.get(name).map(String::as_str);
    let of_namespace = |field: &str, name: &str| {
        let object = objects.iter().find(|object| object.is("", "Namespace") && object.name == namespace)?;
        object.value.pointer(&format!("/metadata/{field}/{}", escape(name)))?.as_str()
    };
    let is_istio = match label(ISTIO_INJECT).or_else(|| annotation(ISTIO_INJECT)) {
        Some(word) => word == "true",
        None => {
            let enabled = of_namespace("labels", "istio-injection").map(|word| word == "enabled");
            let revision = label(ISTIO_REVISION).or_else(|| of_namespace("labels", ISTIO_REVISION));
            enabled.unwrap_or_else(|| revision.is_some())
        }
    };
    let linkerd = annotation(LINKERD_INJECT).or_else(|| of_namespace("annotations", LINKERD_INJECT));
    match (is_istio, linkerd) {
        (true, _) => Some(Mesh::Istio),
        (false, Some("enabled" | "ingress")) => Some(Mesh::Linkerd),
        (false, _) => None,
    }
}

/// Where ebbtide belongs among the other init containers: first, so that it is stopped last, but behind what the mesh
/// has there, since ebbtide's own connections need it.
#[must_use]
pub fn position(init: &[Container]) -> usize {
    let others = init.iter().filter(|container| !is_ebbtide(container)).enumerate();
    others.filter(|(_, other)| is_mesh(&other.name)).last().map_or(0, |(index, _)| index + 1)
}

/// Whether a container of this name is a mesh's own.
#[must_use]
pub fn is_mesh(name: &str) -> bool {
    proxy_of(name).is_some()
        || ["istio-init", "istio-validation", "linkerd-init", "linkerd-network-validator"].contains(&name)
}

/// Whether a mesh's proxy is among these containers.
#[must_use]
pub fn has_proxy(containers: &[Container]) -> bool {
    containers.iter().any(|container| proxy_of(&container.name).is_some())
}

/// Whether a container of this name is a mesh's proxy.
fn proxy_of(name: &str) -> Option<Mesh> {
    match name {
        "istio-proxy" => Some(Mesh::Istio),
        "linkerd-proxy" => Some(Mesh::Linkerd),
        _ => None,
    }
}

/// Whether an annotation's list of ports has this one. Linkerd takes ranges, too.
#[must_use]
pub fn lists(ports: &str, port: u16) -> bool {
    ports.split(',').map(str::trim).any(|part| match part.split_once('-') {
        Some((from, to)) => {
            matches!((from.parse::<u16>(), to.parse::<u16>()), (Ok(from), Ok(to)) if (from..=to).contains(&port))
        }
        None => part == "*" || part.parse() == Ok(port),
    })
}

/// The list with a port added.
#[must_use]
pub fn with_port(ports: &str, port: u16) -> String {
    match ports.trim().trim_end_matches(',') {
        "" => port.to_string(),
        ports => format!("{ports},{port}"),
    }
}

// === impl Mesh ===

impl Mesh {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Istio => "Istio",
            Self::Linkerd => "Linkerd",
        }
    }

    /// The annotation of a pod with the inbound ports that its proxy leaves alone.
    #[must_use]
    pub fn excluded_ports(self) -> &'static str {
        match self {
            Self::Istio => "traffic.sidecar.istio.io/excludeInboundPorts",
            Self::Linkerd => "config.linkerd.io/skip-inbound-ports",
        }
    }

    /// The same annotation with a port added; `None` if that is in it already.
    #[must_use]
    pub fn with_excluded(self, ports: Option<&str>, port: u16) -> Option<String> {
        let ports = ports.unwrap_or_default();
        (!lists(ports, port)).then(|| with_port(ports, port))
    }

    /// Whether the proxy intercepts connections to this port of the pods.
    #[must_use]
    pub fn intercepts(self, template: &PodTemplateSpec, port: u16) -> bool {
        let annotations = template.metadata.as_ref().and_then(|metadata| metadata.annotations.as_ref());
        let says = |name: &str| annotations.and_then(|all| all.get(name)).map(String::as_str);
        let included = says(INCLUDED_PORTS).filter(|_| self == Self::Istio);
        let is_included =
            |ports: &str| ports.split(',').map(str::trim).any(|part| part == "*" || part.parse() == Ok(port));
        included.is_none_or(is_included) && self.with_excluded(says(self.excluded_ports()), port).is_some()
    }
}

/// Path of a hook that Istio (1.25 or later) has turned to its own agent.
pub const REWRITTEN_HOOK: &str = "/app-lifecycle/";
/// Path of a probe that Istio has turned to its own agent.
pub const REWRITTEN_PROBE: &str = "/app-health/";

const ISTIO_INJECT: &str = "sidecar.istio.io/inject";
const ISTIO_REVISION: &str = "istio.io/rev";
const LINKERD_INJECT: &str = "linkerd.io/inject";

/// Annotation of a pod: the inbound ports that Istio's proxy takes, if not all.
pub const INCLUDED_PORTS: &str = "traffic.sidecar.istio.io/includeInboundPorts";

/// Annotation of a pod: whether Istio's proxy is a native sidecar in it. Istio 1.24 or later; by default from 1.27 on.
pub const NATIVE_PROXY: &str = "sidecar.istio.io/nativeSidecar";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn template(value: &Value) -> PodTemplateSpec {
        serde_json::from_value(value.clone()).unwrap()
    }

    fn init(names: &[&str]) -> Vec<Container> {
        names.iter().map(|name| Container { name: (*name).to_owned(), ..Container::default() }).collect()
    }

    #[test]
    fn ebbtide_is_first_but_behind_what_the_mesh_has() {
        for (names, expected) in [
            (&[][..], 0),
            (&["fetch", "migrate"], 0),
            (&["istio-init"], 1),
            (&["istio-validation", "istio-proxy", "fetch"], 2),
            (&["fetch", "linkerd-init", "linkerd-proxy", "other"], 3),
            (&["ebbtide", "istio-init", "fetch"], 1),
            (&["istio-init", "ebbtide", "fetch"], 1),
        ] {
            assert_eq!(position(&init(names)), expected, "{names:?}");
        }
    }

    #[test]
    fn a_pod_is_in_a_mesh_by_its_own_word_or_by_its_namespace() {
        let namespace = |metadata: Value| Object {
            document: 0,
            pointer: String::new(),
            api_version: "v1".to_owned(),
            kind: "Namespace".to_owned(),
            namespace: String::new(),
            name: "shop".to_owned(),
            value: json!({"metadata": metadata}),
        };
        let plain = json!({"name": "shop"});
        let enabled = json!({"labels": {"istio-injection": "enabled"}});
        let revision = json!({"labels": {"istio.io/rev": "1-24"}});
        let linkerd = json!({"annotations": {"linkerd.io/inject": "enabled"}});
        for (pod, of_namespace, expected) in [
            (json!({}), &plain, None),
            (json!({}), &enabled, Some(Mesh::Istio)),
            (json!({}), &revision, Some(Mesh::Istio)),
            (json!({}), &linkerd, Some(Mesh::Linkerd)),
            (json!({"labels": {"sidecar.istio.io/inject": "false"}}), &enabled, None),
            (json!({"annotations": {"linkerd.io/inject": "disabled"}}), &linkerd, None),
            (json!({"labels": {"sidecar.istio.io/inject": "true"}}), &plain, Some(Mesh::Istio)),
            (json!({"annotations": {"sidecar.istio.io/inject": "true"}}), &plain, Some(Mesh::Istio)),
            (json!({"labels": {"istio.io/rev": "stable"}}), &plain, Some(Mesh::Istio)),
            (json!({"annotations": {"linkerd.io/inject": "enabled"}}), &plain, Some(Mesh::Linkerd)),
        ] {
            let template = template(&json!({"metadata": pod, "spec": {"containers": [{"name": "app"}]}}));
            assert_eq!(of(&template, "shop", &[namespace(of_namespace.clone())]), expected, "{pod} in {of_namespace}");
        }
        let injected = template(&json!({"spec": {"containers": [{"name": "app"}, {"name": "linkerd-proxy"}]}}));
        assert_eq!(of(&injected, "", &[]), Some(Mesh::Linkerd));
    }

    #[test]
    fn a_port_is_added_to_the_annotation_once() {
        for (before, after) in [
            (None, Some("14090")),
            (Some(""), Some("14090")),
            (Some("9090, 9091"), Some("9090, 9091,14090")),
            (Some("9090,14090"), None),
            (Some("14000-14100"), None),
        ] {
            assert_eq!(Mesh::Linkerd.with_excluded(before, 14090).as_deref(), after, "{before:?}");
            let annotations = json!({"config.linkerd.io/skip-inbound-ports": before.unwrap_or_default()});
            let template = template(&json!({"metadata": {"annotations": annotations}}));
            assert_eq!(Mesh::Linkerd.intercepts(&template, 14090), after.is_some(), "{before:?}");
            assert!(Mesh::Istio.intercepts(&template, 14090));
        }
        let only = json!({"metadata": {"annotations": {"traffic.sidecar.istio.io/includeInboundPorts": "14080"}}});
        assert!(!Mesh::Istio.intercepts(&template(&only), 14090));
    }
}
