//! Owns the toy legacy app: its options, and the handle of a running one; the server is a child process.

mod entry;

mod server;

mod routes;

mod outbound;

mod h2;

mod ws;

mod events;

mod tcp;

pub(crate) mod journal;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::Command;

use self::journal::Journal;
use super::SOON;
use super::process::{Exit, Process, log_from};
use super::tls::TlsServer;
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
    /// The same over one HTTP/2 connection.
    pub(crate) beat_h2c: Option<(SocketAddr, Duration)>,
    /// A raw TCP connection held from the start, silent until [`OnTerm::Ack`].
    pub(crate) held: Option<SocketAddr>,
    /// A GET that must succeed before it listens or ends; failing means exit code 1.
    pub(crate) needs: Option<SocketAddr>,
    pub(crate) speaks: Speaks,
    /// What [`Self::upstream`] says of it.
    pub(crate) scheme: Scheme,
    /// When and how an HTTP/2 connection is told to go by the app itself.
    pub(crate) goaway: Option<(After, Farewell)>,
    /// SETTINGS_MAX_CONCURRENT_STREAMS.
    pub(crate) max_streams: Option<u32>,
    /// On every TCP connection that it takes; what it speaks inside is no matter of ALPN.
    pub(crate) tls: Option<Box<TlsServer>>,
}

/// What the app makes of the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Speaks {
    /// HTTP/1 alone; an HTTP/2 preface ends the connection without a word.
    Http1,
    /// As Http1, but a preface gets this status in HTTP/1.1 and a close.
    Http1Refusing(u16),
    /// HTTP/2 by prior knowledge alone.
    Http2,
    /// Either, as the first bytes say.
    Both,
    /// HTTP/1; a preface is taken and nothing is ever said.
    SilentAfterPreface,
    /// No HTTP at all.
    Tcp(Flow),
}

/// What the app does with a raw TCP connection; bytes it sends by itself are a generated body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Flow {
    Echo,
    /// Says [`GREETING`] first, then as Echo.
    Greet,
    /// Reads to the client's end, waits, then so many bytes and its own end.
    ReplyAfterEnd {
        after: Duration,
        bytes: usize,
    },
    /// So many bytes and its own end at once, then reads to the client's.
    EndFirst {
        bytes: usize,
    },
    /// So many bytes every so often, until the client's end.
    Bursts {
        bytes: usize,
        every: Duration,
    },
}

/// How an upstream address names the app's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Scheme {
    Http,
    H2c,
    Auto,
    Tcp,
    Https,
    Tls,
}

/// When an HTTP/2 connection has been used enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum After {
    Requests(u64),
    Age(Duration),
}

/// How the app lets go of an HTTP/2 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Farewell {
    /// GOAWAY(2^31-1), PING, GOAWAY(last), and a close when the last stream has ended.
    Graceful,
    /// As Graceful, but the socket is gone so long after the first GOAWAY.
    GracefulThenGone(Duration),
    /// GOAWAY(last) with this code and a close at once, whatever streams are open.
    Abrupt(u32),
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
            beat_h2c: None,
            held: None,
            needs: None,
            speaks: Speaks::Both,
            scheme: Scheme::Http,
            goaway: None,
            max_streams: None,
            tls: None,
        }
    }
}

impl AppOptions {
    /// An app on this address, outside any pod.
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self { listen: Listen::Tcp(address), ..Self::default() }
    }

    /// HTTP/2 alone, and said so.
    #[must_use]
    pub(crate) const fn h2c(mut self) -> Self {
        self.speaks = Speaks::Http2;
        self.scheme = Scheme::H2c;
        self
    }

    /// Raw TCP, and said so.
    #[must_use]
    pub(crate) const fn tcp(mut self, flow: Flow) -> Self {
        self.speaks = Speaks::Tcp(flow);
        self.scheme = Scheme::Tcp;
        self
    }

    /// TLS, and said so; comes last.
    #[must_use]
    pub(crate) fn tls(mut self, tls: TlsServer) -> Self {
        self.scheme = if self.scheme == Scheme::Tcp { Scheme::Tls } else { Scheme::Https };
        self.tls = Some(Box::new(tls));
        self
    }

    /// The value of `EBBTIDE_UPSTREAM` that leads here.
    pub(crate) fn upstream(&self) -> String {
        match &self.listen {
            Listen::Tcp(address) => format!("{}://{address}", self.scheme.name()),
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

impl Scheme {
    const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::H2c => "h2c",
            Self::Auto => "auto",
            Self::Tcp => "tcp",
            Self::Https => "https",
            Self::Tls => "tls",
        }
    }
}

/// What a server says that speaks first.
pub(crate) const GREETING: &[u8] = b"toy ready\n";

/// Where the app called `name` writes what it saw; lives of a restarted app share the file.
pub(crate) fn journal_path(name: &str, dir: &Path) -> PathBuf {
    dir.join(format!("{name}.journal"))
}
