//! Owns a pod of real processes and the kubelet that runs it.

mod container;

mod hook;

mod probe;

mod restart;

mod terminate;

mod timeline;

mod builder;

pub(crate) use self::builder::PodBuilder;
pub(crate) use self::container::Program;
pub(crate) use self::hook::Hook;
pub(crate) use self::probe::Reading;
pub(crate) use self::restart::Work;
pub(crate) use self::terminate::{left_after, stop_grace};
pub(crate) use self::timeline::{Event, HookEnd, Timeline, Who};

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinHandle;

use self::container::Container;
use self::hook::HookContext;
use super::SOON;
use super::app::journal::Journal;
use super::app::journal_path;
use super::ebbtide::Config;
use super::ebbtide::surface::Surface;
use super::process::Exit;
use super::wait::eventually_async;

/// Whether ebbtide is a native sidecar, a container beside the app, or no pod is meant at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Sidecar,
    /// Hooks, but no order: SIGTERM follows each container's own hook.
    Ordinary,
    /// No hooks.
    Plain,
}

/// A running pod; on drop all its processes are killed, and its story is told if the test panics.
#[derive(Debug)]
pub(crate) struct Pod {
    inner: Arc<Inner>,
    prober: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Inner {
    dir: Arc<TempDir>,
    ip: IpAddr,
    admin: SocketAddr,
    /// What the spec says, in seconds.
    grace: u64,
    config: Option<Config>,
    /// Sidecars in the order of declaration, ebbtide first, then the apps.
    containers: Vec<Container>,
    timeline: Arc<Timeline>,
    readings: Mutex<Vec<Reading>>,
    seed: u64,
    random: Mutex<fastrand::Rng>,
    worker: tokio::sync::Mutex<()>,
    deleted: AtomicBool,
}

// === impl Pod ===

impl Pod {
    pub(crate) fn builder() -> PodBuilder {
        PodBuilder::new()
    }

    /// Where clients connect.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.inner.ip, INBOUND_PORT)
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.inner.admin
    }

    /// Where an app listens, unless its options say otherwise.
    pub(crate) fn app_address(&self, app: u8) -> SocketAddr {
        SocketAddr::new(self.inner.ip, APP_PORT + u16::from(app))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.inner.dir.path().join(name)
    }

    pub(crate) fn timeline(&self) -> &Timeline {
        &self.inner.timeline
    }

    pub(crate) fn journal(&self, app: u8) -> Journal {
        let name = Who::App(app).to_string();
        Journal::at(journal_path(&name, self.inner.dir.path()))
    }

    /// Metrics, status, log and report of ebbtide's current life.
    pub(crate) fn ebbtide(&self) -> Surface {
        let config = self.inner.config.clone().expect("this pod has an ebbtide");
        let process = self.inner.containers[self.inner.index(Who::Ebbtide)].process();
        let log_start = process.map_or(0, |process| process.log_start());
        Surface::new(config, self.inner.admin, log_start)
    }

    /// All answers to the readiness probe so far.
    pub(crate) fn readings(&self) -> Vec<Reading> {
        self.inner.readings.lock().expect("no writer panics").clone()
    }

    /// Waits until `/readyz` says 200.
    pub(crate) async fn ready(&self) {
        eventually_async("readiness", SOON, || async {
            let got =
                super::ebbtide::surface::get(self.inner.admin, "/readyz", probe::PROBE_AGENT, Duration::from_secs(1));
            match got.await {
                Ok(got) if got.status == 200 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// How the container's last process ended; `None` while it runs.
    pub(crate) fn exit_of(&self, who: Who) -> Option<Exit> {
        self.inner.containers[self.inner.index(who)].process().and_then(|process| process.exited())
    }

    /// Waits for the end of the container's current process.
    pub(crate) async fn exit(&self, who: Who, deadline: Duration) -> Exit {
        let process = self.inner.containers[self.inner.index(who)].process();
        let process = process.expect("the container was started");
        process.exit(deadline).await
    }

    pub(crate) fn is_running(&self, who: Who) -> bool {
        self.inner.containers[self.inner.index(who)].running().is_some()
    }

    pub(crate) fn log_of(&self, who: Who) -> String {
        self.inner.containers[self.inner.index(who)].process().map(|process| process.log_text()).unwrap_or_default()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if let Some(prober) = &self.prober {
            prober.abort();
        }
        if std::thread::panicking() {
            eprintln!("--- EBBTIDE_TEST_SEED={} ---", self.inner.seed);
            eprintln!("{}", self.inner.timeline.table());
            for container in &self.inner.containers {
                eprintln!("--- log of {} ---", container.who);
                eprintln!("{}", self.log_of(container.who));
                if let Who::App(number) = container.who {
                    eprintln!("--- last lines of its journal ---\n{}", self.journal(number).tail(20));
                }
            }
        }
        for container in &self.inner.containers {
            container.kill();
        }
    }
}

// === impl Inner ===

impl Inner {
    fn index(&self, who: Who) -> usize {
        self.containers
            .iter()
            .position(|container| container.who == who)
            .unwrap_or_else(|| panic!("this pod has no {who}"))
    }

    fn random<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.random.lock().expect("no drawer panics"))
    }

    fn hook_context(&self) -> HookContext {
        HookContext { admin: self.admin, config: self.config.clone() }
    }

    async fn start_container(&self, index: usize) {
        let container = &self.containers[index];
        container.start(self.dir.path(), &self.timeline).await;
        if container.who == Who::Ebbtide {
            self.startup_probe().await;
        }
    }
}

pub(crate) const INBOUND_PORT: u16 = 14080;
pub(crate) const ADMIN_PORT: u16 = 14090;
pub(crate) const APP_PORT: u16 = 8080;
