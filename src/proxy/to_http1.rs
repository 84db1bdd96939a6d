//! One request to an app that speaks HTTP/1.1.

use std::pin::pin;
use std::rc::Rc;

use http::header::TRANSFER_ENCODING;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use hyper::body::{Body as _, Incoming};
use tokio::time::sleep;

use super::body::{Body, Exchange, RequestBody, Upstream};
use super::forward::{Asked, answer, broke, note_forwarded, outcome_of, unless_forced};
use super::response::Reason;
use super::{Inbound, headers, way};
use crate::listener::conn::Active;
use crate::telemetry::metrics::Forced;
use crate::upstream::connect::DYING;

/// A copy of a request that may be sent again: without a body, on a reused connection.
struct Again {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

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
            note_forwarded(inbound);
        }
        let may_retry = upstream.is_reused() && !retried;
        let again = (may_retry && bodyless).then(|| Again::of(&next));
        let Some(sender) = upstream.sender() else { return Err(Reason::AppBroke) };
        let sent = unless_forced(active, pin!(sender.try_send_request(next))).await;
        let marks = upstream.marks();
        match sent {
            None if marks.is_some_and(|marks| marks.wrote.get()) => {
                inbound.worker.count_forced(Forced::RequestUnanswered);
                return Err(Reason::CutUnanswered);
            }
            None => {
                inbound.worker.count_forced(Forced::RequestUnsent);
                return Err(Reason::CutUnsent);
            }
            Some(Ok(response))
                if response.status() == StatusCode::SWITCHING_PROTOCOLS
                    || headers::has_other_coding(response.headers()) =>
            {
                broke(inbound, &"an upgrade or a transfer coding that was not asked for");
                return Err(Reason::AppAnswer);
            }
            Some(Ok(response)) => {
                let exchange = Exchange {
                    active: active.again(),
                    permit: Some(permit),
                    upstream: Some(Upstream::Pooled(upstream)),
                    upload,
                    inbound: Rc::clone(inbound),
                    spoken: asked.spoken(),
                    outcome: outcome_of(response.status()),
                };
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
                    (None, Some(again)) if unanswered && twice => again.into_request(),
                    _ => {
                        broke(inbound, error.error());
                        return Err(Reason::AppBroke);
                    }
                };
                retried = true;
                inbound.worker.metrics.retries.add(0);
                drop(upstream);
                // The permit is kept meanwhile: the request is in flight.
                if unless_forced(active, Box::pin(sleep(DYING)).as_mut()).await.is_none() {
                    inbound.worker.count_forced(Forced::RequestUnsent);
                    return Err(Reason::CutUnsent);
                }
                drop(permit);
            }
        }
    }
}

// === impl Again ===

impl Again {
    fn of(request: &Request<RequestBody>) -> Self {
        Self { method: request.method().clone(), uri: request.uri().clone(), headers: request.headers().clone() }
    }

    fn into_request(self) -> Request<RequestBody> {
        let mut request = Request::new(RequestBody::empty());
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        *request.headers_mut() = self.headers;
        request
    }
}
