//! Rules about the two preStop hooks: ebbtide's own, and the one that holds the app's SIGTERM back.

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use serde_json::{Value, json};

use super::calls;
use super::front::{self, Front};
use crate::k8s::check::{Input, Report, Rule, Severity};
use crate::k8s::hook;
use crate::k8s::mesh;
use crate::k8s::workload::{Place, Workload};
use crate::lifecycle::budget;

pub(super) static EB034: Rule = Rule {
    id: "EB034",
    name: "own-hook",
    severity: Severity::Error,
    summary: "ebbtide has no preStop hook of its own, or a drain is started over the network.",
    why: "Only ebbtide's own hook tells the end of the pod from a restart of the app: without it the app's hook is let go \
          after some seconds, and the app gets SIGTERM with requests in flight. A drain that starts by a request over the \
          network can be started by anybody who reaches the pod; started by the hook of another container it also starts \
          when that container alone is restarted, and the pod is never ready again.",
    fix: "exec: {command: [\"/ebbtide\", \"drain\"]} as ebbtide's preStop hook. Elsewhere the hook of a sidecar belongs to \
          the sidecar's own container, as exec.",
    run: own_hook,
};

pub(super) static EB035: Rule = Rule {
    id: "EB035",
    name: "app-is-not-held",
    severity: Severity::Error,
    summary: "An app container's preStop hook does not wait for ebbtide.",
    why: "All containers without a hook get SIGTERM the moment the pod is deleted. The app stops while traffic still comes \
          in, and what ebbtide has taken for it is lost. A hook that only sleeps lets go after its time, whatever is still \
          in flight; one that calls a port where nobody listens fails at once.",
    fix: "preStop: {httpGet: {path: /app-stop, port: 14090}} on each app container. A hook that does something real calls \
          that path first: curl -s http://$POD_IP:14090/app-stop, without a timeout.",
    run: app_hooks,
};

fn own_hook(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        if let Some(front) = front::of(workload).filter(|front| front.place.is_native_sidecar()) {
            ebbtides_hook(workload, front.place, report);
        }
        for place in workload.containers() {
            foreign_drain(workload, place, report);
        }
    }
}

fn ebbtides_hook(workload: &Workload<'_>, place: Place<'_>, report: &mut Report<'_>) {
    let name = &place.container.name;
    let Some(hook) = hook::of(place.container) else {
        let message = format!("{name} has no preStop hook: it takes the end of the pod for a restart of the app");
        mend_own(workload, place, report.add(workload, &workload.in_container(place, ""), message));
        return;
    };
    let path = workload.in_container(place, "/lifecycle/preStop");
    let words: Vec<&str> =
        hook.exec.iter().flat_map(|exec| exec.command.iter().flatten()).map(String::as_str).collect();
    let message = match words.as_slice() {
        [program, "drain", ..] if hook::base_name(program) == "ebbtide" => return,
        [shell, ..] if hook::is_shell(shell) => {
            format!("{name}'s preStop hook wants {shell}, and its image has no shell")
        }
        [_, ..] => format!("{name}'s preStop hook does not run ebbtide drain: {}", words.join(" ")),
        [] if hook.sleep.is_some() => {
            format!("{name}'s preStop hook sleeps and tells ebbtide nothing: no drain begins")
        }
        [] => format!(
            "{name}'s preStop hook goes over the network, where ebbtide takes no word for the end of the pod: no drain begins"
        ),
    };
    mend_own(workload, place, report.add(workload, &path, message));
}

fn mend_own(workload: &Workload<'_>, place: Place<'_>, finding: &mut crate::k8s::check::Finding) {
    let hook = json!({"exec": {"command": ["/ebbtide", "drain"]}});
    finding.fix(workload.object, |object| set_hook(object.pointer_mut(&workload.in_container(place, "")), hook));
}

/// Replaces the preStop hook of a container.
fn set_hook(container: Option<&mut Value>, hook: Value) {
    let Some(container) = container else { return };
    match container.get_mut("lifecycle").filter(|lifecycle| lifecycle.is_object()) {
        Some(lifecycle) => lifecycle["preStop"] = hook,
        None => container["lifecycle"] = json!({"preStop": hook}),
    }
}

/// An app's hook that starts the drain of a sidecar.
fn foreign_drain(workload: &Workload<'_>, place: Place<'_>, report: &mut Report<'_>) {
    let get = hook::of(place.container).and_then(|hook| hook.http_get.as_ref());
    let Some((get, port)) = get.and_then(|get| Some((get, hook::number(&get.port)?))) else { return };
    let path = get.path.as_deref().unwrap_or_default();
    let is_drain = DRAINS.contains(&path.split('?').next().unwrap_or_default().trim_end_matches('/'));
    let has_sidecar = workload.containers().any(|other| other.is_native_sidecar());
    let is_own = ports_of(place.container).any(|own| own == port);
    let owner = workload.containers().find(|other| ports_of(other.container).any(|own| own == port));
    // Of a container that says nothing of its ports it may be one.
    let is_known = owner.is_some() || ports_of(place.container).next().is_some();
    if !is_drain || is_own || !is_known || !has_sidecar || place.is_native_sidecar() {
        return;
    }
    let (name, whose) = match owner {
        Some(owner) => (&place.container.name, format!("of {}", owner.container.name)),
        None => (&place.container.name, "that is not the container's own".to_owned()),
    };
    let message = format!(
        "{name}'s preStop hook calls {path} on port {port} {whose}: the drain also begins when {name} alone is restarted, \
         and whoever reaches the port can start it"
    );
    let at = workload.in_container(place, "/lifecycle/preStop/httpGet");
    report.add(workload, &at, message).severity(Severity::Warning);
}

/// The ports that a container declares or is probed at.
fn ports_of(container: &Container) -> impl Iterator<Item = i32> + '_ {
    let declared = container.ports.iter().flatten().map(|port| port.container_port);
    let probed = calls::probes(container).filter_map(|call| hook::number(call.port?));
    declared.chain(probed)
}

fn app_hooks(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        let Some(front) = front::of(workload).filter(|front| front.place.is_native_sidecar()) else { continue };
        if front.is_outbound_only() {
            // Nothing is in flight that would have to be waited for.
            continue;
        }
        let apps: Vec<Place<'_>> = workload.apps().filter(|place| !mesh::is_mesh(&place.container.name)).collect();
        for place in &apps {
            app_hook(workload, &front, *place, apps.len() == 1, report);
        }
    }
}

fn app_hook(workload: &Workload<'_>, front: &Front<'_>, place: Place<'_>, is_alone: bool, report: &mut Report<'_>) {
    let (name, admin) = (&place.container.name, front.admin().map(|address| address.port()));
    let Some((hook, path)) =
        hook::of(place.container).map(|hook| (hook, workload.in_container(place, "/lifecycle/preStop")))
    else {
        let is_served = ports_of(place.container).any(|port| front.listener_for(port).is_some());
        let hold = front.config().map_or(10.0, |config| budget::longest(config.drain.hold).as_secs_f64());
        let message = format!(
            "container {name} has no preStop hook: it gets SIGTERM at once, while new requests come in for up to {hold} s"
        );
        let finding = report.add(workload, &workload.in_container(place, ""), message);
        if !is_alone && !is_served {
            finding.severity(Severity::Warning);
        }
        mend_app(workload, place, admin, finding);
        return;
    };
    if let Some(sleep) = hook::sleep(hook) {
        let message = format!(
            "container {name} sleeps {} s instead of waiting for ebbtide: then it gets SIGTERM, whatever is in flight",
            sleep.as_secs_f64()
        );
        mend_app(workload, place, admin, report.add(workload, &path, message));
    } else if !hook::is_app_stop(hook) {
        other_hook(workload, place, admin, hook, report);
    } else {
        app_stop(workload, front, place, admin, report);
    }
}

fn other_hook(
    workload: &Workload<'_>,
    place: Place<'_>,
    admin: Option<u16>,
    hook: &LifecycleHandler,
    report: &mut Report<'_>,
) {
    let name = &place.container.name;
    let path = workload.in_container(place, "/lifecycle/preStop");
    if let Some(exec) = &hook.exec {
        if !exec.command.iter().flatten().any(|word| word.contains("app-stop")) {
            let message = format!("container {name} has a preStop hook of its own, which does not wait for ebbtide");
            report.add(workload, &path, message).severity(Severity::Warning);
        }
        return;
    }
    let port = hook.http_get.as_ref().and_then(|get| hook::number(&get.port));
    let asked = hook.http_get.as_ref().and_then(|get| get.path.as_deref()).unwrap_or("/");
    if asked.starts_with(mesh::REWRITTEN_HOOK) {
        // In a running pod; what it was stands in the proxy's variables.
        return;
    }
    if port.is_some() && port == admin.map(i32::from) {
        let message = format!("container {name}'s preStop hook asks ebbtide for {asked}, which is answered at once");
        mend_app(workload, place, admin, report.add(workload, &path, message));
    } else {
        let message = format!("container {name} has a preStop hook of its own, which does not wait for ebbtide");
        report.add(workload, &path, message).severity(Severity::Warning);
    }
}

/// A hook that is ebbtide's: whether it gets there.
fn app_stop(workload: &Workload<'_>, front: &Front<'_>, place: Place<'_>, admin: Option<u16>, report: &mut Report<'_>) {
    let Some(get) = hook::of(place.container).and_then(|hook| hook.http_get.as_ref()) else { return };
    let (name, path) = (&place.container.name, workload.in_container(place, "/lifecycle/preStop/httpGet"));
    if let (Some(port), Some(admin)) = (hook::number(&get.port), admin)
        && port != i32::from(admin)
    {
        let message = format!(
            "container {name}'s preStop hook calls port {port}, ebbtide's admin port is {admin}: the hook fails, and \
             SIGTERM comes at once"
        );
        mend_app(workload, place, Some(admin), report.add(workload, &format!("{path}/port"), message));
    }
    if get.scheme.as_deref() == Some("HTTPS") {
        let message = format!("container {name}'s preStop hook speaks TLS, ebbtide's admin port does not");
        mend_app(workload, place, admin, report.add(workload, &format!("{path}/scheme"), message));
    }
    let asked = get.path.as_deref().unwrap_or_default().split_once('?').map_or("", |(_, query)| query);
    let Some(listener) = asked.split('&').find_map(|pair| pair.strip_prefix("listener=")) else { return };
    let known: Vec<&str> = front.inbound().map(|listener| listener.name.as_str()).collect();
    if front.config().is_some() && !known.contains(&listener) {
        let message = format!(
            "container {name}'s preStop hook names the listener {listener}, there {}: a restart of this container alone \
             pauses all of them",
            match known.as_slice() {
                [only] => format!("is only {only}"),
                several => format!("are {}", several.join(", ")),
            },
        );
        report.add(workload, &format!("{path}/path"), message).severity(Severity::Warning);
    }
}

fn mend_app(workload: &Workload<'_>, place: Place<'_>, admin: Option<u16>, finding: &mut crate::k8s::check::Finding) {
    // Somebody has said that the hook is to stay.
    if keeps_hook(workload, &place.container.name) && hook::of(place.container).is_some() {
        finding.severity(Severity::Warning);
        return;
    }
    let Some(admin) = admin else { return };
    let path = hook::of(place.container)
        .filter(|hook| hook::is_app_stop(hook))
        .and_then(|hook| hook.http_get.as_ref()?.path.clone())
        .unwrap_or_else(|| hook::APP_STOP.to_owned());
    let hook = json!({"httpGet": {"path": path, "port": admin}});
    finding.fix(workload.object, |object| set_hook(object.pointer_mut(&workload.in_container(place, "")), hook));
}

/// Whether `ebbtide inject` was told that this container's hook is to stay.
fn keeps_hook(workload: &Workload<'_>, name: &str) -> bool {
    let said = workload.annotation("ebbtide.dev/keep-hook").unwrap_or_default();
    said.split(',').map(str::trim).any(|one| one == "all" || one == "true" || one == name)
}

/// What sidecars call the path that starts their end.
const DRAINS: &[&str] = &["/drain", "/drain_listeners", "/quitquitquit", "/shutdown", "/quit", "/healthcheck/fail"];
