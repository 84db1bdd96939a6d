//! Owns the set that these tests play on: an app, and an ebbtide with a certificate in front of it.

use std::net::SocketAddr;

use tempfile::TempDir;

use crate::harness::SOON;
use crate::harness::app::{App, AppOptions};
use crate::harness::client::{Connection, Failure, Reply, Request};
use crate::harness::ebbtide::Ebbtide;
use crate::harness::stage::{LONG, alone, listener, listeners, serving, tls};
use crate::harness::tls::{Authority, Pair, SecretDir, Target, TlsPlan};

/// The name that certificates are for.
pub(super) const NAME: &str = "app.example";

#[derive(Debug)]
pub(super) struct Front {
    pub(super) ca: Authority,
    pub(super) secret: SecretDir,
    pub(super) pair: Pair,
    pub(super) app: App,
    pub(super) px: Ebbtide,
    pub(super) address: SocketAddr,
    _dir: TempDir,
}

// === impl Front ===

impl Front {
    /// One listener for HTTP; more keys of its `tls`, and more lines of the file.
    pub(super) async fn start(more: &str, lines: &str) -> Self {
        Self::with(AppOptions::default(), |secret, upstream| listener("web", upstream, &tls(secret, more)) + lines)
            .await
    }

    /// Any listeners, the first of which is the one that counts.
    pub(super) async fn with(options: AppOptions, lines: impl FnOnce(&SecretDir, &str) -> String) -> Self {
        let ca = Authority::new("front");
        // Whoever names no server has an address for it.
        let pair = ca.pair(&[NAME, "127.0.0.1"]);
        let secret = SecretDir::new(&pair);
        let (app, options, dir) = alone(options).await;
        let (px, address) = serving(listeners(LONG, &lines(&secret, &options.upstream()))).await;
        Self { ca, secret, pair, app, px, address, _dir: dir }
    }

    pub(super) fn plan(&self) -> TlsPlan {
        TlsPlan::new(self.ca.pem(), NAME)
    }

    pub(super) fn target(&self) -> Target {
        self.plan().to(self.address)
    }

    pub(super) async fn rejected(&self, reason: &str) -> f64 {
        self.px.metrics().await.sum("ebbtide_connections_rejected_total", &[("reason", reason)])
    }

    /// Waits for the count: a client may see its end before that is counted.
    pub(super) async fn has_rejected(&self, reason: &str, count: usize) {
        let labels = [("reason", reason)];
        self.px.metric_becomes("ebbtide_connections_rejected_total", &labels, SOON, |n| n == count as f64).await;
    }
}

/// What the app sees of one request on a connection of its own.
pub(super) async fn seen_by_app(target: &Target, headers: &[(&str, &str)]) -> Result<Reply, Failure> {
    let request = headers.iter().fold(Request::get("/headers"), |request, (name, value)| request.header(name, value));
    let mut connection = Connection::open(target, SOON).await?;
    connection.exchange(&request, "one", SOON).await
}

/// The values of a header in what `/headers` answers.
pub(super) fn values(told: &str, name: &str) -> Vec<String> {
    let pairs = told.lines().filter_map(|line| line.split_once(':'));
    pairs.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned()).collect()
}
