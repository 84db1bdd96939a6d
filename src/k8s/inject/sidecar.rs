//! ebbtide's container as `inject` writes it, and what stays of one that is there.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::options::{OPTIONS, Options};
use super::ports::{Front, Outbound, POD_IP};
use super::record::{RUN, Record};
use crate::k8s::hook;

/// What the container follows from.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) options: &'a Options,
    pub(super) fronts: &'a [Front],
    /// Seconds.
    pub(super) grace: u64,
    /// Because of a sleep that ebbtide replaces.
    pub(super) hold: Option<String>,
    pub(super) admin_port: u16,
    /// Of the control socket.
    pub(super) volume: String,
}

/// The container; `old` is one that is there, `record` what was written there.
pub(super) fn container(plan: &Plan<'_>, old: Option<&Value>, record: Option<&Record>) -> Value {
    let generated = generate(plan);
    match old {
        Some(old) => merge(old, generated, plan.options, record),
        None => generated,
    }
}

/// The variables that a later run may renew, as they are without anything that was set by hand.
pub(super) fn written(plan: &Plan<'_>) -> BTreeMap<String, String> {
    let renewed = variables(plan).into_iter().filter(|(name, _)| !ALWAYS.contains(name));
    renewed.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn generate(plan: &Plan<'_>) -> Value {
    let options = plan.options;
    let env: Vec<Value> = variables(plan)
        .into_iter()
        .map(|(name, value)| match value {
            Some(value) => json!({"name": name, "value": value}),
            None => json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}),
        })
        .collect();
    let mut ports: Vec<Value> = match plan.fronts {
        [only] => vec![json!({"name": "ebbtide-web", "containerPort": only.listen})],
        several => several
            .iter()
            .enumerate()
            .map(|(index, front)| json!({"name": format!("ebbtide-{}", index + 1), "containerPort": front.listen}))
            .collect(),
    };
    ports.push(json!({"name": "ebbtide-admin", "containerPort": plan.admin_port}));
    let mut security = json!({"runAsNonRoot": true});
    if options.text("run-as-user") != "image" {
        let user: u64 = options.text("run-as-user").parse().unwrap_or_default();
        security["runAsUser"] = user.into();
        security["runAsGroup"] = user.into();
    }
    security["allowPrivilegeEscalation"] = false.into();
    security["readOnlyRootFilesystem"] = true.into();
    security["capabilities"] = json!({"drop": ["ALL"]});
    security["seccompProfile"] = json!({"type": "RuntimeDefault"});
    json!({
        "name": NAME,
        "image": options.text("image"),
        "restartPolicy": "Always",
        "env": env,
        "ports": ports,
        "lifecycle": {"preStop": {"exec": {"command": ["/ebbtide", "drain"]}}},
        "startupProbe": {
            "httpGet": {"path": "/startupz", "port": plan.admin_port},
            "periodSeconds": 1,
            "failureThreshold": 30,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": plan.admin_port},
            "periodSeconds": 2,
            "failureThreshold": 1,
        },
        "resources": {
            "requests": {"cpu": options.text("cpu-request"), "memory": options.text("memory-request")},
            "limits": {"memory": options.text("memory-limit")},
        },
        "securityContext": security,
        "volumeMounts": [{"name": plan.volume, "mountPath": RUN}],
    })
}

/// In the order of the container; `None` is the pod's IP.
fn variables(plan: &Plan<'_>) -> Vec<(&'static str, Option<String>)> {
    let mut variables =
        vec![("EBBTIDE_MODE", Some("sidecar".to_owned())), ("EBBTIDE_GRACE_PERIOD", Some(format!("{}s", plan.grace)))];
    let hold = plan.options.given("hold").map(str::to_owned).or_else(|| plan.hold.clone());
    variables.extend(hold.map(|hold| ("EBBTIDE_HOLD", Some(hold))));
    variables.extend(plan.options.given("app-stop").map(|length| ("EBBTIDE_APP_STOP", Some(length.to_owned()))));
    if plan.admin_port != ADMIN_PORT {
        variables.push(("EBBTIDE_ADMIN", Some(format!("[::]:{}", plan.admin_port))));
    }
    if plan.fronts.iter().any(|front| front.host.contains(POD_IP)) {
        // Above the variables that use it.
        variables.push(("POD_IP", None));
    }
    match (plan.fronts, plan.options.outbound.as_slice()) {
        ([only], []) => {
            if only.listen != LISTEN_PORT {
                variables.push(("EBBTIDE_LISTEN", Some(format!("[::]:{}", only.listen))));
            }
            variables.push(("EBBTIDE_UPSTREAM", Some(only.upstream())));
        }
        (fronts, outbound) => {
            let entries = fronts.iter().map(Front::yaml).chain(outbound.iter().map(Outbound::yaml));
            let text = format!("listeners:\n{}", entries.collect::<String>());
            variables.push(("EBBTIDE_CONFIG_YAML", Some(text)));
        }
    }
    variables
}

/// What has been set by hand stays, but for what must be so.
fn merge(old: &Value, generated: Value, options: &Options, record: Option<&Record>) -> Value {
    let (Value::Object(mut new), Some(old)) = (generated, old.as_object()) else { return Value::Null };
    for (key, was) in old {
        match key.as_str() {
            "name" | "restartPolicy" => {}
            "image" => {
                if !options.is_said("image") {
                    let was = was.as_str().unwrap_or_default();
                    let is_of_this_version = record.is_some_and(|record| record.version == env!("CARGO_PKG_VERSION"));
                    let image = if is_of_this_version { was.to_owned() } else { renewed(was) };
                    new.insert(key.clone(), image.into());
                }
            }
            "env" => {
                let merged = merge_env(was, &new["env"], options, record);
                new.insert(key.clone(), merged);
            }
            "lifecycle" => {
                let mut lifecycle = was.clone();
                lifecycle["preStop"] = new["lifecycle"]["preStop"].clone();
                new.insert(key.clone(), lifecycle);
            }
            "startupProbe" | "readinessProbe" => {
                let mut probe = was.clone();
                probe["httpGet"] = new[key]["httpGet"].clone();
                for other in ["exec", "tcpSocket", "grpc"] {
                    probe.as_object_mut().map(|probe| probe.shift_remove(other));
                }
                new.insert(key.clone(), probe);
            }
            "resources" => {
                let merged = merge_resources(was, &new["resources"], options);
                new.insert(key.clone(), merged);
            }
            "securityContext" => {
                let mut security = new[key].clone();
                let is_left = options.is_said("run-as-user");
                let fields = was.as_object().into_iter().flatten();
                for (field, value) in fields.filter(|(field, _)| !(is_left && field.starts_with("runAs"))) {
                    security[field] = value.clone();
                }
                new.insert(key.clone(), security);
            }
            "ports" | "volumeMounts" => {
                let id = if key == "ports" { "containerPort" } else { "mountPath" };
                let merged = merge_lists(was, &new[key], id, record.is_some());
                new.insert(key.clone(), merged);
            }
            _ => drop(new.insert(key.clone(), was.clone())),
        }
    }
    Value::Object(new)
}

/// Registry and name as they are, the tag of this version.
fn renewed(image: &str) -> String {
    let without_digest = image.split('@').next().unwrap_or_default();
    let slash = without_digest.rfind('/').map_or(0, |at| at + 1);
    let tag = without_digest[slash..].find(':').map(|at| slash + at);
    let name = &without_digest[..tag.unwrap_or(without_digest.len())];
    if name.is_empty() { default_image().to_owned() } else { format!("{name}:{}", env!("CARGO_PKG_VERSION")) }
}

fn merge_env(old: &Value, generated: &Value, options: &Options, record: Option<&Record>) -> Value {
    let old = old.as_array().map(Vec::as_slice).unwrap_or_default();
    let generated = generated.as_array().map(Vec::as_slice).unwrap_or_default();
    let named = |list: &[Value], name: &Value| list.iter().find(|one| one["name"] == *name).cloned();
    let is_ours = |variable: &Value| {
        let name = variable["name"].as_str().unwrap_or_default();
        let unchanged = record.and_then(|record| record.env.get(name)).is_some_and(|was| variable["value"] == **was);
        let is_said = OF_OPTIONS.iter().any(|(option, variables)| options.is_said(option) && variables.contains(&name));
        ALWAYS.contains(&name) || unchanged || is_said
    };
    // A whole configuration by hand, in a variable or a file: nothing of ours is put beside it.
    let by_hand = old
        .iter()
        .any(|one| ["EBBTIDE_CONFIG_YAML", "EBBTIDE_CONFIG"].iter().any(|name| one["name"] == **name) && !is_ours(one));
    let mut env: Vec<Value> = Vec::new();
    for variable in generated {
        let is_listener = LISTENERS.iter().any(|name| variable["name"] == **name);
        match named(old, &variable["name"]) {
            Some(was) if !is_ours(&was) => env.push(was),
            _ if is_listener && by_hand => {}
            _ => env.push(variable.clone()),
        }
    }
    // Those that a variable of ours uses must stand above it, so they go in front.
    let others: Vec<_> =
        old.iter().filter(|one| named(&env, &one["name"]).is_none() && !is_ours(one)).cloned().collect();
    let pod_ip = env.iter().position(|one| one["name"] == "POD_IP").map_or(env.len(), |at| at + 1);
    env.splice(pod_ip.min(env.len())..pod_ip.min(env.len()), others);
    env.into()
}

fn merge_resources(old: &Value, generated: &Value, options: &Options) -> Value {
    let mut merged = generated.clone();
    for (part, fields) in old.as_object().into_iter().flatten() {
        for (field, value) in fields.as_object().into_iter().flatten() {
            let option = format!("{field}-{}", part.trim_end_matches('s'));
            if !options.is_said(&option) {
                merged[part][field] = value.clone();
            }
        }
    }
    merged
}

/// Ours, and of the others those that we never wrote.
fn merge_lists(old: &Value, generated: &Value, id: &str, is_recorded: bool) -> Value {
    let mut merged = generated.as_array().cloned().unwrap_or_default();
    let is_ours = |one: &Value| {
        let name = one["name"].as_str().unwrap_or_default();
        let number = name.strip_prefix("ebbtide-").unwrap_or_default();
        one["mountPath"] == RUN || ["web", "admin"].contains(&number) || number.parse::<u16>().is_ok()
    };
    let others = old.as_array().into_iter().flatten();
    for other in others.filter(|other| !(is_recorded && is_ours(other))) {
        match merged.iter_mut().find(|one| one[id] == other[id]) {
            Some(same) => *same = other.clone(),
            None => merged.push(other.clone()),
        }
    }
    merged.into()
}

/// Puts the blocking hook into an app's container.
pub(super) fn hold_sigterm(container: &mut Value, listener: Option<&str>, admin_port: u16) {
    let path = match listener {
        Some(name) => format!("{}?listener={name}", hook::APP_STOP),
        None => hook::APP_STOP.to_owned(),
    };
    let Some(container) = container.as_object_mut() else { return };
    let lifecycle = container.entry("lifecycle").or_insert(Value::Null);
    if !lifecycle.is_object() {
        *lifecycle = Value::Object(Map::new());
    }
    lifecycle["preStop"] = json!({"httpGet": {"path": path, "port": admin_port}});
}

fn default_image() -> &'static str {
    OPTIONS.iter().find(|option| option.name == "image").map_or("", |option| option.default)
}

/// Name of the container.
pub(super) const NAME: &str = "ebbtide";

/// What ebbtide listens on if nobody says otherwise.
pub(super) const LISTEN_PORT: u16 = 14080;
/// Likewise, for the kubelet and Prometheus.
pub(super) const ADMIN_PORT: u16 = 14090;

/// Variables that must be as inject writes them.
const ALWAYS: [&str; 3] = ["EBBTIDE_MODE", "EBBTIDE_GRACE_PERIOD", "POD_IP"];

/// Variables that say what ebbtide listens on, and for whom.
const LISTENERS: [&str; 3] = ["EBBTIDE_LISTEN", "EBBTIDE_UPSTREAM", "EBBTIDE_CONFIG_YAML"];

/// The variables that an option decides.
const OF_OPTIONS: [(&str, &[&str]); 7] = [
    ("hold", &["EBBTIDE_HOLD", "EBBTIDE_HOLD_MIN", "EBBTIDE_HOLD_QUIET", "EBBTIDE_HOLD_MAX"]),
    ("app-stop", &["EBBTIDE_APP_STOP"]),
    ("admin-port", &["EBBTIDE_ADMIN"]),
    ("ports", &LISTENERS),
    ("outbound", &LISTENERS),
    ("listen-port", &LISTENERS),
    ("upstream-host", &LISTENERS),
];
