//! Owns the tests of TLS towards clients and towards the app: what a deletion, an end or a swapped certificate does to it.

mod clients;
mod closing;
mod cut;
mod deletion;
mod front;
mod gone;
mod handshakes;
mod hostile;
mod names;
mod records;
mod reload;
mod sessions;
mod starts;
mod tunnels;
mod upstream;

use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;

use crate::harness::app::{App, AppOptions};
use crate::harness::ebbtide::{Config, Ebbtide};
use crate::harness::pod::{APP_PORT, INBOUND_PORT, Pod, PodBuilder};
use crate::harness::process::Exit;
use crate::harness::stage::{alone, listener, listeners, serving, tls};
use crate::harness::tls::{Authority, SecretDir, Target, TlsPlan, Versions};

const MILLIS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;
const CLEAN: Exit = Exit::Code(0);

/// What ebbtide's certificate is for.
const NAME: &str = "shop.example";
const GET: &str = "GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n";
/// The alert for a certificate of an authority that is not trusted.
const UNKNOWN_CA: u8 = 48;
/// Each version of TLS by itself.
const BOTH: [Versions; 2] = [Versions::Only12, Versions::Only13];

/// The mounted Secret with ebbtide's certificate, and whom clients trust.
struct Site {
    ca: Authority,
    secret: SecretDir,
}

/// An app, and an ebbtide that speaks TLS in front of it.
struct Stage {
    site: Site,
    app: App,
    px: Ebbtide,
    address: SocketAddr,
    _dir: TempDir,
}

// === impl Site ===

impl Site {
    fn new() -> Self {
        let ca = Authority::new("clients trust it");
        let secret = SecretDir::new(&ca.pair(&[NAME]));
        Self { ca, secret }
    }

    fn target(&self, versions: Versions, address: SocketAddr) -> Target {
        TlsPlan::new(self.ca.pem(), NAME).versions(versions).to(address)
    }

    /// One listener with TLS in front of any upstream, with more keys.
    fn config(&self, drain: &str, upstream: &str, more: &str) -> Config {
        listeners(drain, &listener("web", upstream, &(tls(&self.secret, "") + more)))
    }

    /// A pod whose ebbtide speaks TLS, in front of an app with this scheme.
    fn pod(&self, pod: PodBuilder, scheme: &str, more: &str) -> PodBuilder {
        let ip = pod.ip();
        let (upstream, more) = (format!("{scheme}://{ip}:{APP_PORT}"), tls(&self.secret, "") + more);
        let web = format!("  - {{name: web, bind: \"{ip}:{INBOUND_PORT}\", upstream: \"{upstream}\"{more}}}\n");
        pod.yaml(&format!("listeners:\n{web}"))
    }
}

/// Hold 2 s, drain 5 s, close 2 s, app 1 s, margin 2 s.
fn short_pod(app: AppOptions) -> PodBuilder {
    Pod::builder().grace(12).hold("2s").app_stop("1s").app(app)
}

// === impl Stage ===

impl Stage {
    async fn start(options: AppOptions, drain: &str) -> Self {
        let site = Site::new();
        let (app, options, dir) = alone(options).await;
        let (px, address) = serving(site.config(drain, &options.upstream(), "")).await;
        Self { site, app, px, address, _dir: dir }
    }

    fn target(&self, versions: Versions) -> Target {
        self.site.target(versions, self.address)
    }
}
