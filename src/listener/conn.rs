//! What is known of one downstream connection, shared by its task and the worker's sweep.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Waker};

use http::HeaderValue;

use super::io::Framing;
use super::long::{Kind, Long};
use super::streams::{Half, Http2, Stream};
use crate::lifecycle::phase::Phase;
use crate::lifecycle::tick::Tick;
use crate::lifecycle::{Counted, Lifecycle};
use crate::proxy::body::{Tail, Upload};
use crate::tls::identity::Identity;
use crate::transport::Transport;
use crate::worker::Worker;

/// One downstream connection. There are many, and most are idle: what few of them have is boxed.
#[derive(Debug)]
pub struct Conn {
    /// Place in the worker's registry.
    pub slot: Cell<usize>,
    /// Number of its listener among the inbound ones.
    pub listener: usize,
    /// The client; a PROXY protocol header may name another one than the socket.
    pub client: Cell<SocketAddr>,
    /// Its moment in every window.
    pub share: f32,
    /// When it was accepted, or its TLS handshake had ended.
    pub accepted: Cell<Tick>,
    /// What is going on.
    pub doing: Cell<Doing>,
    /// Since when, as of the sweep before.
    pub since: Cell<Tick>,
    /// The socket is parked without any buffers.
    pub bare: Cell<bool>,
    /// It has been told to go.
    pub told: Cell<bool>,
    /// A request has been served on it.
    pub served: Cell<bool>,
    /// The client has closed its side.
    pub eof: Cell<bool>,
    /// The client has said that this request is its last.
    pub client_closes: Cell<bool>,
    /// Everything that was written has been handed to the kernel.
    pub flushed: Cell<bool>,
    /// The end of an answer that has not been handed over yet.
    pub tail: RefCell<Option<Tail>>,
    /// A response was broken off whose end would look clean: reset the connection.
    pub reset: Cell<bool>,
    /// The latest request's body has not been read to its end.
    pub body_unread: Cell<bool>,
    /// Request bodies that go on although they have been answered.
    pub uploads: RefCell<Vec<Rc<Upload>>>,
    /// The app has agreed to an upgrade.
    pub upgrade: RefCell<Option<Box<Upgrade>>>,
    /// What it carries may go on for ever.
    pub long: Cell<Option<Long>>,
    /// One side of a relay has closed.
    pub half_closed: Cell<bool>,
    /// TLS is spoken; and what is known of the client by it.
    pub secure: OnceCell<Box<Identity>>,
    /// Framing headers in the bytes of the head that is being read.
    pub framing: Cell<Framing>,
    http2: OnceCell<Box<Http2>>,
    active: Cell<u32>,
    asked: Cell<Ask>,
    waker: RefCell<Option<Waker>>,
    forwarded_for: OnceCell<HeaderValue>,
    worker: Rc<Worker>,
    _open: Counted,
}

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Nothing: between requests, no byte unread as far as we know.
    Idle,
    /// A head (or preface) has begun and is not complete.
    Head,
    /// A request is being served.
    Exchange,
    /// HTTP/2 is spoken, whatever is open; see [`Conn::http2`].
    Http2,
    /// Bytes are relayed; [`Conn::long`] says as what.
    Relay,
    /// Our side is closed, the rest is read away.
    Lingering,
}

/// What the sweep asks of a connection; the stronger one stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ask(u8);

/// The upstream's side of an agreed upgrade.
#[derive(Debug)]
pub struct Upgrade {
    /// The connection to the app.
    pub transport: Transport,
    /// What the app has already sent behind its 101.
    pub read: bytes::Bytes,
    /// Keeps it in flight.
    pub permit: crate::lifecycle::in_flight::Permit,
    /// What follows are the frames of a WebSocket.
    pub websocket: bool,
}

/// The connection is in an exchange as long as one of these lives.
#[derive(Debug)]
#[must_use]
pub struct Active {
    conn: Rc<Conn>,
    /// Over HTTP/2 every exchange is asked by itself.
    stream: Option<Rc<Stream>>,
}

// === impl Conn ===

impl Conn {
    /// A connection just accepted.
    pub fn new(worker: &Rc<Worker>, listener: usize, peer: SocketAddr) -> Rc<Self> {
        let lifecycle: Lifecycle = worker.lifecycle;
        let now = lifecycle.now();
        let conn = Rc::new(Self {
            slot: Cell::new(0),
            listener,
            client: Cell::new(peer),
            share: lifecycle.share(),
            accepted: Cell::new(now),
            doing: Cell::new(Doing::Idle),
            since: Cell::new(now),
            bare: Cell::new(true),
            told: Cell::new(false),
            served: Cell::new(false),
            eof: Cell::new(false),
            client_closes: Cell::new(false),
            flushed: Cell::new(true),
            tail: RefCell::default(),
            reset: Cell::new(false),
            body_unread: Cell::new(false),
            uploads: RefCell::default(),
            upgrade: RefCell::new(None),
            long: Cell::new(None),
            half_closed: Cell::new(false),
            secure: OnceCell::new(),
            framing: Cell::new(Framing::default()),
            http2: OnceCell::new(),
            active: Cell::new(0),
            asked: Cell::new(Ask::NOTHING),
            waker: RefCell::new(None),
            forwarded_for: OnceCell::new(),
            worker: Rc::clone(worker),
            _open: Counted::new(&lifecycle.tallies().connections),
        });
        worker.register(&conn);
        conn
    }

    /// The worker it belongs to.
    pub fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    /// Moves on to something else.
    pub fn set_doing(&self, doing: Doing) {
        self.doing.set(doing);
        self.since.set(self.worker.coarse_now());
    }

    /// Bytes came in while nothing was being served: the beginning of a head.
    pub fn head_began(&self) {
        if self.doing.get() == Doing::Idle {
            self.set_doing(Doing::Head);
        }
    }

    /// Begins an exchange.
    pub fn activate(self: &Rc<Self>) -> Active {
        self.long.set(None);
        let stream = match self.http2() {
            Some(http2) => {
                let lifecycle = self.worker.lifecycle;
                let open = Counted::new(&lifecycle.tallies().streams);
                Some(http2.open(lifecycle.share(), self.worker.coarse_now(), Some(open)))
            }
            None => {
                if self.asked.get() < Ask::FORCE {
                    // It was for the connection as it was before.
                    self.clear_ask();
                }
                self.set_doing(Doing::Exchange);
                None
            }
        };
        self.part_of(stream)
    }

    /// The relay that follows an exchange.
    pub fn relay(self: &Rc<Self>) -> Active {
        self.part_of(None)
    }

    fn part_of(self: &Rc<Self>, stream: Option<Rc<Stream>>) -> Active {
        self.active.set(self.active.get() + 1);
        Active { conn: Rc::clone(self), stream }
    }

    /// The preface is there: this is HTTP/2 from now on.
    pub fn begin_http2(&self) -> &Http2 {
        self.set_doing(Doing::Http2);
        self.bare.set(false);
        self.http2.get_or_init(Box::default)
    }

    /// What is known of it if it speaks HTTP/2.
    pub fn http2(&self) -> Option<&Http2> {
        self.http2.get().map(|http2| &**http2)
    }

    /// Nothing is being answered, read away, or waited for.
    pub fn is_idle(&self) -> bool {
        match (self.doing.get(), self.http2()) {
            // h2 closes it when the last byte is out, if the client was told.
            (Doing::Http2, Some(http2)) => http2.is_settled() && http2.told_at().is_none(),
            (doing, _) => doing == Doing::Idle,
        }
    }

    /// No exchange is under way and nothing waits to be written.
    pub fn is_settled(&self) -> bool {
        self.active.get() == 0 && self.flushed.get()
    }

    /// The contract's §4: every connection has its moment; one that came after the window opened is told on its first
    /// answer.
    pub fn is_notice_due(&self) -> bool {
        if !self.worker.phase().is_terminating() {
            return false;
        }
        let snapshot = self.worker.snapshot();
        match (snapshot.phase, snapshot.deadlines) {
            (Phase::Holding, Some(deadlines)) => {
                let window = deadlines.notice;
                let moment = if self.accepted.get() >= window.start { window.start } else { window.moment(self.share) };
                self.worker.lifecycle.now() >= moment
            }
            _ => true,
        }
    }

    /// The client's address as it stands in `X-Forwarded-For`.
    pub fn forwarded_for(&self) -> &HeaderValue {
        self.forwarded_for.get_or_init(|| {
            let text = self.client.get().ip().to_canonical().to_string();
            HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
        })
    }

    /// The sweep asks for something; the task is woken if that is news.
    pub fn ask(&self, ask: Ask) {
        if ask > self.asked.get() {
            self.asked.set(ask);
            self.wake();
        }
    }

    /// The task looks at the connection again.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// What has been asked and not yet done.
    pub fn asked(&self) -> Ask {
        self.asked.get()
    }

    /// Done, or pointless by now.
    pub fn clear_ask(&self) {
        self.asked.set(Ask::NOTHING);
    }

    /// Remembers whom to wake on the next ask.
    pub fn wake_with(&self, waker: &Waker) {
        let mut slot = self.waker.borrow_mut();
        if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }

    /// Out of the registry, for good.
    pub fn retire(&self) {
        self.uploads.take();
        self.worker.unregister(self);
    }
}

// === impl Ask ===

impl Ask {
    /// Go on.
    pub const NOTHING: Self = Self(0);
    /// Give the buffers back if still idle.
    pub const RECLAIM: Self = Self(1);
    /// Tell an HTTP/2 client to go.
    pub const NOTICE: Self = Self(2);
    /// Close if idle; end what is long at the next moment that harms nobody: of silence, or between two messages.
    pub const CLOSE: Self = Self(3);
    /// The head takes too long.
    pub const HEAD_TIMEOUT: Self = Self(4);
    /// End what is in flight as the contract's §6 says.
    pub const FORCE: Self = Self(5);
    /// Drop the connection.
    pub const KILL: Self = Self(6);
}

// === impl Active ===

impl Active {
    /// The connection.
    pub fn conn(&self) -> &Rc<Conn> {
        &self.conn
    }

    /// One more part in the same exchange.
    pub fn again(&self) -> Self {
        self.conn.part_of(self.stream.clone())
    }

    /// The HTTP/2 stream, if it is one.
    pub fn stream(&self) -> Option<&Stream> {
        self.stream.as_deref()
    }

    /// What the sweep asks of this exchange.
    pub fn asked(&self) -> Ask {
        self.stream.as_ref().map_or_else(|| self.conn.asked(), |stream| stream.asked())
    }

    /// From here on it can be ended in good order.
    pub fn set_long(&self, kind: Kind) {
        let long = Long { kind, since: self.conn.worker.coarse_now() };
        match &self.stream {
            Some(stream) => stream.long.set(Some(long)),
            None => self.conn.long.set(Some(long)),
        }
    }

    /// It can be ended, and began when its like had been asked to end already.
    pub fn is_late(&self) -> bool {
        let snapshot = self.conn.worker.snapshot();
        let (long, share) = match &self.stream {
            Some(stream) => (stream.long.get(), stream.share),
            None => (self.conn.long.get(), self.conn.share),
        };
        long.is_some_and(|long| long.is_late(share, &snapshot))
    }

    /// What is in flight must end now.
    pub fn is_forced(&self) -> bool {
        self.asked() >= Ask::FORCE
    }

    /// The task of a relay waits, which is polled for nothing else.
    pub fn wait_alone(&self, cx: &Context<'_>) {
        self.wait(Half::Response, cx);
        if self.stream.is_none() {
            self.conn.wake_with(cx.waker());
        }
    }

    /// This half of the exchange waits: it must be polled on the next ask. An HTTP/1 connection's task polls all of it.
    pub fn wait(&self, half: Half, cx: &Context<'_>) {
        if let Some(stream) = &self.stream {
            stream.wake_with(half, cx.waker());
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.conn.active.set(self.conn.active.get().saturating_sub(1));
        let (Some(stream), Some(http2)) = (&self.stream, self.conn.http2()) else { return };
        // The registry holds the other one.
        if Rc::strong_count(stream) == 2 && http2.close(stream) && self.conn.asked() != Ask::NOTHING {
            self.conn.wake();
        }
    }
}
