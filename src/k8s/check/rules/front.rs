//! ebbtide as it stands in a workload, as far as the manifest tells; what it doesn't tell no rule may complain about.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use crate::config::{Config, ConfigError, Direction, HostPort, ListenerConfig, Loaded, Mode, Origin};
use crate::k8s::check::Finding;
use crate::k8s::workload::{self, Place, Workload, is_ebbtide};

/// ebbtide in a workload, and what it would run with.
#[derive(Debug)]
pub(super) struct Front<'w> {
    pub(super) place: Place<'w>,
    /// Its configuration, or everything that is wrong with it.
    pub(super) loaded: Result<Loaded, Vec<ConfigError>>,
    /// Whether all of that stands in the manifest, nothing in a file, a ConfigMap or a Secret.
    pub(super) whole: bool,
    /// The command line, if ebbtide would not take it.
    pub(super) refused: Option<String>,
}

/// The containers of a workload in which ebbtide runs as the proxy, not as `ebbtide config check` and the like.
pub(super) fn all<'w>(workload: &'w Workload<'_>) -> impl Iterator<Item = Place<'w>> {
    workload.containers().filter(|place| is_ebbtide(place.container) && workload::is_proxy(place.container))
}

/// The first of them that runs beside the app; an ordinary one only if there is no other.
pub(super) fn of<'w>(workload: &'w Workload<'_>) -> Option<Front<'w>> {
    let native = all(workload).find(Place::is_native_sidecar);
    native.or_else(|| all(workload).next()).map(Front::new)
}

// === impl Front ===

impl<'w> Front<'w> {
    fn new(place: Place<'w>) -> Self {
        let settings = workload::settings(place.container);
        let whole = settings.unseen.is_none() && settings.refused.is_none();
        Self { place, loaded: settings.loaded, whole, refused: settings.refused }
    }

    /// If all of it is known and right.
    pub(super) fn config(&self) -> Option<&Config> {
        self.loaded.as_ref().ok().filter(|_| self.whole).map(|loaded| &loaded.config)
    }

    /// The text of a variable, with what it refers to filled in.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        workload::variables(self.place.container).into_iter().rfind(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Known also where something else is wrong.
    pub(super) fn mode(&self) -> Option<Mode> {
        match self.variable("EBBTIDE_MODE").as_deref() {
            _ if !self.whole => None,
            _ if self.config().is_some() => self.config().map(|config| config.mode),
            Some("sidecar") => Some(Mode::Sidecar),
            None if self.variable("EBBTIDE_CONFIG_YAML").is_none() => Some(Mode::Plain),
            Some(_) | None => None,
        }
    }

    /// Address of the admin port, known also where something else is wrong.
    pub(super) fn admin(&self) -> Option<SocketAddr> {
        if !self.whole || self.config().is_some() {
            return self.config().map(|config| config.admin.bind);
        }
        let text = self.variable("EBBTIDE_ADMIN");
        match text {
            Some(text) => text.parse().or_else(|_| format!("[::]{text}").parse()).ok(),
            None if self.variable("EBBTIDE_CONFIG_YAML").is_none() => Some(SocketAddr::from(([0; 16], ADMIN))),
            None => None,
        }
    }

    /// The listeners for clients of the app.
    pub(super) fn inbound(&self) -> impl Iterator<Item = &ListenerConfig> {
        let listeners = self.config().into_iter().flat_map(|config| &config.listeners);
        listeners.filter(|listener| listener.direction == Direction::Inbound)
    }

    /// Whether it certainly has nothing for clients of the app.
    pub(super) fn is_outbound_only(&self) -> bool {
        self.config().is_some() && self.inbound().next().is_none()
    }

    /// Whether it is certainly no way from the app to elsewhere.
    pub(super) fn inbound_only(&self) -> bool {
        self.config().is_none_or(|config| config.listeners.iter().all(|one| one.direction == Direction::Inbound))
    }

    /// The listener that takes connections to this port, if it stands for clients.
    pub(super) fn listener_at(&self, port: i32) -> Option<&ListenerConfig> {
        self.inbound().find(|listener| i32::from(listener.bind.port()) == port)
    }

    /// The listener behind which the app's port is.
    pub(super) fn listener_for(&self, port: i32) -> Option<&ListenerConfig> {
        self.inbound().find(|listener| app_port(listener).is_some_and(|app| i32::from(app) == port))
    }

    /// JSON Pointer in the object to a variable, or to the container if it is not set.
    pub(super) fn at_variable(&self, workload: &Workload<'_>, name: &str) -> String {
        let index =
            self.place.container.env.as_ref().and_then(|all| all.iter().rposition(|variable| variable.name == name));
        let inside = index.map_or_else(String::new, |index| format!("/env/{index}"));
        workload.in_container(self.place, &inside)
    }

    /// Sets a variable as the fix of a finding, unless a flag would beat it.
    pub(super) fn mend_variable(&self, workload: &Workload<'_>, finding: &mut Finding, name: &str, value: &str) {
        let words = self.place.container.command.iter().chain(&self.place.container.args).flatten();
        if words.into_iter().any(|word| word.starts_with("--")) {
            return;
        }
        finding.fix(workload.object, |object| {
            let Some(container) = object.pointer_mut(&workload.in_container(self.place, "")) else { return };
            let new = json!({"name": name, "value": value});
            match container.get_mut("env").and_then(Value::as_array_mut) {
                Some(variables) => match variables.iter_mut().rfind(|variable| variable["name"] == name) {
                    Some(variable) => *variable = new,
                    None => variables.push(new),
                },
                None => container["env"] = json!([new]),
            }
        });
    }

    /// Where an error of the configuration stands.
    pub(super) fn at_origin(&self, workload: &Workload<'_>, origin: &Origin) -> String {
        match origin {
            Origin::Variable(name) | Origin::Text { name, .. } => self.at_variable(workload, name),
            Origin::Flag(_) => workload.in_container(self.place, "/args"),
            Origin::Default | Origin::Whole(_) => workload.in_container(self.place, ""),
        }
    }
}

/// The port of the app in the same pod to which a listener sends.
pub(super) fn app_port(listener: &ListenerConfig) -> Option<u16> {
    upstream(listener).filter(|upstream| is_this_pod(&upstream.host)).map(|upstream| upstream.port)
}

/// The first address of the upstream; `None` for a Unix socket.
pub(super) fn upstream(listener: &ListenerConfig) -> Option<&HostPort> {
    listener.upstream.hosts().first()
}

fn is_this_pod(host: &str) -> bool {
    is_loopback(host) || [workload::SOME_ADDRESS, workload::SOME_IPV6].contains(&host)
}

/// Whether a host is the one that asks for it.
pub(super) fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// The admin port where nobody sets another.
pub(super) const ADMIN: u16 = 14090;
