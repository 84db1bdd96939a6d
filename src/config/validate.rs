//! From settings to a [`Config`], or to every fault at once.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::error::{ConfigError, Fault, Origin};
use super::keys::{self, CONTROL_SOCKET, HOLD, KEYS, Key};
use super::listeners::{self, Placed};
use super::source::{Layer, Setting};
use super::value::Value;
use super::{
    AdminConfig, BudgetParts, Config, ControlSocket, DrainConfig, Hold, LimitsConfig, ListenerConfig, Loaded,
    LogConfig, LogFormat, Mode, ParkingConfig, ReadinessFails, ResolvedValue, WebSocketConfig, conflicts, units,
};

/// Typed values with defaults; a fault goes to `errors` and leaves a stand-in, since the result is dropped then.
pub(super) fn validate(layer: Layer) -> Result<Loaded, Vec<ConfigError>> {
    let mut errors = layer.errors.clone();
    let resolver = Resolver::new(&layer);
    let mut warnings = Vec::new();

    let listeners: Vec<Placed> = layer
        .listeners
        .iter()
        .flatten()
        .enumerate()
        .filter_map(|(index, item)| listeners::read(index, item, &mut errors))
        .collect();
    let admin = resolver.bind("admin.bind");
    let control_socket = resolver.control_socket();
    conflicts::check(&listeners, admin, &resolver.origin("admin.bind"), &control_socket, &mut errors);
    let drain = resolver.drain(&mut errors, &mut warnings);
    for Placed { config, upstream_origin, .. } in &listeners {
        if config.upstream_tls.as_ref().is_some_and(|tls| tls.ca.is_none()) {
            warnings.push(format!(
                "{upstream_origin}: listener {}: whoever answers at {} is believed to be the upstream \
                 (upstream_tls.insecure_skip_verify): give upstream_tls.ca instead",
                config.name, config.upstream
            ));
        }
    }
    let config =
        resolver.config(listeners.iter().map(|placed| placed.config.clone()).collect(), drain, admin, control_socket);
    if errors.is_empty() {
        let values = resolver.resolved_values(&listeners);
        return Ok(Loaded { config, warnings, values });
    }
    errors.sort_by_key(|error| in_reading_order(&error.origin));
    Err(errors)
}

/// The control socket alone; faults elsewhere don't matter to who only wants to reach the process.
pub(super) fn control_socket(layer: Layer) -> Result<ControlSocket, Vec<ConfigError>> {
    let socket = Resolver::new(&layer).control_socket();
    let (own, incomplete) = (CONTROL_SOCKET, layer.incomplete);
    let errors: Vec<_> =
        layer.errors.into_iter().filter(|e| e.key == own || (incomplete && e.key.is_empty())).collect();
    if errors.is_empty() { Ok(socket) } else { Err(errors) }
}

/// Files first, in the order of their lines, then variables, then flags.
fn in_reading_order(origin: &Origin) -> (u8, String, usize, usize) {
    match origin {
        Origin::Text { name, line, column } => (0, name.clone(), *line, *column),
        Origin::Variable(_) => (1, String::new(), 0, 0),
        Origin::Flag(_) => (2, String::new(), 0, 0),
        Origin::Whole(_) | Origin::Default => (3, String::new(), 0, 0),
    }
}

struct Resolver<'a> {
    layer: &'a Layer,
    mode: Mode,
}

// === impl Resolver ===

impl<'a> Resolver<'a> {
    fn new(layer: &'a Layer) -> Self {
        let mut resolver = Self { layer, mode: Mode::Plain };
        if resolver.word("mode") == "sidecar" {
            resolver.mode = Mode::Sidecar;
        }
        resolver
    }

    fn setting(&self, path: &str) -> Option<&'a Setting> {
        self.layer.settings.get(path)
    }

    fn origin(&self, path: &str) -> Origin {
        self.setting(path).map_or(Origin::Default, |setting| setting.origin.clone())
    }

    /// The value set, else the default; `None` if there is neither or it is faulty.
    fn value(&self, path: &str) -> Option<Value> {
        match self.setting(path) {
            Some(setting) => setting.value.clone(),
            None => keys::find(path).and_then(|key| key.kind.parse(self.default(key)).ok()),
        }
    }

    fn default(&self, key: &'static Key) -> &'static str {
        match (self.mode, key.default_plain) {
            (Mode::Plain, Some(default)) => default,
            (Mode::Plain | Mode::Sidecar, _) => key.default,
        }
    }

    fn duration(&self, path: &str) -> Duration {
        if let Some(Value::Duration(duration)) = self.value(path) { duration } else { Duration::ZERO }
    }

    fn optional_duration(&self, path: &str) -> Option<Duration> {
        if let Some(Value::Duration(duration)) = self.value(path) { Some(duration) } else { None }
    }

    fn word(&self, path: &str) -> &'static str {
        if let Some(Value::Word(word)) = self.value(path) { word } else { "" }
    }

    fn switch(&self, path: &str) -> bool {
        matches!(self.value(path), Some(Value::Switch(true)))
    }

    fn count(&self, path: &str) -> Option<usize> {
        if let Some(Value::Count(count)) = self.value(path) { Some(count) } else { None }
    }

    fn bind(&self, path: &str) -> SocketAddr {
        if let Some(Value::Bind(bind)) = self.value(path) { bind } else { SocketAddr::from(([0, 0, 0, 0], 0)) }
    }

    fn path(&self, path: &str) -> Option<PathBuf> {
        if let Some(Value::Path(path)) = self.value(path) { Some(path) } else { None }
    }

    fn control_socket(&self) -> ControlSocket {
        self.path(CONTROL_SOCKET).map_or(ControlSocket::Default, ControlSocket::Path)
    }

    fn config(
        &self,
        listeners: Vec<ListenerConfig>,
        drain: DrainConfig,
        admin: SocketAddr,
        control_socket: ControlSocket,
    ) -> Config {
        let token = if let Some(Value::Secret(token)) = self.value("admin.token") { Some(token) } else { None };
        Config {
            mode: self.mode,
            listeners,
            admin: AdminConfig { bind: admin, token },
            control_socket,
            drain,
            parking: ParkingConfig {
                wait_timeout: self.duration("parking.wait_timeout"),
                max_requests: self.count("parking.max_requests").unwrap_or_default(),
            },
            websocket: WebSocketConfig {
                close_code: if let Some(Value::CloseCode(code)) = self.value("websocket.close_code") {
                    code
                } else {
                    0
                },
                close_timeout: self.duration("websocket.close_timeout"),
                over_http2: self.switch("websocket.over_http2"),
            },
            pass_on_close: self.switch("pass_on_close"),
            limits: LimitsConfig {
                max_connections: self.count("limits.max_connections"),
                header_bytes: if let Some(Value::Size(bytes)) = self.value("limits.header_bytes") { bytes } else { 0 },
                header_timeout: self.duration("limits.header_timeout"),
            },
            final_scrape: self.optional_duration("metrics.final_scrape"),
            log: LogConfig {
                format: if self.word("log.format") == "text" { LogFormat::Text } else { LogFormat::Json },
                level: self.word("log.level").parse().unwrap_or(tracing::Level::INFO),
                access: self.switch("log.access"),
            },
            workers: self.count("workers").and_then(NonZeroUsize::new),
            termination_message_path: self.path("termination_message_path").unwrap_or_default(),
        }
    }

    fn drain(&self, errors: &mut Vec<ConfigError>, warnings: &mut Vec<String>) -> DrainConfig {
        let mut app_stop = self.duration("drain.app_stop");
        let set = |path: &str| self.setting(path).is_some();
        if self.mode == Mode::Plain
            && let Some(setting) = self.setting("drain.app_stop")
            && !app_stop.is_zero()
        {
            warnings.push(format!(
                "{}: drain.app_stop = {:?} counts as 0 in plain mode: nothing holds the app's SIGTERM back there",
                setting.origin, setting.text
            ));
            app_stop = Duration::ZERO;
        }
        DrainConfig {
            grace_period: self.duration("drain.grace_period"),
            hold: self.hold(errors),
            notice_after: if let Some(Value::Percent(share)) = self.value("drain.notice_after") { share } else { 0.0 },
            readiness_fails: match self.word("drain.readiness_fails") {
                "t0" => ReadinessFails::T0,
                "drain" => ReadinessFails::Drain,
                _ => ReadinessFails::Notice,
            },
            quiet: self.duration("drain.quiet"),
            close_spread: self.duration("drain.close_spread"),
            idle_after: self.optional_duration("drain.idle_after"),
            websocket_after: self.optional_duration("drain.websocket_after"),
            sse_after: self.optional_duration("drain.sse_after"),
            close: self.duration("drain.close"),
            app_stop,
            margin: self.duration("drain.margin"),
            witness_window: self.duration("drain.witness_window"),
            app_restart_wait: self.duration("drain.app_restart_wait"),
            set_by_user: BudgetParts {
                hold: set(HOLD) || HOLD_PARTS.iter().any(|path| set(path)),
                close: set("drain.close"),
                app_stop: set("drain.app_stop") && self.mode == Mode::Sidecar,
                margin: set("drain.margin"),
            },
        }
    }

    fn hold(&self, errors: &mut Vec<ConfigError>) -> Hold {
        let parts = HOLD_PARTS.map(|path| self.setting(path));
        let Some(given) = parts.iter().flatten().next() else {
            return Hold::Fixed(self.duration(HOLD));
        };
        for path in HOLD_PARTS.iter().filter(|path| self.setting(path).is_none()) {
            let fault = Fault::new("is missing").hint("an adaptive hold needs min, quiet and max");
            errors.push(ConfigError::new(given.origin.clone(), *path, None, fault));
        }
        let [min, quiet, max] = HOLD_PARTS.map(|path| self.duration(path));
        let [min_setting, quiet_setting, max_setting] = parts;
        // A missing or faulty max has been reported, and is no measure for the others.
        if max_setting.is_some_and(|setting| setting.value.is_some()) {
            for (setting, duration) in [(min_setting, min), (quiet_setting, quiet)] {
                if let Some(setting) = setting.filter(|_| duration > max) {
                    let fault = Fault::new(format!("is longer than drain.hold.max, {}", units::format_duration(max)))
                        .hint("raise max or lower this one");
                    errors.push(setting.error(fault));
                }
            }
        }
        Hold::Adaptive { min, quiet, max }
    }

    fn resolved_values(&self, listeners: &[Placed]) -> Vec<ResolvedValue> {
        let adaptive = HOLD_PARTS.iter().any(|path| self.setting(path).is_some());
        let mut values = Vec::new();
        for key in KEYS.iter().filter(|key| !key.is_source()) {
            if key.path == "listeners[].name" {
                values.extend(listeners.iter().flat_map(Placed::values));
            }
            let not_this_hold = (key.path == HOLD && adaptive) || (HOLD_PARTS.contains(&key.path) && !adaptive);
            if key.path.starts_with("listeners[]") || not_this_hold {
                continue;
            }
            let zeroed = key.path == "drain.app_stop" && self.mode == Mode::Plain;
            let value = match self.value(key.path) {
                Some(_) if zeroed => "0s".to_owned(),
                Some(value) => value.to_string(),
                None => "(not set)".to_owned(),
            };
            values.push(ResolvedValue { key: key.path.to_owned(), value, origin: self.origin(key.path) });
        }
        values
    }
}

/// In the order min, quiet, max.
const HOLD_PARTS: [&str; 3] = ["drain.hold.min", "drain.hold.quiet", "drain.hold.max"];
