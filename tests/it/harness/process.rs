//! Owns real child processes: signals without pid reuse, exit waiting, log files, killed on drop.

use std::fmt;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::process::{ChildStdin, Command};
use tokio::sync::watch;

use super::SOON;
use super::wait::{Mono, eventually};

/// A running or finished child process.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    log_start: u64,
    handle: OwnedFd,
    pid: i32,
    exit: watch::Receiver<Option<(Mono, Exit)>>,
    /// Toys end when this closes, so that none outlives a killed test run.
    _stdin: Option<ChildStdin>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
}

// === impl Process ===

impl Process {
    /// Starts the command; standard output and error are appended to `log`.
    ///
    /// `on_exit` runs before anybody who waits for the end is told.
    pub(crate) fn spawn(
        name: &str,
        mut command: Command,
        log: &Path,
        on_exit: impl FnOnce(Mono, Exit) + Send + 'static,
    ) -> Self {
        let out = OpenOptions::new().create(true).append(true).open(log).expect("the log file can be opened");
        let log_start = out.metadata().map_or(0, |meta| meta.len());
        let err = out.try_clone().expect("the log file can be shared");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(out)
            .stderr(err)
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let pid = child.id().and_then(|id| Pid::from_raw(id as i32)).expect("a fresh child has a pid");
        let handle = pidfd_open(pid, PidfdFlags::empty()).expect("pidfd_open works");
        let stdin = child.stdin.take();
        let (told, exit) = watch::channel(None);
        tokio::spawn(async move {
            let status = child.wait().await;
            let exit = status.map_or(Exit::Code(-1), Exit::from);
            let at = Mono::now();
            on_exit(at, exit);
            let _ = told.send(Some((at, exit)));
        });
        Self {
            name: name.to_owned(),
            log: log.to_owned(),
            log_start,
            handle,
            pid: pid.as_raw_nonzero().get(),
            exit,
            _stdin: stdin,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// For reading `/proc`; signals go by [`Self::signal`], which can't hit another process.
    pub(crate) const fn pid(&self) -> i32 {
        self.pid
    }

    /// Answers whether the process was still there to get it.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        pidfd_send_signal(&self.handle, signal).is_ok()
    }

    /// Stops it; returns when the last of its threads stands still, which they do one after the other.
    pub(crate) async fn stop(&self) {
        assert!(self.signal(Signal::STOP), "{} was gone before it was stopped", self.name);
        eventually("every thread is stopped", SOON, || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid)).map_err(|error| error.to_string())?;
            for task in tasks {
                let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
                let stat = stat.map_err(|error| error.to_string())?;
                // Behind the name, which may hold anything.
                if !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')) {
                    return Err(stat);
                }
            }
            Ok(())
        })
        .await;
    }

    pub(crate) fn exited(&self) -> Option<Exit> {
        self.exit.borrow().map(|(_, exit)| exit)
    }

    pub(crate) fn exited_at(&self) -> Option<Mono> {
        self.exit.borrow().map(|(at, _)| at)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.exited().is_none()
    }

    /// Resolves when the process has ended, however long that takes.
    pub(crate) fn ended(&self) -> impl Future<Output = Exit> + Send + 'static {
        let mut exit = self.exit.clone();
        async move {
            match exit.wait_for(Option::is_some).await {
                Ok(seen) => seen.map_or(Exit::Code(-1), |(_, exit)| exit),
                Err(_) => Exit::Code(-1),
            }
        }
    }

    /// Waits for the end; panics with the log if it does not come.
    pub(crate) async fn exit(&self, deadline: Duration) -> Exit {
        match tokio::time::timeout(deadline, self.ended()).await {
            Ok(exit) => exit,
            Err(_) => panic!("{} has not ended within {deadline:?}; its log:\n{}", self.name, self.log_text()),
        }
    }

    /// What this process wrote; earlier lives that share the file are left out.
    pub(crate) fn log_text(&self) -> String {
        log_from(&self.log, self.log_start)
    }

    pub(crate) const fn log_start(&self) -> u64 {
        self.log_start
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_running() {
            // The waiting task lives in the runtime and may be gone already.
            self.signal(Signal::KILL);
        }
    }
}

/// The text of a log file from an offset on.
pub(crate) fn log_from(path: &Path, start: u64) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let start = usize::try_from(start).unwrap_or(usize::MAX);
    String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).into_owned()
}

// === impl Exit ===

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Code(-1),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(out, "code {code}"),
            Self::Signal(signal) => write!(out, "signal {signal}"),
        }
    }
}

/// `SIGKILL` as an exit.
pub(crate) const KILLED: Exit = Exit::Signal(9);
