//! Makes workloads of many shapes from a seed.

use fastrand::Rng;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Pod, Service};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::k8s::object::{decode, unknown_fields};
use crate::k8s::render::render;

/// `EBBTIDE_TEST_SEED`, or another one each time.
#[expect(clippy::disallowed_methods, reason = "a test's seed is no setting of ebbtide")]
pub(super) fn seed() -> u64 {
    std::env::var("EBBTIDE_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| fastrand::u64(..))
}

/// A workload, perhaps with a Service, as YAML or JSON.
pub(super) fn workload(random: &mut Rng) -> String {
    let template = template(random);
    let kind = random.choice(["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob", "Pod"]);
    let kind = kind.unwrap_or("Pod");
    let selector = json!({"matchLabels": {"app": "web"}});
    let metadata = json!({"name": "web"});
    let object = match kind {
        "Pod" => {
            let mut pod = template;
            pod["metadata"]["name"] = "web".into();
            with_type("v1", kind, &pod)
        }
        "Job" => with_type("batch/v1", kind, &json!({"metadata": metadata, "spec": {"template": once(template)}})),
        "CronJob" => with_type(
            "batch/v1",
            kind,
            &json!({"metadata": metadata, "spec": {"schedule": "7 2 * * *", "jobTemplate": {"spec": {"template": once(template)}}}}),
        ),
        "StatefulSet" => with_type(
            "apps/v1",
            kind,
            &json!({"metadata": metadata, "spec": {"serviceName": "web", "selector": selector, "template": template}}),
        ),
        _ => with_type(
            "apps/v1",
            kind,
            &json!({"metadata": metadata, "spec": {"selector": selector, "template": template}}),
        ),
    };
    let mut documents = vec![object];
    if random.bool() {
        let at = random.usize(..=documents.len());
        documents.insert(at, service(random));
    }
    if random.u8(..10) == 0 {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": documents});
        return if random.bool() { format!("{list:#}\n") } else { render(&list) };
    }
    let texts: Vec<_> = documents.iter().map(|document| styled(random, document)).collect();
    texts.join("---\n")
}

/// No field is unknown to the Kubernetes API.
pub(super) fn assert_strict(object: &Value, context: &str) {
    match object["kind"].as_str().unwrap() {
        "Deployment" => strict::<Deployment>(object, context),
        "StatefulSet" => strict::<StatefulSet>(object, context),
        "DaemonSet" => strict::<DaemonSet>(object, context),
        "ReplicaSet" => strict::<ReplicaSet>(object, context),
        "Job" => strict::<Job>(object, context),
        "CronJob" => strict::<CronJob>(object, context),
        "Pod" => strict::<Pod>(object, context),
        "Service" => strict::<Service>(object, context),
        "List" => object["items"].as_array().unwrap().iter().for_each(|item| assert_strict(item, context)),
        other => panic!("{other} is not generated"),
    }
}

fn strict<T: DeserializeOwned>(object: &Value, context: &str) {
    decode::<T>(object).unwrap_or_else(|error| panic!("{error:?}: {context}"));
    assert_eq!(unknown_fields::<T>(object), Vec::<String>::new(), "{context}");
}

fn with_type(api_version: &str, kind: &str, rest: &Value) -> Value {
    let mut object = json!({"apiVersion": api_version, "kind": kind});
    rest.as_object().unwrap().iter().for_each(|(key, value)| object[key] = value.clone());
    object
}

fn once(mut template: Value) -> Value {
    template["spec"]["restartPolicy"] = "OnFailure".into();
    template
}

fn template(random: &mut Rng) -> Value {
    let mut metadata = json!({"labels": {"app": "web", "tier": "front"}});
    match random.u8(..6) {
        0 => metadata["annotations"] = json!({}),
        1 => metadata["annotations"] = json!({"sidecar.istio.io/inject": "true", "note": "it's \"quoted\": yes"}),
        2 => {
            metadata["annotations"] =
                json!({"linkerd.io/inject": "enabled", "config.linkerd.io/skip-inbound-ports": "9100,9200"});
        }
        3 => metadata["annotations"] = json!({"ebbtide.dev/hold": "7s", "ebbtide.dev/memory-limit": "64Mi"}),
        _ => {}
    }
    let mut spec = json!({});
    if random.bool() {
        spec["terminationGracePeriodSeconds"] = random.u64(1..90).into();
    }
    match random.u8(..5) {
        0 => spec["initContainers"] = json!([]),
        1 => {
            spec["initContainers"] = json!([{"name": "istio-init", "image": "i:1"}, {"name": "migrate", "image": "m:1", "args": ["--to", "7"]}])
        }
        2 => {
            spec["initContainers"] = json!([
                {"name": "fetch", "image": "f:1"},
                {"name": "cloud-sql", "image": "gcr.io/cloud-sql-proxy:2", "restartPolicy": "Always", "ports": [{"containerPort": 5432}]},
            ]);
        }
        _ => {}
    }
    let count = random.usize(1..4);
    spec["containers"] = (0..count).map(|index| container(random, index)).collect();
    match random.u8(..4) {
        0 => spec["volumes"] = json!([]),
        1 => {
            spec["volumes"] = json!([{"name": "tmp", "emptyDir": {}}, {"name": "secret", "secret": {"secretName": "s", "defaultMode": 288}}])
        }
        _ => {}
    }
    if random.u8(..8) == 0 {
        spec["hostNetwork"] = true.into();
    }
    if random.bool() {
        spec["securityContext"] = json!({"runAsNonRoot": true});
    }
    json!({"metadata": metadata, "spec": spec})
}

fn container(random: &mut Rng, index: usize) -> Value {
    let mut container = json!({"name": format!("c{index}"), "image": format!("registry.example.com/c{index}:1")});
    let mut names = Vec::new();
    if random.u8(..5) > 0 {
        let mut ports = Vec::new();
        for number in 0..random.usize(1..4) {
            // No number twice in a pod.
            let mut port = json!({"containerPort": 8080 + 100 * index + number});
            let name = random.choice(["http", "grpc", "metrics", "tcp-x", "web", "https"]).unwrap_or("http");
            if random.bool() && !names.contains(&name) {
                port["name"] = name.into();
                names.push(name);
            }
            match random.u8(..8) {
                0 => port["protocol"] = "UDP".into(),
                1 => port["protocol"] = "TCP".into(),
                2 => port["hostPort"] = (30_000 + 100 * index + number).into(),
                _ => {}
            }
            ports.push(port);
        }
        container["ports"] = ports.into();
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let port: Value = match names.first() {
            Some(name) if random.bool() => (*name).into(),
            _ => 8080.into(),
        };
        match random.u8(..8) {
            0 => container[probe] = json!({"httpGet": {"path": "/ok", "port": port}, "periodSeconds": 3}),
            1 => container[probe] = json!({"tcpSocket": {"port": port}}),
            2 => container[probe] = json!({"exec": {"command": ["/bin/true"]}}),
            3 => container[probe] = json!({"grpc": {"port": 8080}}),
            _ => {}
        }
    }
    match random.u8(..10) {
        0 => container["lifecycle"] = json!({}),
        1 => container["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 5}}}),
        2 => container["lifecycle"] = json!({"preStop": {"exec": {"command": ["sh", "-c", "sleep 25"]}}}),
        3 => container["lifecycle"] = json!({"postStart": {"exec": {"command": ["/warm"]}}}),
        4 => {
            container["lifecycle"] =
                json!({"postStart": {"exec": {"command": ["/warm"]}}, "preStop": {"sleep": {"seconds": 12}}})
        }
        5 if random.bool() => container["lifecycle"] = json!({"preStop": {"exec": {"command": ["/quit", "--now"]}}}),
        _ => {}
    }
    if random.bool() {
        container["env"] = json!([{"name": "WORDS", "value": "yes"}, {"name": "NUMBER", "value": "0440"}, {"name": "SCRIPT", "value": "a\n  b: c\n"}]);
    }
    if random.u8(..4) == 0 {
        container["args"] = json!(["--listen=127.0.0.1:8080", "- x: y", ""]);
    }
    container
}

fn service(random: &mut Rng) -> Value {
    let mut port = json!({"port": 80});
    match random.u8(..4) {
        0 => port["targetPort"] = 8080.into(),
        1 => port["targetPort"] = "http".into(),
        2 => port["targetPort"] = 8180.into(),
        _ => port["port"] = 8080.into(),
    }
    if random.bool() {
        port["name"] = "web".into();
        port["appProtocol"] = (*random.choice(["http", "grpc", "kubernetes.io/h2c"].iter()).unwrap_or(&"http")).into();
    }
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}});
    if random.bool() {
        service["metadata"]["annotations"] = json!({"x": "y"});
    }
    service["spec"] = json!({"selector": {"app": "web"}, "ports": [port]});
    service
}

/// The same document as people write it.
fn styled(random: &mut Rng, document: &Value) -> String {
    match random.u8(..8) {
        0 => format!("{document}\n"),
        1 => format!("{document:#}\n"),
        2 => render(document).replace('\n', "\r\n"),
        3 => wide(&render(document)),
        4 | 5 => commented(random, &render(document)),
        _ => render(document),
    }
}

/// Twice the indentation.
fn wide(text: &str) -> String {
    text.lines()
        .map(|line| {
            let content = line.trim_start();
            format!("{}{content}\n", " ".repeat(2 * (line.len() - content.len()))).replace("- ", "-   ")
        })
        .collect()
}

/// Comments above lines, where they are none of a literal block, nor go with a hook that is replaced.
fn commented(random: &mut Rng, text: &str) -> String {
    let has_literal = text.contains("|\n");
    let goes = |line: &str| ["exec:", "sleep:", "command:", "seconds:"].iter().any(|key| line.trim().starts_with(key));
    let lines = text.lines().enumerate().map(|(number, line)| {
        let indent = " ".repeat(line.len() - line.trim_start().len());
        if !has_literal && !goes(line) && random.u8(..5) == 0 {
            format!("{indent}# note {number}\n{line}\n")
        } else {
            format!("{line}\n")
        }
    });
    lines.collect()
}
