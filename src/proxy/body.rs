//! Bodies on their way: they hold what must live until the last byte has passed.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::task::AbortHandle;

use super::Inbound;
use crate::lifecycle::in_flight::Permit;
use crate::listener::conn::{Active, Conn};
use crate::telemetry::metrics::{Forced, RequestOutcome};
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
    ended: Ended,
    /// Where the client would take a close for the body's proper end.
    close_delimited: bool,
}

/// What one request holds while it is in flight.
#[derive(Debug)]
pub struct Exchange {
    /// Keeps the downstream connection in its exchange.
    pub active: Active,
    /// Keeps the lifecycle waiting.
    pub permit: Permit,
    /// The connection to the app.
    pub upstream: Upstream,
    /// Where the pool is.
    pub inbound: Rc<Inbound>,
    /// How it will be counted if the body comes whole.
    pub outcome: RequestOutcome,
}

/// A connection to the app that serves one exchange.
#[derive(Debug)]
pub enum Upstream {
    /// Goes back to the pool after a clean end.
    Pooled(Pooled),
    /// Made for an upgrade that the app refused; ends with the exchange.
    Single(AbortHandle),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    NotYet,
    Clean,
    Broken,
    Cut,
}

/// A request body towards the app.
#[derive(Debug)]
pub struct RequestBody {
    inner: Option<Incoming>,
    _active: Option<Active>,
}

/// Why a body was broken off; hyper then closes without a clean end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The drain deadline.
    #[error("cut at the drain deadline")]
    Cut,
    /// The app's connection.
    #[error("the app's connection broke in the middle of the response")]
    Upstream(#[source] hyper::Error),
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

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Own(text, _) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::App(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(text, _) => text.is_none(),
            Self::App(body) => body.inner.is_end_stream(),
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
    pub fn new(inner: Incoming, exchange: Exchange, close_delimited: bool) -> Self {
        Self { inner, exchange, ended: Ended::NotYet, close_delimited }
    }

    fn conn(&self) -> &Conn {
        self.exchange.active.conn()
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.conn().is_forced() {
            self.ended = Ended::Cut;
            return Poll::Ready(Some(Err(BodyError::Cut)));
        }
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(Some(Err(error))) => {
                self.ended = Ended::Broken;
                Poll::Ready(Some(Err(BodyError::Upstream(error))))
            }
            Poll::Ready(None) => {
                self.ended = Ended::Clean;
                Poll::Ready(None)
            }
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(frame))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for AppBody {
    fn drop(&mut self) {
        let whole = self.ended == Ended::Clean || (self.ended == Ended::NotYet && self.inner.is_end_stream());
        // However it came about, also if the client takes nothing and the rest was never asked for.
        self.conn().reset.set(self.close_delimited && !whole);
        let metrics = self.exchange.inbound.worker.metrics;
        let outcome = match self.ended {
            _ if whole => self.exchange.outcome,
            Ended::Cut => {
                self.exchange.inbound.worker.count_forced(Forced::Response);
                RequestOutcome::Cut
            }
            Ended::Broken => RequestOutcome::Broken,
            Ended::Clean | Ended::NotYet if self.conn().is_forced() => {
                // The client did not read, so hyper never asked for the rest.
                self.exchange.inbound.worker.count_forced(Forced::Stalled);
                RequestOutcome::Cut
            }
            Ended::Clean | Ended::NotYet => RequestOutcome::Abandoned,
        };
        metrics.requests.add(outcome as usize);
        match &mut self.exchange.upstream {
            Upstream::Pooled(pooled) if whole => pooled.may_be_reused(),
            Upstream::Pooled(_) => {}
            Upstream::Single(task) => task.abort(),
        }
    }
}

// === impl RequestBody ===

impl RequestBody {
    /// The client's body.
    pub fn new(inner: Incoming, conn: &Rc<Conn>) -> Self {
        let active = (!inner.is_end_stream()).then(|| conn.activate());
        Self { inner: Some(inner), _active: active }
    }

    /// No body; for a request that is sent again.
    pub fn empty() -> Self {
        Self { inner: None, _active: None }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.inner {
            Some(inner) => Pin::new(inner).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}
