//! One pod template: from what it was to what ebbtide needs.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Service};
use serde_json::{Value, json};

use super::existing::Existing;
use super::meshes;
use super::options::Options;
use super::ports::{self, Front, Question};
use super::record::{self, Moved, RUN, Record, VOLUME, object_at};
use super::sidecar::{self, ADMIN_PORT, LISTEN_PORT, Plan};
use crate::k8s::document::Fault;
use crate::k8s::hook;
use crate::k8s::mesh::{self, Mesh};
use crate::k8s::object::decode;
use crate::k8s::workload::{self, Workload};
use crate::lifecycle::budget::{self, seconds};

/// A template with ebbtide in it.
#[derive(Debug)]
pub(super) struct Injected {
    pub(super) template: Value,
    pub(super) fronts: Vec<Front>,
    /// What whoever applies it should know.
    pub(super) notes: Vec<String>,
}

/// What is decided on: a workload as it stands, and as it was before any injection.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    /// As it stands, for places of faults.
    pub(super) now: &'a Workload<'a>,
    /// As it was.
    pub(super) original: &'a Workload<'a>,
    /// The template as it was.
    pub(super) before: &'a Value,
    /// ebbtide's container as it stands.
    pub(super) old: Option<&'a Value>,
    /// What it listens on.
    pub(super) existing: &'a Existing,
    pub(super) record: Option<&'a Record>,
    /// Those that select it, as they were.
    pub(super) services: &'a [&'a Service],
    pub(super) mesh: Option<Mesh>,
}

/// Puts ebbtide in.
pub(super) fn inject(subject: &Subject<'_>, options: &Options) -> Result<Injected, Vec<Fault>> {
    let original = subject.original;
    let refuse = |pointer: &str, message: String| subject.now.fault(pointer, message);
    let at_containers = |reason| vec![refuse(&original.in_spec("/containers"), reason)];
    let existing = subject.existing;
    let question = Question {
        workload: original,
        services: subject.services,
        choices: options.ports.as_deref(),
        upstream_host: options.given("upstream-host"),
        has_outbound: !options.outbound.is_empty() || !existing.outbound.is_empty(),
        existing,
    };
    let mut fronts = ports::choose(&question).map_err(at_containers)?;
    if fronts.is_empty() && !question.has_outbound {
        let message = "no port is fronted and no outbound one is named: ebbtide would have nothing to do".to_owned();
        return Err(vec![refuse(&original.in_spec(""), message)]);
    }
    let admin_port = assign_ports(original, &mut fronts, options, existing).map_err(at_containers)?;
    let mut notes = notes_on(&fronts);
    if original.spec.host_network == Some(true) {
        notes.push("the pod is on the node's network: ebbtide's ports must be free on every node, and whoever comes to the app's port on the node goes past ebbtide".to_owned());
    }
    let mut faults = hooks(subject, options, &mut notes);
    faults.extend(unknown_names(subject, options));
    if !faults.is_empty() {
        return Err(faults);
    }

    let hold = replaced_sleep(original, options).filter(|sleep| *sleep > DEFAULT_HOLD).map(seconds);
    // Hooks are not called at all where it is 0.
    let grace = options.grace_period.unwrap_or_else(|| original.grace().as_secs()).max(1);
    let volume = free_volume(original);
    let mut plan = Plan { options, fronts: &fronts, grace, hold, admin_port, volume };
    let needed = needed(&sidecar::container(&plan, subject.old, subject.record), &fronts)
        .map_err(|reason| vec![refuse(&original.in_spec(""), reason)])?;
    if needed.as_secs() > grace {
        let text = needed.as_secs();
        if options.grace_period.is_some() {
            notes.push(format!("the grace period of {grace} s is shorter than the {text} s that its parts need; ebbtide shrinks them when the pod terminates"));
        } else {
            plan.grace = text;
            let was = original.grace().as_secs();
            notes.push(format!("terminationGracePeriodSeconds is raised from {was} to {text}, which the parts need: hold, 5 s of drain, close, app_stop and margin"));
        }
    }

    let mut template = subject.before.clone();
    let mut record = Record {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        empty: record::empty_places(subject.before),
        options: options.to_remember(
            original.template.metadata.iter().find_map(|one| one.annotations.as_ref()).unwrap_or(&BTreeMap::new()),
        ),
        ..Record::default()
    };
    set_grace(&mut template, original, plan.grace, &mut record);
    change_apps(&mut template, original, &plan, &mut record);
    let container = sidecar::container(&plan, subject.old, subject.record);
    record.env = sidecar::written(&plan);
    record.volume = place(&mut template, original, container);
    if let Some(mesh) = subject.mesh {
        let at = format!("{}/metadata/annotations", original.path);
        let annotations = object_at(&mut template, "/metadata/annotations");
        meshes::change(annotations, mesh, admin_port, &fronts, &mut record)
            .map_err(|reason| vec![refuse(&at, reason)])?;
    }
    if subject.old.is_none() && options.given("image").is_none() {
        notes.push(format!(
            "the image {} names no registry: say --image, or let Kustomize set it",
            options.text("image")
        ));
    }
    record.store(&mut template);
    Ok(Injected { template, fronts, notes })
}

/// Gives each front a port of ebbtide's, and says which one is the admin port.
fn assign_ports(
    workload: &Workload<'_>,
    fronts: &mut [Front],
    options: &Options,
    existing: &Existing,
) -> Result<u16, String> {
    let mut taken = ports::taken(workload);
    taken.extend(fronts.iter().map(|front| front.port));
    taken.extend(options.outbound.iter().filter_map(|one| one.bind.rsplit(':').next()?.parse::<u16>().ok()));
    // A port that is in use stays, unless somebody says otherwise.
    let known = |port: u16| existing.front(port).map(|known| known.listen).filter(|_| !options.is_said("listen-port"));
    let used: Vec<u16> = fronts.iter().filter_map(|front| known(front.port)).chain(existing.admin).collect();
    let mut take = |wanted: Option<u16>, first: u16, what: &str| {
        let port = match wanted {
            Some(port) if taken.contains(&port) => return Err(format!("--{what} {port} is a port of the pod already")),
            Some(port) => port,
            None => (first..=u16::MAX).find(|port| !taken.contains(port) && !used.contains(port)).unwrap_or(first),
        };
        taken.insert(port);
        Ok(port)
    };
    let admin = existing.admin.filter(|_| !options.is_said("admin-port"));
    let admin = take(admin.or(options.admin_port), ADMIN_PORT, "admin-port")?;
    let mut next = LISTEN_PORT;
    for (index, front) in fronts.iter_mut().enumerate() {
        let wanted = known(front.port).or_else(|| options.listen_port.filter(|_| index == 0));
        front.listen = take(wanted, next, "listen-port")?;
        next = front.listen + 1;
    }
    Ok(admin)
}

/// What was guessed, and what it means.
fn notes_on(fronts: &[Front]) -> Vec<String> {
    let noted = fronts.iter().filter_map(|front| {
        let port = front.port;
        if front.is_tls {
            Some(format!("port {port} looks like TLS, which ends in the app: its bytes are relayed as they are, and clients can't be asked to leave; see TLS towards the app in the documentation for more than that"))
        } else if front.is_guess {
            Some(format!("port {port} is taken for HTTP/1.1, though nothing says so: --ports tcp://{port}, h2c://{port} or http://{port} decides"))
        } else {
            None
        }
    });
    noted.collect()
}

/// Faults for hooks that can't be replaced, notes for those that are.
fn hooks(subject: &Subject<'_>, options: &Options, notes: &mut Vec<String>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for place in subject.original.apps() {
        let (name, Some(hook)) = (&place.container.name, hook::of(place.container)) else { continue };
        if mesh::is_mesh(name) {
            notes.push(format!("container {name} keeps its own preStop hook"));
        } else if options.keep_hook.has(name) {
            notes.push(format!(
                "container {name} keeps its own preStop hook, so it gets SIGTERM when that returns and not when the drain is over: requests in flight then, and those that arrive before the cluster has learned of the termination, are lost if the app is gone by then"
            ));
        } else if let Some(sleep) = hook::sleep(hook) {
            notes.push(format!(
                "the preStop sleep of {} in container {name} is replaced by ebbtide's hook, which waits for the drain",
                seconds(sleep),
            ));
        } else if options.replace_hook.has(name) {
            notes.push(format!("the preStop hook of container {name} is replaced: what it did is not done any more"));
        } else {
            let index =
                subject.now.ordinary().find(|now| now.container.name == *name).map_or(place.index, |now| now.index);
            let pointer = subject.now.in_spec(&format!("/containers/{index}/lifecycle/preStop"));
            faults.push(subject.now.fault(&pointer, format!(
                "container {name} has a preStop hook of its own ({}), and a container can have only one: ebbtide's, which holds SIGTERM back until the drain is over. Make it do what it does on SIGTERM and say --replace-hook={name}, or leave it with --keep-hook={name}, without holding SIGTERM back",
                shown(hook),
            )));
        }
    }
    faults
}

fn unknown_names(subject: &Subject<'_>, options: &Options) -> Vec<Fault> {
    let is_known = |name: &str| subject.original.apps().any(|place| place.container.name == name);
    let replace = options.replace_hook.unknown(is_known).map(|name| ("replace-hook", name));
    let keep = options.keep_hook.unknown(is_known).map(|name| ("keep-hook", name));
    let unknown = replace.chain(keep);
    unknown
        .map(|(option, name)| {
            let pointer = subject.now.in_spec("/containers");
            subject.now.fault(&pointer, format!("--{option} names a container {name}, and there is none"))
        })
        .collect()
}

fn shown(hook: &k8s_openapi::api::core::v1::LifecycleHandler) -> String {
    let text = match (&hook.exec, &hook.http_get) {
        (Some(exec), _) => format!("exec {}", exec.command.as_deref().unwrap_or_default().join(" ")),
        (None, Some(get)) => format!("httpGet {}", get.path.as_deref().unwrap_or("/")),
        (None, None) => "tcpSocket".to_owned(),
    };
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(60).collect();
    if line.len() < text.len() { format!("{line}...") } else { line }
}

fn keeps_hook(container: &str, options: &Options) -> bool {
    options.keep_hook.has(container) || mesh::is_mesh(container)
}

/// The longest sleep of the hooks that are replaced.
fn replaced_sleep(workload: &Workload<'_>, options: &Options) -> Option<Duration> {
    let replaced = workload.apps().filter(|place| !keeps_hook(&place.container.name, options));
    replaced.filter_map(|place| hook::sleep(hook::of(place.container)?)).max()
}

/// What the parts of the budget need together, in whole seconds.
fn needed(container: &Value, fronts: &[Front]) -> Result<Duration, String> {
    let typed: Container = decode(container)
        .map_err(|(path, reason)| format!("ebbtide's container would be no container: {path}: {reason}"))?;
    let loaded = workload::configuration(&typed).map_err(|errors| {
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        format!("ebbtide would refuse its configuration: {}", errors.join("; ").replace('\n', " "))
    })?;
    let drain = &loaded.config.drain;
    // Without clients there is nothing to hold or to drain.
    let parts =
        if fronts.is_empty() { drain.app_stop + drain.margin } else { budget::needed(loaded.config.mode, drain) };
    Ok(Duration::from_secs_f64(parts.as_secs_f64().ceil()))
}

fn set_grace(template: &mut Value, original: &Workload<'_>, grace: u64, record: &mut Record) {
    if original.grace().as_secs() == grace {
        return;
    }
    let seconds = i64::try_from(grace).unwrap_or(i64::MAX);
    record.grace = Some((original.spec.termination_grace_period_seconds, seconds));
    object_at(template, "/spec").insert("terminationGracePeriodSeconds".to_owned(), seconds.into());
}

/// Hooks, port names and probes of the ordinary containers.
fn change_apps(template: &mut Value, original: &Workload<'_>, plan: &Plan<'_>, record: &mut Record) {
    for place in original.apps() {
        let name = &place.container.name;
        let Some(container) = template.pointer_mut(&format!("/spec{}", place.pointer())) else { continue };
        let own: Vec<_> = plan.fronts.iter().filter(|front| front.container == *name).collect();
        let is_kept = keeps_hook(name, plan.options) && hook::of(place.container).is_some();
        if !is_kept {
            if let Some(was) = container.get("lifecycle").filter(|was| !was.is_null()) {
                record.lifecycles.insert(name.clone(), was.clone());
            }
            let listener = match own.as_slice() {
                [only] if plan.fronts.len() > 1 => Some(only.listener.as_str()),
                _ => None,
            };
            sidecar::hold_sigterm(container, listener, plan.admin_port);
        }
        for front in own {
            move_name(container, front, name, original.spec.host_network == Some(true), record);
        }
    }
}

/// The name goes to ebbtide's port, declared in the app's own container: not every version of Kubernetes looks among
/// the ports of init containers when a Service names one (kubernetes/kubernetes#127958).
fn move_name(container: &mut Value, front: &Front, owner: &str, is_host_network: bool, record: &mut Record) {
    let Some(ports) = container.get_mut("ports").and_then(Value::as_array_mut) else { return };
    let is_it = |port: &Value| port["containerPort"] == front.port && record::is_tcp(port);
    let Some(index) = ports.iter().position(is_it) else { return };
    let moves_host_port = !is_host_network && ports[index].get("hostPort").is_some();
    let name = front.name.clone().unwrap_or_default();
    if name.is_empty() && !moves_host_port {
        return;
    }
    let mut ours = if name.is_empty() { json!({}) } else { json!({"name": name}) };
    ours["containerPort"] = front.listen.into();
    if let Some(app) = ports[index].as_object_mut() {
        app.shift_remove("name");
        // What comes in on the node's port goes the same way as the rest.
        for key in ["hostPort", "hostIP"].into_iter().filter(|_| moves_host_port) {
            app.shift_remove(key).into_iter().for_each(|value| ours[key] = value);
        }
        app.get("protocol").into_iter().for_each(|value| ours["protocol"] = value.clone());
    }
    ports.insert(index + 1, ours);
    let moved = Moved { name: name.clone(), from: front.port, to: front.listen };
    record.names.entry(owner.to_owned()).or_default().push(moved);
    for path in ["/livenessProbe", "/readinessProbe", "/startupProbe", "/lifecycle/postStart", "/lifecycle/preStop"] {
        for kind in ["httpGet", "tcpSocket"] {
            let path = format!("{path}/{kind}/port");
            let port = container.pointer_mut(&path).filter(|port| !name.is_empty() && **port == *name);
            if let Some(port) = port {
                // Probes ask about the app, so they go on going there.
                *port = front.port.into();
                record.probes.entry(owner.to_owned()).or_default().insert(path, name.clone());
            }
        }
    }
}

/// Container and volume; gives the name of the volume if it was made.
fn place(template: &mut Value, original: &Workload<'_>, container: Value) -> String {
    let spec = object_at(template, "/spec");
    let others = original.spec.init_containers.as_deref().unwrap_or_default();
    let position = mesh::position(others);
    let mounts = container["volumeMounts"].as_array().into_iter().flatten();
    let volume = mounts.into_iter().find(|mount| mount["mountPath"] == RUN).map(|mount| mount["name"].clone());
    match spec.get_mut("initContainers").and_then(Value::as_array_mut) {
        Some(init) => init.insert(position.min(init.len()), container),
        None => drop(spec.insert("initContainers".to_owned(), json!([container]))),
    }
    let Some(name) = volume else { return String::new() };
    let volumes = spec.get("volumes").and_then(Value::as_array);
    if volumes.into_iter().flatten().any(|volume| volume["name"] == name) {
        return String::new();
    }
    let made = json!({"name": name, "emptyDir": {"sizeLimit": "1Mi"}});
    match spec.get_mut("volumes").and_then(Value::as_array_mut) {
        Some(volumes) => volumes.push(made),
        None => drop(spec.insert("volumes".to_owned(), json!([made]))),
    }
    name.as_str().unwrap_or_default().to_owned()
}

/// A name that no volume, claim or mount of the pod has.
fn free_volume(original: &Workload<'_>) -> String {
    let volumes = original.spec.volumes.iter().flatten().map(|volume| volume.name.as_str());
    let mounts = original.containers().flat_map(|place| place.container.volume_mounts.iter().flatten());
    let taken: Vec<&str> = volumes.chain(mounts.map(|mount| mount.name.as_str())).collect();
    let names = std::iter::once(VOLUME.to_owned()).chain((2..).map(|number| format!("{VOLUME}-{number}")));
    names.into_iter().find(|name| !taken.contains(&name.as_str())).unwrap_or_default()
}

/// Of the configuration.
const DEFAULT_HOLD: Duration = Duration::from_secs(10);
