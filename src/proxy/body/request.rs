//! A request's body on its way to the app: what outlasts the answer, and what may have to be said twice.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;

use super::{BodyError, Upstream};
use crate::lifecycle::in_flight::Permit;
use crate::listener::conn::{Active, Conn};
use crate::listener::streams::Half;
use crate::upstream::multiplex::Slot;

/// A request body towards the app.
#[derive(Debug)]
pub struct RequestBody {
    source: Source,
    client: Option<Client>,
}

#[derive(Debug)]
enum Source {
    Nothing,
    Once(Incoming),
    /// The place in it that comes next.
    Kept(Rc<Kept>, usize),
}

/// A body whose beginning can be sent again.
#[derive(Debug)]
pub struct Kept {
    incoming: RefCell<Incoming>,
    frames: RefCell<Vec<KeptFrame>>,
    bytes: Cell<usize>,
    /// Too much for keeping, or not needed any more.
    let_go: Cell<bool>,
}

#[derive(Debug, Clone)]
enum KeptFrame {
    Data(Bytes),
    Trailers(Box<HeaderMap>),
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
    held: RefCell<Option<(Option<Permit>, Upstream)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Uploading {
    #[default]
    UnderWay,
    Whole,
    /// The client's fault.
    Failed,
    Broken,
}

type PolledFrame = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

/// What an app has not acknowledged is kept up to this many bytes.
const KEPT_BYTES: usize = 64 * 1024;

// === impl RequestBody ===

impl RequestBody {
    /// The client's body.
    pub fn new(inner: Incoming, active: &Active) -> Self {
        let client = Client::of(&inner, active);
        Self { source: Source::Once(inner), client }
    }

    /// The client's body, for an app that may refuse to have seen it (RFC 9113 §8.7).
    pub fn kept(inner: Incoming, active: &Active) -> Self {
        let client = Client::of(&inner, active);
        if client.is_none() {
            return Self { source: Source::Nothing, client };
        }
        let kept = Kept {
            incoming: RefCell::new(inner),
            frames: RefCell::default(),
            bytes: Cell::new(0),
            let_go: Cell::new(false),
        };
        Self { source: Source::Kept(Rc::new(kept), 0), client }
    }

    /// The same body from its beginning; no body without `kept`.
    pub fn again(kept: Option<Rc<Kept>>, active: &Active) -> Self {
        let Some(kept) = kept else { return Self::empty() };
        let client = Some(Client { active: active.again(), upload: Rc::default() });
        Self { source: Source::Kept(kept, 0), client }
    }

    /// No body.
    pub fn empty() -> Self {
        Self { source: Source::Nothing, client: None }
    }

    /// What is needed to send it again.
    pub fn keeper(&self) -> Option<Rc<Kept>> {
        match &self.source {
            Source::Kept(kept, _) => Some(Rc::clone(kept)),
            Source::Nothing | Source::Once(_) => None,
        }
    }

    /// What outlasts the body; `None` if there is none.
    pub fn upload(&self) -> Option<Rc<Upload>> {
        self.client.as_ref().map(|client| Rc::clone(&client.upload))
    }

    /// hyper says `None` after RST_STREAM(NO_ERROR) as well; an app must not take it for the whole.
    fn is_truncated(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.active.stream().is_some()) && !self.is_end_stream()
    }

    /// Over HTTP/2 a body outlives its exchange unless it is told.
    fn is_unwanted(&self) -> bool {
        let active = self.client.as_ref().map(|client| &client.active);
        active
            .and_then(|active| Some((active, active.stream()?)))
            .is_some_and(|(active, stream)| stream.is_abandoned() || active.is_forced())
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        if self.is_unwanted() {
            return Poll::Ready(Some(Err(BodyError::Unwanted(h2::Reason::CANCEL.into()))));
        }
        let frame = match &mut self.source {
            Source::Nothing => return Poll::Ready(None),
            Source::Once(inner) => Pin::new(inner).poll_frame(cx).map_err(BodyError::Client),
            Source::Kept(kept, next) => kept.poll_frame(next, cx),
        };
        let frame = match frame {
            Poll::Ready(None) if self.is_truncated() => {
                Poll::Ready(Some(Err(BodyError::Unwanted(h2::Reason::CANCEL.into()))))
            }
            frame => frame,
        };
        if let Some(client) = &self.client {
            match &frame {
                Poll::Ready(None) => client.ended(Uploading::Whole),
                Poll::Ready(Some(Err(_))) => client.ended(Uploading::Failed),
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Pending => client.active.wait(Half::Request, cx),
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Nothing => true,
            Source::Once(inner) => inner.is_end_stream(),
            Source::Kept(kept, next) => kept.is_end_stream(*next),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Nothing => SizeHint::with_exact(0),
            Source::Once(inner) => inner.size_hint(),
            Source::Kept(kept, next) => kept.size_hint(*next),
        }
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

// === impl Kept ===

impl Kept {
    /// All that was taken from the client is here.
    pub fn is_whole(&self) -> bool {
        !self.let_go.get()
    }

    /// The app has the request: keep nothing more. What a sender has not taken yet is still to come from here.
    pub fn let_go(&self) {
        self.let_go.set(true);
    }

    fn poll_frame(&self, next: &mut usize, cx: &mut Context<'_>) -> PolledFrame {
        if self.let_go.get() && *next >= self.frames.borrow().len() {
            // Nobody says it again.
            self.frames.take();
            *next = 0;
        }
        let said = self.frames.borrow().get(*next).cloned();
        if let Some(frame) = said {
            *next += 1;
            return Poll::Ready(Some(Ok(match frame {
                KeptFrame::Data(data) => Frame::data(data),
                KeptFrame::Trailers(trailers) => Frame::trailers(*trailers),
            })));
        }
        let frame = Pin::new(&mut *self.incoming.borrow_mut()).poll_frame(cx).map_err(BodyError::Client);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && !self.let_go.get()
        {
            self.keep(frame, next);
        }
        frame
    }

    fn keep(&self, frame: &Frame<Bytes>, next: &mut usize) {
        let kept = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => {
                // Also what it takes to keep one, or small pieces would cost a hundred times their length.
                self.bytes.set(self.bytes.get() + data.len() + size_of::<KeptFrame>());
                KeptFrame::Data(data.clone())
            }
            (None, Some(trailers)) => KeptFrame::Trailers(Box::new(trailers.clone())),
            (None, None) => return,
        };
        if self.bytes.get() > KEPT_BYTES {
            // Whoever asks is at the end of what was kept, and goes on with what comes.
            self.let_go.set(true);
            self.frames.take();
            *next = 0;
            return;
        }
        self.frames.borrow_mut().push(kept);
        *next += 1;
    }

    fn is_end_stream(&self, next: usize) -> bool {
        next >= self.frames.borrow().len() && self.incoming.borrow().is_end_stream()
    }

    fn size_hint(&self, next: usize) -> SizeHint {
        let incoming = self.incoming.borrow().size_hint();
        let Some(left) = incoming.exact() else { return SizeHint::default() };
        let again: usize = self.frames.borrow().iter().skip(next).map(KeptFrame::length).sum();
        SizeHint::with_exact(left + again as u64)
    }
}

// === impl KeptFrame ===

impl KeptFrame {
    fn length(&self) -> usize {
        match self {
            Self::Data(data) => data.len(),
            Self::Trailers(_) => 0,
        }
    }
}

// === impl Client ===

impl Client {
    fn of(inner: &Incoming, active: &Active) -> Option<Self> {
        (!inner.is_end_stream()).then(|| Self { active: active.again(), upload: Rc::default() })
    }

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
    /// The client's body was malformed or broken off.
    pub fn has_failed(&self) -> bool {
        self.state.get() == Uploading::Failed
    }

    /// The answer is whole.
    pub(super) fn answered(self: &Rc<Self>, conn: &Conn, permit: Permit, upstream: Upstream) {
        self.held.replace(Some((Some(permit), upstream)));
        if self.state.get() == Uploading::UnderWay {
            // Held by the client's connection: an app that reads no more would keep it for ever otherwise
            // (hyperium/hyper#4176).
            conn.uploads.borrow_mut().push(Rc::clone(self));
        } else {
            self.let_go();
        }
    }

    /// The exchange is over, but the app's connection carries the stream on.
    pub(super) fn abandoned(&self, slot: Slot) {
        if self.state.get() == Uploading::UnderWay {
            self.held.replace(Some((None, Upstream::Stream(slot))));
        }
    }

    /// Nothing more is needed for it: the app's connection is pooled, or closed if the body did not come whole.
    pub fn let_go(&self) {
        let Some((_permit, upstream)) = self.held.take() else { return };
        if let (Uploading::Whole, Upstream::Pooled(pooled)) = (self.state.get(), upstream) {
            pooled.give_back();
        }
    }
}
