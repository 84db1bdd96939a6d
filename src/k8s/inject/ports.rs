//! Which ports of an app are fronted, and what is spoken on them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, ContainerPort, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::existing::Existing;
use super::protocol::{host_of, is_aside, sends_to, spoken};
use crate::config::{self, Environment};
use crate::k8s::mesh;
use crate::k8s::object::is_tcp;
use crate::k8s::workload::{Workload, image_name};

/// A port that somebody has named, `[SCHEME://][CONTAINER/]PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    scheme: Option<String>,
    container: Option<String>,
    port: String,
}

/// `NAME=BIND=UPSTREAM`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outbound {
    pub(super) name: String,
    pub(super) bind: String,
    pub(super) upstream: String,
}

/// A port of the app, and ebbtide's in front of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Front {
    /// The container that declares it; empty if none does.
    pub(super) container: String,
    pub(super) port: u16,
    /// Its name, which moves to ebbtide's port.
    pub(super) name: Option<String>,
    /// `http`, `h2c` or `tcp`.
    pub(super) scheme: String,
    /// Whether the app speaks TLS on it, as far as its manifest tells.
    pub(super) is_tls: bool,
    /// Whether nothing says what is spoken on it.
    pub(super) is_guess: bool,
    /// Whether a Service says it.
    pub(super) by_service: bool,
    /// Host of the upstream.
    pub(super) host: String,
    /// Of ebbtide's listener.
    pub(super) listener: String,
    pub(super) listen: u16,
}

/// Why no port could be chosen.
pub(super) type Reason = String;

/// A port of an app, declared or named by a Service.
struct Candidate<'a> {
    /// `None` if nobody says which of several containers has it.
    container: Option<&'a Container>,
    port: ContainerPort,
}

/// What the choice follows from.
pub(super) struct Question<'a> {
    /// As it was before any injection.
    pub(super) workload: &'a Workload<'a>,
    /// Those that select it, as they were.
    pub(super) services: &'a [&'a Service],
    /// What was asked for.
    pub(super) choices: Option<&'a [Choice]>,
    pub(super) upstream_host: Option<&'a str>,
    pub(super) has_outbound: bool,
    /// What an earlier injection has made of it.
    pub(super) existing: &'a Existing,
}

/// Chooses the ports.
pub(super) fn choose(question: &Question<'_>) -> Result<Vec<Front>, Reason> {
    let Question { workload, services, choices, upstream_host, has_outbound, existing } = *question;
    let candidates = candidates(workload, services);
    let mut fronts: Vec<Front> = match choices {
        Some(choices) => {
            choices.iter().map(|choice| choice.front(workload, &candidates, services)).collect::<Result<_, _>>()?
        }
        None => by_themselves(question, &candidates)?.into_iter().map(|one| front(one, services)).collect(),
    };
    if fronts.is_empty() && choices.is_none() && !has_outbound {
        return Err("none of its containers declares a port: say which one clients use with --ports 8080, or, if it has no \
                    clients, which connections of its own must outlive it with --ports none --outbound \
                    NAME=127.0.0.1:5672=tcp://mq.example:5672; the annotation ebbtide.dev/inject: \"false\" leaves it as it is"
            .to_owned());
    }
    for (index, front) in fronts.iter_mut().enumerate() {
        let known = existing.front(front.port);
        let is_told = choices.is_some_and(|choices| choices[index].scheme.is_some()) || front.by_service;
        if let Some(known) = known.filter(|_| !is_told) {
            front.scheme.clone_from(&known.scheme);
            (front.is_tls, front.is_guess) = (false, false);
        }
        front.host = match (upstream_host, known) {
            (Some(host), _) => host.to_owned(),
            (None, Some(known)) => known.host.clone(),
            (None, None) => host_of(workload, front, services),
        };
    }
    let mut names = BTreeSet::new();
    for front in &mut fronts {
        front.listener = listener_name(front, &names);
        names.insert(front.listener.clone());
    }
    let mut ports = BTreeSet::new();
    match fronts.iter().find(|front| !ports.insert(front.port)) {
        Some(twice) => Err(format!("port {} is named twice", twice.port)),
        None => Ok(fronts),
    }
}

/// All ports that are taken in the pod by anything but ebbtide.
pub(super) fn taken(workload: &Workload<'_>) -> BTreeSet<u16> {
    let ports = workload.containers().filter(|place| !crate::k8s::workload::is_ebbtide(place.container));
    let ports = ports.flat_map(|place| place.container.ports.iter().flatten());
    ports
        .flat_map(|port| [Some(port.container_port), port.host_port])
        .flatten()
        .filter_map(|port| u16::try_from(port).ok())
        .collect()
}

/// Whether there is any port that could be fronted.
pub(super) fn has_any(workload: &Workload<'_>, services: &[&Service]) -> bool {
    !candidates(workload, services).is_empty()
}

/// What the apps declare, and what Services send to without anybody declaring it.
fn candidates<'a>(workload: &'a Workload<'_>, services: &[&Service]) -> Vec<Candidate<'a>> {
    let apps: Vec<_> =
        workload.apps().map(|place| place.container).filter(|container| !is_companion(container)).collect();
    let declared = apps.iter().flat_map(|container| {
        let ports = container.ports.iter().flatten();
        ports.map(|port| Candidate { container: Some(*container), port: port.clone() })
    });
    let mut candidates: Vec<_> = declared.filter(|one| is_tcp(one.port.protocol.as_deref())).collect();
    if candidates.iter().any(|one| !is_aside(&one.port)) {
        // What is declared is certain; the rest is said in a note.
        return candidates;
    }
    let all: BTreeSet<_> = taken(workload).into_iter().map(i32::from).collect();
    for service in service_ports(services) {
        if let IntOrString::Int(number) = target(service) {
            let is_ours = number == i32::from(super::sidecar::LISTEN_PORT);
            if !is_ours && !all.contains(&number) && !candidates.iter().any(|one| one.port.container_port == number) {
                let port = ContainerPort { container_port: number, ..ContainerPort::default() };
                candidates.push(Candidate { container: apps.first().copied().filter(|_| apps.len() == 1), port });
            }
        }
    }
    candidates
}

/// Proxies of others, whose clients are in the pod.
fn is_companion(container: &Container) -> bool {
    let image = image_name(container.image.as_deref().unwrap_or_default());
    mesh::is_mesh(&container.name)
        || ["cloud-sql-proxy", "gce-proxy", "fluent-bit", "fluentd"].contains(&image)
        || image.ends_with("exporter")
}

/// Those that are fronted already, and those that Services send to; else all that look like clients' ports.
fn by_themselves<'a, 'c>(
    question: &Question<'_>,
    candidates: &'c [Candidate<'a>],
) -> Result<Vec<&'c Candidate<'a>>, Reason> {
    let scraped = question.workload.annotation("prometheus.io/port").and_then(|port| port.trim().parse().ok());
    let is_targeted = |one: &Candidate<'_>| service_ports(question.services).any(|port| sends_to(port, &one.port));
    let is_fronted = |one: &Candidate<'_>| {
        u16::try_from(one.port.container_port).is_ok_and(|port| question.existing.front(port).is_some())
    };
    let wanted: Vec<_> = candidates.iter().filter(|one| is_targeted(one) || is_fronted(one)).collect();
    let considered = if wanted.is_empty() { candidates.iter().collect() } else { wanted };
    let is_scraped = |port: &ContainerPort| considered.len() > 1 && scraped == Some(port.container_port);
    let is_chosen = |one: &&Candidate<'_>| is_fronted(one) || (!is_aside(&one.port) && !is_scraped(&one.port));
    let chosen: Vec<_> = considered.iter().copied().filter(is_chosen).collect();
    if chosen.is_empty() && !considered.is_empty() {
        let names: Vec<_> = considered.iter().map(|one| shown(&one.port)).collect();
        return Err(format!(
            "its ports look like none that clients use ({}): say which ones with --ports",
            names.join(", ")
        ));
    }
    Ok(chosen)
}

fn shown(port: &ContainerPort) -> String {
    match &port.name {
        Some(name) => format!("{name} {}", port.container_port),
        None => port.container_port.to_string(),
    }
}

/// The ports of Services that send TCP.
pub(super) fn service_ports<'a>(services: &'a [&Service]) -> impl Iterator<Item = &'a ServicePort> {
    let ports =
        services.iter().filter_map(|service| service.spec.as_ref()).flat_map(|spec| spec.ports.iter().flatten());
    ports.filter(|port| is_tcp(port.protocol.as_deref()))
}

/// Where a Service's port sends to; without `targetPort` to the same number.
pub(super) fn target(service: &ServicePort) -> IntOrString {
    service.target_port.clone().unwrap_or(IntOrString::Int(service.port))
}

fn front(candidate: &Candidate<'_>, services: &[&Service]) -> Front {
    let port = &candidate.port;
    let service = service_ports(services).find(|service| sends_to(service, port));
    let spoken = spoken(port, candidate.container, service);
    Front {
        container: candidate.container.map(|container| container.name.clone()).unwrap_or_default(),
        port: u16::try_from(port.container_port).unwrap_or_default(),
        name: port.name.clone(),
        scheme: spoken.scheme.to_owned(),
        is_tls: spoken.is_tls,
        is_guess: spoken.is_guess,
        by_service: service.is_some_and(|service| service.app_protocol.is_some()),
        host: String::new(),
        listener: String::new(),
        listen: 0,
    }
}

fn listener_name(front: &Front, taken: &BTreeSet<String>) -> String {
    let named = front.name.clone().filter(|name| !taken.contains(name));
    named.unwrap_or_else(|| format!("port-{}", front.port))
}

// === impl Choice ===

impl Choice {
    pub(super) fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        if text == "none" {
            return Ok(Vec::new());
        }
        text.split(',').map(|part| Self::parse(part.trim())).collect()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (Some(scheme), rest),
            None => (None, text),
        };
        if let Some(scheme) = scheme.filter(|scheme| !["http", "h2c", "auto", "tcp"].contains(scheme)) {
            return Err(format!("{scheme}:// is none of http://, h2c://, auto://, tcp://"));
        }
        let (container, port) = match rest.split_once('/') {
            Some((container, port)) => (Some(container.to_owned()), port),
            None => (None, rest),
        };
        let is_name =
            !port.is_empty() && port.len() <= 15 && port.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        if !is_name || port.parse::<u32>().is_ok_and(|number| number == 0 || number > 65_535) {
            return Err(format!("{port:?} is neither a port from 1 to 65535 nor the name of one"));
        }
        Ok(Self { scheme: scheme.map(str::to_owned), container, port: port.to_owned() })
    }

    fn front(
        &self,
        workload: &Workload<'_>,
        candidates: &[Candidate<'_>],
        services: &[&Service],
    ) -> Result<Front, Reason> {
        if let Some(name) =
            self.container.as_ref().filter(|name| !workload.apps().any(|place| place.container.name == **name))
        {
            return Err(format!("--ports names a container {name}, and there is none"));
        }
        let number = self.port.parse::<u16>().ok();
        let found = candidates.iter().find(|candidate| {
            let is_port = match number {
                Some(number) => candidate.port.container_port == i32::from(number),
                None => candidate.port.name.as_deref() == Some(&self.port),
            };
            let owner = candidate.container.map(|container| container.name.as_str());
            is_port && self.container.as_deref().is_none_or(|name| owner == Some(name))
        });
        let mut front = match (found, number) {
            (Some(candidate), _) => front(candidate, services),
            (None, Some(number)) => {
                // Kubernetes wants no declaration of ports, so it may be there all the same.
                let port = ContainerPort { container_port: i32::from(number), ..ContainerPort::default() };
                let only = workload.apps().count() == 1;
                let owner = workload.apps().map(|place| place.container).find(|container| match &self.container {
                    Some(name) => container.name == *name,
                    None => only,
                });
                front(&Candidate { container: owner, port }, services)
            }
            (None, None) => {
                let names: Vec<_> = candidates.iter().filter_map(|candidate| candidate.port.name.clone()).collect();
                return Err(format!("--ports names {}, and the ports' names are: {}", self.port, names.join(", ")));
            }
        };
        if let Some(scheme) = &self.scheme {
            front.scheme.clone_from(scheme);
            (front.is_tls, front.is_guess) = (false, false);
        }
        Ok(front)
    }
}

// === impl Outbound ===

impl Outbound {
    pub(super) fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        text.split_whitespace().map(Self::parse).collect()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(3, '=');
        let (Some(name), Some(bind), Some(upstream)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("must be NAME=127.0.0.1:5672=tcp://HOST:PORT".to_owned());
        };
        let one = Self { name: name.to_owned(), bind: bind.to_owned(), upstream: upstream.to_owned() };
        let yaml = format!("mode: sidecar\nlisteners:\n{}", one.yaml());
        let variables = [("EBBTIDE_CONFIG_YAML", yaml.as_str())];
        match config::load(None, &variables.into_iter().collect::<Environment>(), &[]) {
            Ok(_) => Ok(one),
            Err(errors) => Err(errors.first().map_or_else(String::new, |error| error.reason.clone())),
        }
    }

    /// As an entry of the list of listeners.
    pub(super) fn yaml(&self) -> String {
        let (name, bind, upstream) = (&self.name, &self.bind, &self.upstream);
        format!("  - name: {name}\n    direction: outbound\n    bind: \"{bind}\"\n    upstream: {upstream}\n")
    }
}

// === impl Front ===

impl Front {
    pub(super) fn upstream(&self) -> String {
        format!("{}://{}:{}", self.scheme, self.host, self.port)
    }

    /// As an entry of the list of listeners.
    pub(super) fn yaml(&self) -> String {
        format!("  - name: {}\n    bind: \"[::]:{}\"\n    upstream: {}\n", self.listener, self.listen, self.upstream())
    }
}

/// A variable of ebbtide's container, from the downward API.
pub(super) const POD_IP: &str = "$(POD_IP)";
