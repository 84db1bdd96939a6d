//! The validated configuration: what the rest of ebbtide reads.
//!
//! Values come from four sources, later ones win: the YAML file, the whole file in `EBBTIDE_CONFIG_YAML`, single
//! `EBBTIDE_*` variables, flags. All faults of all sources are reported at once.

mod keys;
mod units;
mod address;
mod value;
mod error;
mod yaml;
mod source;
mod validate;
mod listeners;
mod tls;
mod conflicts;
mod schema;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;

pub(crate) use self::error::nearest;
pub use self::error::{ConfigError, Origin};
pub use self::keys::{KEYS, Key, clap_args, config_file, flags_from};
pub use self::schema::schema;
pub use self::source::Environment;
pub use self::tls::{
    CertificateFiles, ClientCertificates, ServerTlsConfig, SubjectName, TlsVersion, UpstreamTlsConfig,
};
pub use self::value::Kind;

/// Reads all sources. `file` is `--config`; without it `EBBTIDE_CONFIG` names the file, if there is one.
///
/// `flags` are pairs of a key's path and its text, see [`flags_from`].
///
/// # Errors
/// Every fault of every source, those of the files first.
pub fn load(file: Option<&Path>, env: &Environment, flags: &[(String, String)]) -> Result<Loaded, Vec<ConfigError>> {
    validate::validate(source::collect(file, env, flags))
}

/// Reads one file's text alone, without environment and flags. `name` is what messages call it.
///
/// # Errors
/// Every fault in the text.
pub fn check_text(name: &str, text: &str) -> Result<Loaded, Vec<ConfigError>> {
    validate::validate(source::collect_text(name, text))
}

/// Reads one file alone, as [`check_text`] does.
///
/// # Errors
/// The outer one: it can't be read. The inner one: every fault in it.
pub fn check_file(path: &Path) -> io::Result<Result<Loaded, Vec<ConfigError>>> {
    source::collect_file(path).map(validate::validate)
}

/// Where `ebbtide drain` and `ebbtide status` look for the process: only `control_socket` matters, whatever else may
/// be missing or wrong. `flag` is the text of `--control-socket`.
///
/// # Errors
/// The faults of that key, and of a file that can't be read at all.
pub fn control_socket(
    file: Option<&Path>,
    env: &Environment,
    flag: Option<&str>,
) -> Result<ControlSocket, Vec<ConfigError>> {
    validate::control_socket(source::collect(file, env, &source::socket_flag(flag)))
}

/// What a successful load brings.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Settings that have no effect; one line each.
    pub warnings: Vec<String>,
    /// Each key with the text that holds and where it comes from, for `ebbtide config show`.
    pub values: Vec<ResolvedValue>,
}

/// One key after all sources have been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedValue {
    /// Dotted path, `listeners[0].bind` for a listener.
    pub key: String,
    /// Text that reads back as the same value; `(set)` for a secret, `(not set)` if there is no value.
    pub value: String,
    /// Where it stands.
    pub origin: Origin,
}

/// Everything one process needs to know; built by [`load`] and [`check_text`] only.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// What the pod spec around us looks like; decides what a signal means.
    pub mode: Mode,
    /// Inbound and outbound listeners in the order given; at least one.
    pub listeners: Vec<ListenerConfig>,
    /// The HTTP port of kubelet and Prometheus.
    pub admin: AdminConfig,
    /// Where `ebbtide drain` and `ebbtide status` find the process.
    pub control_socket: ControlSocket,
    /// How the grace period is divided.
    pub drain: DrainConfig,
    /// The waiting room for requests while the app is down.
    pub parking: ParkingConfig,
    /// WebSocket sessions.
    pub websocket: WebSocketConfig,
    /// Hand the app's `Connection: close` to the client as well.
    pub pass_on_close: bool,
    /// Bounds on what a peer controls.
    pub limits: LimitsConfig,
    /// How long exit may wait for one scrape that starts after the drain ended; `None` is off.
    pub final_scrape: Option<Duration>,
    /// Logging.
    pub log: LogConfig,
    /// Worker threads; `None` follows the cgroup's CPU limit.
    pub workers: Option<NonZeroUsize>,
    /// Where the report is left for the kubelet (at most 4 KiB are written).
    pub termination_message_path: PathBuf,
}

/// See the contract: it can't be guessed, an ordinary container with hooks sees the same events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Native sidecar with both hooks.
    Sidecar,
    /// Ordinary container, VM, systemd, Docker.
    Plain,
}

/// One listening socket and where its traffic goes.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenerConfig {
    /// Unique; `[a-z0-9-]`, at most 63 characters. Used in `/app-stop?listener=NAME` and as metric label.
    pub name: String,
    /// Towards the app, or from the app to somewhere else.
    pub direction: Direction,
    /// What is made of the bytes.
    pub protocol: Protocol,
    /// Address to listen on.
    pub bind: SocketAddr,
    /// Where connections go.
    pub upstream: UpstreamAddr,
    /// Outbound: longest wait for a connection.
    pub connect_timeout: Duration,
    /// Inbound TCP: silence both ways that ends a connection; `None` is off.
    pub idle_timeout: Option<Duration>,
    /// Inbound TCP: silence that ends a connection of which one side has closed; `None` is off.
    pub half_closed_timeout: Option<Duration>,
    /// Inbound: whose connections begin with a PROXY protocol header.
    pub proxy_protocol_from: Vec<IpNet>,
    /// Inbound TCP: tell the app the client's address by a PROXY protocol header.
    pub send_proxy_protocol: bool,
    /// Inbound: TLS towards clients.
    pub tls: Option<ServerTlsConfig>,
    /// TLS towards the upstream, of which the scheme decides.
    pub upstream_tls: Option<UpstreamTlsConfig>,
}

/// What a listener makes of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP of any version, detected.
    Http,
    /// Nothing: they are relayed.
    Tcp,
}

/// Which way a listener's traffic runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Clients to the app: drained.
    Inbound,
    /// The app to brokers, databases and the like: never drained, open until the app is gone.
    Outbound,
}

/// Where a listener's traffic goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamAddr {
    /// `http://HOST:PORT`: HTTP/1.1 to the app (inbound only).
    Http(HostPort),
    /// `h2c://HOST:PORT`: HTTP/2 to the app, by prior knowledge (inbound only).
    H2c(HostPort),
    /// `auto://HOST:PORT`: to the app what the client speaks (inbound only).
    Auto(HostPort),
    /// `https://HOST:PORT`: HTTP/1.1 or HTTP/2 inside TLS, as the client speaks and the app agrees to (inbound only).
    Https(HostPort),
    /// `unix:///PATH`: as `auto`, over a Unix socket; bytes as they are where the listener's protocol is TCP (inbound only).
    Unix(PathBuf),
    /// `tcp://HOST:PORT`: bytes as they are. Outbound there may be several, tried in this order; never empty.
    Tcp(Vec<HostPort>),
    /// `tls://HOST:PORT`: bytes inside TLS; as `tcp://`.
    Tls(Vec<HostPort>),
}

/// A host name or IP address with a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// Name or address, without brackets.
    pub host: String,
    /// Port, never 0.
    pub port: u16,
}

/// The admin port.
#[derive(Debug, Clone, PartialEq)]
pub struct AdminConfig {
    /// Address to listen on, default `[::]:14090`.
    pub bind: SocketAddr,
    /// `EBBTIDE_ADMIN_TOKEN`: reserves places for hooks that send it as `X-Ebbtide-Token`.
    pub token: Option<Secret>,
}

/// A value that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub(crate) String);

/// Where the control socket is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlSocket {
    /// Default: `/run/ebbtide/control.sock`, an abstract socket where that can't be written.
    Default,
    /// This path and no other.
    Path(PathBuf),
}

/// How the grace period is divided; all durations as configured, before any shrinking.
#[derive(Debug, Clone, PartialEq)]
pub struct DrainConfig {
    /// What the pod spec says; 30 s in sidecar mode, 10 s in plain mode by default.
    pub grace_period: Duration,
    /// How long new work is still taken as if nothing had happened.
    pub hold: Hold,
    /// Share of the hold (0.0 to 1.0) after which clients are told to go.
    pub notice_after: f64,
    /// When `/readyz` turns.
    pub readiness_fails: ReadinessFails,
    /// Silence that ends the drain.
    pub quiet: Duration,
    /// Window over which idle connections are closed.
    pub close_spread: Duration,
    /// When idle HTTP/1 connections are closed, after t0 but not within the hold; `None` is its end.
    pub idle_after: Option<Duration>,
    /// When WebSocket sessions are closed, after t0; `None` is the end of the hold.
    pub websocket_after: Option<Duration>,
    /// When event streams are ended, likewise.
    pub sse_after: Option<Duration>,
    /// Time for forced endings to reach the clients.
    pub close: Duration,
    /// What the app needs between its SIGTERM and its exit (0 in plain mode).
    pub app_stop: Duration,
    /// Kept free before the end of the grace period.
    pub margin: Duration,
    /// How long after an app hook the own hook or SIGTERM may come.
    pub witness_window: Duration,
    /// Longest time an app hook is held when only the app is restarted.
    pub app_restart_wait: Duration,
    /// Which parts the user set himself, so that a warning is due if they had to shrink.
    pub set_by_user: BudgetParts,
}

/// Which of the budget's parts were set by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BudgetParts {
    /// `drain.hold` or any of its parts.
    pub hold: bool,
    /// `drain.close`.
    pub close: bool,
    /// `drain.app_stop`.
    pub app_stop: bool,
    /// `drain.margin`.
    pub margin: bool,
}

/// Fixed or adaptive hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Ends at this time after t0.
    Fixed(Duration),
    /// Ends when no new work has come for `quiet`, between `min` and `max` after t0.
    Adaptive {
        /// Never earlier.
        min: Duration,
        /// Silence that ends it.
        quiet: Duration,
        /// Never later.
        max: Duration,
    },
}

/// When `/readyz` turns to 503.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadinessFails {
    /// At once.
    T0,
    /// At the start of the notice window.
    Notice,
    /// At the end of the hold.
    Drain,
}

/// The waiting room for requests while the app is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParkingConfig {
    /// Longest wait of one request.
    pub wait_timeout: Duration,
    /// Most requests waiting at once, over all listeners.
    pub max_requests: usize,
}

/// WebSocket sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebSocketConfig {
    /// In the Close frame that clients get (RFC 6455 §7.4).
    pub close_code: u16,
    /// How long a Close frame may stay unanswered.
    pub close_timeout: Duration,
    /// Offer RFC 8441.
    pub over_http2: bool,
}

/// Bounds on what a peer controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Downstream connections over all listeners; `None` follows RLIMIT_NOFILE and the cgroup's memory limit.
    pub max_connections: Option<usize>,
    /// Longest request or response head in bytes.
    pub header_bytes: usize,
    /// From a head's first byte to its end.
    pub header_timeout: Duration,
}

/// Logging.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// JSON or text.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`.
    pub level: tracing::Level,
    /// One event per finished request.
    pub access: bool,
}

/// Shape of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

impl Secret {
    /// Compares without an early end, so that the time taken tells nothing of the token.
    pub fn matches(&self, given: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let differing = own.iter().zip(given).fold(0_u8, |sum, (a, b)| sum | (a ^ b));
        own.len() == given.len() && differing == 0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}
