//! Owns WebSocket: every byte passes as it is, and every session ends with a closing handshake where there can be one.

mod bytes;

mod handshakes;

mod deletion;

mod endings;

mod boundary;

mod app_dies;

mod slow;

mod over_http2;

mod hurry;

use std::net::SocketAddr;
use std::time::Duration;

use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::grpc::stage::Stage;
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::Raw;
use crate::harness::ebbtide::surface::Surface;
use crate::harness::http::Head;
use crate::harness::process::Exit;
use crate::harness::stage::websocket;
use crate::harness::ws::{WsClient, WsPlan};

const MILLIS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;
const CLEAN: Exit = Exit::Code(0);

/// Sessions are closed within half a second from 300 ms after t0 on; then there is time for all that a test may do.
const CLOSES: &str = "grace_period: 20s, hold: 300ms, close: 1s, close_spread: 500ms, quiet: 300ms, margin: 500ms";

/// The same, all in one moment if there is one worker.
const AT_ONCE: &str = "grace_period: 20s, hold: 300ms, close: 1s, close_spread: 1ms, quiet: 300ms, margin: 500ms";

/// As `CLOSES`, with a drain deadline 6.3 s after t0: for those who can't be told before.
const SHORT: &str = "grace_period: 7s, hold: 300ms, close: 500ms, close_spread: 500ms, quiet: 300ms, margin: 200ms";

/// A default app, WebSocket over HTTP/2 as well, and the sections `drain` and `websocket` as given.
async fn stage(drain: &str, rules: &str) -> Stage {
    Stage::start(AppOptions::default(), websocket(drain, rules)).await
}

/// A client over HTTP/1 that the test itself drives.
async fn open(address: SocketAddr, path: &str) -> WsClient {
    WsClient::open(address, &WsPlan::new(path), "one").await.expect("a session")
}

/// What a script answers to a handshake.
fn agree(head: &Head) -> String {
    let accept = derive_accept_key(head.get("sec-websocket-key").unwrap_or_default().as_bytes());
    format!("HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n")
}

/// A request that keeps the drain from its end, so that metrics can be read behind it, until [`let_go`].
async fn keep(address: SocketAddr) -> Raw {
    let mut raw = Raw::connect(address).await.expect("ebbtide accepts");
    raw.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na").await.expect("ebbtide reads");
    raw
}

async fn let_go(mut kept: Raw) {
    kept.send("b").await.expect("ebbtide reads");
    assert_eq!(kept.reply("POST", SOON).await.expect("an answer").status, 200);
}

/// Waits until so many sessions are in flight to the app.
async fn in_flight(px: &Surface, count: usize) {
    px.metric_becomes("ebbtide_in_flight", &[("kind", "session")], SOON, |value| value == count as f64).await;
}

/// Waits until so many sessions have ended in this way.
async fn ended(px: &Surface, outcome: &str, count: usize) {
    let labels = [("outcome", outcome)];
    px.metric_becomes("ebbtide_websocket_sessions_total", &labels, SOON, |value| value == count as f64).await;
}
