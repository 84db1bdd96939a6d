//! Owns the toy legacy app: its options, and the handle of a running one; the server is a child process.

mod entry;

mod server;

mod routes;

mod outbound;

pub(crate) mod journal;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::Command;

use self::journal::Journal;
use super::SOON;
use super::process::{Exit, Process, log_from};
use super::wait::{Mono, eventually};

/// How one toy app behaves, apart from what the paths of its requests ask for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AppOptions {
    pub(crate) listen: Listen,
    /// A slow start: nothing listens until then.
    pub(crate) listen_after: Duration,
    pub(crate) on_term: OnTerm,
    /// The code with which it exits on a signal.
    pub(crate) exit_code: i32,
    /// A Job: exits by itself, with this code.
    pub(crate) ends_after: Option<(Duration, i32)>,
    /// Idle keep-alive connections are closed after this.
    pub(crate) idle_close: Option<Duration>,
    /// One of so many replies says `Connection: close`; 0 is never.
    pub(crate) close_every: u64,
    /// One of so many replies is followed by a close that was not announced; 0 is never.
    pub(crate) drop_every: u64,
    pub(crate) one_at_a_time: bool,
    /// Added before each reply.
    pub(crate) reply_delay: Duration,
    /// A GET to this address over one reused connection, again and again, as an app's own calls.
    pub(crate) beat: Option<(SocketAddr, Duration)>,
    /// A raw TCP connection held from the start, silent until [`OnTerm::Ack`].
    pub(crate) held: Option<SocketAddr>,
    /// A GET that must succeed before it listens or ends; failing means exit code 1.
    pub(crate) needs: Option<SocketAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Listen {
    /// Port 8080 (8081, ...) of the pod.
    Pod,
    Tcp(SocketAddr),
    Unix(PathBuf),
    /// A Job or a queue consumer.
    Nowhere,
}

/// What the app does on SIGTERM, SIGINT or SIGQUIT.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OnTerm {
    ExitAtOnce,
    ExitAfter(Duration),
    /// Goes on taking connections until nothing is in flight.
    FinishInFlight,
    /// Refuses connections at once, finishes what is in flight.
    CloseListener,
    Ignore,
    /// A farewell call: HTTP GET and raw TCP echo to these addresses, then exit.
    Call {
        after: Duration,
        http: Option<SocketAddr>,
        tcp: Option<SocketAddr>,
    },
    /// Writes on the held connection, waits for the echo, then exits.
    Ack {
        after: Duration,
    },
}

/// One life of a toy app.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) process: Process,
    pub(crate) journal: Journal,
}

impl Default for AppOptions {
    fn default() -> Self {
        Self {
            listen: Listen::Pod,
            listen_after: Duration::ZERO,
            on_term: OnTerm::ExitAtOnce,
            exit_code: 0,
            ends_after: None,
            idle_close: None,
            close_every: 0,
            drop_every: 0,
            one_at_a_time: false,
            reply_delay: Duration::ZERO,
            beat: None,
            held: None,
            needs: None,
        }
    }
}

impl AppOptions {
    /// An app on this address, outside any pod.
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self { listen: Listen::Tcp(address), ..Self::default() }
    }

    /// The value of `EBBTIDE_UPSTREAM` that leads here.
    pub(crate) fn upstream(&self) -> String {
        match &self.listen {
            Listen::Tcp(address) => format!("http://{address}"),
            Listen::Unix(path) => format!("unix://{}", path.display()),
            Listen::Pod | Listen::Nowhere => panic!("the app's address is not settled yet"),
        }
    }

    fn spawn(&self, name: &str, dir: &Path, on_exit: impl FnOnce(Mono, Exit) + Send + 'static) -> Process {
        let role = entry::Role { options: self.clone(), journal: journal_path(name, dir) };
        let mut command = Command::new(std::env::current_exe().expect("the test binary is there"));
        command.args(entry::arguments()).env(entry::VARIABLE, serde_json::to_string(&role).expect("JSON"));
        Process::spawn(name, command, &dir.join(format!("{name}.log")), on_exit)
    }

    /// Starts the app and waits until it handles signals and, unless it is slow, listens.
    pub(crate) async fn start(&self, name: &str, dir: &Path) -> App {
        self.start_watched(name, dir, |_, _| {}).await
    }

    pub(crate) async fn start_watched(
        &self,
        name: &str,
        dir: &Path,
        on_exit: impl FnOnce(Mono, Exit) + Send + 'static,
    ) -> App {
        let journal = Journal::at(journal_path(name, dir));
        let lives = journal.count("up");
        let listened = journal.count("listening");
        let process = self.spawn(name, dir, on_exit);
        let listens = self.listen != Listen::Nowhere && self.listen_after.is_zero();
        eventually(&format!("start of {name}"), SOON, || {
            let up = journal.count("up") > lives;
            let ready = !listens || journal.count("listening") > listened;
            if up && ready || !process.is_running() {
                return Ok(());
            }
            Err(log_from(&dir.join(format!("{name}.log")), process.log_start()))
        })
        .await;
        App { process, journal }
    }
}

/// Where the app called `name` writes what it saw; lives of a restarted app share the file.
pub(crate) fn journal_path(name: &str, dir: &Path) -> PathBuf {
    dir.join(format!("{name}.journal"))
}
