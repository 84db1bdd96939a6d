//! Owns the pod spec: what a test says about a pod before it starts.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use super::container::{Container, Program};
use super::hook::Hook;
use super::timeline::{Timeline, Who};
use super::{ADMIN_PORT, APP_PORT, INBOUND_PORT, Inner, Mode, Pod};
use crate::harness::app::{AppOptions, Listen};
use crate::harness::ebbtide::Config;
use crate::harness::{fresh_ip, fresh_seed};

/// The spec. Defaults: a native sidecar with both hooks, grace 30, no app, no readiness probe.
#[derive(Debug)]
#[must_use]
pub(crate) struct PodBuilder {
    dir: Arc<TempDir>,
    ip: IpAddr,
    mode: Mode,
    grace: u64,
    config: Config,
    /// Runs in ebbtide's place.
    fake: Option<AppOptions>,
    own_hook: Option<Hook>,
    apps: Vec<(Program, Option<Hook>)>,
    sidecars: Vec<(AppOptions, Hook)>,
    stop_signals: Vec<(Who, Signal)>,
    readiness: Option<Duration>,
    seed: u64,
}

// === impl PodBuilder ===

impl PodBuilder {
    pub(super) fn new() -> Self {
        let dir = Arc::new(TempDir::new().expect("a temporary directory"));
        Self {
            ip: fresh_ip(),
            mode: Mode::Sidecar,
            grace: 30,
            config: Config::within(&Who::Ebbtide.to_string(), dir.clone()),
            dir,
            fake: None,
            own_hook: None,
            apps: Vec::new(),
            sidecars: Vec::new(),
            stop_signals: Vec::new(),
            readiness: None,
            seed: fresh_seed(),
        }
    }

    /// Known before the start, for a configuration that names addresses.
    pub(crate) const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// A path in the pod's directory, e.g. for a Unix socket.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// What the spec and ebbtide's environment say; the real one is given to `delete`.
    pub(crate) const fn grace(mut self, seconds: u64) -> Self {
        self.grace = seconds;
        self
    }

    pub(crate) fn env(mut self, key: &str, value: &str) -> Self {
        self.config.set(key, value);
        self
    }

    pub(crate) fn hold(self, text: &str) -> Self {
        self.env("EBBTIDE_HOLD", text)
    }

    pub(crate) fn app_stop(self, text: &str) -> Self {
        self.env("EBBTIDE_APP_STOP", text)
    }

    /// The configuration file's text; listeners and upstreams are then its business.
    pub(crate) fn yaml(mut self, text: &str) -> Self {
        self.config = self.config.yaml(text);
        self
    }

    /// One more app with its default hook.
    pub(crate) fn app(mut self, options: AppOptions) -> Self {
        self.apps.push((Program::Toy(Box::new(options)), None));
        self
    }

    /// One more main container of any kind, with its own hook.
    pub(crate) fn main(mut self, program: Program, hook: Hook) -> Self {
        self.apps.push((program, Some(hook)));
        self
    }

    /// The hook of the app added last.
    pub(crate) fn app_hook(mut self, hook: Hook) -> Self {
        let (_, last) = self.apps.last_mut().expect("an app was added");
        *last = Some(hook);
        self
    }

    pub(crate) fn own_hook(mut self, hook: Hook) -> Self {
        self.own_hook = Some(hook);
        self
    }

    /// A native sidecar declared after ebbtide, so it is stopped before it.
    pub(crate) fn later_sidecar(mut self, options: AppOptions, hook: Hook) -> Self {
        self.sidecars.push((options, hook));
        self
    }

    pub(crate) fn stop_signal(mut self, who: Who, signal: Signal) -> Self {
        self.stop_signals.push((who, signal));
        self
    }

    /// Probes `/readyz` with this period.
    pub(crate) const fn readiness(mut self, period: Duration) -> Self {
        self.readiness = Some(period);
        self
    }

    pub(crate) const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// A toy on the admin port in ebbtide's place, to test the kubelet itself.
    pub(crate) fn fake(mut self, options: AppOptions) -> Self {
        self.fake = Some(options);
        self
    }

    /// Starts everything in the kubelet's order.
    pub(crate) async fn start(self) -> Pod {
        let mode = self.mode;
        let readiness = self.readiness;
        let inner = Arc::new(self.into_inner());
        // Owns the processes from the first on, so that a failed start leaves none behind.
        let mut pod = Pod { inner, prober: None };
        for (index, container) in pod.inner.containers.iter().enumerate() {
            if mode == Mode::Sidecar || container.who != Who::Ebbtide {
                pod.inner.start_container(index).await;
            } else {
                // Beside the app nothing gates: both start at once.
                container.start(pod.inner.dir.path(), &pod.inner.timeline).await;
            }
        }
        if mode != Mode::Sidecar {
            pod.inner.startup_probe().await;
        }
        if let Some(period) = readiness {
            let probes = pod.inner.clone().readiness_probes(period);
            pod.prober = Some(tokio::spawn(probes));
        }
        pod
    }

    fn into_inner(mut self) -> Inner {
        let admin = SocketAddr::new(self.ip, ADMIN_PORT);
        let hooks = self.mode != Mode::Plain;
        let native = self.mode == Mode::Sidecar;
        self.settle_apps();
        self.settle_env();

        let own_hook = match self.own_hook {
            Some(hook) => hook,
            None if hooks && self.fake.is_none() => Hook::Drain,
            None => Hook::None,
        };
        let (program, config) = match self.fake {
            Some(mut options) => {
                options.listen = Listen::Tcp(admin);
                (Program::Toy(Box::new(options)), None)
            }
            None => (Program::Ebbtide(self.config.clone()), Some(self.config)),
        };
        let mut containers = vec![Container::new(Who::Ebbtide, program, own_hook, native)];
        for (number, (options, hook)) in (0..).zip(self.sidecars) {
            let program = Program::Toy(Box::new(options));
            containers.push(Container::new(Who::Sidecar(number), program, hook, true));
        }
        for (number, (program, hook)) in (0..).zip(self.apps) {
            let default = if hooks { Hook::get("/app-stop") } else { Hook::None };
            let hook = hook.unwrap_or(default);
            containers.push(Container::new(Who::App(number), program, hook, false));
        }
        for (who, signal) in self.stop_signals {
            for container in containers.iter_mut().filter(|one| one.who == who) {
                container.stop_signal = signal;
            }
        }
        Inner {
            dir: self.dir,
            ip: self.ip,
            admin,
            grace: self.grace,
            config,
            containers,
            timeline: Arc::new(Timeline::new()),
            readings: Mutex::new(Vec::new()),
            seed: self.seed,
            random: Mutex::new(fastrand::Rng::with_seed(self.seed)),
            worker: tokio::sync::Mutex::new(()),
            deleted: AtomicBool::new(false),
        }
    }

    fn settle_apps(&mut self) {
        for (port, (program, _)) in (APP_PORT..).zip(&mut self.apps) {
            if let Program::Toy(options) = program
                && options.listen == Listen::Pod
            {
                options.listen = Listen::Tcp(SocketAddr::new(self.ip, port));
            }
        }
        for (options, _) in &mut self.sidecars {
            if options.listen == Listen::Pod {
                options.listen = Listen::Nowhere;
            }
        }
    }

    /// What `inject` would write, unless the test has said otherwise.
    fn settle_env(&mut self) {
        let upstream = self.apps.iter().find_map(|(program, _)| match program {
            Program::Toy(options) if options.listen != Listen::Nowhere => Some(options.upstream()),
            Program::Toy(_) | Program::Ebbtide(_) | Program::Command(_) => None,
        });
        let mode = match self.mode {
            Mode::Sidecar => "sidecar",
            Mode::Ordinary | Mode::Plain => "plain",
        };
        let at = |port| SocketAddr::new(self.ip, port).to_string();
        let config = &mut self.config;
        config.set_default("EBBTIDE_MODE", mode);
        config.set_default("EBBTIDE_GRACE_PERIOD", &format!("{}s", self.grace));
        config.set("EBBTIDE_ADMIN", &at(ADMIN_PORT));
        if config.get("EBBTIDE_CONFIG_YAML").is_some() {
            config.unset("EBBTIDE_LISTEN");
            return;
        }
        config.set("EBBTIDE_LISTEN", &at(INBOUND_PORT));
        match upstream {
            Some(upstream) => config.set_default("EBBTIDE_UPSTREAM", &upstream),
            // Without an upstream there is no inbound listener.
            None => config.unset("EBBTIDE_LISTEN"),
        }
    }
}
