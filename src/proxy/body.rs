//! Bodies on their way: they hold what must live until the last byte has passed.

use std::cell::{Cell, RefCell};
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
    pub permit: Option<Permit>,
    /// The connection to the app; `None` only while it is being dropped.
    pub upstream: Option<Upstream>,
    /// The request's body, if it has one.
    pub upload: Option<Rc<Upload>>,
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
    client: Option<Client>,
}

#[derive(Debug)]
struct Client {
    active: Active,
    upload: Rc<Upload>,
}

/// A request body that may outlast the answer: what it needs stays until it has ended, or its client is gone.
#[derive(Debug, Default)]
pub struct Upload {
    state: Cell<Uploading>,
    held: RefCell<Option<(Permit, Pooled)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Uploading {
    #[default]
    UnderWay,
    Whole,
    Broken,
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
        match (self.exchange.upstream.take(), self.exchange.permit.take()) {
            (Some(Upstream::Pooled(pooled)), Some(permit)) if whole => match &self.exchange.upload {
                Some(upload) => upload.answered(self.conn(), permit, pooled),
                None => pooled.give_back(),
            },
            (Some(Upstream::Single(task)), _) => task.abort(),
            _ => {}
        }
    }
}

// === impl RequestBody ===

impl RequestBody {
    /// The client's body.
    pub fn new(inner: Incoming, conn: &Rc<Conn>) -> Self {
        let client = (!inner.is_end_stream()).then(|| Client { active: conn.activate(), upload: Rc::default() });
        Self { inner: Some(inner), client }
    }

    /// No body; for a request that is sent again.
    pub fn empty() -> Self {
        Self { inner: None, client: None }
    }

    /// What outlasts the body; `None` if there is none.
    pub fn upload(&self) -> Option<Rc<Upload>> {
        self.client.as_ref().map(|client| Rc::clone(&client.upload))
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.inner {
            Some(inner) => {
                let frame = Pin::new(inner).poll_frame(cx);
                if let Some(client) = &self.client {
                    match &frame {
                        Poll::Ready(None) => client.ended(Uploading::Whole),
                        Poll::Ready(Some(Err(_))) => {
                            client.active.conn().body_failed.set(true);
                            client.ended(Uploading::Broken);
                        }
                        Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
                    }
                }
                frame
            }
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

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(client) = &self.client {
            // With a known length hyper does not ask for the end behind the last byte.
            client.ended(if self.is_end_stream() { Uploading::Whole } else { Uploading::Broken });
        }
    }
}

// === impl Client ===

impl Client {
    fn ended(&self, how: Uploading) {
        if self.upload.state.get() != Uploading::UnderWay {
            return;
        }
        self.upload.state.set(how);
        let conn = self.active.conn();
        if how == Uploading::Whole {
            conn.body_unread.set(false);
        }
        conn.uploads.borrow_mut().retain(|upload| !Rc::ptr_eq(upload, &self.upload));
        self.upload.let_go();
    }
}

// === impl Upload ===

impl Upload {
    /// The answer is whole.
    fn answered(self: &Rc<Self>, conn: &Conn, permit: Permit, pooled: Pooled) {
        self.held.replace(Some((permit, pooled)));
        if self.state.get() == Uploading::UnderWay {
            // Held by the client's connection: an app that reads no more would keep it for ever otherwise
            // (hyperium/hyper#4176).
            conn.uploads.borrow_mut().push(Rc::clone(self));
        } else {
            self.let_go();
        }
    }

    /// Nothing more is needed for it: the app's connection is pooled, or closed if the body did not come whole.
    pub fn let_go(&self) {
        let Some((_permit, pooled)) = self.held.take() else { return };
        if self.state.get() == Uploading::Whole {
            pooled.give_back();
        }
    }
}
