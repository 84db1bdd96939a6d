//! One worker thread: a current-thread runtime with its own connections and its own upstream pools.
//!
//! Nothing on the data path is shared between workers except atomics, and what TLS keeps of its sessions. The worker's sweep is the only timer of its
//! connections: it walks the registry a few times a second (every few milliseconds once the pod terminates) and sets
//! flags; a connection reads them when it is polled.

use std::cell::{Cell, RefCell};
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::config::{Config, Direction, ListenerConfig, Protocol};
use crate::lifecycle::Lifecycle;
use crate::lifecycle::machine::Snapshot;
use crate::lifecycle::phase::Phase;
use crate::lifecycle::tick::Tick;
use crate::listener::accept::{self, Accepting};
use crate::listener::conn::{Ask, Conn, Doing};
use crate::listener::streams::{ACK_TIMER, Http2};
use crate::proxy::relay::Gear;
use crate::proxy::{Inbound, outbound};
use crate::telemetry::metrics::{Forced, Metrics};
use crate::tls::reload::ListenerTls;
use crate::tls::turns;
use crate::upstream::remote::Remote;

/// What every connection of a worker may use.
#[derive(Debug)]
pub struct Worker {
    /// The lifecycle's handle.
    pub lifecycle: Lifecycle,
    /// Counters.
    pub metrics: &'static Metrics,
    /// The configuration.
    pub config: Arc<Config>,
    /// Most downstream connections and HTTP/2 streams over all workers.
    pub max_connections: usize,
    snapshot: RefCell<Snapshot>,
    news: RefCell<watch::Receiver<Snapshot>>,
    coarse_now: Cell<Tick>,
    conns: RefCell<Vec<Rc<Conn>>>,
    inbound: RefCell<Vec<Rc<Inbound>>>,
    /// What all its relays share.
    pub gear: Gear,
    /// For handshakes of clients, see [`turns`].
    pub handshake_turns: Semaphore,
    /// Some listener asks clients for certificates.
    pub vouches_for_clients: bool,
    /// What each listener of the configuration speaks TLS with.
    tls: Vec<ListenerTls>,
}

/// Runs hyper's tasks on the worker that started them.
#[derive(Debug, Clone, Copy)]
pub struct Local;

impl<F> hyper::rt::Executor<F> for Local
where
    F: Future<Output = ()> + 'static,
{
    fn execute(&self, task: F) {
        drop(tokio::task::spawn_local(task));
    }
}

/// A bound socket and the number of its listener in the configuration.
pub type Bound = (usize, TcpListener);

/// Pause between sweeps while serving, and once the pod terminates.
const SWEEP: Duration = Duration::from_millis(250);
const SWEEP_TERMINATING: Duration = Duration::from_millis(10);
/// A connection idle for this long gives its buffers back. Short: the allocator keeps what all connections together
/// held at the worst moment, so the peak counts, and building them again costs a busy connection nothing.
const RECLAIM_AFTER: Duration = Duration::from_millis(250);
/// What ends by force at the end of a phase ends this much before it, so that the report has it.
const LEAD: Duration = Duration::from_millis(30);
/// A connection just opened, or just answered, gets this long to speak.
const LATE_SILENCE: Duration = Duration::from_secs(1);
/// Longest work after the end: answers to what waits in the accept queues.
const LAST_ANSWERS: Duration = Duration::from_millis(400);
/// A connection that came just before the end gets this long to speak.
const LAST_SILENCE: Duration = Duration::from_millis(100);

// === impl Worker ===

impl Worker {
    /// Runs a worker on the calling thread until the lifecycle is over; calls `started` once it accepts.
    ///
    /// # Errors
    /// If the runtime can't be built or a socket not be registered with it.
    pub fn run(
        lifecycle: Lifecycle,
        metrics: &'static Metrics,
        config: Arc<Config>,
        max_connections: usize,
        tls: Vec<ListenerTls>,
        sockets: Vec<Bound>,
        started: impl FnOnce(),
    ) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build_local(tokio::runtime::LocalOptions::default())?;
        let asks = |listener: &ListenerConfig| listener.tls.as_ref().is_some_and(|tls| tls.clients.is_some());
        let worker = Rc::new(Self {
            vouches_for_clients: config.listeners.iter().any(asks),
            lifecycle,
            metrics,
            config,
            max_connections,
            news: RefCell::new(lifecycle.watch()),
            snapshot: RefCell::new(lifecycle.snapshot()),
            coarse_now: Cell::new(lifecycle.now()),
            conns: RefCell::default(),
            inbound: RefCell::default(),
            gear: Gear::new(),
            handshake_turns: Semaphore::new(turns::AT_ONCE),
            tls,
        });
        let result = runtime.block_on(worker.serve(sockets, started));
        // A name that is being looked up must not keep the process.
        runtime.shutdown_background();
        result
    }

    /// The lifecycle as it is now: what a worker that was held up answers first must not go by what was before.
    pub fn snapshot(&self) -> Snapshot {
        self.hear_news();
        *self.snapshot.borrow()
    }

    /// Its phase alone; the rest of it is much to copy for every request.
    pub fn phase(&self) -> Phase {
        self.hear_news();
        self.snapshot.borrow().phase
    }

    /// Without a lock, as long as there are none.
    fn hear_news(&self) {
        let mut news = self.news.borrow_mut();
        if news.has_changed().unwrap_or(false) {
            self.snapshot.replace(*news.borrow_and_update());
        }
    }

    /// The time of the latest sweep; good enough for idle times.
    pub fn coarse_now(&self) -> Tick {
        self.coarse_now.get()
    }

    /// Adds a connection to the registry.
    pub fn register(&self, conn: &Rc<Conn>) {
        let mut conns = self.conns.borrow_mut();
        conn.slot.set(conns.len());
        conns.push(Rc::clone(conn));
    }

    /// Takes it out again.
    pub fn unregister(&self, conn: &Conn) {
        let mut conns = self.conns.borrow_mut();
        let slot = conn.slot.get();
        if slot < conns.len() {
            conns.swap_remove(slot);
            if let Some(moved) = conns.get(slot) {
                moved.slot.set(slot);
            }
        }
    }

    /// Connections and streams that are open; what a stream holds weighs no less than a connection.
    pub fn open(&self) -> usize {
        let tallies = self.lifecycle.tallies();
        (tallies.connections.load(Relaxed) + tallies.streams.load(Relaxed)) as usize
    }

    /// Counts an ending by force.
    pub fn count_forced(&self, kind: Forced) {
        self.metrics.forced.add(kind as usize);
        self.lifecycle.tallies().forced.fetch_add(1, SeqCst);
    }

    /// A connection is being answered, or read away after its answer, or has only just come.
    pub fn has_unanswered(&self) -> bool {
        let now = self.lifecycle.now();
        let new = |conn: &Conn| !conn.served.get() && now.since(conn.accepted.get()) < LAST_SILENCE;
        self.conns.borrow().iter().any(|conn| !conn.is_idle() || new(conn))
    }

    async fn serve(self: Rc<Self>, sockets: Vec<Bound>, started: impl FnOnce()) -> std::io::Result<()> {
        let mut accepting = Vec::new();
        let mut number = 0;
        for (index, socket) in sockets {
            socket.set_nonblocking(true)?;
            let socket = Rc::new(tokio::net::TcpListener::from_std(socket)?);
            let listener = &self.config.listeners[index];
            match listener.direction {
                Direction::Inbound => {
                    let tls = self.tls[index].clone();
                    let inbound = Rc::new(Inbound::new(Rc::clone(&self), number, listener, tls));
                    number += 1;
                    self.inbound.borrow_mut().push(Rc::clone(&inbound));
                    let task = tokio::task::spawn_local(accept::inbound(Rc::clone(&socket), Rc::clone(&inbound)));
                    accepting.push(Accepting { task, socket, inbound });
                }
                Direction::Outbound => {
                    let remote = Remote::new(listener, self.tls[index].client.clone());
                    drop(tokio::task::spawn_local(outbound::serve(socket, Rc::clone(&self), remote)));
                }
            }
        }
        started();
        self.sweep_until_terminated().await;
        accept::answer_backlog(accepting, LAST_ANSWERS).await;
        Ok(())
    }

    async fn sweep_until_terminated(&self) {
        let mut watch = self.lifecycle.watch();
        let mut next = Instant::now() + SWEEP;
        loop {
            let snapshot = *watch.borrow_and_update();
            // Also at the end: what still stands must break visibly, not by the close of a dying process.
            self.sweep(&snapshot);
            if snapshot.phase == Phase::Terminated {
                return;
            }
            let pause = if snapshot.t0.is_some() { SWEEP_TERMINATING } else { SWEEP };
            next = (next + pause).clamp(Instant::now(), Instant::now() + pause);
            // The sender lives as long as the process: an error can't come.
            let _ = tokio::time::timeout_at(next, watch.changed()).await;
        }
    }

    fn sweep(&self, snapshot: &Snapshot) {
        let now = self.lifecycle.now();
        self.coarse_now.set(now);
        for conn in self.conns.borrow().iter() {
            let ask = self.due(conn, snapshot, now);
            if ask != Ask::NOTHING {
                conn.ask(ask);
            }
        }
        for inbound in self.inbound.borrow().iter() {
            inbound.pool.sweep();
            if inbound.multiplex.sweep() && snapshot.t0.is_some() {
                inbound.app_leaves.set(true);
            }
        }
    }

    /// What it is time for on one connection.
    fn due(&self, conn: &Conn, snapshot: &Snapshot, now: Tick) -> Ask {
        let reached = |at: Option<Tick>| at.is_some_and(|at| now >= at);
        let since = conn.since.get();
        let killed = reached(snapshot.kill_at.map(|at| at - LEAD));
        match conn.doing.get() {
            Doing::Idle => match snapshot.idle_close {
                Some(window) => {
                    // The client was not told: its next request may be on its way already.
                    let moment = window.moment(conn.share).max(since + LATE_SILENCE);
                    if now >= moment { Ask::CLOSE } else { Ask::NOTHING }
                }
                None if !conn.bare.get() && now.since(since) >= RECLAIM_AFTER => Ask::RECLAIM,
                None => Ask::NOTHING,
            },
            Doing::Head => {
                let patience = now.since(since) >= self.config.limits.header_timeout;
                let spread_over =
                    snapshot.idle_close.is_some_and(|window| now >= (window.end - LEAD).max(since + LATE_SILENCE));
                if patience || spread_over { Ask::HEAD_TIMEOUT } else { Ask::NOTHING }
            }
            Doing::Http2 => conn.http2().map_or(Ask::NOTHING, |http2| self.due_http2(conn, http2, snapshot, now)),
            Doing::Exchange if snapshot.phase >= Phase::Closing && killed => Ask::KILL,
            Doing::Exchange if snapshot.phase >= Phase::Closing && reached(snapshot.force_at) => Ask::FORCE,
            Doing::Relay if killed => Ask::KILL,
            Doing::Exchange | Doing::Relay => {
                let due = conn.long.get().map_or(Ask::NOTHING, |long| long.due(conn.share, snapshot, now));
                if self.is_silent_for_too_long(conn, snapshot, now) { due.max(Ask::CLOSE) } else { due }
            }
            Doing::Lingering => Ask::NOTHING,
        }
    }

    /// The silence that a TCP listener allows is over.
    fn is_silent_for_too_long(&self, conn: &Conn, snapshot: &Snapshot, now: Tick) -> bool {
        if conn.doing.get() != Doing::Relay || snapshot.phase.is_terminating() {
            return false;
        }
        let inbound = self.inbound.borrow();
        let Some(one) = inbound.get(conn.listener).filter(|one| one.config.protocol == Protocol::Tcp) else {
            return false;
        };
        let half_closed = one.config.half_closed_timeout.filter(|_| conn.half_closed.get());
        let longest = half_closed.into_iter().chain(one.config.idle_timeout).min();
        longest.is_some_and(|longest| now.since(conn.since.get()) >= longest)
    }

    /// What it is time for on an HTTP/2 connection; its streams are asked by the way.
    fn due_http2(&self, conn: &Conn, http2: &Http2, snapshot: &Snapshot, now: Tick) -> Ask {
        if http2.is_block_late(self.config.limits.header_timeout, now) {
            return Ask::HEAD_TIMEOUT;
        }
        let Some(deadlines) = snapshot.deadlines else { return Ask::NOTHING };
        if snapshot.phase >= Phase::Closing && snapshot.kill_at.is_some_and(|at| now >= at - LEAD) {
            return Ask::KILL;
        }
        http2.sweep_streams(snapshot, now);
        match http2.told_at() {
            None => {
                let came_late = conn.accepted.get() >= deadlines.notice.start;
                let silent_too_long = snapshot.idle_close.is_some_and(|window| now >= window.end);
                let spoke = conn.served.get() || silent_too_long || !came_late;
                let app_leaves = self.inbound.borrow().get(conn.listener).is_some_and(|one| one.app_leaves.get());
                if !(spoke && (app_leaves || conn.is_notice_due())) {
                    return Ask::NOTHING;
                }
                let insists = snapshot.phase > Phase::Holding || now >= deadlines.notice.end;
                if insists && http2.insist() {
                    // It may have been asked long ago, and nothing else need happen on it.
                    conn.wake();
                }
                Ask::NOTICE
            }
            // Otherwise h2 closes it by itself, when the last byte is out.
            Some(told)
                if http2.is_stuck() && http2.is_settled() && conn.flushed.get() && now.since(told) >= 2 * ACK_TIMER =>
            {
                Ask::CLOSE
            }
            Some(told) => {
                // Who is still connected at the end must hear which streams were begun.
                let overdue = now.since(told) >= ACK_TIMER || snapshot.phase >= Phase::Closing;
                if overdue && http2.ack_overdue() {
                    conn.wake();
                }
                Ask::NOTHING
            }
        }
    }
}
