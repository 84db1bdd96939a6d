//! One worker's HTTP/2 connections to an app: a few, each with a bounded number of streams.
//!
//! h2 charges a connection for every small DATA frame that nobody has read yet, and ends the whole connection beyond
//! half of its window. So the window is the largest there is, and `MOST_STREAMS` streams of `STREAM_WINDOW` bytes
//! can't reach the half even if every one of them is stalled and full of one-byte frames: see docs/adr.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use super::connect::{CONNECT_TIMEOUT, DialError, Peek, Upstream, UpstreamIo, dial};
use super::taken_back::{Answering, TakenBack};
use super::watched::{Seen, WatchedIo};
use crate::proxy::body::RequestBody;
use crate::tls::client::Offer;
use crate::worker::Local;

/// The connections to one upstream.
#[derive(Debug)]
pub struct Multiplex {
    upstream: Upstream,
    header_bytes: usize,
    connections: RefCell<Vec<Rc<Connection>>>,
    /// Who needs a new connection waits for the one that is being made: it carries many.
    dialling: Semaphore,
}

/// A stream's place on a connection; dropping it makes room for another one.
#[derive(Debug)]
pub struct Slot {
    connection: Rc<Connection>,
    reused: bool,
}

/// A request on its way. Dropped before its answer it is taken back, as gently as the app needs.
pub struct Sending {
    number: u64,
    /// `None` once it is answered.
    underway: Option<(Slot, Answering)>,
}

/// The error holds the request if it was never begun.
pub type Answer = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>;

#[derive(Debug)]
struct Connection {
    sender: RefCell<SendRequest<RequestBody>>,
    open: Cell<usize>,
    taken_back: TakenBack,
    /// Most streams at once.
    most: Rc<Cell<usize>>,
    served: Cell<bool>,
    idle_since: Cell<Instant>,
    seen: Rc<Seen>,
    peek: Peek,
    task: AbortHandle,
}

/// Where a client's latest stream went.
#[derive(Debug, Default)]
pub struct Near(RefCell<Weak<Connection>>);

/// h2's largest window.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Bytes of a stream that may wait here unread. On one machine a round trip is too short for this to slow anybody, and a
/// client that reads nothing makes us keep it for each of its streams, in frames that may be small.
const STREAM_WINDOW: u32 = 32_768;
/// 128 × 32,768 frames of one byte, at 255 each, are 1.07 × 10⁹ and just below half of the window.
const MOST_STREAMS: usize = 128;
/// An app's SETTINGS are its first words; one that says nothing for so long is spoken to nevertheless.
const GREETING: Duration = Duration::from_secs(1);
/// A connection beyond the first that carries nothing for this long is closed.
const SPARE: Duration = Duration::from_secs(5);
/// Most bytes of one request that wait for the app to take them.
const SEND_BUFFER: usize = 64 * 1024;

// === impl Multiplex ===

impl Multiplex {
    /// No connections yet.
    pub fn new(upstream: Upstream, header_bytes: usize) -> Self {
        Self { upstream, header_bytes, connections: RefCell::default(), dialling: Semaphore::new(1) }
    }

    /// A place on a connection, if one has room: the one that `near` remembers, else the fullest.
    ///
    /// What one client sends in one burst then leaves in one write, and the answers come back in one read.
    pub fn take(&self, near: Option<&Near>) -> Option<Slot> {
        if let Some(near) = near
            && let Some(connection) = near.0.borrow().upgrade()
            && connection.open.get() > 0
            && connection.has_room()
        {
            return Some(Slot::on(&connection));
        }
        let connections = self.connections.borrow();
        let connection = connections.iter().filter(|one| one.has_room()).max_by_key(|one| one.open.get())?;
        if let Some(near) = near {
            near.0.replace(Rc::downgrade(connection));
        }
        // An app that is gone shows at once on the same machine; a busy connection would have told by itself.
        (connection.open.get() > 0 || !connection.peek.is_at_end()).then(|| Slot::on(connection))
    }

    /// A place on a new connection, or on one that somebody else has made meanwhile; whether it was dialled now.
    ///
    /// # Errors
    /// As [`dial`] gives them.
    pub async fn connect(&self, near: Option<&Near>) -> Result<(Slot, bool), DialError> {
        // Never closed. Who waits for a dial that hangs has waited as long as for one of its own.
        let _turn = timeout(CONNECT_TIMEOUT, self.dialling.acquire()).await.map_err(|_| DialError::TimedOut)?;
        if let Some(slot) = self.take(near) {
            return Ok((slot, false));
        }
        let connection = self.open().await?;
        if let Some(near) = near {
            near.0.replace(Rc::downgrade(&connection));
        }
        let slot = Slot::on(&connection);
        self.connections.borrow_mut().push(connection);
        Ok((slot, true))
    }

    async fn open(&self) -> Result<Rc<Connection>, DialError> {
        let transport = dial(&self.upstream, Offer::Http2).await?;
        if transport.tls().is_some_and(|tls| tls.alpn() != Some(b"h2")) {
            return Err(DialError::Handshake(io::Error::other("the app has not agreed to HTTP/2")));
        }
        let io = UpstreamIo::new(transport);
        let (peek, seen) = (io.peek(), Rc::<Seen>::default());
        let io = WatchedIo::new(io, Rc::clone(&seen));
        let (sender, connection) = http2::Builder::new(Local)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_stream_window_size(STREAM_WINDOW)
            .max_header_list_size(u32::try_from(self.header_bytes).unwrap_or(u32::MAX))
            .max_send_buf_size(SEND_BUFFER)
            .handshake(TokioIo::new(io))
            .await
            .map_err(|error| DialError::Failed(io::Error::other(error)))?;
        let mut connection = Box::pin(connection);
        // How many streams it takes at once stands in its SETTINGS: one too many would wait for the end of another,
        // which may never come. The frames are read by a task of hyper's own.
        let early = timeout(
            GREETING,
            poll_fn(|cx| match connection.as_mut().poll(cx) {
                Poll::Ready(_) => Poll::Ready(true),
                Poll::Pending => seen.poll_greeted(cx).map(|()| false),
            }),
        );
        let is_over = early.await.unwrap_or(false);
        let most = Rc::new(Cell::new(connection.current_max_send_streams().clamp(1, MOST_STREAMS)));
        let told = Rc::clone(&most);
        let task = tokio::task::spawn_local(async move {
            if is_over {
                return;
            }
            // How it ended shows in the streams.
            let _ = poll_fn(|cx| {
                let done = connection.as_mut().poll(cx);
                told.set(connection.current_max_send_streams().clamp(1, MOST_STREAMS));
                done
            })
            .await;
        });
        Ok(Rc::new(Connection {
            sender: RefCell::new(sender),
            open: Cell::new(0),
            taken_back: TakenBack::default(),
            most,
            served: Cell::new(false),
            idle_since: Cell::new(Instant::now()),
            seen,
            peek,
            task: task.abort_handle(),
        }))
    }

    /// Lets go of connections that are over or not needed; true if the app has said that it is leaving.
    pub fn sweep(&self) -> bool {
        let mut leaving = false;
        let mut first = true;
        let now = Instant::now();
        self.connections.borrow_mut().retain(|one| {
            leaving |= one.seen.has_said_goaway();
            one.made_room(one.taken_back.sweep());
            let spare = !first && one.open.get() == 0 && now.duration_since(one.idle_since.get()) >= SPARE;
            let keep = one.is_usable() && !spare;
            first &= !keep;
            keep
        });
        leaving
    }
}

// === impl Connection ===

impl Connection {
    fn is_usable(&self) -> bool {
        let seen = &self.seen;
        let leaves = seen.has_said_goaway() || seen.is_not_http2();
        !leaves && !self.taken_back.is_too_much() && !self.sender.borrow().is_closed()
    }

    fn has_room(&self) -> bool {
        self.open.get() < self.most.get() && self.is_usable()
    }

    fn made_room(&self, places: usize) {
        let open = self.open.get().saturating_sub(places);
        self.open.set(open);
        if open == 0 && places > 0 {
            self.idle_since.set(Instant::now());
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The task ends by itself when the last stream is over; without streams nothing is left to wait for.
        self.task.abort();
    }
}

// === impl Slot ===

impl Slot {
    fn on(connection: &Rc<Connection>) -> Self {
        connection.open.set(connection.open.get() + 1);
        Self { connection: Rc::clone(connection), reused: connection.served.get() }
    }

    /// The stream is taken back in the middle of its answer.
    pub fn broken_off(&self) {
        self.connection.taken_back.count();
    }

    /// The app has answered on this connection before.
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// What the app's frames have shown.
    pub fn seen(&self) -> &Seen {
        &self.connection.seen
    }

    /// Sends a request; the error holds it if it was never begun.
    pub fn send(self, request: Request<RequestBody>) -> Sending {
        let answer = self.connection.sender.borrow_mut().try_send_request(request);
        let number = self.connection.taken_back.begun();
        Sending { number, underway: Some((self, Box::pin(answer))) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.connection.made_room(1);
    }
}

// === impl Sending ===

impl Future for Sending {
    type Output = (Answer, Slot);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((_, answer)) = &mut self.underway else { return Poll::Pending };
        let answer = ready!(answer.as_mut().poll(cx));
        let Some((slot, _)) = self.underway.take() else { return Poll::Pending };
        slot.connection.made_room(slot.connection.taken_back.answered(self.number));
        if answer.is_ok() {
            slot.connection.served.set(true);
        }
        Poll::Ready((answer, slot))
    }
}

impl std::fmt::Debug for Sending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sending").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let Some((slot, answer)) = self.underway.take() else { return };
        let connection = Rc::clone(&slot.connection);
        if connection.taken_back.give_up(self.number, answer) {
            return;
        }
        // The stream is still open, and so its place is taken: what the slot gives back is taken again.
        drop(slot);
        connection.open.set(connection.open.get() + 1);
    }
}
