//! What is known of one downstream connection, shared by its task and the worker's sweep.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Waker;

use http::HeaderValue;

use crate::lifecycle::tick::Tick;
use crate::lifecycle::{Counted, Lifecycle};
use crate::proxy::body::Upload;
use crate::upstream::connect::Stream;
use crate::worker::Worker;

/// One downstream connection.
#[derive(Debug)]
pub struct Conn {
    /// Place in the worker's registry.
    pub slot: Cell<usize>,
    /// The client.
    pub peer: SocketAddr,
    /// Its moment in every window.
    pub share: f32,
    /// When it was accepted.
    pub accepted: Tick,
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
    /// A response was broken off whose end would look clean: reset the connection.
    pub reset: Cell<bool>,
    /// The latest request's body has not been read to its end.
    pub body_unread: Cell<bool>,
    /// The latest request's body was malformed or broken off.
    pub body_failed: Cell<bool>,
    /// Request bodies that go on although they have been answered.
    pub uploads: RefCell<Vec<Rc<Upload>>>,
    /// The app has agreed to an upgrade.
    pub upgrade: RefCell<Option<Upgrade>>,
    /// Framing headers in the bytes of the head that is being read.
    pub framing: Cell<Framing>,
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
    /// Bytes are relayed after an upgrade.
    Tunnel,
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
    pub stream: Stream,
    /// What the app has already sent behind its 101.
    pub read: bytes::Bytes,
    /// Keeps the tunnel in flight.
    pub permit: crate::lifecycle::in_flight::Permit,
}

/// Which framing headers the head's bytes have shown (hyper drops Content-Length beside Transfer-Encoding).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Framing {
    /// The whole head was seen in one piece, from its first byte on.
    pub whole: bool,
    /// `Content-Length` stands in it.
    pub content_length: bool,
    /// `Transfer-Encoding` stands in it.
    pub transfer_encoding: bool,
}

/// The connection is in an exchange as long as one of these lives.
#[derive(Debug)]
#[must_use]
pub struct Active(Rc<Conn>);

// === impl Conn ===

impl Conn {
    /// A connection just accepted.
    pub fn new(worker: &Rc<Worker>, peer: SocketAddr) -> Rc<Self> {
        let lifecycle: Lifecycle = worker.lifecycle;
        let now = lifecycle.now();
        let conn = Rc::new(Self {
            slot: Cell::new(0),
            peer,
            share: lifecycle.share(),
            accepted: now,
            doing: Cell::new(Doing::Idle),
            since: Cell::new(now),
            bare: Cell::new(true),
            told: Cell::new(false),
            served: Cell::new(false),
            eof: Cell::new(false),
            client_closes: Cell::new(false),
            flushed: Cell::new(true),
            reset: Cell::new(false),
            body_unread: Cell::new(false),
            body_failed: Cell::new(false),
            uploads: RefCell::default(),
            upgrade: RefCell::new(None),
            framing: Cell::new(Framing::default()),
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

    /// Begins an exchange, or takes one more part in it.
    pub fn activate(self: &Rc<Self>) -> Active {
        self.active.set(self.active.get() + 1);
        Active(Rc::clone(self))
    }

    /// No exchange is under way and nothing waits to be written.
    pub fn is_settled(&self) -> bool {
        self.active.get() == 0 && self.flushed.get()
    }

    /// The client's address as it stands in `X-Forwarded-For`.
    pub fn forwarded_for(&self) -> &HeaderValue {
        self.forwarded_for.get_or_init(|| {
            let text = self.peer.ip().to_canonical().to_string();
            HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
        })
    }

    /// The sweep asks for something; the task is woken if that is news.
    pub fn ask(&self, ask: Ask) {
        if ask > self.asked.get() {
            self.asked.set(ask);
            if let Some(waker) = self.waker.borrow_mut().take() {
                waker.wake();
            }
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

    /// What is in flight must end now.
    pub fn is_forced(&self) -> bool {
        self.asked.get() >= Ask::FORCE
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
    /// Close if idle; a tunnel at its next quiet moment.
    pub const CLOSE: Self = Self(2);
    /// The head takes too long.
    pub const HEAD_TIMEOUT: Self = Self(3);
    /// End what is in flight as the contract's §6 says.
    pub const FORCE: Self = Self(4);
    /// Drop the connection.
    pub const KILL: Self = Self(5);
}

// === impl Active ===

impl Active {
    /// The connection.
    pub fn conn(&self) -> &Rc<Conn> {
        &self.0
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.set(self.0.active.get().saturating_sub(1));
    }
}
