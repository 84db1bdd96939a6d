//! Owns what the kubelet reads in a manifest: objects, containers, and the variables of a container.

use std::collections::BTreeMap;

use ebbtide::k8s::document::{Document, read};
use serde_json::Value;

/// The documents of a text, with their own texts.
pub(crate) fn documents(text: &str) -> Result<Vec<Document>, String> {
    read("a manifest", text.as_bytes()).map_err(|fault| fault.to_string())
}

/// The value of a document, `null` if it is empty.
pub(crate) fn value(document: &Document) -> Value {
    document.root.as_ref().map_or(Value::Null, |root| root.to_value())
}

/// All objects of a text, those of lists one by one.
pub(crate) fn objects(text: &str) -> Result<Vec<Value>, String> {
    Ok(documents(text)?.iter().flat_map(|document| objects_of(value(document))).collect())
}

/// The objects of one document.
pub(crate) fn objects_of(value: Value) -> Vec<Value> {
    let is_list = value["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match &value["items"] {
        Value::Array(items) if is_list => items.clone(),
        _ if value.is_null() => Vec::new(),
        _ => vec![value],
    }
}

/// The items of a list; none where there is no list.
pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// The name of an object, container, port or volume.
pub(crate) fn name(value: &Value) -> &str {
    value["name"].as_str().or_else(|| value["metadata"]["name"].as_str()).unwrap_or_default()
}

/// Where the pod template of an object is; `None` if it has none.
pub(crate) fn template_path<'a>(object: &Value, other: Option<&'a str>) -> Option<&'a str> {
    match object["kind"].as_str()? {
        "Pod" => Some(""),
        "CronJob" => Some("/spec/jobTemplate/spec/template"),
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "Job" | "Rollout" => Some("/spec/template"),
        "Service" | "ConfigMap" => None,
        _ => other.filter(|path| object.pointer(path).is_some()),
    }
}

/// The number that a port stands for among these; names are those of TCP ports.
pub(crate) fn resolve(port: &Value, among: &[Value]) -> Option<u64> {
    let Some(wanted) = port.as_str() else { return port.as_u64() };
    let found = among.iter().find(|port| name(port) == wanted && protocol(port) == "TCP");
    found.and_then(|port| port["containerPort"].as_u64())
}

pub(crate) fn protocol(port: &Value) -> &str {
    port["protocol"].as_str().unwrap_or("TCP")
}

/// The variables as the kubelet would set them, with this pod IP.
pub(crate) fn environment(container: &Value, pod_ip: &str) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for variable in list(container, "env") {
        let name = name(variable).to_owned();
        let value = match variable["value"].as_str() {
            Some(text) => variables.iter().fold(text.to_owned(), |text, (name, value): (&String, &String)| {
                text.replace(&format!("$({name})"), value)
            }),
            None => {
                assert_eq!(variable["valueFrom"]["fieldRef"]["fieldPath"], "status.podIP", "{name}");
                pod_ip.to_owned()
            }
        };
        assert!(!value.contains("$("), "{name}: a variable that is used must stand above");
        variables.insert(name, value);
    }
    variables
}
