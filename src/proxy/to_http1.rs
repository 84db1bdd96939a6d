//! One request to an app that speaks HTTP/1.1.

use std::pin::pin;
use std::rc::Rc;

use http::header::TRANSFER_ENCODING;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};

use super::again::Head;
use super::body::{Body, Exchange, RequestBody, Upstream};
use super::forward::{Asked, answer, broke, note_forwarded, out_of_time, pause_before_repeat, unless_forced};
use super::response::Reason;
use super::{Inbound, headers, way};
use crate::listener::conn::Active;
use crate::telemetry::logging::chain;

/// Sends a prepared request, once more if the connection turns out to have died before (contract §7), and passes the
/// answer on.
pub async fn exchange(
    request: &mut Option<Request<Incoming>>,
    asked: &Asked,
    active: &Active,
    inbound: &Rc<Inbound>,
) -> Result<Response<Body>, Reason> {
    let Some(request) = request.take() else { return Err(Reason::BadTarget) };
    let bodyless = request.body().is_end_stream();
    let mut next = request.map(|body| RequestBody::new(body, active));
    if !bodyless && next.body().size_hint().exact().is_none() {
        // hyper leaves a body out where the method does not call for one, unless it is told.
        next.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    let upload = next.body().upload();
    let mut retried = false;
    loop {
        let (permit, mut upstream) = match if retried { None } else { way::open(active, inbound) } {
            Some(way) => way,
            None => Box::pin(way::pooled(active, inbound, retried)).await?,
        };
        if !retried {
            note_forwarded(&inbound.worker);
        }
        let may_retry = upstream.is_reused() && !retried;
        // Without a body, on a reused connection.
        let again = (may_retry && bodyless).then(|| Head::of(&next));
        let Some(sender) = upstream.sender() else { return Err(Reason::AppBroke) };
        let sent = unless_forced(active, pin!(sender.try_send_request(next))).await;
        let marks = upstream.marks();
        match sent {
            None => return Err(out_of_time(inbound, marks.is_some_and(|marks| marks.wrote.get()))),
            Some(Ok(response))
                if response.status() == StatusCode::SWITCHING_PROTOCOLS
                    || headers::has_other_coding(response.headers()) =>
            {
                broke(inbound, &"an upgrade or a transfer coding that was not asked for");
                return Err(Reason::AppAnswer);
            }
            Some(Ok(response)) => {
                let upstream = Upstream::Pooled(upstream);
                let exchange = Exchange::new(active, inbound, permit, upstream, upload, asked.spoken());
                return Ok(answer(response, asked.version, exchange));
            }
            Some(Err(mut error)) => {
                // Never begun: safe to send again, whatever it is. Begun and unanswered: only if it may be sent twice.
                let untouched = error.take_message();
                let unanswered = !marks.is_some_and(|marks| marks.read.get());
                let twice = headers::is_idempotent(&asked.method) || !marks.is_some_and(|marks| marks.sent.get());
                next = match (untouched, again) {
                    _ if upload.as_ref().is_some_and(|upload| upload.has_failed()) => {
                        return Err(Reason::of_failed_body(active.conn()));
                    }
                    (Some(request), _) if may_retry => request,
                    (None, Some(again)) if unanswered && twice => again.with(RequestBody::empty()),
                    _ => {
                        broke(inbound, &chain(error.error()));
                        return Err(Reason::AppBroke);
                    }
                };
                retried = true;
                inbound.worker.metrics.retries.add(0);
                drop(upstream);
                // The permit is kept meanwhile: the request is in flight.
                pause_before_repeat(active, inbound).await?;
                drop(permit);
            }
        }
    }
}
