//! What leads from one value to another, as JSON Patch (RFC 6902).
//!
//! Items of a list are told apart as Kubernetes does it, by their name or port, so that a container that goes in
//! before another is one operation.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, RemoveOperation, ReplaceOperation};
use serde_json::Value;

/// The operations in the order in which they apply; none if the values are equal.
pub(super) fn diff(before: &Value, after: &Value) -> Vec<PatchOperation> {
    let mut operations = Vec::new();
    compare(before, after, &mut Vec::new(), &mut operations);
    operations
}

fn compare(before: &Value, after: &Value, path: &mut Vec<String>, out: &mut Vec<PatchOperation>) {
    if before == after {
        return;
    }
    match (before, after) {
        (Value::Object(old), Value::Object(new)) if !old.is_empty() => {
            for key in old.keys().filter(|key| !new.contains_key(*key)) {
                out.push(remove(path, key));
            }
            for (key, value) in new {
                match old.get(key) {
                    Some(old) => inside(path, key, |path| compare(old, value, path, out)),
                    None => out.push(add(path, key, value)),
                }
            }
        }
        (Value::Array(old), Value::Array(new)) if !old.is_empty() => match (identities(old), identities(new)) {
            (Some(ids), Some(new_ids)) => compare_lists(old, &ids, new, &new_ids, path, out),
            _ => out.push(replace(path, after)),
        },
        _ => out.push(replace(path, after)),
    }
}

fn compare_lists(
    old: &[Value],
    ids: &[String],
    new: &[Value],
    new_ids: &[String],
    path: &mut Vec<String>,
    out: &mut Vec<PatchOperation>,
) {
    let mut current: Vec<usize> = (0..old.len()).collect();
    for index in (0..old.len()).rev().filter(|index| !new_ids.contains(&ids[*index])) {
        current.remove(index);
        out.push(remove(path, &index.to_string()));
    }
    for (index, (value, id)) in new.iter().zip(new_ids).enumerate() {
        let token = index.to_string();
        match current.iter().position(|old| ids.get(*old) == Some(id)) {
            Some(found) if found == index => {
                inside(path, &token, |path| compare(&old[current[index]], value, path, out));
            }
            Some(found) => {
                out.push(remove(path, &found.to_string()));
                out.push(add(path, &token, value));
                let moved = current.remove(found);
                current.insert(index, moved);
            }
            None => {
                out.push(add(path, &token, value));
                // What stands there is compared no more.
                current.insert(index, usize::MAX);
            }
        }
    }
}

/// One text for each item; `None` if two are alike.
fn identities(items: &[Value]) -> Option<Vec<String>> {
    let mut ids = Vec::with_capacity(items.len());
    for item in items {
        let part = |key: &str| item.get(key).map(Value::to_string);
        let port = part("containerPort").or_else(|| part("port"));
        if let Some(kind) = part("kind") {
            let of = |pointer: &str| item.pointer(pointer).map(Value::to_string).unwrap_or_default();
            let id = format!("{kind} {} {}", of("/metadata/namespace"), of("/metadata/name"));
            if ids.contains(&id) {
                return None;
            }
            ids.push(id);
            continue;
        }
        let id = match (port, part("mountPath"), part("name")) {
            (Some(port), ..) => format!("{port} {}", part("protocol").unwrap_or_default()),
            (None, Some(path), _) => path,
            (None, None, Some(name)) => name,
            (None, None, None) => item.to_string(),
        };
        if ids.contains(&id) {
            return None;
        }
        ids.push(id);
    }
    Some(ids)
}

fn inside(path: &mut Vec<String>, token: &str, run: impl FnOnce(&mut Vec<String>)) {
    path.push(token.to_owned());
    run(path);
    path.pop();
}

fn pointer(path: &[String], token: Option<&str>) -> PointerBuf {
    PointerBuf::from_tokens(path.iter().map(String::as_str).chain(token))
}

fn add(path: &[String], token: &str, value: &Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: pointer(path, Some(token)), value: value.clone() })
}

fn remove(path: &[String], token: &str) -> PatchOperation {
    PatchOperation::Remove(RemoveOperation { path: pointer(path, Some(token)) })
}

fn replace(path: &[String], value: &Value) -> PatchOperation {
    PatchOperation::Replace(ReplaceOperation { path: pointer(path, None), value: value.clone() })
}
