//! Owns the app's process: the test binary started again, its start, its signals, its end.

use std::io::Read;
use std::path::PathBuf;
use std::process::exit;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, watch};

use super::journal::Pen;
use super::{AppOptions, Listen, OnTerm, outbound, server};

/// Set only in the child, so that the entry is a no-op in a normal test run.
pub(super) const VARIABLE: &str = "EBBTIDE_TEST_TOY_APP";

/// What the child is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Role {
    pub(super) options: AppOptions,
    pub(super) journal: PathBuf,
}

/// What all tasks of the app share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: AppOptions,
    pub(super) pen: Pen,
    pub(super) in_flight: watch::Sender<usize>,
    pub(super) listening: watch::Sender<bool>,
    /// One permit in one-at-a-time mode.
    pub(super) turns: Semaphore,
}

/// Arguments that make the test binary run the entry and nothing else.
pub(super) fn arguments() -> [String; 4] {
    let path = module_path!();
    let path = path.split_once("::").map_or(path, |(_, rest)| rest);
    [format!("{path}::toy_app_entry"), "--exact".to_owned(), "--nocapture".to_owned(), "--quiet".to_owned()]
}

/// Not a test: where a child process of the harness begins. Returns at once in a normal run.
#[test]
fn toy_app_entry() {
    let Ok(role) = std::env::var(VARIABLE) else {
        return;
    };
    let role: Role = serde_json::from_str(&role).expect("the role is valid");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    exit(runtime.block_on(run(role)));
}

async fn run(role: Role) -> i32 {
    crate::harness::raise_open_files();
    let mut signals = Signals::new();
    let pen = Pen::open(&role.journal);
    pen.note("up", &format!("pid={}", std::process::id()));
    std::thread::spawn(end_with_parent);

    let turns = if role.options.one_at_a_time { 1 } else { Semaphore::MAX_PERMITS };
    let app = Arc::new(Shared {
        options: role.options,
        pen,
        in_flight: watch::Sender::new(0),
        listening: watch::Sender::new(true),
        turns: Semaphore::new(turns),
    });
    if let Some(address) = app.options.needs
        && !outbound::get(&app, "need", address).await
    {
        return finish(&app, 1);
    }
    let held = match app.options.held {
        Some(address) => outbound::hold(&app, address).await,
        None => None,
    };
    if let Some((address, every)) = app.options.beat {
        tokio::spawn(outbound::beat(app.clone(), address, every));
    }
    if let Some((address, every)) = app.options.beat_h2c {
        tokio::spawn(outbound::beat_h2c(app.clone(), address, every));
    }
    if app.options.listen != Listen::Nowhere {
        tokio::spawn(server::listen(app.clone()));
    }

    let (lifetime, code) = app.options.ends_after.unwrap_or((FOREVER, 0));
    tokio::select! {
        () = tokio::time::sleep(lifetime) => finish(&app, code),
        () = signals.received(&app) => {
            tokio::select! {
                () = leave(&app, held) => {}
                () = async { loop { signals.received(&app).await } } => {}
            }
            finish(&app, app.options.exit_code)
        }
    }
}

async fn leave(app: &Shared, held: Option<tokio::net::TcpStream>) {
    match app.options.on_term.clone() {
        OnTerm::ExitAtOnce => {}
        OnTerm::ExitAfter(delay) => tokio::time::sleep(delay).await,
        OnTerm::FinishInFlight => nothing_in_flight(app).await,
        OnTerm::CloseListener => {
            app.listening.send_replace(false);
            nothing_in_flight(app).await;
        }
        OnTerm::Ignore => std::future::pending().await,
        OnTerm::Call { after, http, tcp } => {
            tokio::time::sleep(after).await;
            if let Some(address) = http {
                outbound::get(app, "call", address).await;
            }
            if let Some(address) = tcp {
                outbound::echo(app, address).await;
            }
        }
        OnTerm::Ack { after } => {
            tokio::time::sleep(after).await;
            outbound::ack(app, held).await;
        }
    }
}

async fn nothing_in_flight(app: &Shared) {
    let _ = app.in_flight.subscribe().wait_for(|count| *count == 0).await;
}

fn finish(app: &Shared, code: i32) -> i32 {
    app.pen.note("exit", &format!("code={code}"));
    code
}

/// The pipe closes when the test process dies, however it dies.
fn end_with_parent() {
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    exit(ORPHANED);
}

struct Signals {
    term: Signal,
    int: Signal,
    quit: Signal,
}

impl Signals {
    fn new() -> Self {
        let listen = |kind| signal(kind).expect("signals can be handled");
        Self {
            term: listen(SignalKind::terminate()),
            int: listen(SignalKind::interrupt()),
            quit: listen(SignalKind::quit()),
        }
    }

    async fn received(&mut self, app: &Shared) {
        let name = tokio::select! {
            _ = self.term.recv() => "TERM",
            _ = self.int.recv() => "INT",
            _ = self.quit.recv() => "QUIT",
        };
        app.pen.note("term", &format!("signal={name}"));
    }
}

const FOREVER: Duration = Duration::from_secs(24 * 3600);
const ORPHANED: i32 = 99;
