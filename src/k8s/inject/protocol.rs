//! What an app speaks on a port and where it listens, as far as its manifest tells.

use k8s_openapi::api::core::v1::{Container, ContainerPort, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::ports::{Front, POD_IP, target};
use crate::k8s::workload::Workload;

/// A guess at what is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spoken {
    /// Of the upstream.
    pub(super) scheme: &'static str,
    /// The app does TLS itself.
    pub(super) is_tls: bool,
    /// Nothing speaks for it: most apps do.
    pub(super) is_guess: bool,
}

/// By the Service's `appProtocol`, else by names as meshes read them (`grpc`, `http-web`), else by the app's probes, else
/// by well-known numbers.
pub(super) fn spoken(port: &ContainerPort, container: Option<&Container>, service: Option<&ServicePort>) -> Spoken {
    let known = |scheme| Spoken { scheme, is_tls: false, is_guess: false };
    let tls = Spoken { scheme: "tcp", is_tls: true, is_guess: false };
    let words = [
        service.and_then(|service| service.app_protocol.as_deref()),
        port.name.as_deref(),
        service.and_then(|service| service.name.as_deref()),
    ];
    if let Some((scheme, is_tls)) = words.into_iter().flatten().find_map(by_name) {
        return Spoken { scheme, is_tls, is_guess: false };
    }
    if let Some((scheme, is_tls)) = container.and_then(|container| by_probe(port, container)) {
        return Spoken { scheme, is_tls, is_guess: false };
    }
    if service.is_some_and(|service| [443, 8443, 9443].contains(&service.port))
        && ![80, 8080].contains(&port.container_port)
    {
        return tls;
    }
    match port.container_port {
        8443 | 443 | 6443 | 9443 | 10_250 => tls,
        5432 | 3306 | 6379 | 27_017 | 5672 | 5671 | 9092 | 1883 | 11_211 | 4222 | 389 | 25 | 1433 | 26_257 | 53
        | 2049 | 111 => known("tcp"),
        50_051 => known("h2c"),
        80 | 3000 | 5000 | 8000 | 8080 | 8081 | 8888 | 9000 => known("http"),
        _ => Spoken { scheme: "http", is_tls: false, is_guess: true },
    }
}

/// `grpc`, `http-web`, `kubernetes.io/h2c`; the first part decides, else any other.
fn by_name(name: &str) -> Option<(&'static str, bool)> {
    let name = name.to_ascii_lowercase();
    let name = name.rsplit('/').next().unwrap_or_default();
    if name.starts_with("grpc-web") {
        return Some(("http", false));
    }
    name.split('-').find_map(|word| match word {
        "h2c" | "grpc" | "http2" => Some(("h2c", false)),
        "https" | "tls" | "ssl" | "wss" | "webhook" => Some(("tcp", true)),
        "http" | "web" | "ws" | "www" => Some(("http", false)),
        "tcp" | "postgres" | "postgresql" | "pg" | "mysql" | "redis" | "mongo" | "mongodb" | "amqp" | "kafka"
        | "mqtt" | "ldap" | "smtp" | "nats" | "memcache" | "memcached" | "thrift" | "nfs" | "dns" => {
            Some(("tcp", false))
        }
        _ => None,
    })
}

/// A probe of the kubelet must speak what the app does.
fn by_probe(port: &ContainerPort, container: &Container) -> Option<(&'static str, bool)> {
    let is_it = |asked: &IntOrString| match asked {
        IntOrString::Int(number) => *number == port.container_port,
        IntOrString::String(name) => port.name.as_deref() == Some(name),
    };
    let probes = [&container.readiness_probe, &container.liveness_probe, &container.startup_probe];
    probes.into_iter().flatten().find_map(|probe| {
        if let Some(get) = probe.http_get.as_ref().filter(|get| is_it(&get.port)) {
            let is_tls = get.scheme.as_deref() == Some("HTTPS");
            return Some(if is_tls { ("tcp", true) } else { ("http", false) });
        }
        probe.grpc.as_ref().filter(|grpc| grpc.port == port.container_port).map(|_| ("h2c", false))
    })
}

/// Metrics, health and debugging: nobody minds if they end with the app.
pub(super) fn is_aside(port: &ContainerPort) -> bool {
    const WORDS: [&str; 16] = [
        "metrics",
        "metric",
        "prometheus",
        "prom",
        "health",
        "healthz",
        "healthcheck",
        "probe",
        "probes",
        "admin",
        "debug",
        "pprof",
        "jmx",
        "management",
        "monitoring",
        "telemetry",
    ];
    let name = port.name.as_deref().unwrap_or_default();
    name.split('-').any(|word| WORDS.contains(&word)) || [5005, 9229].contains(&port.container_port)
}

/// Whether a Service's port sends to a container's.
pub(super) fn sends_to(service: &ServicePort, port: &ContainerPort) -> bool {
    match target(service) {
        IntOrString::Int(number) => number == port.container_port,
        IntOrString::String(name) => port.name.as_deref() == Some(&name),
    }
}

/// Host of the upstream.
pub(super) fn host_of(workload: &Workload<'_>, front: &Front, services: &[&Service]) -> String {
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
