//! An object with pods of its own, as types, and ebbtide's container in it.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};

use super::document::{Document, Fault};
use super::hook;
use super::object::{Object, is_native};
use crate::config::{self, ConfigError, Environment, Loaded};

/// A Deployment, Job, Pod or the like.
#[derive(Debug, Clone)]
pub struct Workload<'a> {
    /// The object.
    pub object: &'a Object,
    /// The document in which it stands.
    pub document: &'a Document,
    /// JSON Pointer from the object to its pod template.
    pub path: &'a str,
    /// The template.
    pub template: PodTemplateSpec,
    /// The template's pod spec.
    pub spec: PodSpec,
}

/// One container of a pod.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Which list it stands in.
    pub list: List,
    /// Its index there.
    pub index: usize,
    /// It.
    pub container: &'a Container,
}

/// A list of containers in a pod spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// `initContainers`
    Init,
    /// `containers`
    Ordinary,
}

// === impl Workload ===

impl<'a> Workload<'a> {
    /// `None` for an object without a pod template. `other` is where kinds that are not known have theirs.
    ///
    /// # Errors
    /// A template that does not fit the types of the Kubernetes API.
    pub fn of(object: &'a Object, documents: &'a [Document], other: Option<&'a str>) -> Result<Option<Self>, Fault> {
        let (Some(path), Some(document)) = (object.template_path(other), documents.get(object.document)) else {
            return Ok(None);
        };
        if path == "/spec/template"
            && object.value.pointer(path).is_none()
            && object.value.pointer("/spec/workloadRef").is_some()
        {
            // An Argo Rollout that borrows a Deployment's template.
            return Ok(None);
        }
        let template = object.template(path, document)?;
        let spec = template.spec.clone().unwrap_or_default();
        Ok(Some(Self { object, document, path, template, spec }))
    }

    /// All containers in the order in which they are started.
    pub fn containers(&self) -> impl Iterator<Item = Place<'_>> {
        let init = self.spec.init_containers.iter().flatten().enumerate();
        let init = init.map(|(index, container)| Place { list: List::Init, index, container });
        init.chain(self.ordinary())
    }

    /// Those that run beside each other, ebbtide too if it stands among them.
    pub fn ordinary(&self) -> impl Iterator<Item = Place<'_>> {
        let ordinary = self.spec.containers.iter().enumerate();
        ordinary.map(|(index, container)| Place { list: List::Ordinary, index, container })
    }

    /// Those that run beside each other and are not ebbtide.
    pub fn apps(&self) -> impl Iterator<Item = Place<'_>> {
        self.ordinary().filter(|place| !is_ebbtide(place.container))
    }

    /// ebbtide's container; the first, if there are several.
    #[must_use]
    pub fn ebbtide(&self) -> Option<Place<'_>> {
        self.containers().find(|place| is_ebbtide(place.container))
    }

    /// `terminationGracePeriodSeconds`, 30 if it is not set.
    #[must_use]
    pub fn grace(&self) -> Duration {
        let seconds = self.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
        Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
    }

    /// JSON Pointer in the object to something in the pod spec, `pointer` beginning with a slash or empty.
    #[must_use]
    pub fn in_spec(&self, pointer: &str) -> String {
        format!("{}/spec{pointer}", self.path)
    }

    /// JSON Pointer in the object to something in a container.
    #[must_use]
    pub fn in_container(&self, place: Place<'_>, pointer: &str) -> String {
        self.in_spec(&format!("{}{pointer}", place.pointer()))
    }

    /// An annotation of the pod template.
    #[must_use]
    pub fn annotation(&self, name: &str) -> Option<&str> {
        let metadata = self.template.metadata.as_ref()?;
        metadata.annotations.as_ref()?.get(name).map(String::as_str)
    }

    /// The labels of the pods.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let labels = self.template.metadata.iter().filter_map(|metadata| metadata.labels.as_ref()).flatten();
        labels.map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether an object that selects pods by these labels selects these.
    pub fn is_selected<'s>(&self, selector: impl IntoIterator<Item = (&'s String, &'s String)>) -> bool {
        let mut labels = selector.into_iter().peekable();
        labels.peek().is_some()
            && labels.all(|(key, value)| self.labels().any(|(has, is)| (has, is) == (key.as_str(), value.as_str())))
    }

    /// A fault at a JSON Pointer in the object.
    #[must_use]
    pub fn fault(&self, pointer: &str, message: impl AsRef<str>) -> Fault {
        self.object.fault(self.document, pointer, format!("{}: {}", self.object.title(), message.as_ref()))
    }
}

// === impl Place ===

impl Place<'_> {
    /// JSON Pointer in the pod spec.
    #[must_use]
    pub fn pointer(&self) -> String {
        let list = match self.list {
            List::Init => "initContainers",
            List::Ordinary => "containers",
        };
        format!("/{list}/{}", self.index)
    }

    /// Whether it is stopped after the ordinary containers.
    #[must_use]
    pub fn is_native_sidecar(&self) -> bool {
        self.list == List::Init && is_native(self.container)
    }
}

/// Whether a container is ebbtide, by its name, its image, or what it is told.
#[must_use]
pub fn is_ebbtide(container: &Container) -> bool {
    let image = container.image.as_deref().unwrap_or_default();
    let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let command = hook.and_then(|hook| hook.exec.as_ref()).and_then(|exec| exec.command.as_ref());
    container.name == "ebbtide"
        || image_name(image) == "ebbtide"
        || container.env.iter().flatten().any(|variable| variable.name == "EBBTIDE_MODE")
        || command.is_some_and(|command| command.first().is_some_and(|first| first.ends_with("/ebbtide")))
}

/// The last part of an image's name, without registry, tag and digest.
#[must_use]
pub fn image_name(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or_default();
    let name = name.rsplit('/').next().unwrap_or_default();
    name.split(':').next().unwrap_or_default()
}

/// The configuration ebbtide would run with in this container, as far as a manifest tells: variables with a value,
/// `$(NAME)` replaced as the kubelet does, an address in place of the pod's. A file is not seen.
///
/// # Errors
/// All its faults.
pub fn configuration(container: &Container) -> Result<Loaded, Vec<ConfigError>> {
    settings(container).loaded
}

/// What a manifest tells of ebbtide's configuration.
#[derive(Debug)]
pub struct Settings {
    /// The configuration, or everything that is wrong with it.
    pub loaded: Result<Loaded, Vec<ConfigError>>,
    /// Where the part stands that the manifest does not tell.
    pub unseen: Option<&'static str>,
    /// What the command line says of flags that it does not take.
    pub refused: Option<String>,
}

/// See [`configuration`], and what it leaves out.
#[must_use]
pub fn settings(container: &Container) -> Settings {
    let (flags, has_file, refused) = match command_line(container) {
        CommandLine::Run(words) => match flags(&words) {
            Ok((flags, has_file)) => (flags, has_file, None),
            Err(message) => (Vec::new(), false, Some(format!("{} ({message})", words.join(" ")))),
        },
        CommandLine::Faulty(text) => (Vec::new(), false, Some(text)),
        CommandLine::Other => (Vec::new(), false, None),
    };
    let variables = variables(container);
    let is_hidden = |name: &str| name.starts_with("EBBTIDE_") && name != "EBBTIDE_ADMIN_TOKEN";
    let names = || container.env.iter().flatten().map(|variable| variable.name.as_str());
    let is_told = |wanted: &str| {
        variables.iter().any(|(name, value)| name == wanted && !value.contains("$(") && value != "unknown")
    };
    let unseen = if has_file || names().any(|name| name == "EBBTIDE_CONFIG") {
        Some("a file")
    } else if container.env_from.as_ref().is_some_and(|from| !from.is_empty())
        || names().filter(|name| is_hidden(name)).any(|name| !is_told(name))
    {
        Some("a ConfigMap, a Secret or a field of the pod")
    } else {
        None
    };
    Settings { loaded: config::load(None, &environment(container), &flags), unseen, refused }
}

/// Whether a container runs ebbtide as the proxy, and not as `ebbtide config check` and the like.
#[must_use]
pub fn is_proxy(container: &Container) -> bool {
    !matches!(command_line(container), CommandLine::Other)
}

/// The command line of a container that runs ebbtide, without the program.
enum CommandLine {
    /// What stands behind `run`.
    Run(Vec<String>),
    /// `ebbtide drain`, or another program that is no way to start the proxy.
    Other,
    /// Nothing that ebbtide would take.
    Faulty(String),
}

fn command_line(container: &Container) -> CommandLine {
    let command: Vec<String> = container.command.clone().unwrap_or_default();
    let mut words: Vec<String> = command.iter().chain(container.args.iter().flatten()).cloned().collect();
    if let Some(program) = command.first() {
        let is_shell = hook::is_shell(program);
        if is_shell || hook::base_name(program) != "ebbtide" {
            let text = words.join(" ");
            let behind = text.split_once("ebbtide ").and_then(|(_, rest)| rest.split_whitespace().next());
            return match words.get(1).map(String::as_str) {
                Some("run") => CommandLine::Run(words.split_off(2)),
                _ if is_shell && behind.is_some_and(|word| !is_other(word)) => CommandLine::Faulty(text),
                _ => CommandLine::Other,
            };
        }
        words.remove(0);
        if words.is_empty() {
            // With a command of its own the container has none of the image's arguments.
            return CommandLine::Faulty("(none, not even run)".to_owned());
        }
    }
    match words.first().map(String::as_str) {
        None => CommandLine::Run(words),
        Some("run") if words.iter().any(|word| word.starts_with('-') && is_other(word)) => CommandLine::Other,
        Some("run") => CommandLine::Run(words.split_off(1)),
        Some(word) if is_other(word) => CommandLine::Other,
        Some(_) => CommandLine::Faulty(words.join(" ")),
    }
}

/// Whether a word of the command line makes ebbtide do something else than being the proxy.
fn is_other(word: &str) -> bool {
    COMMANDS.contains(&word)
}

/// Flags as the command line reads them, and whether they name a file.
fn flags(words: &[String]) -> Result<(Vec<(String, String)>, bool), String> {
    let command = clap::Command::new("run").no_binary_name(true).args(config::clap_args());
    let matches = command.try_get_matches_from(words).map_err(|error| {
        let text = error.to_string();
        text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
    })?;
    Ok((config::flags_from(&matches), config::config_file(&matches).is_some()))
}

/// The variables of a container, but for the one that names a file.
#[must_use]
pub fn environment(container: &Container) -> Environment {
    variables(container).into_iter().filter(|(name, _)| name != "EBBTIDE_CONFIG").collect()
}

/// The variables of a container of which the manifest tells the value.
#[must_use]
pub fn variables(container: &Container) -> Vec<(String, String)> {
    let mut known: Vec<(String, String)> = Vec::new();
    let values = || container.env.iter().flatten().filter_map(|variable| variable.value.as_deref());
    let address = if values().any(|value| value.contains("[$(")) { SOME_IPV6 } else { SOME_ADDRESS };
    for variable in container.env.iter().flatten() {
        let field = variable.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
        let value = match (&variable.value, field.map(|field| field.field_path.as_str())) {
            (Some(value), _) => {
                known.iter().fold(value.clone(), |text, (name, value)| text.replace(&format!("$({name})"), value))
            }
            (None, Some("status.podIP" | "status.hostIP")) => address.to_owned(),
            (None, Some(_)) => "unknown".to_owned(),
            // From a Secret or a ConfigMap.
            (None, None) => continue,
        };
        known.push((variable.name.clone(), value));
    }
    known
}

/// What the API server fills in.
const DEFAULT_GRACE: i64 = 30;

/// Of RFC 5737: stands for the pod's address, which no manifest knows.
pub(super) const SOME_ADDRESS: &str = "192.0.2.1";
/// Of RFC 3849, where it is written in brackets.
pub(super) const SOME_IPV6: &str = "2001:db8::1";

/// What ebbtide does besides `run`, and the flags by which it only says something.
const COMMANDS: &[&str] = &[
    "config",
    "drain",
    "status",
    "demo",
    "demo-app",
    "check",
    "inject",
    "budget",
    "help",
    "version",
    "--help",
    "-h",
    "--version",
    "-V",
];
