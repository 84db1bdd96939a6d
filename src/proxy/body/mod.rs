//! Bodies on their way: they hold what must live until the last byte has passed.

mod follows;
mod request;

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::task::AbortHandle;

use self::follows::{Call, Follows};
pub use self::request::{Kept, RequestBody, Upload};
use super::Inbound;
use super::boundary::Boundary;
use super::events::Events;
use super::grpc;
use crate::lifecycle::in_flight::{Permit, Work};
use crate::listener::conn::{Active, Ask, Conn};
use crate::listener::long::Kind;
use crate::listener::streams::Half;
use crate::telemetry::metrics::{Forced, GrpcCode, Notice, RequestOutcome, Spoken};
use crate::upstream::multiplex::Slot;
use crate::upstream::pool::Pooled;

/// A response body towards the client.
#[derive(Debug)]
pub enum Body {
    /// Ours, whole.
    Own(Option<Bytes>, Option<Active>),
    /// The app's.
    App(Box<AppBody>),
}

/// The app's response body with everything that ends with it.
#[derive(Debug)]
pub struct AppBody {
    inner: Incoming,
    exchange: Exchange,
    /// How the request is counted if the body comes whole.
    outcome: RequestOutcome,
    ended: Ended,
    /// Where the client would take a close for the body's proper end.
    close_delimited: bool,
    follows: Follows,
}

/// What one request holds while it is in flight.
#[derive(Debug)]
pub struct Exchange {
    /// Keeps the downstream connection in its exchange.
    pub active: Active,
    /// Keeps the lifecycle waiting.
    pub permit: Option<Permit>,
    /// The connection to the app; `None` only while it is being dropped.
    pub upstream: Option<Upstream>,
    /// The request's body, if it has one.
    pub upload: Option<Rc<Upload>>,
    /// Where the pool is.
    pub inbound: Rc<Inbound>,
    /// What the client speaks.
    pub spoken: Spoken,
}

/// What keeps the lifecycle waiting for the end of an answer that the client is slow to take.
#[derive(Debug)]
pub struct Tail {
    _permit: Permit,
    /// Where the client would take a close for the answer's proper end.
    close_delimited: bool,
}

/// What carries one exchange to the app.
#[derive(Debug)]
pub enum Upstream {
    /// Goes back to the pool after a clean end.
    Pooled(Pooled),
    /// One stream of a connection that carries others as well.
    Stream(Slot),
    /// Made for an upgrade that the app refused; ends with the exchange.
    Single(AbortHandle),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    NotYet,
    Clean,
    Broken,
    Cut(Forced),
    /// By us, between two events.
    BetweenEvents,
}

/// Why a body was broken off; hyper then ends it visibly: no last chunk, or RST_STREAM.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The drain deadline.
    #[error("cut at the drain deadline")]
    Cut,
    /// The app's connection.
    #[error("the app's connection broke in the middle of the response")]
    Upstream(#[source] hyper::Error),
    /// The app's stream ended before its response did, for a reason that is not the client's business; or with NO_ERROR,
    /// which hyper takes for an end.
    #[error("the app's stream broke in the middle of the response")]
    Truncated,
    /// The client's connection, or what it sent.
    #[error("the request's body broke off")]
    Client(#[source] hyper::Error),
    /// The exchange is over; the source says how the app is told.
    #[error("the request's body is wanted no more")]
    Unwanted(#[source] h2::Error),
}

type PolledFrame = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

// === impl Exchange ===

impl Exchange {
    /// The app's answer has begun.
    pub fn new(
        active: &Active,
        inbound: &Rc<Inbound>,
        permit: Permit,
        upstream: Upstream,
        upload: Option<Rc<Upload>>,
        spoken: Spoken,
    ) -> Self {
        Self {
            active: active.again(),
            permit: Some(permit),
            upstream: Some(upstream),
            upload,
            inbound: Rc::clone(inbound),
            spoken,
        }
    }
}

// === impl Tail ===

impl Tail {
    /// The client does not get it.
    pub fn cut(self, conn: &Conn) {
        conn.worker().count_forced(Forced::Stalled);
        conn.reset.set(self.close_delimited);
    }
}

// === impl Body ===

impl Body {
    /// A body of ours.
    pub fn own(text: Bytes) -> Self {
        Self::Own(Some(text), None)
    }

    /// No body.
    pub fn empty() -> Self {
        Self::Own(None, None)
    }

    /// Keeps the connection in its exchange until the body is out.
    pub fn keep(&mut self, active: Active) {
        if let Self::Own(_, slot) = self {
            *slot = Some(active);
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        match &mut *self {
            Self::Own(text, _) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::App(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(text, _) => text.is_none(),
            Self::App(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(text, _) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            Self::App(body) => body.inner.size_hint(),
        }
    }
}

// === impl AppBody ===

impl AppBody {
    /// The body of a response that goes to a client which `close_delimited` says sees its end by the close alone.
    pub fn new(inner: Incoming, exchange: Exchange, outcome: RequestOutcome, close_delimited: bool) -> Self {
        Self { inner, exchange, outcome, ended: Ended::NotYet, close_delimited, follows: Follows::Nothing }
    }

    /// It answers a gRPC call; `headers` are the response's.
    pub fn follow_call(&mut self, headers: &HeaderMap) {
        let call = Call { status: grpc::status_in(headers), ..Call::default() };
        // A length that was announced can't be cut short by a status.
        if self.inner.size_hint().exact().is_none() {
            self.exchange.active.set_long(Kind::Call);
        }
        self.follows = Follows::Call(call);
    }

    /// It is a stream of events without an end of its own.
    pub fn follow_events(&mut self) {
        self.exchange.active.set_long(Kind::Events);
        let events = Events::new();
        self.follows = if self.exchange.active.is_late() { Follows::OneEvent(events) } else { Follows::Events(events) };
    }

    fn conn(&self) -> &Conn {
        self.exchange.active.conn()
    }

    fn is_end_stream(&self) -> bool {
        let status_to_come = matches!(&self.follows, Follows::Call(call) if call.cut_short);
        self.inner.is_end_stream() && !status_to_come
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        if self.ended != Ended::NotYet {
            return Poll::Ready(None);
        }
        let asked = self.exchange.active.asked();
        if (asked >= Ask::CLOSE || self.follows.has_had_its_event())
            && let Some(ending) = self.ending(asked, cx)
        {
            return Poll::Ready(ending);
        }
        let polled = match &self.exchange.upstream {
            Some(Upstream::Pooled(pooled)) => pooled.poll_body(&mut self.inner, cx),
            _ => Pin::new(&mut self.inner).poll_frame(cx),
        };
        match polled {
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(self.follows.follow(frame, asked >= Ask::CLOSE)))),
            Poll::Ready(Some(Err(error))) => {
                self.ended = Ended::Broken;
                Poll::Ready(Some(Err(BodyError::of_app(error))))
            }
            Poll::Ready(None) if self.is_truncated() => {
                self.ended = Ended::Broken;
                Poll::Ready(Some(Err(BodyError::Truncated)))
            }
            Poll::Ready(None) => {
                self.ended = Ended::Clean;
                Poll::Ready(None)
            }
            Poll::Pending => {
                self.exchange.active.wait(Half::Response, cx);
                Poll::Pending
            }
        }
    }

    /// The contract's §6, and §4 for events. `None`: a message or an event may still come to its end.
    fn ending(&mut self, asked: Ask, cx: &mut Context<'_>) -> Option<Option<Result<Frame<Bytes>, BodyError>>> {
        let forced = asked >= Ask::FORCE;
        let endable = self.inner.size_hint().exact().is_none();
        let kind = match &mut self.follows {
            Follows::Events(events) | Follows::OneEvent(events)
                if events.at_boundary() || (forced && events.in_no_field()) =>
            {
                self.exchange.inbound.worker.metrics.notices.add(Notice::EventsEnd as usize);
                self.ended = Ended::BetweenEvents;
                return Some(None);
            }
            Follows::Call(call) if endable && call.messages.at_boundary() => {
                // The app may have said how it ended; a message that only begins is not passed on.
                if !call.cut_short
                    && let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut self.inner).poll_frame(cx)
                    && frame.is_trailers()
                {
                    return Some(Some(Ok(self.follows.follow(frame, asked >= Ask::CLOSE))));
                }
                call.status = Some(grpc::Status::Unavailable as usize);
                self.ended = Ended::Cut(Forced::GrpcStream);
                return Some(Some(Ok(Frame::trailers(grpc::unavailable_trailers()))));
            }
            _ if !forced => return None,
            Follows::Call(_) => Forced::GrpcMessage,
            Follows::Events(_) | Follows::OneEvent(_) | Follows::Nothing => Forced::Response,
        };
        self.ended = Ended::Cut(kind);
        Some(Some(Err(BodyError::Cut)))
    }

    /// hyper says `None` after RST_STREAM(NO_ERROR) as well; only the end of the stream itself tells.
    fn is_truncated(&self) -> bool {
        matches!(self.exchange.upstream, Some(Upstream::Stream(_))) && !self.inner.is_end_stream()
    }

    fn outcome(&self, whole: bool) -> RequestOutcome {
        match self.ended {
            _ if whole => self.outcome,
            Ended::Cut(kind) => {
                self.exchange.inbound.worker.count_forced(kind);
                RequestOutcome::Cut
            }
            Ended::BetweenEvents => RequestOutcome::Ended,
            Ended::Broken => RequestOutcome::Broken,
            Ended::Clean | Ended::NotYet if self.exchange.active.is_forced() => {
                // The client did not read, so hyper never asked for the rest.
                self.exchange.inbound.worker.count_forced(Forced::Stalled);
                RequestOutcome::Cut
            }
            Ended::Clean | Ended::NotYet => abandoned(self.conn()),
        }
    }
}

// === impl BodyError ===

impl BodyError {
    /// What the app said is passed on, but for a reason that would have the client send everything again, and what our
    /// own h2 found wrong.
    fn of_app(error: hyper::Error) -> Self {
        match h2_cause(&error) {
            Some(cause) if !cause.is_remote() || !cause.is_reset() => Self::Truncated,
            Some(cause) if cause.reason() == Some(h2::Reason::REFUSED_STREAM) => Self::Truncated,
            Some(_) | None => Self::Upstream(error),
        }
    }
}

/// What h2 said, if it was h2 that hyper had the error from.
pub fn h2_cause(error: &hyper::Error) -> Option<&h2::Error> {
    std::error::Error::source(error)?.downcast_ref()
}

/// Clients that tear down everything at a GOAWAY are told from those that merely went.
pub fn abandoned(conn: &Conn) -> RequestOutcome {
    if conn.told.get() && conn.http2().is_some() {
        RequestOutcome::AbandonedAfterNotice
    } else {
        RequestOutcome::Abandoned
    }
}

impl Drop for AppBody {
    fn drop(&mut self) {
        let whole = self.ended == Ended::Clean || (self.ended == Ended::NotYet && self.is_end_stream());
        // However it came about, also if the client takes nothing and the rest was never asked for.
        self.conn().reset.set(self.close_delimited && !whole && self.ended != Ended::BetweenEvents);
        let outcome = self.outcome(whole);
        let metrics = self.exchange.inbound.worker.metrics;
        metrics.requests.add_pair(self.exchange.spoken as usize, outcome as usize);
        if let Follows::Call(call) = &self.follows {
            metrics.grpc_calls.add(GrpcCode::of(call.status) as usize);
        }
        if !whole && let Some(stream) = self.exchange.active.stream() {
            stream.abandon();
        }
        let mut permit = self.exchange.permit.take();
        if whole && self.exchange.active.stream().is_none() {
            // An upload needs its own, and takes it before the other one may go: nobody sees the work end in between.
            let rest = match &self.exchange.upload {
                Some(_) => {
                    Some(self.exchange.inbound.worker.lifecycle.permit(self.exchange.inbound.number, Work::Request))
                }
                None => permit.take(),
            };
            self.conn()
                .tail
                .replace(rest.map(|permit| Tail { _permit: permit, close_delimited: self.close_delimited }));
        }
        match self.exchange.upstream.take() {
            Some(Upstream::Single(task)) => task.abort(),
            Some(upstream) if whole => match (&self.exchange.upload, upstream, permit) {
                (Some(upload), upstream, Some(permit)) => upload.answered(self.conn(), permit, upstream),
                (None, Upstream::Pooled(pooled), _) => pooled.give_back(),
                _ => {}
            },
            Some(Upstream::Stream(slot)) => {
                slot.broken_off();
                if let Some(upload) = &self.exchange.upload {
                    // Until the app takes what was sent, or resets it, the stream is open there.
                    upload.abandoned(slot);
                }
            }
            _ => {}
        }
    }
}
