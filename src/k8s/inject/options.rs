//! What can be said about an injection, by flags and by annotations `ebbtide.dev/NAME` of the pod template: one table.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Arg, ArgMatches};

use super::ports::{Choice, Outbound};
use crate::config::{self, Environment};

/// One thing that can be said.
#[derive(Debug, Clone, Copy)]
pub struct InjectOption {
    /// Of the flag, without its dashes, and of the annotation, behind `ebbtide.dev/`.
    pub name: &'static str,
    /// Stands for the value in `--help`.
    pub value: &'static str,
    /// Text of the default; empty if there is none.
    pub default: &'static str,
    /// What a flag without a value means; `None` if it must have one.
    pub bare: Option<&'static str>,
    /// One line.
    pub doc: &'static str,
}

/// Every option, in the order of the documentation.
#[rustfmt::skip]
pub static OPTIONS: &[InjectOption] = &[
    option("image", "IMAGE", IMAGE, "ebbtide's image. Where ebbtide is there already its registry and name are kept and the tag is renewed."),
    option("ports", "LIST", "", "The app's ports that ebbtide fronts, as `8080`, `http`, `web/8080` (of the container web), `h2c://50051`; several with commas; `none` for an app without clients. By default those that Services in the input send to, else all TCP ports that are declared; but none that is named like metrics, health or debugging."),
    option("outbound", "LIST", "", "Ports for the app's own connections, which stay open until it has exited: `NAME=127.0.0.1:5672=tcp://mq.example:5672`; several with blanks. The app must then connect there."),
    option("upstream-host", "HOST", "$(POD_IP)", "Where the app listens: the pod's IP, `127.0.0.1`, or `[$(POD_IP)]` with IPv6. By default 127.0.0.1 if the app's arguments or variables say that it listens on loopback only."),
    option("hold", "DURATION", "10s", "How long new work is taken as if nothing had happened. By default as long as the sleep that the app's own hook had, if that is longer."),
    option("app-stop", "DURATION", "5s", "What the app needs between its SIGTERM and its exit."),
    option("grace-period", "SECONDS", "", "terminationGracePeriodSeconds. By default as it is, or what the parts need if that is more."),
    option("listen-port", "PORT", "14080", "ebbtide's port; with several app ports the first of them. By default the next that is free."),
    option("admin-port", "PORT", "14090", "Port of hooks, probes and metrics. By default the next that is free."),
    option("cpu-request", "QUANTITY", "50m", "CPU request of ebbtide's container. There is no limit: throttling is latency."),
    option("memory-request", "QUANTITY", "32Mi", "Memory request."),
    option("memory-limit", "QUANTITY", "128Mi", "Memory limit; sizes the connection limit as well."),
    option("run-as-user", "UID", "65532", "User and group of ebbtide's process; `image` leaves them to the image and to the platform, as OpenShift wants it."),
    bare("replace-hook", "NAMES", "all", "Containers whose own preStop hook is dropped for ebbtide's; `all` without a value."),
    bare("keep-hook", "NAMES", "all", "Containers that keep their own preStop hook and are told to stop when that returns, not when the drain is over."),
    option("mesh", "auto|istio|linkerd|none", "auto", "Whose interception the admin port is taken out of. `auto` looks at containers, annotations and labels."),
];

/// What has been said of one workload.
#[derive(Debug, Clone, Default)]
pub(super) struct Options {
    texts: BTreeMap<&'static str, String>,
    /// Names of those that an earlier injection was told, and nobody since.
    remembered: BTreeSet<&'static str>,
    pub(super) ports: Option<Vec<Choice>>,
    pub(super) outbound: Vec<Outbound>,
    pub(super) grace_period: Option<u64>,
    pub(super) listen_port: Option<u16>,
    pub(super) admin_port: Option<u16>,
    pub(super) replace_hook: Names,
    pub(super) keep_hook: Names,
}

/// Some containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Names {
    #[default]
    None,
    All,
    These(Vec<String>),
}

/// Flags of `ebbtide inject`, one per option.
#[must_use]
pub fn clap_args() -> Vec<Arg> {
    OPTIONS
        .iter()
        .map(|option| {
            let default =
                if option.default.is_empty() { String::new() } else { format!(" [default: {}]", option.default) };
            let help = format!("{}{default}", option.doc.trim_end_matches('.').replace('`', ""));
            let arg = Arg::new(option.name).long(option.name).value_name(option.value).help(help).help_heading(HEADING);
            match option.bare {
                Some(bare) => arg.num_args(0..=1).require_equals(true).default_missing_value(bare),
                None => arg,
            }
        })
        .collect()
}

/// The flags that were given, by name.
#[must_use]
pub fn flags_from(matches: &ArgMatches) -> BTreeMap<&'static str, String> {
    let given = |option: &InjectOption| matches.try_get_one::<String>(option.name).ok().flatten().cloned();
    OPTIONS.iter().filter_map(|option| Some((option.name, given(option)?))).collect()
}

/// Whether an annotation behind `ebbtide.dev/` is one that something reads.
#[must_use]
pub fn is_annotation(name: &str) -> bool {
    OTHER_ANNOTATIONS.contains(&name) || OPTIONS.iter().any(|option| option.name == name)
}

/// Why an option does not take this text.
#[must_use]
pub fn refuses(name: &str, text: &str) -> Option<String> {
    Options::default().set(name, text.trim()).err()
}

/// Flags over annotations over what an earlier injection was told.
///
/// # Errors
/// Every value that is not understood, with the name of its flag or annotation.
pub(super) fn parse(
    flags: &BTreeMap<&'static str, String>,
    annotations: &BTreeMap<String, String>,
    remembered: &BTreeMap<String, String>,
) -> Result<Options, Vec<String>> {
    let mut options = Options::default();
    let mut faults = Vec::new();
    for name in annotations.keys().filter_map(|name| name.strip_prefix(PREFIX)) {
        if !is_annotation(name) && !name.starts_with("ignore-") {
            let names = OPTIONS.iter().map(|option| option.name).chain(OTHER_ANNOTATIONS.iter().copied());
            let hint =
                config::nearest(name, names).map(|near| format!("; did you mean {PREFIX}{near}?")).unwrap_or_default();
            faults.push(format!("the annotation {PREFIX}{name} is not known{hint}"));
        }
    }
    for option in OPTIONS {
        let annotation = format!("{PREFIX}{}", option.name);
        let (text, origin) = if let Some(text) = flags.get(option.name) {
            (text, format!("--{}", option.name))
        } else if let Some(text) = annotations.get(&annotation) {
            (text, format!("the annotation {annotation}"))
        } else if let Some(text) = remembered.get(option.name) {
            options.remembered.insert(option.name);
            (text, format!("--{} of an earlier injection", option.name))
        } else {
            continue;
        };
        match options.set(option.name, text.trim()) {
            Ok(()) => drop(options.texts.insert(option.name, text.trim().to_owned())),
            Err(reason) => faults.push(format!("{origin} = {text:?}: {reason}")),
        }
    }
    let (request, limit) = (options.text("memory-request"), options.text("memory-limit"));
    if faults.is_empty() && bytes(request) > bytes(limit) {
        faults.push(format!("memory-request {request} is more than memory-limit {limit}"));
    }
    if faults.is_empty() { Ok(options) } else { Err(faults) }
}

// === impl Options ===

impl Options {
    /// What was said, as text.
    pub(super) fn given(&self, name: &str) -> Option<&str> {
        self.texts.get(name).map(String::as_str)
    }

    /// Whether it was said now, and not by an earlier injection.
    pub(super) fn is_said(&self, name: &str) -> bool {
        self.texts.contains_key(name) && !self.remembered.contains(name)
    }

    /// What a later injection is to remember: what flags say and no annotation does. The image is renewed by itself.
    pub(super) fn to_remember(&self, annotations: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let by_flags = self
            .texts
            .iter()
            .filter(|(name, _)| **name != "image" && !annotations.contains_key(&format!("{PREFIX}{name}")));
        by_flags.map(|(name, text)| ((*name).to_owned(), text.clone())).collect()
    }

    /// What was said, or the default.
    pub(super) fn text(&self, name: &str) -> &str {
        let default = OPTIONS.iter().find(|option| option.name == name).map_or("", |option| option.default);
        self.given(name).unwrap_or(default)
    }

    fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
        if text.is_empty() {
            return Err("is empty".to_owned());
        }
        match name {
            "ports" => self.ports = Some(Choice::parse_list(text)?),
            "outbound" => self.outbound = Outbound::parse_list(text)?,
            "hold" | "app-stop" => duration(name, text)?,
            "grace-period" => {
                let seconds = text
                    .strip_suffix('s')
                    .unwrap_or(text)
                    .parse()
                    .ok()
                    .filter(|seconds| (1..=86_400).contains(seconds));
                self.grace_period = Some(seconds.ok_or("must be a number of seconds, from 1 to 86400")?);
            }
            "listen-port" => self.listen_port = Some(port(text)?),
            "admin-port" => self.admin_port = Some(port(text)?),
            "cpu-request" | "memory-request" | "memory-limit" => quantity(text)?,
            "run-as-user" if text == "image" => {}
            "run-as-user" => {
                text.parse::<u32>().ok().filter(|uid| *uid > 0).ok_or("must be a user id over 0, or image")?;
            }
            "replace-hook" => self.replace_hook = Names::parse(text),
            "keep-hook" => self.keep_hook = Names::parse(text),
            "mesh" if !["auto", "istio", "linkerd", "none"].contains(&text) => {
                return Err("must be auto, istio, linkerd or none".to_owned());
            }
            "upstream-host" if text.contains("://") || text.contains(char::is_whitespace) => {
                return Err("must be a host without a scheme, like 127.0.0.1".to_owned());
            }
            _ => {}
        }
        Ok(())
    }
}

// === impl Names ===

impl Names {
    fn parse(text: &str) -> Self {
        match text {
            "all" | "true" => Self::All,
            "none" | "false" => Self::None,
            names => Self::These(names.split(',').map(|name| name.trim().to_owned()).collect()),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::These(names) => names.iter().any(|one| one == name),
        }
    }

    /// Those that are no container's.
    pub(super) fn unknown(&self, is_known: impl Fn(&str) -> bool) -> impl Iterator<Item = &str> {
        let names = match self {
            Self::These(names) => names.as_slice(),
            Self::None | Self::All => &[],
        };
        names.iter().map(String::as_str).filter(move |name| !is_known(name))
    }
}

/// By the configuration's own rules.
fn duration(name: &str, text: &str) -> Result<(), String> {
    let variable = if name == "hold" { "EBBTIDE_HOLD" } else { "EBBTIDE_APP_STOP" };
    let variables = [(variable, text), ("EBBTIDE_MODE", "sidecar"), ("EBBTIDE_UPSTREAM", "http://127.0.0.1:80")];
    match config::load(None, &variables.into_iter().collect::<Environment>(), &[]) {
        Ok(_) => Ok(()),
        Err(errors) => Err(errors.first().map_or_else(String::new, |error| error.reason.clone())),
    }
}

fn port(text: &str) -> Result<u16, String> {
    // Ports below it take a capability that the restricted profile does not allow.
    text.parse().ok().filter(|port| *port >= 1024).ok_or_else(|| "must be a port from 1024 to 65535".to_owned())
}

fn quantity(text: &str) -> Result<(), String> {
    let units = ["m", "k", "M", "G", "Ki", "Mi", "Gi", ""];
    let fits = units.iter().any(|unit| {
        text.strip_suffix(unit)
            .is_some_and(|number| number.parse::<f64>().is_ok_and(|number| number.is_finite() && number > 0.0))
    });
    fits.then_some(()).ok_or_else(|| "must be a quantity like 50m or 64Mi".to_owned())
}

/// Of a quantity that has been accepted.
fn bytes(text: &str) -> f64 {
    let units = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("m", 0.001),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
    ];
    let (number, factor) =
        units.into_iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor))).unwrap_or((text, 1.0));
    number.parse::<f64>().unwrap_or_default() * factor
}

const fn option(name: &'static str, value: &'static str, default: &'static str, doc: &'static str) -> InjectOption {
    InjectOption { name, value, default, bare: None, doc }
}

const fn bare(name: &'static str, value: &'static str, bare: &'static str, doc: &'static str) -> InjectOption {
    InjectOption { name, value, default: "", bare: Some(bare), doc }
}

/// Of the flags in `--help`.
const HEADING: &str = "What is injected (each also as annotation ebbtide.dev/NAME of the pod template)";

/// Of all annotations.
pub const PREFIX: &str = "ebbtide.dev/";

/// Annotations that are no options: what inject writes, and whether it may.
const OTHER_ANNOTATIONS: [&str; 3] = ["inject", super::record::INJECTED, super::services::ORIGINAL];

/// The image of this version, for a registry that nobody has named.
const IMAGE: &str = concat!("ebbtide:", env!("CARGO_PKG_VERSION"));
