//! Owns what every shape means once it is injected: valid, complete, and all traffic, probes and hooks where they belong.

use std::collections::BTreeSet;

use ebbtide::config::{ListenerConfig, Mode};
use ebbtide::lifecycle::budget;
use serde_json::{Value, json};

use super::case::{each, ensure, none};
use super::shapes::{REFUSED, SHAPES};
use super::{ebbtide, folder, strict};
use crate::harness::manifest::{list, name, objects, protocol, resolve};

fn sidecar(template: &Value) -> Value {
    list(&template["spec"], "initContainers").iter().find(|one| name(one) == "ebbtide").cloned().unwrap_or_default()
}

/// All of these were taken by `kubectl annotate --local` as well when they were written.
#[test]
fn every_shape_is_valid_by_itself_and_stands_in_the_table() {
    let known: BTreeSet<_> = SHAPES.iter().map(|one| one.file).chain(REFUSED.iter().map(|one| one.0)).collect();
    let there = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let there: BTreeSet<String> = there.collect();
    assert_eq!(known, there.iter().map(String::as_str).collect());
    assert!(there.len() >= 40, "{}", there.len());
    none(
        SHAPES
            .iter()
            .flat_map(|shape| {
                let objects = objects(&shape.read()).unwrap_or_else(|fault| panic!("{}: {fault}", shape.file));
                assert!(!objects.is_empty(), "{}", shape.file);
                let refusals = objects.iter().flat_map(|object| strict::refusals(object, shape.template_path()));
                refusals.map(|refusal| format!("{}: {refusal}", shape.file)).collect::<Vec<_>>()
            })
            .collect(),
    );
}

#[test]
fn the_result_is_what_kubernetes_takes() {
    each(|case| {
        let refuse = |object: &Value| strict::refusals(object, case.shape.template_path());
        let refusals: Vec<_> = objects(&case.after)?.iter().flat_map(refuse).collect();
        ensure(refusals.is_empty(), || refusals.join("; "))?;
        let is_json = serde_json::from_str::<Value>(&case.after).is_ok();
        ensure(is_json == case.shape.file.ends_with(".json"), || "JSON stays JSON, and YAML YAML".to_owned())
    });
}

#[test]
fn each_workload_gets_what_the_table_says() {
    each(|case| {
        for (wanted, _, after) in case.templates()? {
            let sidecar = sidecar(&after);
            ensure(sidecar["restartPolicy"] == "Always", || format!("{}: no native sidecar", wanted.name))?;
            let loaded = case.configuration(&sidecar)?;
            ensure(loaded.warnings.is_empty(), || format!("{:?}", loaded.warnings))?;
            let config = loaded.config;
            ensure(config.mode == Mode::Sidecar, || format!("{:?}", config.mode))?;
            let listener = |one: &ListenerConfig| {
                format!("{} {}", one.bind.port(), one.upstream.to_string().replace(case.pod_ip(), "POD"))
            };
            let listeners: Vec<_> = config.listeners.iter().map(listener).collect();
            ensure(listeners == wanted.listeners, || format!("{}: {listeners:?}", wanted.name))?;
            let budget = budget::divide(config.mode, &config.drain);
            ensure(budget.shrunk.is_none(), || format!("{budget:?}"))?;
            let parts = budget.parts().map(|(name, length)| (name, length.as_secs()));
            for part in [("grace_period", wanted.grace), ("hold", wanted.hold)] {
                ensure(parts.contains(&part), || format!("{}: no {part:?} in {parts:?}", wanted.name))?;
            }
            let grace = after["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
            ensure(grace == wanted.grace, || format!("{}: the pod has {grace} s", wanted.name))?;
            for (pointer, fact) in wanted.facts {
                let found = after.pointer(pointer);
                let fact = Some(*fact).filter(|text| !text.is_empty()).map(|text| serde_json::from_str(text).unwrap());
                ensure(found == fact.as_ref(), || format!("{pointer}: {found:?}"))?;
            }
        }
        let silent: Vec<_> = case.shape.says.iter().filter(|text| !case.err.contains(**text)).collect();
        ensure(silent.is_empty(), || format!("says nothing of {silent:?} in {:?}", case.err))
    });
}

/// What does not depend on the workload is as in the example; the order is that of a mesh, ebbtide, and all others.
#[test]
fn the_sidecar_is_the_one_of_the_example_in_its_place() {
    let example = std::fs::read_to_string(folder().join("../../../../deploy/example/deployment.yaml")).unwrap();
    let example = sidecar(&objects(&example).unwrap()[0]["spec"]["template"]);
    each(|case| {
        for (wanted, _, after) in case.templates()? {
            let (spec, sidecar) = (&after["spec"], sidecar(&after));
            let admin = case.configuration(&sidecar)?.config.admin.bind.port();
            let text = |value: &Value| value.to_string().replace(&admin.to_string(), "14090");
            let as_there = |key: &String| sidecar["securityContext"][key] == example["securityContext"][key];
            let is_strict = example["securityContext"].as_object().unwrap().keys().all(as_there);
            ensure(is_strict, || format!("{}: {}", wanted.name, sidecar["securityContext"]))?;
            for key in ["lifecycle", "startupProbe", "readinessProbe", "livenessProbe", "volumeMounts"] {
                let same = text(&sidecar[key]) == text(&example[key]);
                ensure(same, || format!("{}: {key}: {}", wanted.name, sidecar[key]))?;
            }
            let is_stock = case.shape.file != "58-options.yaml";
            ensure(!is_stock || sidecar["resources"] == example["resources"], || sidecar["resources"].to_string())?;
            let volume = list(spec, "volumes").iter().find(|one| name(one) == "ebbtide").cloned().unwrap_or_default();
            ensure(volume["emptyDir"].is_object(), || format!("{}: no volume", wanted.name))?;
            let is_mesh = |one: &Value| ["istio-", "linkerd-"].iter().any(|mesh| name(one).starts_with(mesh));
            let order: Vec<_> = list(spec, "initContainers").iter().collect();
            let place = order.iter().position(|one| name(one) == "ebbtide").unwrap_or_default();
            let in_order =
                order[..place].iter().all(|one| is_mesh(one)) && !order[place..].iter().any(|one| is_mesh(one));
            ensure(in_order, || format!("{}: in the wrong place", wanted.name))?;
        }
        Ok(())
    });
}

#[test]
fn every_container_is_held_until_its_own_listeners_are_done() {
    each(|case| {
        let keeps = case.shape.args.contains(&"--keep-hook");
        for (_, before, after) in case.templates()? {
            let config = case.configuration(&sidecar(&after))?.config;
            for (old, new) in list(&before["spec"], "containers").iter().zip(list(&after["spec"], "containers")) {
                let hook = &new["lifecycle"]["preStop"];
                if keeps && !hook.is_null() && *hook == old["lifecycle"]["preStop"] {
                    continue;
                }
                let path = hook["httpGet"]["path"].as_str().unwrap_or_default();
                let plain = json!({"httpGet": {"path": path, "port": config.admin.bind.port()}});
                ensure(*hook == plain, || format!("{}: {hook}", name(new)))?;
                let waits_for = match path.split_once('?') {
                    None if path == "/app-stop" => continue,
                    Some(("/app-stop", query)) => query.strip_prefix("listener=").unwrap_or(query),
                    _ => return Err(format!("{}: {path}", name(new))),
                };
                let listener = config.listeners.iter().find(|one| one.name == waits_for);
                let upstream = listener.map(|one| one.upstream.to_string()).unwrap_or_default();
                let port = |one: &Value| upstream.ends_with(&format!(":{}", one["containerPort"]));
                ensure(list(old, "ports").iter().any(port), || format!("{}: waits for {waits_for}", name(new)))?;
            }
        }
        Ok(())
    });
}

/// Ports as clients, kubelets and nodes look them up: only ordinary containers count (C82).
#[test]
fn clients_come_to_ebbtide_and_probes_to_the_app() {
    each(|case| {
        let pairs = case.pairs()?;
        let mut rewritten = Vec::new();
        for (workload, before, after) in case.templates()? {
            let fronts = |app: u64| {
                let leads = |one: &&&str| one.ends_with(&format!(":{app}"));
                let listener = workload.listeners.iter().find(leads);
                listener.and_then(|one| one.split(' ').next()?.parse().ok()).unwrap_or(app)
            };
            let ports = |template: &Value| -> Vec<Value> {
                list(&template["spec"], "containers").iter().flat_map(|one| list(one, "ports").to_vec()).collect()
            };
            let (old_ports, new_ports) = (ports(&before), ports(&after));
            for (old, new) in pairs.iter().filter(|(old, _)| selects(old, &before)) {
                for (old_port, new_port) in list(&old["spec"], "ports").iter().zip(list(&new["spec"], "ports")) {
                    let target = |port: &Value| {
                        if port["targetPort"].is_null() { port["port"].clone() } else { port["targetPort"].clone() }
                    };
                    let udp = protocol(old_port) != "TCP";
                    let was = resolve(&target(old_port), &old_ports);
                    let is = resolve(&target(new_port), &new_ports);
                    let title = format!("{}/{}", name(old), old_port["port"]);
                    ensure(is == if udp { was } else { was.map(&fronts) }, || {
                        format!("{title}: {was:?} became {is:?}")
                    })?;
                    if target(old_port) != target(new_port) {
                        rewritten.push((title, is.unwrap_or_default()));
                    }
                }
            }
            for old in
                old_ports.iter().filter(|port| !port["hostPort"].is_null() && before["spec"]["hostNetwork"] != true)
            {
                let of = |new: &&Value| new["hostPort"] == old["hostPort"] && protocol(new) == protocol(old);
                let new = new_ports.iter().find(of).and_then(|new| new["containerPort"].as_u64());
                ensure(new == old["containerPort"].as_u64().map(&fronts), || {
                    format!("hostPort {}: {new:?}", old["hostPort"])
                })?;
            }
            for (old, new) in list(&before["spec"], "containers").iter().zip(list(&after["spec"], "containers")) {
                for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
                    let numbers = |container: &Value| {
                        let mut probe = container[probe].clone();
                        for kind in ["httpGet", "tcpSocket"] {
                            if let Some(port) = probe.get_mut(kind).and_then(|handler| handler.get_mut("port")) {
                                *port = json!(resolve(port, list(container, "ports")));
                            }
                        }
                        probe
                    };
                    ensure(numbers(old) == numbers(new), || format!("{}: {probe}: {}", name(old), new[probe]))?;
                }
            }
        }
        let wanted: Vec<_> = case.shape.services.iter().map(|(port, target)| ((*port).to_owned(), *target)).collect();
        ensure(rewritten == wanted, || format!("rewritten are {rewritten:?}"))
    });
}

fn selects(service: &Value, template: &Value) -> bool {
    let labels = &template["metadata"]["labels"];
    let selector = service["spec"]["selector"].as_object().filter(|selector| !selector.is_empty());
    let elsewhere = service["metadata"]["namespace"] == "bank";
    service["kind"] == "Service"
        && !elsewhere
        && selector.is_some_and(|all| all.iter().all(|(key, value)| labels[key] == *value))
}

#[test]
fn hooks_that_do_something_are_refused() {
    none(
        REFUSED
            .iter()
            .filter_map(|(file, args, part)| {
                let path = folder().join(file).display().to_string();
                let run = ebbtide(&[&["inject", "-f", &path], *args].concat(), b"");
                let place = run.err.strip_prefix(&format!("ebbtide: {path}:")).and_then(|rest| rest.chars().next());
                let fits = run.code == Some(2)
                    && run.out.is_empty()
                    && run.err.contains(part)
                    && place.is_some_and(|c| c.is_ascii_digit());
                (!fits).then(|| format!("{file}: {run:?}"))
            })
            .collect(),
    );
}
