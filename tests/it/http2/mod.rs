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

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::SOON;
use crate::harness::app::{App, AppOptions};
use crate::harness::ebbtide::{Config, Ebbtide};
use crate::harness::h2::{Control, NO_LAST, RawH2, code};
use crate::harness::process::Exit;
use crate::harness::stage::{DRAINS, LONG, TOLD, alone, front, plain, resident, terminate};
use crate::harness::wait::Mono;

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
        Self::with(AppOptions::default().h2c(), plain(drain)).await
    }

    async fn with(options: AppOptions, config: Config) -> Self {
        let (app, options, dir) = alone(options).await;
        let (px, address) = front(config, &options.upstream()).await;
        Self { app, px, address, _dir: dir }
    }

    /// t0, by a signal; answers a moment that is not later than it.
    async fn terminate(&self) -> Mono {
        let before = Mono::now();
        terminate(&self.px).await;
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
        self.px.report_at_exit(deadline).await
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
