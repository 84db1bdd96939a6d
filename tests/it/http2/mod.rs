//! Owns the tests of how HTTP/2 clients are told to go, and of what they may do meanwhile: over real sockets, mostly
//! frame by frame.

mod notices;

mod window;

mod drain;

mod tail;

mod races;

mod script;

mod hostile;

mod floods;

mod shared;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::app::{App, AppOptions, Listen};
use crate::harness::ebbtide::{Config, Ebbtide};
use crate::harness::h2::{Control, NO_LAST, RawH2, code};
use crate::harness::process::Exit;
use crate::harness::wait::Mono;
use crate::harness::{SOON, fresh_ip};

/// A long life after t0, whose notice window opens after 15 s: no test waits for it.
const LONG: &str = "grace_period: 60s, hold: 30s, close: 2s, margin: 1s";

/// Everybody is told within 300 ms after t0, and the hold goes on for as long as requests come.
const TOLD: &str =
    "grace_period: 60s, hold: {min: 300ms, quiet: 10s, max: 30s}, notice_after: 0%, close: 2s, margin: 1s";

/// A short hold, then all the time that a drain may need.
const DRAINS: &str = "grace_period: 20s, hold: 300ms, close: 1s, close_spread: 500ms, quiet: 300ms, margin: 500ms";

const MILLIS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;
const CLEAN: Exit = Exit::Code(0);

/// What h2 puts into the PING between its two GOAWAYs. ebbtide answers it in the place of clients that don't, so a
/// release of h2 that changes it must not go unnoticed.
const SHUTDOWN_PING: [u8; 8] = [0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54];

/// An app and an ebbtide in front of it, in plain mode.
#[derive(Debug)]
struct Stage {
    app: App,
    px: Ebbtide,
    /// Where clients connect.
    address: SocketAddr,
    _dir: TempDir,
}

// === impl Stage ===

impl Stage {
    /// An app that speaks HTTP/2.
    async fn start(drain: &str) -> Self {
        Self::with(AppOptions::default().h2c(), Config::new().yaml(&format!("drain: {{{drain}}}"))).await
    }

    async fn with(options: AppOptions, config: Config) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let options = AppOptions { listen: Listen::Tcp(SocketAddr::new(fresh_ip(), 8080)), ..options };
        let app = options.start("app", dir.path()).await;
        let px = config.upstream(&options.upstream()).start().await;
        let address = px.inbound().await;
        px.metric_becomes("ebbtide_phase", &[("phase", "serving")], SOON, |on| on == 1.0).await;
        Self { app, px, address, _dir: dir }
    }

    /// t0, by a signal; answers a moment that is not later than it.
    async fn terminate(&self) -> Mono {
        let before = Mono::now();
        self.px.signal(Signal::TERM);
        self.px.metric_becomes("ebbtide_termination_start_time_seconds", &[], SOON, |at| at > 0.0).await;
        before
    }

    async fn open(&self) -> RawH2 {
        RawH2::open(self.address).await.expect("ebbtide speaks HTTP/2")
    }

    /// A connection that has served one stream.
    async fn used(&self) -> RawH2 {
        let mut raw = self.open().await;
        let stream = raw.get("/").await.unwrap();
        assert_eq!(raw.answer(stream, SOON).await.unwrap().status(), 200);
        raw
    }

    /// Waits until so many requests have reached the app.
    async fn has_seen(&self, count: usize) {
        self.app.journal.wait("req", count, SOON).await;
    }

    async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.px.metrics().await.sum(name, labels)
    }

    /// Waits for the end, which must be a clean one, and answers the report.
    async fn report_at_exit(&self, deadline: Duration) -> Value {
        assert_eq!(self.px.exit(deadline).await, CLEAN);
        let log = self.px.log_text();
        assert!(!log.contains("panicked"), "{log}");
        serde_json::from_str(&self.px.termination_text()).expect("a report")
    }
}

/// Both phases of the contract's §4 and nothing else; answers the final id.
fn assert_two_phases(raw: &RawH2) -> u32 {
    let [
        Control::Goaway { last: NO_LAST, code: code::NO_ERROR, .. },
        Control::Ping(SHUTDOWN_PING),
        Control::Goaway { last, code: code::NO_ERROR, .. },
    ] = raw.seen.notices()[..]
    else {
        panic!("not GOAWAY, PING, GOAWAY: {:?}", raw.seen)
    };
    last
}

/// How often each id reached the app; absent ids never did.
fn times(seen: &BTreeMap<String, usize>, id: &str) -> usize {
    seen.get(id).copied().unwrap_or(0)
}

/// Resident memory of a process in KiB.
fn resident(px: &Ebbtide) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", px.process.pid())).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a resident set");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}
