//! Annotations of Istio and Linkerd that list ports: the admin port is taken out of the mesh, and ebbtide's port is
//! treated as the app's was.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::ports::Front;
use super::record::{Ports, Record};
use crate::k8s::mesh::{self, Mesh};

/// Changes the annotations and remembers what they were.
///
/// # Errors
/// A pod in which ebbtide could never start.
pub(super) fn change(
    annotations: &mut Map<String, Value>,
    mesh: Mesh,
    admin_port: u16,
    fronts: &[Front],
    record: &mut Record,
) -> Result<(), String> {
    if mesh == Mesh::Istio {
        match annotations.get(mesh::NATIVE_PROXY).and_then(Value::as_str) {
            // Istio sends ebbtide's probes to its own agent, which must have started before and be there to the end.
            None => {
                annotations.insert(mesh::NATIVE_PROXY.to_owned(), "true".into());
                record.native_proxy = true;
            }
            Some("false") => {
                return Err(format!(
                    "{} is \"false\": Istio turns ebbtide's startup probe to its proxy, which would start only after ebbtide; remove the annotation",
                    mesh::NATIVE_PROXY,
                ));
            }
            Some(_) => {}
        }
    }
    add(annotations, mesh.excluded_ports(), admin_port, record);
    let other = match mesh {
        Mesh::Istio => mesh::INCLUDED_PORTS,
        Mesh::Linkerd => OPAQUE,
    };
    for name in [other, mesh.excluded_ports()] {
        for front in fronts.iter() {
            if text(annotations, name).is_some_and(|ports| mesh::lists(&ports, front.port)) {
                add(annotations, name, front.listen, record);
            }
        }
    }
    // Of these Linkerd knows by itself that their servers speak first.
    for front in fronts.iter().filter(|front| mesh == Mesh::Linkerd && OPAQUE_BY_DEFAULT.contains(&front.port)) {
        add(annotations, OPAQUE, front.listen, record);
    }
    Ok(())
}

/// Takes our ports out of the lists; what somebody has added since stays.
pub(super) fn restore(annotations: &mut Map<String, Value>, lists: &BTreeMap<String, Ports>) {
    for (name, Ports { was, added }) in lists {
        let Some(now) = text(annotations, name) else { continue };
        let is_ours = |one: &str| one.trim().parse().is_ok_and(|port| added.contains(&port));
        let was_there =
            |one: &str| was.as_deref().is_some_and(|was| was.split(',').any(|old| old.trim() == one.trim()));
        let others: Vec<_> = now.split(',').filter(|one| !is_ours(one) || was_there(one)).collect();
        match (others.is_empty(), was) {
            (true, None) => drop(annotations.shift_remove(name)),
            (true, Some(was)) => drop(annotations.insert(name.clone(), was.as_str().into())),
            (false, _) => drop(annotations.insert(name.clone(), others.join(",").into())),
        }
    }
}

/// Adds a port to a list that does not have it.
fn add(annotations: &mut Map<String, Value>, name: &str, port: u16, record: &mut Record) {
    let was = text(annotations, name);
    let ports = was.as_deref().unwrap_or_default();
    if !mesh::lists(ports, port) {
        annotations.insert(name.to_owned(), mesh::with_port(ports, port).into());
        record.mesh.entry(name.to_owned()).or_insert_with(|| Ports { was, added: Vec::new() }).added.push(port);
    }
}

fn text(annotations: &Map<String, Value>, name: &str) -> Option<String> {
    annotations.get(name).and_then(Value::as_str).map(str::to_owned)
}

const OPAQUE: &str = "config.linkerd.io/opaque-ports";

/// Linkerd's own list.
const OPAQUE_BY_DEFAULT: [u16; 8] = [25, 587, 3306, 4444, 5432, 6379, 9300, 11211];
