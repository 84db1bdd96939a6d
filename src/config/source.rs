//! Where settings come from, and which one wins: file, `EBBTIDE_CONFIG_YAML`, variables, flags.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::error::{ConfigError, Fault, Origin, nearest};
use super::keys::{
    self, BIND, CONTROL_SOCKET, HOLD, KEYS, Key, TLS_CERTIFICATES, UPSTREAM, UPSTREAM_CA, UPSTREAM_NAME,
};
use super::value::{Kind, Value};
use super::yaml;

/// The `EBBTIDE_*` variables, so that nothing else reads the process environment.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, OsString>);

/// One key with its text and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) key: &'static Key,
    /// The path for messages, with an index in the place of `[]`.
    pub(super) shown: String,
    pub(super) text: String,
    pub(super) origin: Origin,
    /// `None` if the text is faulty; the fault has been reported then.
    pub(super) value: Option<Value>,
}

/// One entry of the list of listeners.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) origin: Origin,
    pub(super) fields: BTreeMap<&'static str, Setting>,
}

/// What one source sets.
#[derive(Debug, Default)]
pub(super) struct Layer {
    pub(super) settings: BTreeMap<&'static str, Setting>,
    /// `None` if this source has no list of listeners.
    pub(super) listeners: Option<Vec<Item>>,
    /// Some of the source could not be read, so that what is missing may stand there.
    pub(super) incomplete: bool,
    pub(super) errors: Vec<ConfigError>,
}

/// Every source in one, in rising precedence.
pub(super) fn collect(file: Option<&Path>, env: &Environment, flags: &[(String, String)]) -> Layer {
    let named = env.text("EBBTIDE_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    let mut merged = match file.or(named.as_deref()) {
        Some(path) => from_file(path),
        None => Layer::default(),
    };
    if let Some(text) = env.text("EBBTIDE_CONFIG_YAML") {
        merged.overlay(yaml::parse("EBBTIDE_CONFIG_YAML", text));
    }
    merged.overlay(from_environment(env));
    merged.overlay(from_flags(flags));
    merged.place_first_listener();
    merged
}

/// One file's text and nothing else.
pub(super) fn collect_text(name: &str, text: &str) -> Layer {
    let mut layer = yaml::parse(name, text);
    layer.place_first_listener();
    layer
}

/// One file and nothing else.
pub(super) fn collect_file(path: &Path) -> io::Result<Layer> {
    let name = path.display().to_string();
    Ok(match read_text(path)? {
        Ok(text) => collect_text(&name, &text),
        Err(fault) => unreadable(name, fault),
    })
}

/// `--control-socket` in the form of [`collect`].
pub(super) fn socket_flag(text: Option<&str>) -> Vec<(String, String)> {
    text.map(|text| (CONTROL_SOCKET.to_owned(), text.to_owned())).into_iter().collect()
}

fn from_file(path: &Path) -> Layer {
    let name = path.display().to_string();
    let fault = match read_text(path) {
        Ok(Ok(text)) => return yaml::parse(&name, &text),
        Ok(Err(fault)) => fault,
        Err(error) => {
            Fault::new(format!("can't be read: {error}")).hint("check the path given by --config or EBBTIDE_CONFIG")
        }
    };
    unreadable(name, fault)
}

fn unreadable(name: String, fault: Fault) -> Layer {
    Layer { errors: vec![ConfigError::new(Origin::Whole(name), "", None, fault)], incomplete: true, ..Layer::default() }
}

/// Stops soon after the size that a file may have: the path may lead to a device.
fn read_text(path: &Path) -> io::Result<Result<String, Fault>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(yaml::LARGEST + 1).unwrap_or(u64::MAX);
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    if bytes.len() > yaml::LARGEST {
        return Ok(Err(Fault::new(yaml::too_large())));
    }
    Ok(String::from_utf8(bytes).map_err(|_| Fault::new(NOT_TEXT)))
}

fn from_environment(env: &Environment) -> Layer {
    let mut layer = Layer::default();
    for (name, value) in &env.0 {
        let origin = Origin::Variable(name.clone());
        let key = KEYS.iter().find(|key| key.env == Some(name));
        let Some(text) = value.to_str() else {
            let path = key.map_or("", |key| key.path);
            layer.errors.push(ConfigError::new(origin, path, None, Fault::new(NOT_TEXT)));
            continue;
        };
        match key {
            Some(key) if text.is_empty() => {
                let fault = Fault::new("is empty").hint("give a value, or remove it for the default");
                layer.errors.push(ConfigError::new(origin, key.path, None, fault));
            }
            Some(key) if key.is_source() => {}
            Some(key) => {
                let setting = Setting::read(key, key.path, text, origin, &mut layer.errors);
                layer.add(setting);
            }
            None if is_from_kubernetes(name, text) => {}
            None => {
                let hint =
                    match nearest(without_prefix(name), KEYS.iter().filter_map(|key| key.env.map(without_prefix))) {
                        Some(found) => format!("did you mean {PREFIX}{found}?"),
                        None => "remove it, or set it under a name that does not start with EBBTIDE_".to_owned(),
                    };
                layer.errors.push(ConfigError::new(origin, "", None, Fault::new("unknown variable").hint(hint)));
            }
        }
    }
    layer.refuse_two_holds();
    layer
}

/// All names share the prefix, so it must not count when they are compared.
fn without_prefix(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}

fn from_flags(flags: &[(String, String)]) -> Layer {
    let mut layer = Layer::default();
    for (path, text) in flags {
        let Some((key, flag)) = keys::find(path).and_then(|key| Some((key, key.flag?))) else {
            let fault = Fault::new("has no flag");
            layer.errors.push(ConfigError::new(Origin::Whole("command line".to_owned()), path, None, fault));
            continue;
        };
        let setting = Setting::read(key, key.path, text, Origin::Flag(format!("--{flag}")), &mut layer.errors);
        layer.add(setting);
    }
    layer.refuse_two_holds();
    layer
}

/// Kubernetes sets such variables for every Service whose name is `ebbtide` or starts with `ebbtide-`.
fn is_from_kubernetes(name: &str, value: &str) -> bool {
    // Somebody who sets `EBBTIDE_PORT=8080` by hand must be told; Kubernetes puts a URL there.
    let is_url = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let has_protocol = ["_TCP", "_UDP", "_SCTP"].iter().any(|protocol| name.contains(protocol));
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && is_url)
        || (name.contains("_PORT_") && has_protocol)
}

// === impl Environment ===

impl Environment {
    /// Those of this process.
    #[must_use]
    pub fn of_process() -> Self {
        std::env::vars_os().collect()
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.to_str()
    }
}

impl<N: Into<OsString>, V: Into<OsString>> FromIterator<(N, V)> for Environment {
    /// Keeps the variables that start with `EBBTIDE_`.
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        let named =
            variables.into_iter().filter_map(|(name, value)| Some((name.into().into_string().ok()?, value.into())));
        Self(named.filter(|(name, _)| name.starts_with(PREFIX)).collect())
    }
}

impl fmt::Debug for Environment {
    /// Names only: one of the values is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

// === impl Setting ===

impl Setting {
    /// Reads the text by the key's kind; a fault goes to `errors`.
    pub(super) fn read(
        key: &'static Key,
        shown: &str,
        text: &str,
        origin: Origin,
        errors: &mut Vec<ConfigError>,
    ) -> Self {
        let is_secret = key.kind == Kind::Secret;
        let value = match key.kind.parse(text) {
            Ok(value) => Some(value),
            Err(fault) => {
                let text = (!is_secret).then(|| text.to_owned());
                errors.push(ConfigError::new(origin.clone(), shown, text, fault));
                None
            }
        };
        Self {
            key,
            shown: shown.to_owned(),
            text: if is_secret { String::new() } else { text.to_owned() },
            origin,
            value,
        }
    }

    /// A fault found when this setting is compared with others.
    pub(super) fn error(&self, fault: Fault) -> ConfigError {
        ConfigError::new(self.origin.clone(), &self.shown, Some(self.text.clone()), fault)
    }
}

// === impl Item ===

impl Item {
    pub(super) fn new(origin: Origin) -> Self {
        Self { origin, fields: BTreeMap::new() }
    }

    fn is_inbound(&self) -> bool {
        self.fields.get("listeners[].direction").is_none_or(|setting| setting.text.trim() != "outbound")
    }
}

// === impl Layer ===

impl Layer {
    /// Puts a setting where it belongs: into the listener being read, or among the others.
    pub(super) fn add(&mut self, setting: Setting) {
        let item = match &mut self.listeners {
            Some(items) if setting.key.path.starts_with("listeners[]") => items.last_mut(),
            Some(_) | None => None,
        };
        let settings = item.map_or(&mut self.settings, |item| &mut item.fields);
        settings.insert(setting.key.path, setting);
    }

    /// Lays a later source over this one. A fixed hold replaces an adaptive one and the other way round.
    fn overlay(&mut self, later: Self) {
        if later.settings.contains_key(HOLD) {
            self.settings.retain(|path, _| !is_hold_part(path));
        }
        if later.settings.keys().any(|path| is_hold_part(path)) {
            self.settings.remove(HOLD);
        }
        self.settings.extend(later.settings);
        if later.listeners.is_some() {
            self.listeners = later.listeners;
        }
        self.errors.extend(later.errors);
        self.incomplete |= later.incomplete;
    }

    fn refuse_two_holds(&mut self) {
        let Some(hold) = self.settings.get(HOLD) else { return };
        let Some(part) = self.settings.values().find(|setting| is_hold_part(setting.key.path)) else {
            return;
        };
        let fault = Fault::new(format!("is set together with {}", part.origin))
            .hint("a hold is either fixed or adaptive; set one of the two");
        let error = ConfigError::new(hold.origin.clone(), HOLD, Some(hold.text.clone()), fault);
        self.errors.push(error);
    }

    /// Variables and flags have no list: they set the first inbound listener, or make one called `default`.
    fn place_first_listener(&mut self) {
        let upstream = self.settings.remove(UPSTREAM);
        let others: Vec<_> = OF_FIRST_LISTENER.iter().filter_map(|path| self.settings.remove(path)).collect();
        let items = self.listeners.get_or_insert_default();
        let index = match (items.iter().position(Item::is_inbound), &upstream) {
            (Some(index), _) => index,
            (None, Some(upstream)) => {
                // At the end, so that the indices of the file's own listeners stay true.
                items.push(default_listener(items.len(), upstream.origin.clone()));
                items.len() - 1
            }
            (None, None) => {
                let nothing_else = items.is_empty();
                // An empty variable has been reported: it was meant to name the app.
                let meant = self.errors.iter().any(|error| error.key == UPSTREAM);
                self.errors.extend(
                    others
                        .first()
                        .map(no_upstream)
                        .or_else(|| nothing_else.then(no_listener))
                        .filter(|_| !self.incomplete && !meant),
                );
                return;
            }
        };
        if let Some(item) = items.get_mut(index) {
            for mut setting in others.into_iter().chain(upstream) {
                setting.shown = setting.key.path.replace("[]", &format!("[{index}]"));
                item.fields.insert(setting.key.path, setting);
            }
        }
    }
}

fn no_upstream(of: &Setting) -> ConfigError {
    let fault = Fault::new("there is no upstream for it").hint(SET_UPSTREAM);
    ConfigError::new(of.origin.clone(), of.key.path, Some(of.text.clone()), fault)
}

fn no_listener() -> ConfigError {
    let fault = Fault::new("there is none").hint(format!("{SET_UPSTREAM}, or write a list of listeners in the file"));
    ConfigError::new(Origin::Whole("configuration".to_owned()), "listeners", None, fault)
}

fn default_listener(index: usize, origin: Origin) -> Item {
    let mut item = Item::new(origin.clone());
    if let Some(key) = keys::find("listeners[].name") {
        // The name is a constant, so there is no fault to collect.
        let setting = Setting::read(key, &format!("listeners[{index}].name"), "default", origin, &mut Vec::new());
        item.fields.insert(key.path, setting);
    }
    item
}

fn is_hold_part(path: &str) -> bool {
    path.starts_with("drain.hold.")
}

/// Beside the upstream.
const OF_FIRST_LISTENER: [&str; 4] = [BIND, TLS_CERTIFICATES, UPSTREAM_CA, UPSTREAM_NAME];

const PREFIX: &str = "EBBTIDE_";

const NOT_TEXT: &str = "is not UTF-8 text";

const SET_UPSTREAM: &str = "set EBBTIDE_UPSTREAM (or --upstream) to the app, like http://127.0.0.1:8080";
