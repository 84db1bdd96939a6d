//! The one table of everything that can be set; parsing, flags and the user's documentation follow it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgMatches};

use super::value::Kind;

/// One thing that can be set.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Key {
    /// Dotted path as in the file; `listeners[]` stands for each entry of the list.
    pub path: &'static str,
    /// Form of its text.
    pub kind: Kind,
    /// Text of the default; empty if there is none.
    pub default: &'static str,
    /// The default in plain mode, if it is another one.
    pub default_plain: Option<&'static str>,
    /// The variable that sets it.
    pub env: Option<&'static str>,
    /// The flag that sets it, without its dashes.
    pub flag: Option<&'static str>,
    /// Whether the file may set it.
    pub in_file: bool,
    /// One line.
    pub doc: &'static str,
}

/// A key of the file that this version does not take, and why.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tombstone {
    pub(super) path: &'static str,
    pub(super) reason: &'static str,
    pub(super) hint: &'static str,
}

/// Every key, in the order of the documentation.
#[rustfmt::skip]
pub static KEYS: &[Key] = &[
    key(CONFIG, Kind::Path, "", "Configuration file.").env("EBBTIDE_CONFIG").flag("config").not_in_file(),
    key("config_yaml", Kind::Text, "", "Text of a whole configuration file, so that no ConfigMap is needed.")
        .env("EBBTIDE_CONFIG_YAML").not_in_file(),
    key("mode", Kind::Word(&["sidecar", "plain"]), "plain", "`sidecar`: native sidecar with both preStop hooks. `plain`: anything else.")
        .env("EBBTIDE_MODE").flag("mode"),
    key("listeners[].name", Kind::Name, "", "Unique name, used in `/app-stop?listener=NAME` and as metric label. Without a file it is `default`."),
    key("listeners[].direction", Kind::Word(&["inbound", "outbound"]), "inbound", "`inbound`: clients to the app, drained. `outbound`: from the app to elsewhere, never drained."),
    key(PROTOCOL, Kind::Word(&["http", "tcp"]), "", "`http`: HTTP/1, HTTP/2, gRPC, WebSocket and events, told apart by ebbtide. `tcp`: bytes as they are. Follows from `upstream` and `direction`; needed only for `tcp` to a Unix socket."),
    key(BIND, Kind::Bind, "[::]:14080", "Address to listen on. Outbound listeners have no default. Variable and flag set the first inbound listener.")
        .env("EBBTIDE_LISTEN").flag("listen"),
    key(UPSTREAM, Kind::Upstream, "", "Inbound: `http://HOST:PORT`, `h2c://` (HTTP/2, gRPC), `auto://` (asks the app), `https://` (TLS; HTTP/2 if both sides speak it), `unix:///PATH` (asks the app), `tcp://HOST:PORT` (bytes), `tls://HOST:PORT` (bytes inside TLS). Outbound: `tcp://HOST:PORT` or `tls://HOST:PORT`, or several like `tcp://a:5672,b:5672`, tried in this order. Variable and flag set the first inbound listener.")
        .env("EBBTIDE_UPSTREAM").flag("upstream"),
    key(CONNECT_TIMEOUT, Kind::Duration(Duration::from_millis(1)), "5s", "Outbound only: longest wait for a connection, over all addresses of all hosts."),
    key(IDLE_TIMEOUT, Kind::DurationOrOff, "off", "Inbound `tcp` only: silence both ways that ends a connection."),
    key(HALF_CLOSED_TIMEOUT, Kind::DurationOrOff, "1h", "Inbound `tcp` only: silence that ends a connection of which one side has closed."),
    key(PROXY_FROM, Kind::Networks, "", "Inbound only: sources (`10.0.0.0/8`, several as a list) whose connections begin with a PROXY protocol header, version 1 or 2. Nobody else's header is believed; IPv4 sources are written as IPv4."),
    key(SEND_PROXY, Kind::Switch, "off", "Inbound `tcp` only: begin each connection to the app with a PROXY protocol header, version 2, so that it learns the client's address."),
    key(TLS_CERTIFICATES, Kind::Certificates, "", "Inbound only: speak TLS, with these certificates. Each is a folder with `tls.crt` and `tls.key`, as a Secret is mounted, or `CHAIN.pem:KEY.pem`. Of several (a list) the client's server name decides; the first is for everybody else. Changed files are taken up by themselves. Variable and flag set the first inbound listener.")
        .env("EBBTIDE_TLS_CERTIFICATES").flag("tls-certificates"),
    key(TLS_MIN_VERSION, Kind::Word(&["1.2", "1.3"]), "1.2", "Oldest version of TLS that clients may speak."),
    key(TLS_CLIENT_CA, Kind::Path, "", "PEM file with the authorities of client certificates: clients are asked for one."),
    key(TLS_CLIENT_AUTH, Kind::Word(&["required", "optional"]), "required", "Whether a client without a certificate is refused. A bad certificate always is."),
    key(TLS_CLIENT_NAMES, Kind::SubjectNames, "", "Clients that may come, by a subject alternative name of their certificate: `client.example`, `*.example`, `spiffe://cluster.local/ns/shop/*`, an IP address; several as a list. All that the authorities vouch for if it is not set."),
    key(UPSTREAM_CA, Kind::Path, "", "PEM file with the authorities that vouch for an `https://` or `tls://` upstream. Variable and flag set the first inbound listener.")
        .env("EBBTIDE_UPSTREAM_CA").flag("upstream-ca"),
    key(UPSTREAM_NAME, Kind::ServerName, "", "Name that the upstream's certificate must have, and that it is asked for (SNI). The upstream's host if it is not set.")
        .env("EBBTIDE_UPSTREAM_SERVER_NAME").flag("upstream-server-name"),
    key(UPSTREAM_CERTIFICATE, Kind::Certificate, "", "Our own certificate towards the upstream, if it asks for one; a folder or `CHAIN.pem:KEY.pem`."),
    key(UPSTREAM_SKIP, Kind::Switch, "off", "Believe whoever answers at the upstream's address. Only for a path that nobody else can reach; it is warned about at each start."),
    key("admin.bind", Kind::Bind, "[::]:14090", "Address of the admin port, for the kubelet and Prometheus.").env("EBBTIDE_ADMIN").flag("admin"),
    key("admin.token", Kind::Secret, "", "Hooks that send it as `X-Ebbtide-Token` have places reserved at `/app-stop`.")
        .env("EBBTIDE_ADMIN_TOKEN").not_in_file(),
    key(CONTROL_SOCKET, Kind::SocketOrDefault, "default", "Unix socket of `ebbtide drain` and `status`. `default`: `/run/ebbtide/control.sock`, or an abstract socket where that can't be written.")
        .env("EBBTIDE_CONTROL_SOCKET").flag("control-socket"),
    key("drain.grace_period", Kind::Duration(Duration::from_secs(1)), "30s", "What the pod spec says (`terminationGracePeriodSeconds`), at least 1s.")
        .plain("10s").env("EBBTIDE_GRACE_PERIOD").flag("grace-period"),
    key(HOLD, ANY, "10s", "How long new work is still taken as if nothing had happened. Or adaptive, with the three keys below.")
        .env("EBBTIDE_HOLD").flag("hold"),
    key("drain.hold.min", ANY, "", "Adaptive hold: never ends earlier.").env("EBBTIDE_HOLD_MIN").flag("hold-min"),
    key("drain.hold.quiet", ANY, "", "Adaptive hold: ends when nothing new has come for this long.").env("EBBTIDE_HOLD_QUIET").flag("hold-quiet"),
    key("drain.hold.max", ANY, "", "Adaptive hold: never ends later.").env("EBBTIDE_HOLD_MAX").flag("hold-max"),
    key("drain.notice_after", Kind::Percent, "50%", "Share of the hold after which clients are told to go.")
        .env("EBBTIDE_NOTICE_AFTER").flag("notice-after"),
    key("drain.readiness_fails", Kind::Word(&["t0", "notice", "drain"]), "notice", "When `/readyz` turns to 503: at once, with the first notices, or when the hold ends."),
    key("drain.quiet", ANY, "1s", "Silence that ends the drain."),
    key("drain.close_spread", ANY, "2s", "Window over which idle connections are closed."),
    key("drain.idle_after", Kind::DurationOr("hold"), "hold", "When idle HTTP/1 connections are closed, spread over `close_spread`: at the end of the hold, or this long after the termination began, but not within the hold.")
        .env("EBBTIDE_IDLE_AFTER").flag("idle-after"),
    key("drain.websocket_after", Kind::DurationOr("hold"), "hold", "When WebSocket sessions are closed, likewise; may be within the hold."),
    key("drain.sse_after", Kind::DurationOr("hold"), "hold", "When event streams (`text/event-stream`) are ended between two events, likewise."),
    key("drain.close", ANY, "2s", "Time for forced endings to reach the clients."),
    key("drain.app_stop", ANY, "5s", "What the app needs between its SIGTERM and its exit; always 0 in plain mode.")
        .plain("0s").env("EBBTIDE_APP_STOP").flag("app-stop"),
    key("drain.margin", ANY, "2s", "Kept free before the end of the grace period.").env("EBBTIDE_MARGIN").flag("margin"),
    key("drain.witness_window", ANY, "2s", "How long after an app hook the own hook or SIGTERM may come."),
    key("drain.app_restart_wait", ANY, "5s", "Longest time an app hook is held when only the app is restarted."),
    key("parking.wait_timeout", ANY, "10s", "Longest wait of a request while the app is down."),
    key("parking.max_requests", Kind::Count, "1024", "Most requests waiting at once, over all listeners."),
    key("websocket.close_code", Kind::CloseCode, "1001", "Code of the Close frame that clients get: 1001 (going away), 1012 (service restart), 1000, 1013, or 3000 to 4999."),
    key("websocket.close_timeout", Kind::Duration(Duration::from_millis(100)), "3s", "How long a Close frame may stay unanswered, at least 100ms."),
    key("websocket.over_http2", Kind::Switch, "off", "Offer WebSocket over HTTP/2 (RFC 8441); the app is spoken to in HTTP/1.1."),
    key("pass_on_close", Kind::Switch, "off", "Hand the app's `Connection: close` to the client as well."),
    key("limits.max_connections", Kind::CountOrAuto, "auto", "Downstream connections and open HTTP/2 streams together, over all listeners. `auto` follows RLIMIT_NOFILE and the cgroup's memory limit."),
    key("limits.header_bytes", Kind::Size(8 << 10, 1 << 20), "64KiB", "Longest request or response head, over HTTP/2 longest list of headers, 8KiB to 1MiB."),
    key("limits.header_timeout", Kind::Duration(Duration::from_millis(1)), "30s", "From a head's first byte to its end. A TLS handshake has as long."),
    key("metrics.final_scrape", Kind::DurationOrOff, "off", "How long exit may wait for one scrape that starts after the drain ended."),
    key("log.format", Kind::Word(&["json", "text"]), "json", "One JSON object a line, or text for people.")
        .env("EBBTIDE_LOG_FORMAT").flag("log-format"),
    key("log.level", Kind::Word(&["error", "warn", "info", "debug", "trace"]), "info", "Least severe events that are logged.")
        .env("EBBTIDE_LOG").flag("log"),
    key("log.access", Kind::Switch, "off", "One event per finished request."),
    key("workers", Kind::CountOrAuto, "auto", "Worker threads. `auto` follows the cgroup's CPU limit.").env("EBBTIDE_WORKERS").flag("workers"),
    key("termination_message_path", Kind::Path, "/dev/termination-log", "Where the report is left for the kubelet.")
        .env("EBBTIDE_TERMINATION_MESSAGE_PATH").flag("termination-message-path"),
];

pub(super) static TOMBSTONES: &[Tombstone] = &[Tombstone {
    path: "admin.token",
    reason: "is a secret and can't stand in a file",
    hint: "set EBBTIDE_ADMIN_TOKEN from a Kubernetes Secret",
}];

/// Flags of `ebbtide run`, one per key that has one; read them back with [`flags_from`] and [`config_file`].
#[must_use]
pub fn clap_args() -> Vec<Arg> {
    KEYS.iter()
        .filter_map(|key| key.flag.map(|flag| (key, flag)))
        .map(|(key, flag)| Arg::new(key.path).long(flag).value_name(key.kind.value_name()).help(key.help()))
        // `--hold -5s` is a fault in the value, and our own message says which.
        .map(|arg| arg.allow_hyphen_values(true))
        .collect()
}

/// The flags that were given, as the key paths and texts that [`load`](super::load) takes.
#[must_use]
pub fn flags_from(matches: &ArgMatches) -> Vec<(String, String)> {
    KEYS.iter()
        .filter(|key| key.flag.is_some() && key.path != CONFIG)
        .filter_map(|key| {
            let text = matches.try_get_one::<String>(key.path).ok().flatten()?;
            Some((key.path.to_owned(), text.clone()))
        })
        .collect()
}

/// The file given by `--config`.
#[must_use]
pub fn config_file(matches: &ArgMatches) -> Option<PathBuf> {
    matches.try_get_one::<String>(CONFIG).ok().flatten().map(PathBuf::from)
}

pub(super) fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// Whether the file has a mapping at this path.
pub(super) fn is_section(path: &str) -> bool {
    section_keys(path).next().is_some()
}

/// The names directly below a section, or at the top for an empty path; each once.
pub(super) fn section_keys(section: &str) -> impl Iterator<Item = &'static str> {
    let mut seen = Vec::new();
    KEYS.iter().filter(|key| key.in_file).filter_map(move |key| {
        let rest = match section {
            "" => key.path,
            _ => key.path.strip_prefix(section)?.strip_prefix('.')?,
        };
        let name = rest.split('.').next()?.trim_end_matches("[]");
        let first = !seen.contains(&name);
        seen.push(name);
        first.then_some(name)
    })
}

// === impl Key ===

impl Key {
    /// One line for `--help`.
    fn help(&self) -> String {
        let mut notes = Vec::new();
        match (self.default, self.default_plain) {
            ("", _) => {}
            (default, Some(plain)) => notes.push(format!("default: {default}, in plain mode {plain}")),
            (default, None) => notes.push(format!("default: {default}")),
        }
        notes.extend(self.env.map(|env| format!("env: {env}")));
        format!("{} [{}]", self.doc.trim_end_matches('.').replace('`', ""), notes.join("; "))
    }

    /// Names a source instead of setting a value.
    pub(super) fn is_source(&self) -> bool {
        self.path == CONFIG || self.kind == Kind::Text
    }

    const fn env(mut self, name: &'static str) -> Self {
        self.env = Some(name);
        self
    }

    const fn flag(mut self, name: &'static str) -> Self {
        self.flag = Some(name);
        self
    }

    const fn plain(mut self, default: &'static str) -> Self {
        self.default_plain = Some(default);
        self
    }

    const fn not_in_file(mut self) -> Self {
        self.in_file = false;
        self
    }
}

const fn key(path: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Key {
    Key { path, kind, default, default_plain: None, env: None, flag: None, in_file: true, doc }
}

/// Any duration, 0 included.
const ANY: Kind = Kind::Duration(Duration::ZERO);

pub(super) const CONFIG: &str = "config";
pub(super) const CONTROL_SOCKET: &str = "control_socket";
pub(super) const BIND: &str = "listeners[].bind";
pub(super) const UPSTREAM: &str = "listeners[].upstream";
pub(super) const PROTOCOL: &str = "listeners[].protocol";
pub(super) const CONNECT_TIMEOUT: &str = "listeners[].connect_timeout";
pub(super) const IDLE_TIMEOUT: &str = "listeners[].idle_timeout";
pub(super) const HALF_CLOSED_TIMEOUT: &str = "listeners[].half_closed_timeout";
pub(super) const PROXY_FROM: &str = "listeners[].proxy_protocol_from";
pub(super) const SEND_PROXY: &str = "listeners[].send_proxy_protocol";
pub(super) const TLS_CERTIFICATES: &str = "listeners[].tls.certificates";
pub(super) const TLS_MIN_VERSION: &str = "listeners[].tls.min_version";
pub(super) const TLS_CLIENT_CA: &str = "listeners[].tls.client_ca";
pub(super) const TLS_CLIENT_AUTH: &str = "listeners[].tls.client_auth";
pub(super) const TLS_CLIENT_NAMES: &str = "listeners[].tls.client_names";
pub(super) const UPSTREAM_CA: &str = "listeners[].upstream_tls.ca";
pub(super) const UPSTREAM_NAME: &str = "listeners[].upstream_tls.server_name";
pub(super) const UPSTREAM_CERTIFICATE: &str = "listeners[].upstream_tls.certificate";
pub(super) const UPSTREAM_SKIP: &str = "listeners[].upstream_tls.insecure_skip_verify";
pub(super) const HOLD: &str = "drain.hold";
