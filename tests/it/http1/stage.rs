//! Owns the set of these tests: one app with one ebbtide in front, and apps that are scripts.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::harness::app::{App, AppOptions, Listen};
use crate::harness::client::{Connection, Failure, Raw, Reply, Request, fresh_id, send};
use crate::harness::ebbtide::{Config, Ebbtide};
use crate::harness::http::Wire;
use crate::harness::{SOON, fresh_ip};

/// A long life after t0: tests end it themselves.
pub(super) const LONG: &str = "grace_period: 60s, hold: 30s, close: 2s, margin: 1s";

/// Every response from 300 ms after t0 on says `close`, and the hold goes on for as long as requests come.
pub(super) const TOLD: &str =
    "grace_period: 60s, hold: {min: 300ms, quiet: 10s, max: 30s}, notice_after: 0%, close: 2s, margin: 1s";

/// A short hold, then all the time that a drain may need.
pub(super) const DRAINS: &str =
    "grace_period: 20s, hold: 300ms, close: 1s, close_spread: 500ms, quiet: 300ms, margin: 500ms";

/// An app and an ebbtide in front of it.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) app: App,
    pub(super) px: Ebbtide,
    /// Where clients connect.
    pub(super) address: SocketAddr,
    _dir: TempDir,
}

/// An app that is a script, in the test's own process.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

/// Plain mode, with the section `drain` of the configuration as given.
pub(super) fn plain(drain: &str) -> Config {
    Config::new().yaml(&format!("drain: {{{drain}}}"))
}

/// Starts ebbtide in front of any address and waits until it has seen the app.
pub(super) async fn front(config: Config, upstream: &str) -> (Ebbtide, SocketAddr) {
    let px = config.upstream(upstream).start().await;
    let address = px.inbound().await;
    px.metric_becomes("ebbtide_phase", &[("phase", "serving")], SOON, |on| on == 1.0).await;
    (px, address)
}

// === impl Stage ===

impl Stage {
    pub(super) async fn start(options: AppOptions, config: Config) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let options = match options.listen {
            Listen::Pod => AppOptions { listen: Listen::Tcp(SocketAddr::new(fresh_ip(), 8080)), ..options },
            _ => options,
        };
        let app = options.start("app", dir.path()).await;
        let (px, address) = front(config, &options.upstream()).await;
        Self { app, px, address, _dir: dir }
    }

    /// A default app, and a drain that no test waits for.
    pub(super) async fn simple() -> Self {
        Self::start(AppOptions::default(), plain(LONG)).await
    }

    /// t0, by a signal; returns when ebbtide has seen it.
    pub(super) async fn terminate(&self) {
        terminate(&self.px).await;
    }

    pub(super) async fn send(&self, request: &Request) -> Result<Reply, Failure> {
        send(self.address, request, SOON).await
    }

    pub(super) async fn raw(&self) -> Raw {
        Raw::connect(self.address).await.expect("ebbtide accepts")
    }

    pub(super) async fn connection(&self) -> Connection {
        Connection::open(self.address, SOON).await.expect("ebbtide accepts")
    }

    /// A connection that has served one request.
    pub(super) async fn used(&self) -> Connection {
        let mut connection = self.connection().await;
        let reply = connection.exchange(&Request::get("/"), &fresh_id(), SOON).await.expect("an answer");
        assert_eq!((reply.status, reply.closes()), (200, 0));
        connection
    }

    /// Requests that have reached the app.
    pub(super) fn seen(&self) -> usize {
        self.app.journal.count("req")
    }

    pub(super) fn assert_no_panic(&self) {
        assert_no_panic(&self.px);
    }
}

pub(super) async fn terminate(px: &Ebbtide) {
    px.signal(Signal::TERM);
    px.metric_becomes("ebbtide_termination_start_time_seconds", &[], SOON, |at| at > 0.0).await;
}

pub(super) fn assert_no_panic(px: &Ebbtide) {
    let log = px.log_text();
    assert!(!log.contains("panicked"), "{log}");
    assert!(px.process.is_running(), "ebbtide ended: {:?}\n{log}", px.process.exited());
}

/// Resident memory of a process in KiB.
pub(super) fn resident(px: &Ebbtide) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", px.process.pid())).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a resident set");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

// === impl Script ===

impl Script {
    /// `serve` gets the number of the connection, from 0 on; ebbtide's own dials are counted as well.
    pub(super) async fn start<F, S>(serve: F) -> Self
    where
        F: Fn(usize, Wire<TcpStream>) -> S + Send + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let address = listener.local_addr().expect("the listener is bound");
        let (accepted, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (count, gauge) = (accepted.clone(), open.clone());
        let task = tokio::spawn(async move {
            let mut tasks = JoinSet::new();
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    let work = serve(count.fetch_add(1, Ordering::SeqCst), Wire::new(stream));
                    let gauge = gauge.clone();
                    gauge.fetch_add(1, Ordering::SeqCst);
                    tasks.spawn(async move {
                        work.await;
                        gauge.fetch_sub(1, Ordering::SeqCst);
                    });
                }
                while tasks.try_join_next().is_some() {}
            }
        });
        Self { address, accepted, open, task }
    }

    pub(super) fn upstream(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Connections whose script has not ended.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A moment that lets the other side act, where there is nothing to wait for.
pub(super) async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
