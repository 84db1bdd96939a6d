//! Owns tests of what an operator sees: the admin port, the control socket, metrics, the process.

mod admin;
mod places;
mod control;
mod metrics;
mod process;
mod cli;
mod settings;

use std::net::SocketAddr;
use std::time::Duration;

use crate::harness::SOON;
use crate::harness::app::{App, AppOptions};
use crate::harness::ebbtide::{Config, Ebbtide};
use crate::harness::fresh_ip;
use crate::harness::wait::eventually_async;

/// A native sidecar in front of an app that serves, outside any pod.
async fn serving(config: Config) -> (App, Ebbtide) {
    serving_as("sidecar", config).await
}

async fn serving_as(mode: &str, config: Config) -> (App, Ebbtide) {
    let address = SocketAddr::new(fresh_ip(), 8080);
    let app = AppOptions::at(address).start("app", config.dir()).await;
    let ebbtide = config.env("EBBTIDE_MODE", mode).upstream(&format!("http://{address}")).start().await;
    ready(&ebbtide).await;
    (app, ebbtide)
}

async fn ready(ebbtide: &Ebbtide) {
    eventually_async("readiness", SOON, || async {
        match ebbtide.code("/readyz").await {
            200 => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

/// Long enough that nothing ends by itself while a test looks.
fn long_hold() -> Config {
    Config::new().env("EBBTIDE_GRACE_PERIOD", "10m").env("EBBTIDE_HOLD", "5m")
}

const MOMENT: Duration = Duration::from_millis(300);
