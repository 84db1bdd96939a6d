//! Services in the same input: their ports are sent to ebbtide instead of the app, and back.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::options::PREFIX;
use super::record::object_at;
use crate::k8s::object;

/// By `PORT/PROTOCOL`: a port's `targetPort` as it was, null where there was none, and ebbtide's.
type Original = BTreeMap<String, (Value, Value)>;

/// The Service as it was before any injection.
///
/// # Errors
/// An annotation that is not understood.
pub(super) fn restore(service: &Value) -> Result<Value, String> {
    let mut service = service.clone();
    let name = format!("{PREFIX}{ORIGINAL}");
    let Some(annotations) = service.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else {
        return Ok(service);
    };
    let Some(text) = annotations.shift_remove(&name) else { return Ok(service) };
    if annotations.is_empty()
        && let Some(metadata) = service.pointer_mut("/metadata").and_then(Value::as_object_mut)
    {
        metadata.shift_remove("annotations");
    }
    let original: Original = serde_json::from_str(text.as_str().unwrap_or_default())
        .map_err(|error| format!("the annotation {name} is damaged: {error}"))?;
    for port in ports(&mut service) {
        match original.get(&key(port)) {
            // Somebody has sent it elsewhere since: that stays.
            Some((_, now)) if port.get("targetPort") != Some(now) => {}
            Some((Value::Null, _)) => drop(port.shift_remove("targetPort")),
            Some((was, _)) => drop(port.insert("targetPort".to_owned(), was.clone())),
            None => {}
        }
    }
    Ok(service)
}

/// Sends to `to` what went to `from`. Whether anything did.
pub(super) fn retarget(service: &mut Value, moves: &BTreeMap<u16, Value>) -> bool {
    let mut original = Original::new();
    for port in ports(service) {
        let is_tcp = object::is_tcp(port.get("protocol").and_then(Value::as_str));
        let target = port.get("targetPort").or_else(|| port.get("port")).and_then(Value::as_u64);
        let to = target.and_then(|target| moves.get(&u16::try_from(target).ok()?));
        if let (true, Some(to)) = (is_tcp, to) {
            original.insert(key(port), (port.get("targetPort").cloned().unwrap_or(Value::Null), to.clone()));
            port.insert("targetPort".to_owned(), to.clone());
        }
    }
    if original.is_empty() {
        return false;
    }
    let text = serde_json::to_string(&original).unwrap_or_default();
    object_at(service, "/metadata/annotations").insert(format!("{PREFIX}{ORIGINAL}"), text.into());
    true
}

fn ports(service: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let ports = service.pointer_mut("/spec/ports").and_then(Value::as_array_mut);
    ports.into_iter().flatten().filter_map(Value::as_object_mut)
}

fn key(port: &Map<String, Value>) -> String {
    let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
    format!("{}/{protocol}", port.get("port").unwrap_or(&Value::Null))
}

/// Name of the annotation, behind the prefix.
pub(super) const ORIGINAL: &str = "original-target-ports";
