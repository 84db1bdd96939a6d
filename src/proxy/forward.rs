//! One request to the app and back.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body as _, Incoming};
use tokio::time::sleep;

use super::access::Access;
use super::body::{AppBody, Body, Exchange, RequestBody, Upstream};
use super::headers::{self, UpgradeRequest};
use super::response::{Reason, come_back, respond};
use super::{Inbound, tunnel, way};
use crate::lifecycle::phase::Phase;
use crate::listener::conn::{Active, Conn, Doing};
use crate::telemetry::metrics::{Forced, Notice, RequestOutcome};
use crate::upstream::connect::DYING;

/// What is known of the request beside its own parts.
struct Asked {
    version: Version,
    method: Method,
    client_closes: bool,
    /// An HTTP/1.0 client that asks for it is kept.
    asks_to_stay: bool,
    /// An `EventSource` may be behind it.
    wants_events: bool,
    /// The framing can't be shown to be unambiguous, so the connection must not be used again (RFC 9112 §6.3).
    must_close: bool,
}

/// A copy of a request that may be sent again: without a body, on a reused connection.
struct Again {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

/// Forwards a request; always answers.
pub async fn forward(
    request: Request<Incoming>,
    conn: Rc<Conn>,
    inbound: Rc<Inbound>,
) -> Result<Response<Body>, Infallible> {
    let active = conn.activate();
    let framing = conn.framing.take();
    conn.set_doing(Doing::Exchange);
    let chunked = request.headers().contains_key(http::header::TRANSFER_ENCODING);
    let asked = Asked {
        version: request.version(),
        method: request.method().clone(),
        client_closes: headers::says_close(request.headers()),
        asks_to_stay: request.version() == Version::HTTP_10 && headers::says_keep_alive(request.headers()),
        wants_events: headers::wants_events(request.headers()),
        must_close: chunked && !framing.whole,
    };
    conn.body_unread.set(!request.body().is_end_stream());
    conn.body_failed.set(false);
    conn.client_closes.set(asked.client_closes);
    let access = Access::begin(&inbound.worker, &request);
    note_arrival(&conn, request.headers());
    let ambiguous = chunked && framing.content_length;
    let result = if ambiguous {
        Err(Reason::AmbiguousFraming)
    } else if chunked && headers::has_other_coding(request.headers()) {
        Err(Reason::TransferCoding)
    } else if asked.method == Method::CONNECT {
        Err(Reason::ConnectMethod)
    } else {
        exchange(request, &asked, &active, &inbound).await
    };
    let mut response = match result {
        Ok(response) => response,
        Err(reason) => refuse(reason, &asked, active, &inbound),
    };
    conn.served.set(true);
    tell(&mut response, &asked, &conn);
    access.end(&response);
    Ok(response)
}

async fn exchange(
    mut request: Request<Incoming>,
    asked: &Asked,
    active: &Active,
    inbound: &Rc<Inbound>,
) -> Result<Response<Body>, Reason> {
    let conn = active.conn();
    let upgrade = headers::prepare(&mut request, conn.forwarded_for())?;
    if upgrade != UpgradeRequest::No {
        if inbound.worker.snapshot().phase > Phase::Holding {
            return Err(Reason::NoNewTunnel);
        }
        // Boxed like every rare wait: hyper moves this future as a whole, so its size costs on each request.
        return Box::pin(tunnel::open(request, asked.version, active, inbound)).await;
    }
    let (parts, body) = request.into_parts();
    let bodyless = body.is_end_stream();
    let mut next = Request::from_parts(parts, RequestBody::new(body, conn));
    let upload = next.body().upload();
    let mut retried = false;
    loop {
        let (permit, mut upstream) = match if retried { None } else { way::open(inbound) } {
            Some(way) => way,
            None => Box::pin(way::pooled(conn, inbound, retried)).await?,
        };
        if !retried {
            note_forwarded(inbound);
        }
        let may_retry = upstream.is_reused() && !retried;
        let again = (may_retry && bodyless).then(|| Again::of(&next));
        let Some(sender) = upstream.sender() else { return Err(Reason::AppBroke) };
        let sent = unless_forced(conn, sender.try_send_request(next)).await;
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
                    active: conn.activate(),
                    permit: Some(permit),
                    upstream: Some(Upstream::Pooled(upstream)),
                    upload,
                    inbound: Rc::clone(inbound),
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
                    _ if conn.body_failed.get() => return Err(Reason::of_failed_body(conn)),
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
                if Box::pin(unless_forced(conn, sleep(DYING))).await.is_none() {
                    inbound.worker.count_forced(Forced::RequestUnsent);
                    return Err(Reason::CutUnsent);
                }
                drop(permit);
            }
        }
    }
}

/// The 502s of this worker, in the log.
pub fn broke(inbound: &Inbound, error: &dyn std::fmt::Display) {
    if let Some(suppressed) = inbound.warnings.turn(inbound) {
        tracing::warn!(listener = inbound.name, %error, suppressed, "the app gave no answer that can be passed on");
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

/// `None` when the drain deadline comes first.
pub async fn unless_forced<F: Future>(conn: &Conn, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if conn.is_forced() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// The app's response on its way to a client that speaks `version`.
pub fn answer(response: Response<Incoming>, version: Version, mut exchange: Exchange) -> Response<Body> {
    if let Some(seconds) = headers::keep_alive_timeout(response.headers())
        && let Some(Upstream::Pooled(pooled)) = &mut exchange.upstream
    {
        pooled.learn_keep_alive(seconds);
    }
    let app_closes = headers::says_close(response.headers());
    let pass_on = app_closes && exchange.inbound.worker.config.pass_on_close;
    let unsized_body = response.body().size_hint().exact().is_none();
    let mut response = response.map(|inner| {
        let close_delimited = version == Version::HTTP_10 && unsized_body;
        Body::App(Box::new(AppBody::new(inner, exchange, close_delimited)))
    });
    headers::prepare_response(&mut response, version);
    if pass_on {
        headers::tell_to_close(response.headers_mut());
    }
    response
}

fn refuse(reason: Reason, asked: &Asked, active: Active, inbound: &Inbound) -> Response<Body> {
    let terminating = inbound.worker.lifecycle.snapshot().phase.is_terminating();
    let invited = asked.wants_events && terminating && reason.parts().0 == StatusCode::SERVICE_UNAVAILABLE;
    let mut response = if invited { come_back() } else { respond(reason) };
    *response.version_mut() = asked.version;
    response.body_mut().keep(active);
    inbound.worker.metrics.requests.add(reason.parts().2 as usize);
    response
}

/// The notice: decided when the response starts, and at most once per connection.
fn tell(response: &mut Response<Body>, asked: &Asked, conn: &Conn) {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return;
    }
    let due = is_notice_due(conn);
    if due || asked.must_close {
        headers::tell_to_close(response.headers_mut());
    } else if asked.asks_to_stay && response.body().size_hint().exact().is_some() {
        // hyper does so only for a response that claims to be 1.1. An end that is the close itself can't be kept.
        headers::tell_to_stay(response.headers_mut());
    }
    if due && !conn.told.replace(true) && !asked.client_closes {
        conn.worker().metrics.notices.add(Notice::ConnectionClose as usize);
    }
}

fn is_notice_due(conn: &Conn) -> bool {
    let worker = conn.worker();
    let snapshot = worker.snapshot();
    match (snapshot.phase, snapshot.deadlines) {
        (Phase::Starting | Phase::Serving, _) => false,
        (Phase::Holding, Some(deadlines)) => {
            let window = deadlines.notice;
            let moment = if conn.accepted >= window.start { window.start } else { window.moment(conn.share) };
            worker.lifecycle.now() >= moment
        }
        _ => true,
    }
}

/// An arrival counts for the hold and for `quiet` unless its connection was told to go, or it is a probe.
fn note_arrival(conn: &Conn, headers: &HeaderMap) {
    let worker = conn.worker();
    let terminating = worker.snapshot().phase.is_terminating();
    let first = !conn.served.get();
    if !(first || (terminating && !conn.told.get())) || headers::is_probe(headers) {
        return;
    }
    let tallies = worker.lifecycle.tallies();
    let now = worker.lifecycle.now();
    if first { tallies.connection_came(now) } else { tallies.arrival(now) }
}

fn note_forwarded(inbound: &Inbound) {
    let phase = inbound.worker.snapshot().phase;
    if phase.is_terminating() {
        inbound.worker.metrics.after_termination.add(0);
    }
    if phase.is_past_hold() {
        inbound.worker.metrics.late_arrivals.add(0);
    }
}

/// The outcome that the app's status stands for.
pub fn outcome_of(status: StatusCode) -> RequestOutcome {
    match status.as_u16() {
        ..300 => RequestOutcome::App2xx,
        300..400 => RequestOutcome::App3xx,
        400..500 => RequestOutcome::App4xx,
        _ => RequestOutcome::App5xx,
    }
}
