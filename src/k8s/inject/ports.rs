//! Which ports of an app are fronted, and what is spoken on them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ContainerPort, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::config::{self, Environment};
use crate::k8s::mesh;
use crate::k8s::workload::{Place, Workload};

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
    /// Whether the app speaks TLS on it, as far as its name tells.
    pub(super) is_tls: bool,
    /// Host of the upstream.
    pub(super) host: String,
    /// Of ebbtide's listener.
    pub(super) listener: String,
    pub(super) listen: u16,
}

/// Why no port could be chosen.
pub(super) type Reason = String;

/// A declared port of an app.
struct Candidate<'a> {
    place: Place<'a>,
    port: &'a ContainerPort,
}

/// Chooses the ports. `services` are those that select the workload, as they were before any injection.
pub(super) fn choose(
    workload: &Workload<'_>,
    services: &[&Service],
    choices: Option<&[Choice]>,
    upstream_host: Option<&str>,
    has_outbound: bool,
) -> Result<Vec<Front>, Reason> {
    let candidates: Vec<_> = candidates(workload).collect();
    let scraped = workload.annotation("prometheus.io/port").and_then(|port| port.trim().parse().ok());
    let mut fronts: Vec<Front> = match choices {
        Some(choices) => {
            choices.iter().map(|choice| choice.front(workload, &candidates, services)).collect::<Result<_, _>>()?
        }
        None => by_themselves(&candidates, services, scraped)?
            .into_iter()
            .map(|candidate| front(candidate, services))
            .collect(),
    };
    if fronts.is_empty() && choices.is_none() && !has_outbound {
        return Err(
            "none of its containers declares a port: say which one clients use with --ports 8080, or, if it has \
                    no clients, which connections of its own must outlive it with --ports none --outbound \
                    NAME=127.0.0.1:5672=tcp://mq.example:5672"
                .to_owned(),
        );
    }
    for front in &mut fronts {
        front.host = match upstream_host {
            Some(host) => host.to_owned(),
            None => host_of(workload, front, services),
        };
    }
    let mut names = BTreeSet::new();
    for index in 0..fronts.len() {
        let name = listener_name(&fronts[index], &names);
        names.insert(name.clone());
        fronts[index].listener = name;
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

fn candidates<'a>(workload: &'a Workload<'_>) -> impl Iterator<Item = Candidate<'a>> {
    let apps = workload.apps().filter(|place| !mesh::is_mesh(&place.container.name));
    let ports =
        apps.flat_map(|place| place.container.ports.iter().flatten().map(move |port| Candidate { place, port }));
    ports.filter(|candidate| candidate.port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP"))
}

fn by_themselves<'a, 'c>(
    candidates: &'c [Candidate<'a>],
    services: &[&Service],
    scraped: Option<i32>,
) -> Result<Vec<&'c Candidate<'a>>, Reason> {
    let is_targeted = |candidate: &Candidate<'_>| service_ports(services).any(|port| sends_to(port, candidate.port));
    let targeted: Vec<_> = candidates.iter().filter(|candidate| is_targeted(candidate)).collect();
    let considered = if targeted.is_empty() { candidates.iter().collect() } else { targeted };
    let is_scraped = |port: &ContainerPort| considered.len() > 1 && scraped == Some(port.container_port);
    let is_chosen = |candidate: &&Candidate<'_>| !is_aside(candidate.port) && !is_scraped(candidate.port);
    let chosen: Vec<_> = considered.iter().copied().filter(is_chosen).collect();
    if chosen.is_empty() && !considered.is_empty() {
        let names: Vec<_> = considered.iter().map(|candidate| shown(candidate.port)).collect();
        return Err(format!(
            "its ports look like none that clients use ({}): say which ones with --ports",
            names.join(", ")
        ));
    }
    Ok(chosen)
}

/// Metrics, health and debugging: nobody minds if they end with the app.
fn is_aside(port: &ContainerPort) -> bool {
    let name = port.name.as_deref().unwrap_or_default();
    ["metric", "prom", "health", "probe", "admin", "debug", "pprof", "jmx", "manage", "mgmt", "monitor", "telemetry"]
        .iter()
        .any(|word| name.contains(word))
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
    ports.filter(|port| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP"))
}

fn sends_to(service: &ServicePort, port: &ContainerPort) -> bool {
    match target(service) {
        IntOrString::Int(number) => number == port.container_port,
        IntOrString::String(name) => port.name.as_deref() == Some(&name),
    }
}

/// Where a Service's port sends to; without `targetPort` to the same number.
pub(super) fn target(service: &ServicePort) -> IntOrString {
    service.target_port.clone().unwrap_or(IntOrString::Int(service.port))
}

fn front(candidate: &Candidate<'_>, services: &[&Service]) -> Front {
    let port = candidate.port;
    let by_service = service_ports(services).find(|service| sends_to(service, port));
    let (scheme, is_tls) = spoken(port, by_service);
    Front {
        container: candidate.place.container.name.clone(),
        port: u16::try_from(port.container_port).unwrap_or_default(),
        name: port.name.clone(),
        scheme: scheme.to_owned(),
        is_tls,
        host: String::new(),
        listener: String::new(),
        listen: 0,
    }
}

/// By the Service's `appProtocol`, else by names as meshes read them (`grpc`, `http-web`), else by well-known numbers.
fn spoken(port: &ContainerPort, service: Option<&ServicePort>) -> (&'static str, bool) {
    let words = [
        service.and_then(|service| service.app_protocol.as_deref()),
        port.name.as_deref(),
        service.and_then(|service| service.name.as_deref()),
    ];
    let by_word = words.into_iter().flatten().find_map(|word| {
        let word = word.to_ascii_lowercase();
        let word = word.rsplit('/').next().unwrap_or_default().to_owned();
        match word.split('-').next().unwrap_or_default() {
            "h2c" | "grpc" | "http2" => Some(("h2c", false)),
            "https" | "tls" | "ssl" | "wss" => Some(("tcp", true)),
            "http" | "web" | "ws" | "www" => Some(("http", false)),
            "tcp" | "postgres" | "postgresql" | "pg" | "mysql" | "redis" | "mongo" | "mongodb" | "amqp" | "kafka"
            | "mqtt" | "ldap" | "smtp" | "nats" | "memcache" | "memcached" => Some(("tcp", false)),
            _ => None,
        }
    });
    by_word.unwrap_or(match port.container_port {
        8443 | 443 | 6443 => ("tcp", true),
        5432 | 3306 | 6379 | 27017 | 5672 | 5671 | 9092 | 1883 | 11211 | 4222 | 389 | 25 | 1433 | 26257 => {
            ("tcp", false)
        }
        50051 => ("h2c", false),
        _ => ("http", false),
    })
}

fn listener_name(front: &Front, taken: &BTreeSet<String>) -> String {
    let named = front.name.clone().filter(|name| !taken.contains(name));
    named.unwrap_or_else(|| format!("port-{}", front.port))
}

fn host_of(workload: &Workload<'_>, front: &Front, services: &[&Service]) -> String {
    let container = workload.apps().map(|place| place.container).find(|container| container.name == front.container);
    let is_local = container.is_some_and(|container| {
        let words = container.command.iter().chain(&container.args).flatten().map(String::as_str);
        let variables = container
            .env
            .iter()
            .flatten()
            .filter_map(|variable| Some((variable.name.as_str(), variable.value.as_deref()?)));
        listens_on_loopback(words, variables, front.port)
    });
    let families =
        services.iter().filter_map(|service| service.spec.as_ref()).filter_map(|spec| spec.ip_families.as_ref());
    let is_ipv6 = families.filter_map(|families| families.first()).any(|family| family == "IPv6");
    match (is_local, is_ipv6) {
        (true, _) => "127.0.0.1".to_owned(),
        (false, true) => "[$(POD_IP)]".to_owned(),
        (false, false) => POD_IP.to_owned(),
    }
}

/// `--host=127.0.0.1`, `--host localhost`, `127.0.0.1:8080`, `HOST=localhost` and the like.
fn listens_on_loopback<'a>(
    words: impl Iterator<Item = &'a str>,
    mut variables: impl Iterator<Item = (&'a str, &'a str)>,
    port: u16,
) -> bool {
    let names = ["host", "bind", "listen", "address", "addr", "bind_address", "listen_address", "hostname", "ip"];
    let is_name = |name: &str| {
        let name = name.trim_start_matches('-').to_ascii_lowercase().replace('-', "_");
        names.iter().any(|one| name == *one || name.ends_with(&format!("_{one}")))
    };
    let is_loopback = |text: &str| {
        let host = text.rsplit("://").next().unwrap_or_default();
        let port = format!(":{port}");
        matches!(host.strip_suffix(port.as_str()).unwrap_or(host), "127.0.0.1" | "localhost" | "[::1]" | "::1")
    };
    let mut before = "";
    let by_words = words.flat_map(str::split_whitespace).any(|word| {
        let (name, value) = word.split_once('=').unwrap_or((before, word));
        before = word;
        // An address with this very port is the app's own, whatever the flag is called.
        is_loopback(value) && (is_name(name) || value.ends_with(&format!(":{port}")))
    });
    // A variable may name a neighbour (REDIS_HOST): only names that can mean nothing else count.
    let own =
        ["host", "bind", "listen", "bind_address", "listen_address", "server_address", "listen_addr", "http_host"];
    by_words || variables.any(|(name, value)| own.contains(&name.to_ascii_lowercase().as_str()) && is_loopback(value))
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
            is_port && self.container.as_ref().is_none_or(|name| *name == candidate.place.container.name)
        });
        let mut front = match (found, number) {
            (Some(candidate), _) => front(candidate, services),
            (None, Some(number)) => {
                // Kubernetes wants no declaration of ports, so it may be there all the same.
                let port = ContainerPort { container_port: i32::from(number), ..ContainerPort::default() };
                let only = workload.apps().next().filter(|_| workload.apps().count() == 1);
                let owner = self.container.clone().or_else(|| only.map(|place| place.container.name.clone()));
                let place = workload.apps().next().ok_or("it has no app container")?;
                Front { container: owner.unwrap_or_default(), ..front(&Candidate { place, port: &port }, services) }
            }
            (None, None) => {
                let names: Vec<_> = candidates.iter().filter_map(|candidate| candidate.port.name.clone()).collect();
                return Err(format!("--ports names {}, and the ports' names are: {}", self.port, names.join(", ")));
            }
        };
        if let Some(scheme) = &self.scheme {
            front.scheme.clone_from(scheme);
            front.is_tls = false;
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
