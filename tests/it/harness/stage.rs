//! Owns the set that most tests play on: an app, and an ebbtide in plain mode in front of it.

use std::net::SocketAddr;

use rustix::process::Signal;
use tempfile::TempDir;

use super::app::{App, AppOptions, Listen};
use super::ebbtide::metrics::Metrics;
use super::ebbtide::surface::field;
use super::ebbtide::{Config, Ebbtide};
use super::tls::SecretDir;
use super::wait::eventually_async;
use super::{SOON, fresh_ip};

/// A long life after t0, whose notice window opens after 15 s: tests end it themselves.
pub(crate) const LONG: &str = "grace_period: 60s, hold: 30s, close: 2s, margin: 1s";

/// Everybody is told within 300 ms after t0, and the hold goes on for as long as requests come.
pub(crate) const TOLD: &str =
    "grace_period: 60s, hold: {min: 300ms, quiet: 10s, max: 30s}, notice_after: 0%, close: 2s, margin: 1s";

/// A short hold, then all the time that a drain may need.
pub(crate) const DRAINS: &str =
    "grace_period: 20s, hold: 300ms, close: 1s, close_spread: 500ms, quiet: 300ms, margin: 500ms";

/// Plain mode, with the section `drain` of the configuration as given.
pub(crate) fn plain(drain: &str) -> Config {
    Config::new().yaml(&format!("drain: {{{drain}}}"))
}

/// The same with WebSocket over HTTP/2, and the section `websocket` as given, e.g. `close_code: 1012`.
pub(crate) fn websocket(drain: &str, websocket: &str) -> Config {
    let comma = if websocket.is_empty() { "" } else { ", " };
    Config::new().yaml(&format!("drain: {{{drain}}}\nwebsocket: {{over_http2: on{comma}{websocket}}}"))
}

/// One inbound TCP listener, called `db`.
pub(crate) fn tcp(drain: &str, upstream: &str) -> Config {
    listeners(drain, &tcp_listener("127.0.0.1:0", upstream))
}

/// Listeners of any kind: the lines below `listeners:`, and whatever else the file has.
pub(crate) fn listeners(drain: &str, lines: &str) -> Config {
    Config::new().without("EBBTIDE_LISTEN").yaml(&format!("drain: {{{drain}}}\nlisteners:\n{lines}"))
}

/// One such line, on any port, with more keys, e.g. `, direction: outbound`.
pub(crate) fn listener(name: &str, upstream: &str, more: &str) -> String {
    format!("  - {{name: {name}, bind: \"127.0.0.1:0\", upstream: \"{upstream}\"{more}}}\n")
}

/// The key `tls` of such a line, with more keys inside, e.g. `, min_version: "1.3"`.
pub(crate) fn tls(certificates: &SecretDir, more: &str) -> String {
    format!(", tls: {{certificates: \"{}\"{more}}}", certificates.path().display())
}

/// One line below `listeners:`, for a pod's configuration too.
pub(crate) fn tcp_listener(bind: &str, upstream: &str) -> String {
    format!("  - {{name: db, protocol: tcp, bind: \"{bind}\", upstream: \"{upstream}\"}}\n")
}

/// An app outside any pod, on an address of its own unless it has one; what it was started with, and its directory.
pub(crate) async fn alone(options: AppOptions) -> (App, AppOptions, TempDir) {
    let dir = TempDir::new().expect("a temporary directory");
    let options = match options.listen {
        Listen::Pod => AppOptions { listen: Listen::Tcp(SocketAddr::new(fresh_ip(), 8080)), ..options },
        _ => options,
    };
    (options.start("app", dir.path()).await, options, dir)
}

/// An app alone on an address of its own, with that address and its directory.
pub(crate) async fn app(options: AppOptions) -> (App, SocketAddr, TempDir) {
    let address = SocketAddr::new(fresh_ip(), 8080);
    let (app, _, dir) = alone(AppOptions { listen: Listen::Tcp(address), ..options }).await;
    (app, address, dir)
}

/// Starts ebbtide in front of any address and waits until it has seen the app.
pub(crate) async fn front(config: Config, upstream: &str) -> (Ebbtide, SocketAddr) {
    serving(config.upstream(upstream)).await
}

/// Starts ebbtide with the upstream that its configuration names, and waits until it has seen the app.
pub(crate) async fn serving(config: Config) -> (Ebbtide, SocketAddr) {
    let px = config.start().await;
    let address = px.inbound().await;
    px.metric_becomes("ebbtide_phase", &[("phase", "serving")], SOON, |on| on == 1.0).await;
    (px, address)
}

/// t0, by a signal; returns when ebbtide has seen it.
pub(crate) async fn terminate(px: &Ebbtide) {
    px.signal(Signal::TERM);
    eventually_async("t0", SOON, || async {
        // The log still knows of it when a short drain is over before anybody looks.
        if px.has_changed_phase(|event| field(event, "seconds_since_t0").is_some()) {
            return Ok(());
        }
        let at = px.get("/metrics").await.map(|got| Metrics::parse(&got.body).sum(T0, &[]))?;
        if at > 0.0 { Ok(()) } else { Err(px.log_text()) }
    })
    .await;
}

const T0: &str = "ebbtide_termination_start_time_seconds";

/// Resident memory of a process in KiB.
pub(crate) fn resident(px: &Ebbtide) -> u64 {
    memory(px, "VmRSS:")
}

/// The most that it has ever been.
pub(crate) fn most_resident(px: &Ebbtide) -> u64 {
    memory(px, "VmHWM:")
}

fn memory(px: &Ebbtide, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", px.process.pid())).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with(name)).expect("an amount of memory");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

/// Descriptors of the process: sockets, and ends of pipes.
pub(crate) fn descriptors(px: &Ebbtide) -> (usize, usize) {
    let folder = std::fs::read_dir(format!("/proc/{}/fd", px.process.pid())).expect("the process runs");
    let links: Vec<_> = folder.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()).collect();
    let count = |kind: &str| links.iter().filter(|link| link.to_string_lossy().starts_with(kind)).count();
    (count("socket:"), count("pipe:"))
}
