//! Owns the real binary: its environment, its start, its end; what it shows is in the children.

pub(crate) mod metrics;

pub(crate) mod surface;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use self::surface::{Surface, listening_address};
use super::SOON;
use super::process::{Exit, Process};
use super::wait::{Mono, eventually};

/// How one ebbtide is started; a restart starts the same again.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    name: String,
    program: PathBuf,
    env: BTreeMap<String, String>,
    /// Kept alive as long as anything refers to it.
    dir: Arc<TempDir>,
}

/// A running ebbtide outside a pod; killed on drop, and its log printed if the test panics.
#[derive(Debug)]
pub(crate) struct Ebbtide {
    pub(crate) process: Process,
    surface: Surface,
}

// === impl Config ===

impl Config {
    /// Plain mode, free ports on 127.0.0.1, all files in a directory of its own.
    pub(crate) fn new() -> Self {
        Self::within("ebbtide", Arc::new(TempDir::new().expect("a temporary directory")))
    }

    pub(crate) fn within(name: &str, dir: Arc<TempDir>) -> Self {
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).to_string();
        let mut config = Self {
            name: name.to_owned(),
            program: PathBuf::from(env!("CARGO_BIN_EXE_ebbtide")),
            env: BTreeMap::new(),
            dir,
        };
        let control = config.path("control.sock");
        let termination = config.path("termination-log");
        // The kubelet makes the file before the container starts.
        let _ = std::fs::write(&termination, "");
        config.set("EBBTIDE_LISTEN", &anywhere);
        config.set("EBBTIDE_ADMIN", &anywhere);
        config.set("EBBTIDE_CONTROL_SOCKET", &control.display().to_string());
        config.set("EBBTIDE_TERMINATION_MESSAGE_PATH", &termination.display().to_string());
        config.set("EBBTIDE_LOG_FORMAT", "json");
        config
    }

    /// Any variable, e.g. `.env("EBBTIDE_HOLD", "2s")`.
    #[must_use]
    pub(crate) fn env(mut self, key: &str, value: &str) -> Self {
        self.set(key, value);
        self
    }

    #[must_use]
    pub(crate) fn without(mut self, key: &str) -> Self {
        self.unset(key);
        self
    }

    /// The whole configuration file as text.
    #[must_use]
    pub(crate) fn yaml(self, text: &str) -> Self {
        self.env("EBBTIDE_CONFIG_YAML", text)
    }

    /// `http://127.0.0.1:8080` and the like.
    #[must_use]
    pub(crate) fn upstream(self, address: &str) -> Self {
        self.env("EBBTIDE_UPSTREAM", address)
    }

    pub(crate) fn set(&mut self, key: &str, value: &str) {
        self.env.insert(key.to_owned(), value.to_owned());
    }

    /// Keeps what is set already.
    pub(crate) fn set_default(&mut self, key: &str, value: &str) {
        self.env.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }

    pub(crate) fn unset(&mut self, key: &str) {
        self.env.remove(key);
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.env.get(key).map(String::as_str)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path(&format!("{}.log", self.name))
    }

    /// The binary with this environment and nothing of the outer `EBBTIDE_*`.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        for (key, _) in std::env::vars_os() {
            if key.to_string_lossy().starts_with("EBBTIDE_") {
                command.env_remove(key);
            }
        }
        command.envs(&self.env).args(arguments);
        command
    }

    /// Starts `ebbtide run` without waiting for anything.
    pub(crate) fn spawn(&self, on_exit: impl FnOnce(Mono, Exit) + Send + 'static) -> Process {
        Process::spawn(&self.name, self.command(&["run"]), &self.log(), on_exit)
    }

    /// Starts it and waits until it has told all its addresses.
    pub(crate) async fn start(&self) -> Ebbtide {
        let process = self.spawn(|_, _| {});
        let admin = self.told_address(&process, "admin").await;
        Ebbtide { surface: Surface::new(self.clone(), admin, process.log_start()), process }
    }

    /// Where the listener of this name is bound, as the log of this life tells.
    pub(crate) async fn told_address(&self, process: &Process, listener: &str) -> SocketAddr {
        eventually(&format!("address of listener {listener} in the log"), SOON, || {
            let log = process.log_text();
            assert!(process.is_running(), "ebbtide ended at its start: {:?}\n{log}", process.exited());
            listening_address(&log, listener).ok_or(log)
        })
        .await
    }
}

// === impl Ebbtide ===

impl Ebbtide {
    pub(crate) fn signal(&self, signal: Signal) {
        assert!(self.process.signal(signal), "ebbtide was gone before {signal:?}");
    }

    pub(crate) async fn exit(&self, deadline: std::time::Duration) -> Exit {
        self.process.exit(deadline).await
    }

    pub(crate) fn exited_at(&self) -> Option<Mono> {
        self.process.exited_at()
    }

    /// Waits for the end, which must be a clean one, and answers the report.
    pub(crate) async fn report_at_exit(&self, deadline: std::time::Duration) -> Value {
        assert_eq!(self.exit(deadline).await, Exit::Code(0));
        let log = self.process.log_text();
        assert!(!log.contains("panicked"), "{log}");
        serde_json::from_str(&self.termination_text()).expect("a report")
    }
}

impl Deref for Ebbtide {
    type Target = Surface;

    fn deref(&self) -> &Surface {
        &self.surface
    }
}

impl Drop for Ebbtide {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of ebbtide ({:?}) ---\n{}", self.process.exited(), self.process.log_text());
        }
    }
}
