//! Owns the set of these tests: one app with one ebbtide in front.

use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;

use crate::harness::SOON;
use crate::harness::app::{App, AppOptions};
use crate::harness::client::{Connection, Failure, Raw, Reply, Request, fresh_id, send};
use crate::harness::ebbtide::{Config, Ebbtide};
pub(super) use crate::harness::script::Script;
use crate::harness::stage::alone;
pub(super) use crate::harness::stage::{DRAINS, LONG, TOLD, front, plain, resident, terminate};

/// The shortest request.
pub(super) const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// An app and an ebbtide in front of it.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) app: App,
    pub(super) px: Ebbtide,
    /// Where clients connect.
    pub(super) address: SocketAddr,
    _dir: TempDir,
}

// === impl Stage ===

impl Stage {
    pub(super) async fn start(options: AppOptions, config: Config) -> Self {
        let (app, options, dir) = alone(options).await;
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

pub(super) fn assert_no_panic(px: &Ebbtide) {
    let log = px.log_text();
    assert!(!log.contains("panicked"), "{log}");
    assert!(px.process.is_running(), "ebbtide ended: {:?}\n{log}", px.process.exited());
}

/// A moment that lets the other side act, where there is nothing to wait for.
pub(super) async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
