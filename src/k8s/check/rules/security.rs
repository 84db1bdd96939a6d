//! Rules about what ebbtide is allowed, what it is given, and whom the app takes it for.

use k8s_openapi::api::core::v1::{Container, LimitRange};
use serde_json::{Value, json};

use super::calls;
use super::front::{self, Front};
use crate::k8s::check::{Finding, Input, Report, Rule, Severity};
use crate::k8s::object::same_namespace;
use crate::k8s::workload::{Workload, image_name};

pub(super) static EB048: Rule = Rule {
    id: "EB048",
    name: "upstream-on-loopback",
    severity: Severity::Warning,
    summary: "ebbtide reaches the app by loopback, which the app may trust.",
    why: "Every client looks local to the app then. Many trust a local connection: debug consoles, admin pages, metrics. \
          The official image of PostgreSQL lets 127.0.0.1 in without a password, and Redis in protected mode lets nobody \
          else in.",
    fix: "Where the app listens on all addresses: http://$(POD_IP):8080, with POD_IP from status.podIP. Where it listens on \
          loopback alone, make sure that it trusts loopback with nothing.",
    run: loopback,
};

pub(super) static EB049: Rule = Rule {
    id: "EB049",
    name: "not-restricted",
    severity: Severity::Warning,
    summary: "ebbtide's container lacks what the restricted Pod Security level asks for.",
    why: "In a namespace that enforces the level no pod is created any more, while the Deployment looks as if it had been \
          accepted. ebbtide needs no more than the level allows.",
    fix: "runAsNonRoot, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: \
          RuntimeDefault}; what the pod's securityContext says counts.",
    run: restricted,
};

pub(super) static EB050: Rule = Rule {
    id: "EB050",
    name: "resources",
    severity: Severity::Warning,
    summary: "ebbtide has no requests, no memory limit, or a CPU limit.",
    why: "Without a CPU request an autoscaler by utilisation stops working for the whole pod, and ebbtide starves first on a \
          full node. The memory limit sets how many connections it takes; without one that is the node's memory. A CPU \
          limit throttles, which shows as latency of every request.",
    fix: "requests: {cpu: 50m, memory: 32Mi}, limits: {memory: 128Mi}, and no CPU limit.",
    run: resources,
};

fn loopback(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let Some(front) = front::of(workload) else { continue };
        for listener in front.inbound() {
            let Some(upstream) = front::upstream(listener).filter(|upstream| front::is_loopback(&upstream.host)) else {
                continue;
            };
            let port = i32::from(upstream.port);
            let mut apps = workload.apps();
            let declares = |app: &Container| app.ports.iter().flatten().any(|declared| declared.container_port == port);
            let app = workload.apps().find(|place| declares(place.container)).or_else(|| match apps.next() {
                Some(only) if apps.next().is_none() => Some(only),
                _ => None,
            });
            let image = app.and_then(|place| place.container.image.as_deref()).map(image_name).unwrap_or_default();
            let known = TRUSTING.iter().find(|(names, ports, _)| {
                // A well-known port says little where the image says something else.
                names.contains(&image) || (image.is_empty() && ports.contains(&port))
            });
            let who = app.map_or_else(|| "the app".to_owned(), |place| place.container.name.clone());
            let address = format!("{}:{port}", upstream.host);
            let (severity, message) = match known {
                Some((.., trust)) => (
                    Severity::Error,
                    format!("ebbtide reaches {who} at {address}, so that every client is local to it: {trust}"),
                ),
                None => (
                    Severity::Warning,
                    format!(
                        "ebbtide reaches {who} at {address}, so that every client is local to it; does it trust loopback?"
                    ),
                ),
            };
            let name =
                ["EBBTIDE_UPSTREAM", "EBBTIDE_CONFIG_YAML"].into_iter().find(|name| front.variable(name).is_some());
            let path = front.at_variable(workload, name.unwrap_or_default());
            report.add(workload, &path, message).severity(severity);
        }
    }
}

/// Images, their ports, and what they do for a client on loopback.
const TRUSTING: &[(&[&str], &[i32], &str)] = &[
    (
        &["postgres", "postgis", "timescaledb", "pgvector"],
        &[5432],
        "the official image of PostgreSQL lets 127.0.0.1 in without a password",
    ),
    (&["mysql", "mariadb", "percona"], &[3306], "accounts for localhost are often without a password, or may do all"),
    (&["redis", "valkey", "keydb"], &[6379], "protected mode lets loopback in without a password, and nobody else"),
    (&["mongo"], &[27017], "the localhost exception lets the first client there create users"),
    (&["couchdb"], &[5984], "local clients may be administrators"),
    (&["rabbitmq"], &[5672], "the user guest, with a password that everybody knows, may come from loopback"),
];

fn restricted(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let Some(front) = front::of(workload) else { continue };
        let missing = missing(workload, front.place.container);
        if missing.is_empty() {
            continue;
        }
        let is_enforced = calls::enforced(input, workload.object) == Some("restricted");
        let then = match is_enforced {
            true => format!("; namespace {} enforces it, no pod will be created", workload.object.namespace),
            false => String::new(),
        };
        let name = &front.place.container.name;
        let wants: Vec<&str> = missing.iter().map(|lack| lack.0).collect();
        let message = format!("{name} lacks {} of the restricted level{then}", wants.join(", "));
        let has_context = front.place.container.security_context.is_some();
        let path = workload.in_container(front.place, if has_context { "/securityContext" } else { "" });
        let finding = report.add(workload, &path, message);
        if is_enforced {
            finding.severity(Severity::Error);
        }
        finding.fix(workload.object, |object| {
            let Some(container) = object.pointer_mut(&workload.in_container(front.place, "")) else { return };
            if !container["securityContext"].is_object() {
                container["securityContext"] = json!({});
            }
            for (_, field, value) in missing {
                container["securityContext"][field] = value;
            }
        });
    }
}

/// A field that the restricted level asks for: how to say it, its name, and its value.
type Lack = (&'static str, &'static str, Value);

/// <https://kubernetes.io/docs/concepts/security/pod-security-standards/>, as far as it is about a container.
fn missing(workload: &Workload<'_>, container: &Container) -> Vec<Lack> {
    let own = container.security_context.clone().unwrap_or_default();
    let pod = workload.spec.security_context.clone().unwrap_or_default();
    let mut missing: Vec<Lack> = Vec::new();
    if own.run_as_non_root.or(pod.run_as_non_root) != Some(true) {
        missing.push(("runAsNonRoot: true", "runAsNonRoot", json!(true)));
    }
    if own.run_as_user.or(pod.run_as_user) == Some(0) {
        missing.push(("a user that is not 0", "runAsUser", json!(65532)));
    }
    if own.allow_privilege_escalation != Some(false) {
        missing.push(("allowPrivilegeEscalation: false", "allowPrivilegeEscalation", json!(false)));
    }
    if own.privileged == Some(true) {
        missing.push(("privileged: false", "privileged", json!(false)));
    }
    let capabilities = own.capabilities.unwrap_or_default();
    let drops_all = capabilities.drop.iter().flatten().any(|one| one == "ALL");
    if !drops_all || capabilities.add.iter().flatten().any(|one| one != "NET_BIND_SERVICE") {
        missing.push(("capabilities: {drop: [ALL]}", "capabilities", json!({"drop": ["ALL"]})));
    }
    let profile = own.seccomp_profile.or(pod.seccomp_profile).map(|profile| profile.type_);
    if !matches!(profile.as_deref(), Some("RuntimeDefault" | "Localhost")) {
        missing.push(("seccompProfile", "seccompProfile", json!({"type": "RuntimeDefault"})));
    }
    missing
}

fn resources(input: &Input<'_>, report: &mut Report<'_>) {
    let ranges = input.all::<LimitRange>("", "LimitRange");
    for workload in &input.workloads {
        let Some(front) = front::of(workload) else { continue };
        if workload.spec.resources.is_some() {
            // What the pod as a whole has is divided by nobody in advance.
            continue;
        }
        let has_default = ranges.iter().any(|(object, range)| {
            same_namespace(&object.namespace, &workload.object.namespace)
                && range.spec.iter().flat_map(|spec| &spec.limits).any(|item| item.type_ == "Container")
        });
        if !has_default {
            absent(workload, &front, report);
        }
        if let Some(limit) = given(front.place.container, "limits", "cpu") {
            let message = format!(
                "{} has a CPU limit of {limit}: once it is used up, every request waits for the next 100 ms",
                front.place.container.name
            );
            report.add(workload, &workload.in_container(front.place, "/resources/limits/cpu"), message);
        }
    }
}

fn given(container: &Container, list: &str, name: &str) -> Option<String> {
    let resources = container.resources.as_ref()?;
    let list = if list == "limits" { &resources.limits } else { &resources.requests };
    list.as_ref()?.get(name).map(|quantity| quantity.0.clone())
}

fn absent(workload: &Workload<'_>, front: &Front<'_>, report: &mut Report<'_>) {
    let container = front.place.container;
    let wanted = [
        ("requests", "cpu", "50m", "no CPU request"),
        ("requests", "memory", "32Mi", "no memory request"),
        ("limits", "memory", "128Mi", "no memory limit"),
    ];
    // A limit without a request is the request as well.
    let is_given =
        |list: &str, name: &str| given(container, list, name).or_else(|| given(container, "limits", name)).is_some();
    let absent: Vec<_> = wanted.into_iter().filter(|(list, name, ..)| !is_given(list, name)).collect();
    if absent.is_empty() {
        return;
    }
    let what: Vec<&str> = absent.iter().map(|one| one.3).collect();
    let message = format!("{} has {}", container.name, what.join(", "));
    let inside = if container.resources.is_some() { "/resources" } else { "" };
    let finding: &mut Finding = report.add(workload, &workload.in_container(front.place, inside), message);
    // A limit below what is asked for would be refused.
    let request = given(container, "requests", "memory");
    let absent: Vec<_> = absent
        .into_iter()
        .filter(|(list, ..)| *list == "requests" || request.as_deref().is_none_or(|it| it == "32Mi"))
        .collect();
    finding.fix(workload.object, |object| {
        let Some(container) = object.pointer_mut(&workload.in_container(front.place, "")) else { return };
        for (list, name, value, _) in absent {
            for (at, field) in [("", "resources"), ("/resources", list)] {
                if let Some(parent) = container.pointer_mut(at).filter(|parent| !parent[field].is_object()) {
                    parent[field] = json!({});
                }
            }
            container["resources"][list][name] = value.into();
        }
    });
}
