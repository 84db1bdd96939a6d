//! Owns raw TCP listeners: every byte and every FIN passes, nobody is cut in the middle of something, and whoever comes in
//! vain sees a FIN.

mod bulk;

mod bursts;

mod drain;

mod halves;

mod limits;

mod parked;

mod proxy_header;

use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;

use crate::harness::SOON;
use crate::harness::app::journal::{Journal, Line};
use crate::harness::app::{App, AppOptions, Flow};
use crate::harness::client::Raw;
use crate::harness::ebbtide::{Config, Ebbtide};
use crate::harness::stage::{alone, descriptors, serving, tcp};
use crate::harness::wait::eventually;

const MILLIS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;

/// An app and an ebbtide in front of it.
struct Stage {
    app: App,
    px: Ebbtide,
    address: SocketAddr,
    _dir: TempDir,
}

// === impl Stage ===

impl Stage {
    async fn start(flow: Flow, drain: &str) -> Self {
        Self::with(AppOptions::default().tcp(flow), |upstream| tcp(drain, upstream)).await
    }

    async fn with(options: AppOptions, config: impl FnOnce(&str) -> Config) -> Self {
        let (app, options, dir) = alone(options).await;
        let (px, address) = serving(config(&options.upstream())).await;
        Self { app, px, address, _dir: dir }
    }

    async fn raw(&self) -> Raw {
        Raw::connect(self.address).await.expect("ebbtide accepts")
    }

    /// What the app has noted of so many connections that said something.
    async fn received(&self, count: usize) -> Vec<(String, String)> {
        let lines = eventually("what the app has received", SOON, || {
            let lines = from_clients(&self.app.journal);
            if lines.len() >= count { Ok(lines) } else { Err(lines.len()) }
        })
        .await;
        lines.iter().map(|line| (line.get("sum").to_owned(), line.get("how").to_owned())).collect()
    }
}

/// What the app has noted of connections that said something: ebbtide's own dials bring no byte, and end as the app makes
/// them.
fn from_clients(journal: &Journal) -> Vec<Line> {
    journal.lines("received").into_iter().filter(|line| line.get("bytes") != "0").collect()
}

/// Sends and gets the same back.
async fn echo(raw: &mut Raw, bytes: &[u8]) {
    raw.send(bytes).await.expect("it goes out");
    assert_eq!(raw.read_exactly(bytes.len(), SOON).await.as_deref(), Ok(bytes));
}
