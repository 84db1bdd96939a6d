//! Owns server-sent events: each is passed on at once, and a stream ends between two of them, so that its client comes
//! back behind the last one.

mod borders;

mod ends;

mod flow;

mod late;

mod rollout;

use std::net::SocketAddr;
use std::time::Duration;

use crate::harness::SOON;
use crate::harness::client::{Raw, Request, fresh_id};
use crate::harness::ebbtide::{Config, Ebbtide};
use crate::harness::events::EventSource;
use crate::harness::h2::{RawH2, request};
use crate::harness::script::ByHand;
use crate::harness::stage::{plain, terminate};

const MILLIS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;

/// A client that does not come back within any test.
const ONCE: Duration = Duration::from_secs(600);

/// One moment for all streams, right at the hold's end, and all the time that a drain may need behind it.
const AT_ONCE: &str = "grace_period: 20s, hold: 300ms, close: 1s, close_spread: 1ms, quiet: 300ms, margin: 500ms";

/// With one worker, whose sweep asks all streams in the same moment.
fn one_worker(drain: &str) -> Config {
    plain(drain).env("EBBTIDE_WORKERS", "1")
}

/// What an `EventSource` sends that matters here.
const HEADERS: &[(&str, &str)] = &[("accept", "text/event-stream"), ("accept-encoding", "gzip")];

/// A client on a raw socket that has sent its request.
async fn listen(address: SocketAddr) -> Raw {
    let request = HEADERS.iter().fold(Request::get("/events"), |request, (name, value)| request.header(name, value));
    let mut raw = Raw::connect(address).await.expect("ebbtide accepts");
    raw.send(request.encode("toy", &fresh_id())).await.expect("the request goes out");
    raw
}

/// The same as a stream of an HTTP/2 connection.
async fn listen_h2(raw: &mut RawH2) -> u32 {
    let stream = raw.fresh_stream();
    raw.frame(request(stream, "GET", "/events", HEADERS).end_stream()).await.expect("the request goes out");
    stream
}

/// t0, and the moments of all streams that are open: the end of one that was begun after all others shows them.
async fn moments_have_come(app: &mut ByHand, px: &Ebbtide, address: SocketAddr) {
    let witness = EventSource::start(address, "/events", ONCE);
    let mut silent = app.next().await;
    silent.begin("text/event-stream", "").await;
    witness.opened(SOON).await;
    terminate(px).await;
    witness.has("the end of the witness", SOON, |heard| !heard.ends().is_empty()).await;
}

async fn draining(px: &Ebbtide) {
    px.phase_becomes("draining", SOON).await;
}
