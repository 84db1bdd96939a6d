//! Owns the set of these tests: one app that can be restarted, and an ebbtide in front of it.

use std::net::SocketAddr;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::SOON;
use crate::harness::app::{App, AppOptions};
use crate::harness::ebbtide::{Config, Ebbtide};
use crate::harness::h2::{Answer, H2Client, RawH2};
use crate::harness::stage::alone;
pub(crate) use crate::harness::stage::{LONG, front, plain, terminate};

/// A short hold; streams end between 5.3 and 7.3 s after t0.
pub(crate) const ENDS: &str = "grace_period: 9s, hold: 300ms, close: 1s, close_spread: 2s, quiet: 300ms, margin: 700ms";

/// An app and an ebbtide in front of it.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) app: App,
    pub(crate) px: Ebbtide,
    /// Where clients connect.
    pub(crate) address: SocketAddr,
    options: AppOptions,
    dir: TempDir,
}

/// Plain mode, and the metrics port waits for one scrape when the drain is over.
pub(crate) fn scraped(drain: &str) -> Config {
    Config::new().yaml(&format!("drain: {{{drain}}}\nmetrics: {{final_scrape: 5s}}"))
}

/// The status of a trailers-only answer of ebbtide's own, and why.
pub(crate) fn own_refusal(answer: &Answer) -> (u16, &str) {
    assert!(answer.is_trailers_only() && answer.status() == 200, "{answer:?}");
    let why = answer.grpc_message().expect("a grpc-message");
    (answer.grpc_status().expect("a status"), why.strip_prefix("ebbtide: ").expect("it says who speaks"))
}

// === impl Stage ===

impl Stage {
    pub(crate) async fn start(options: AppOptions, config: Config) -> Self {
        let (app, options, dir) = alone(options).await;
        let (px, address) = front(config, &options.upstream()).await;
        Self { app, px, address, options, dir }
    }

    /// An app that speaks HTTP/2 alone, and a drain that no test waits for.
    pub(crate) async fn simple() -> Self {
        Self::start(AppOptions::default().h2c(), plain(LONG)).await
    }

    pub(crate) async fn open(&self) -> RawH2 {
        RawH2::open(self.address).await.expect("ebbtide speaks HTTP/2")
    }

    pub(crate) fn client(&self, connections: usize) -> H2Client {
        H2Client::new(self.address, connections)
    }

    pub(crate) async fn terminate(&self) {
        terminate(&self.px).await;
    }

    /// The app is gone at once.
    pub(crate) async fn kill_app(&self) {
        self.app.process.signal(Signal::KILL);
        self.app.process.exit(SOON).await;
    }

    /// The app's next life, changed or not.
    pub(crate) async fn restart_app(&mut self, change: impl FnOnce(&mut AppOptions)) {
        self.kill_app().await;
        change(&mut self.options);
        self.app = self.options.start("app", self.dir.path()).await;
    }
}
