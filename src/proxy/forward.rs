//! One request to the app and back.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::{Body as _, Incoming};
use tokio::time::sleep;

use super::access::Access;
use super::body::{AppBody, Body, Exchange, Upstream, abandoned};
use super::headers::{self, Ends, Found, UpgradeRequest};
use super::response::{Reason, come_back, respond};
use super::{Inbound, events, grpc, to_http1, to_http2, upgrade, way};
use crate::config::UpstreamAddr;
use crate::listener::conn::{Active, Conn};
use crate::listener::streams::Half;
use crate::telemetry::metrics::{Forced, GrpcCode, Notice, RequestOutcome, Spoken};
use crate::upstream::connect::DYING;
use crate::upstream::speaks::Speaks;
use crate::worker::Worker;

/// What is known of the request beside its own parts.
#[derive(Debug)]
pub struct Asked {
    /// What the client speaks.
    pub version: Version,
    /// What its headers have shown.
    pub found: Found,
    /// The request's method.
    pub method: Method,
    /// A gRPC call, and the content type it is made in.
    pub call: Option<HeaderValue>,
    /// The framing can't be shown to be unambiguous, so the connection must not be used again (RFC 9112 §6.3).
    must_close: bool,
}

/// A request whose answer has not begun. Over HTTP/2 it is dropped when the client takes its stream back.
struct Unanswered<'a> {
    active: &'a Active,
    inbound: &'a Inbound,
    asked: &'a Asked,
    answered: bool,
}

/// Forwards an HTTP/1 request; always answers.
pub fn forward(
    request: Request<Incoming>,
    conn: Rc<Conn>,
    inbound: Rc<Inbound>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> {
    let active = conn.activate();
    forward_by(exchange, request, active, inbound)
}

/// Likewise for an HTTP/2 stream. What is common in one is rare in the other, and what is rare is boxed: hyper moves
/// these futures as a whole, and every open stream keeps one.
pub fn forward_stream(
    request: Request<Incoming>,
    conn: Rc<Conn>,
    inbound: Rc<Inbound>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> {
    // Now, not when hyper's new task is first polled: in between the connection would look as if nothing were open on
    // it, which is when its client is told to go.
    let active = conn.activate();
    forward_by(exchange_stream, request, active, inbound)
}

async fn forward_by(
    exchange: impl AsyncFn(&mut Option<Request<Incoming>>, &Asked, &Active, &Rc<Inbound>) -> Result<Response<Body>, Reason>,
    request: Request<Incoming>,
    active: Active,
    inbound: Rc<Inbound>,
) -> Result<Response<Body>, Infallible> {
    let conn = Rc::clone(active.conn());
    let framing = conn.framing.take();
    let version = request.version();
    let http1 = version != Version::HTTP_2;
    let found = Found::in_headers(request.headers());
    let chunked = http1 && found.coded;
    let asked = Asked {
        version,
        found,
        method: request.method().clone(),
        must_close: chunked && !framing.whole,
        call: grpc::call_type(&request).cloned(),
    };
    conn.body_unread.set(!request.body().is_end_stream());
    conn.client_closes.set(asked.client_closes());
    let access = Access::begin(&inbound.worker, &request);
    note_arrival(&conn, request.headers());
    let ambiguous = chunked && framing.content_length;
    let mut unanswered = Unanswered { active: &active, inbound: &inbound, asked: &asked, answered: false };
    let result = if ambiguous {
        Err(Reason::AmbiguousFraming)
    } else if chunked && headers::has_other_coding(request.headers()) {
        Err(Reason::TransferCoding)
    } else if !http1 && inbound.worker.open() > inbound.worker.max_connections {
        // This stream counts already.
        if let Some(suppressed) = inbound.warnings.turn(inbound.worker.lifecycle.now()) {
            let limit = inbound.worker.max_connections;
            tracing::warn!(listener = inbound.name, limit, suppressed, "too many connections and streams are open");
        }
        Err(Reason::TooManyStreams)
    } else if asked.method == Method::CONNECT && headers::is_websocket_stream(&request) {
        Box::pin(upgrade::open_stream(&mut Some(request), &asked, &active, &inbound)).await
    } else if asked.method == Method::CONNECT {
        Err(Reason::ConnectMethod)
    } else {
        // Lent, not given: a future holds every argument that it was given twice.
        exchange(&mut Some(request), &asked, &active, &inbound).await
    };
    unanswered.answered = true;
    drop(unanswered);
    let mut response = match result {
        Ok(response) => response,
        Err(reason) => refuse(reason, &asked, active, &inbound),
    };
    conn.served.set(true);
    if asked.version != Version::HTTP_2 {
        tell(&mut response, &asked, &conn);
    }
    access.end(&response);
    Ok(response)
}

async fn exchange(
    request: &mut Option<Request<Incoming>>,
    asked: &Asked,
    active: &Active,
    inbound: &Rc<Inbound>,
) -> Result<Response<Body>, Reason> {
    let Some(prepared) = request else { return Err(Reason::BadTarget) };
    let speaks = match inbound.pool.upstream().address {
        UpstreamAddr::H2c(_) => Speaks::Http2,
        _ => Speaks::Http1,
    };
    if headers::prepare(prepared, &asked.found, speaks, &Ends::of(active.conn(), inbound))? != UpgradeRequest::No {
        return Box::pin(upgrade::open(request, asked, active, inbound)).await;
    }
    match speaks {
        Speaks::Http1 | Speaks::Silent => to_http1::exchange(request, asked, active, inbound).await,
        Speaks::Http2 => Box::pin(to_http2::exchange(request, asked, active, inbound)).await,
    }
}

async fn exchange_stream(
    request: &mut Option<Request<Incoming>>,
    asked: &Asked,
    active: &Active,
    inbound: &Rc<Inbound>,
) -> Result<Response<Body>, Reason> {
    let speaks = match inbound.pool.upstream().address {
        UpstreamAddr::Http(_) | UpstreamAddr::Tcp(_) | UpstreamAddr::Tls(_) => Speaks::Http1,
        UpstreamAddr::H2c(_) => Speaks::Http2,
        UpstreamAddr::Auto(_) | UpstreamAddr::Https(_) | UpstreamAddr::Unix(_) => way::speaks(active, inbound).await?,
    };
    match speaks {
        // Clients never try this one again; an app that said nothing may only have been slow.
        Speaks::Http1 if asked.call.is_some() => {
            broke(inbound, &"gRPC needs HTTP/2, and the app, or the upstream's scheme, is HTTP/1.1");
            return Err(Reason::AppNotHttp2);
        }
        Speaks::Silent if asked.call.is_some() => return Err(Reason::AppSilent),
        Speaks::Http1 | Speaks::Silent | Speaks::Http2 => {}
    }
    let Some(prepared) = request else { return Err(Reason::BadTarget) };
    headers::prepare(prepared, &asked.found, speaks, &Ends::of(active.conn(), inbound))?;
    match speaks {
        Speaks::Http1 | Speaks::Silent => Box::pin(to_http1::exchange(request, asked, active, inbound)).await,
        Speaks::Http2 => to_http2::exchange(request, asked, active, inbound).await,
    }
}

/// The 502s of this worker, in the log.
pub fn broke(inbound: &Inbound, error: &dyn std::fmt::Display) {
    if let Some(suppressed) = inbound.warnings.turn(inbound.worker.lifecycle.now()) {
        let (listener, upstream, error) = (&inbound.name, inbound.pool.upstream(), error.to_string());
        tracing::warn!(listener, %upstream, error, suppressed, "the app gave no answer that can be passed on");
    }
}

/// `None` when the drain deadline comes first. The future is lent: an argument that is one is held twice.
pub async fn unless_forced<F: Future>(active: &Active, mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| {
        if active.is_forced() {
            return Poll::Ready(None);
        }
        let polled = future.as_mut().poll(cx).map(Some);
        if polled.is_pending() {
            active.wait(Half::Response, cx);
        }
        polled
    })
    .await
}

/// The drain deadline came before the answer: counted, and what the client is told.
pub fn out_of_time(inbound: &Inbound, app_may_have_it: bool) -> Reason {
    let (kind, reason) = if app_may_have_it {
        (Forced::RequestUnanswered, Reason::CutUnanswered)
    } else {
        (Forced::RequestUnsent, Reason::CutUnsent)
    };
    inbound.worker.count_forced(kind);
    reason
}

/// A moment for an app that has just closed a connection: it refuses soon, or its successor accepts.
pub async fn pause_before_repeat(active: &Active, inbound: &Inbound) -> Result<(), Reason> {
    match unless_forced(active, Box::pin(sleep(DYING)).as_mut()).await {
        Some(()) => Ok(()),
        None => Err(out_of_time(inbound, false)),
    }
}

/// The app's response on its way to a client that speaks `version`.
pub fn answer(response: Response<Incoming>, version: Version, mut exchange: Exchange) -> Response<Body> {
    let found = Found::in_headers(response.headers());
    if found.keep_alive
        && let Some(Upstream::Pooled(pooled)) = &mut exchange.upstream
        && let Some(seconds) = headers::keep_alive_timeout(response.headers())
    {
        pooled.learn_keep_alive(seconds);
    }
    let may_pass_on = exchange.inbound.worker.config.pass_on_close && version != Version::HTTP_2;
    let pass_on = may_pass_on && found.closes;
    let unsized_body = response.body().size_hint().exact().is_none();
    let is_call = exchange.spoken == Spoken::Grpc;
    let is_events = !is_call && unsized_body && events::is_event_stream(response.headers());
    let (parts, inner) = response.into_parts();
    let outcome = outcome_of(parts.status);
    let mut body = AppBody::new(inner, exchange, outcome, version == Version::HTTP_10 && unsized_body);
    if is_call {
        body.follow_call(&parts.headers);
    } else if is_events {
        body.follow_events();
    }
    let mut response = Response::from_parts(parts, Body::App(Box::new(body)));
    headers::prepare_response(&mut response, &found, version);
    if pass_on {
        headers::tell_to_close(response.headers_mut());
    }
    response
}

fn refuse(reason: Reason, asked: &Asked, active: Active, inbound: &Inbound) -> Response<Body> {
    let terminating = inbound.worker.lifecycle.snapshot().phase.is_terminating();
    let invited = asked.wants_events()
        && asked.method != Method::CONNECT
        && terminating
        && reason.parts().0 == StatusCode::SERVICE_UNAVAILABLE;
    let metrics = inbound.worker.metrics;
    let mut response = match &asked.call {
        Some(content_type) => {
            metrics.grpc_calls.add(GrpcCode::of(Some(grpc::status_of(reason) as usize)) as usize);
            grpc::refusal(reason, content_type)
        }
        None if invited => come_back(),
        None => respond(reason),
    };
    *response.version_mut() = asked.version;
    if asked.version == Version::HTTP_2 {
        // GOAWAY says it there (RFC 9113 §8.2.2).
        response.headers_mut().remove(http::header::CONNECTION);
        if asked.method == Method::HEAD {
            // Over HTTP/1 hyper leaves the body out by itself.
            *response.body_mut() = Body::empty();
        }
    }
    response.body_mut().keep(active);
    metrics.requests.add_pair(asked.spoken() as usize, reason.parts().2 as usize);
    response
}

/// The notice: decided when the response starts, and at most once per connection.
fn tell(response: &mut Response<Body>, asked: &Asked, conn: &Conn) {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return;
    }
    let due = conn.is_notice_due();
    if due || asked.must_close {
        headers::tell_to_close(response.headers_mut());
    } else if asked.asks_to_stay() && response.body().size_hint().exact().is_some() {
        // hyper does so only for a response that claims to be 1.1. An end that is the close itself can't be kept.
        headers::tell_to_stay(response.headers_mut());
    }
    if due && !conn.told.replace(true) && !asked.client_closes() {
        conn.worker().metrics.notices.add(Notice::ConnectionClose as usize);
    }
}

/// An arrival counts for the hold and for `quiet` unless its connection was told to go, or it is a probe.
fn note_arrival(conn: &Conn, headers: &HeaderMap) {
    let worker = conn.worker();
    let terminating = worker.phase().is_terminating();
    let first = !conn.served.get();
    if !(first || (terminating && !conn.told.get())) || headers::is_probe(headers) {
        return;
    }
    let tallies = worker.lifecycle.tallies();
    let now = worker.lifecycle.now();
    if first { tallies.connection_came(now) } else { tallies.arrival(now) }
}

/// A request, or a connection, goes to the app.
pub fn note_forwarded(worker: &Worker) {
    let phase = worker.phase();
    if phase.is_terminating() {
        worker.metrics.after_termination.add(0);
    }
    if phase.is_past_hold() {
        worker.metrics.late_arrivals.add(0);
    }
}

// === impl Unanswered ===

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.answered || self.active.stream().is_none() {
            return;
        }
        let forced = self.active.is_forced();
        let outcome = if forced { RequestOutcome::Cut } else { abandoned(self.active.conn()) };
        let metrics = self.inbound.worker.metrics;
        metrics.requests.add_pair(self.asked.spoken() as usize, outcome as usize);
        if self.asked.call.is_some() {
            metrics.grpc_calls.add(GrpcCode::None as usize);
        }
    }
}

// === impl Asked ===

impl Asked {
    /// How it is counted.
    pub fn spoken(&self) -> Spoken {
        match self.version {
            Version::HTTP_2 if self.call.is_some() => Spoken::Grpc,
            Version::HTTP_2 => Spoken::Http2,
            _ => Spoken::Http1,
        }
    }

    /// The client itself ends the connection after this request; HTTP/2 has no such header (RFC 9113 §8.2.2).
    fn client_closes(&self) -> bool {
        self.found.closes && self.version != Version::HTTP_2
    }

    /// An HTTP/1.0 client that asks for it is kept.
    fn asks_to_stay(&self) -> bool {
        self.found.stays && self.version == Version::HTTP_10
    }

    /// An `EventSource` may be behind it.
    fn wants_events(&self) -> bool {
        self.found.wants_events && self.call.is_none()
    }
}

/// The outcome that the app's status stands for.
fn outcome_of(status: StatusCode) -> RequestOutcome {
    match status.as_u16() {
        ..300 => RequestOutcome::App2xx,
        300..400 => RequestOutcome::App3xx,
        400..500 => RequestOutcome::App4xx,
        _ => RequestOutcome::App5xx,
    }
}
