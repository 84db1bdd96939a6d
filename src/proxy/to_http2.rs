//! One request to an app that speaks HTTP/2.

use std::pin::pin;
use std::rc::Rc;

use http::{Request, Response};
use hyper::body::{Body as _, Incoming};

use super::again::Head;
use super::body::{Body, Exchange, RequestBody, Upstream, h2_cause};
use super::forward::{Asked, answer, broke, note_forwarded, out_of_time, pause_before_repeat, unless_forced};
use super::response::Reason;
use super::{Inbound, headers, way};
use crate::listener::conn::Active;
use crate::telemetry::logging::chain;

/// How often a request that the app has provably not looked at is sent again: a proof is no guarantee of progress.
const MOST_TRIES: u32 = 5;

/// Why a try has failed.
enum Failed {
    /// The app has not looked at it: never begun, REFUSED_STREAM, or above the last id of a GOAWAY (RFC 9113 §8.7).
    Unprocessed,
    /// The connection died and nothing is known.
    Unknown,
    /// The app has reset the stream, or something else is spoken there.
    Final,
}

/// Sends a prepared request, again where the app has not processed it, and passes the answer on.
pub async fn exchange(
    request: &mut Option<Request<Incoming>>,
    asked: &Asked,
    active: &Active,
    inbound: &Rc<Inbound>,
) -> Result<Response<Body>, Reason> {
    let Some(request) = request.take() else { return Err(Reason::BadTarget) };
    let bodyless = request.body().is_end_stream();
    let mut request = request.map(|body| RequestBody::kept(body, active));
    let mut reused_died = false;
    let mut tries = 0;
    loop {
        let (permit, slot) = match way::open_slot(active, inbound) {
            Some(way) => way,
            None => Box::pin(way::slot(active, inbound)).await?,
        };
        if tries == 0 {
            note_forwarded(&inbound.worker);
        }
        tries += 1;
        let (kept, upload) = (request.body().keeper(), request.body().upload());
        let again = Head::of(&request);
        let (error, slot) = match unless_forced(active, pin!(slot.send(request))).await {
            None => return Err(out_of_time(inbound, true)),
            Some((Ok(response), slot)) => {
                if let Some(kept) = kept {
                    kept.let_go();
                }
                let upstream = Upstream::Stream(slot);
                let exchange = Exchange::new(active, inbound, permit, upstream, upload, asked.spoken());
                return Ok(answer(response, asked.version, exchange));
            }
            Some((Err(error), slot)) => (error, slot),
        };
        if upload.is_some_and(|upload| upload.has_failed()) {
            return Err(Reason::of_failed_body(active.conn()));
        }
        if slot.seen().is_not_http2() {
            // An app that said otherwise when it was asked has been replaced too quickly for a dial to be refused.
            inbound.speaks.forget();
            broke(inbound, &"it does not speak HTTP/2");
            return Err(Reason::AppNotHttp2);
        }
        let safe_twice = bodyless && headers::is_idempotent(&asked.method);
        let failed = if error.message().is_some() { Failed::Unprocessed } else { failed(error.error()) };
        let may_repeat = match failed {
            Failed::Unprocessed => tries < MOST_TRIES,
            // Once, and only where a request before this one has shown that the app answered there (contract §7).
            Failed::Unknown => slot.is_reused() && safe_twice && !std::mem::replace(&mut reused_died, true),
            Failed::Final => false,
        };
        if !may_repeat || kept.as_ref().is_some_and(|kept| !kept.is_whole()) {
            broke(inbound, &chain(error.error()));
            let unprocessed = matches!(failed, Failed::Unprocessed);
            return Err(if unprocessed { Reason::AppRefuses } else { Reason::AppBroke });
        }
        inbound.worker.metrics.retries.add(0);
        // The first repeat follows a farewell; where it fails as well, the app may need a moment to come back.
        if tries > 1 {
            pause_before_repeat(active, inbound).await?;
        }
        request = again.with(RequestBody::again(kept, active));
    }
}

fn failed(error: &hyper::Error) -> Failed {
    match h2_cause(error) {
        Some(cause) if cause.is_remote() && cause.is_go_away() => Failed::Unprocessed,
        Some(cause) if cause.is_remote() && cause.reason() == Some(h2::Reason::REFUSED_STREAM) => Failed::Unprocessed,
        // Also by our own h2, for what it found wrong in the answer.
        Some(cause) if cause.is_reset() => Failed::Final,
        Some(_) | None => Failed::Unknown,
    }
}
