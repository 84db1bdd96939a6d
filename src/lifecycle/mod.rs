//! The heart: when the process holds, drains, closes and leaves, and what everybody else may know of it.
//!
//! [`machine`] and what it stands on ([`witness`], [`budget`], [`phase`], [`spread`], [`tick`]) are pure. [`driver`]
//! feeds the machine and performs its actions. [`Lifecycle`] is the handle the data path holds.

pub mod tick;
pub mod phase;
pub mod budget;
pub mod witness;
pub mod machine;
pub mod spread;
pub mod in_flight;
pub mod upstream_state;
pub mod driver;
pub mod signal;
pub mod watchdog;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use in_flight::{Counts, Permit, Work};
use machine::Snapshot;
use spread::Spread;
use tick::Tick;
use upstream_state::UpstreamState;

/// Handle to the one lifecycle of the process; it lives as long as the process does, so copies are free.
#[derive(Debug, Clone, Copy)]
pub struct Lifecycle(&'static Shared);

#[derive(Debug)]
struct Shared {
    start: Instant,
    /// Bit 63: closed. Bits below: the inbound listener of that number is paused.
    gate: AtomicU64,
    snapshot: watch::Sender<Snapshot>,
    inbound: Vec<Inbound>,
    spread: Spread,
    events: mpsc::UnboundedSender<Message>,
    tallies: Tallies,
}

#[derive(Debug)]
struct Inbound {
    name: String,
    counts: Counts,
    upstream: UpstreamState,
}

/// What the data path reports and the machine observes.
#[derive(Debug, Default)]
pub struct Tallies {
    /// Downstream connections open on inbound listeners.
    pub connections: AtomicU64,
    /// Exchanges open on HTTP/2 connections.
    pub streams: AtomicU64,
    /// Connections open on outbound listeners.
    pub outbound: AtomicU64,
    /// Closed connections whose last bytes are being read away.
    pub lingering: AtomicU64,
    /// Requests waiting for the app.
    pub parked: AtomicU64,
    /// Endings by force.
    pub forced: AtomicU64,
    last_arrival: AtomicU64,
    last_connection: AtomicU64,
    last_outbound: AtomicU64,
    last_scrape: AtomicU64,
}

/// What reaches the driver.
#[derive(Debug)]
pub(crate) enum Message {
    Bound,
    OwnHook,
    AppHook {
        scope: Option<usize>,
        released: oneshot::Sender<()>,
    },
    Signal(&'static str),
    /// The world has changed in a way that time alone would show too late.
    Poke,
}

/// What a new request finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Forward it.
    Open,
    /// Park it: the app is about to be restarted.
    Paused,
    /// Refuse it.
    Closed,
}

/// A count that goes down when the guard is dropped.
#[derive(Debug)]
#[must_use]
pub struct Counted(&'static AtomicU64);

const CLOSED: u64 = 1 << 63;
/// Inbound listeners that the gate has bits for.
pub const MAX_INBOUND: usize = 63;

// === impl Lifecycle ===

impl Lifecycle {
    /// The handle, and the receiving end for [`driver::Driver`]. The memory is never freed: one per process.
    pub(crate) fn new(inbound_names: Vec<String>, start: Snapshot) -> (Self, mpsc::UnboundedReceiver<Message>) {
        let (events, receiver) = mpsc::unbounded_channel();
        let inbound = inbound_names
            .into_iter()
            .map(|name| Inbound { name, counts: Counts::default(), upstream: UpstreamState::default() })
            .collect();
        let shared = Shared {
            start: Instant::now(),
            gate: AtomicU64::new(0),
            snapshot: watch::Sender::new(start),
            inbound,
            spread: Spread::new(fastrand::u32(..)),
            events,
            tallies: Tallies::default(),
        };
        (Self(Box::leak(Box::new(shared))), receiver)
    }

    /// Time since the process started.
    pub fn now(self) -> Tick {
        Tick::new(self.0.start.elapsed())
    }

    /// The published state; level-triggered: wait for a value, never for a change alone.
    pub fn watch(self) -> watch::Receiver<Snapshot> {
        self.0.snapshot.subscribe()
    }

    /// The published state, copied.
    pub fn snapshot(self) -> Snapshot {
        *self.0.snapshot.borrow()
    }

    /// Takes a permit for work to the upstream of inbound listener number `listener`. Ask [`Self::gate`] afterwards.
    pub fn permit(self, listener: usize, work: Work) -> Permit {
        Permit::new(self, listener, work)
    }

    /// Whether work with a permit may go on to the upstream.
    pub fn gate(self, listener: usize) -> Gate {
        let gate = self.0.gate.load(SeqCst);
        if gate & CLOSED != 0 {
            Gate::Closed
        } else if gate & (1 << listener) != 0 {
            Gate::Paused
        } else {
            Gate::Open
        }
    }

    /// A share of the next window for a new connection.
    pub fn share(self) -> f32 {
        self.0.spread.share()
    }

    /// The counters of the data path.
    pub fn tallies(self) -> &'static Tallies {
        &self.0.tallies
    }

    /// What is known of the upstream of inbound listener number `listener`.
    pub fn upstream(self, listener: usize) -> &'static UpstreamState {
        &self.0.inbound[listener].upstream
    }

    /// Number of inbound listeners.
    pub fn inbound_len(self) -> usize {
        self.0.inbound.len()
    }

    /// Index of the inbound listener `name`.
    pub fn inbound_index(self, name: &str) -> Option<usize> {
        self.0.inbound.iter().position(|inbound| inbound.name == name)
    }

    /// Names of the inbound listeners with their upstreams.
    pub fn upstreams(self) -> impl Iterator<Item = (&'static str, &'static UpstreamState)> {
        self.0.inbound.iter().map(|inbound| (inbound.name.as_str(), &inbound.upstream))
    }

    /// Work in flight of one kind, over all inbound listeners.
    pub fn in_flight(self, work: Work) -> u64 {
        self.0.inbound.iter().map(|inbound| inbound.counts.of(work)).sum()
    }

    /// The app accepted a connection.
    pub fn upstream_accepted(self, listener: usize) {
        if self.0.inbound[listener].upstream.accepted(self.now()) {
            self.send(Message::Poke);
        }
    }

    /// The app refused a connection.
    pub fn upstream_refused(self, listener: usize) {
        if self.0.inbound[listener].upstream.refused(self.now()) {
            self.send(Message::Poke);
        }
    }

    /// The app refused a dial made because of a signal.
    pub fn upstream_refused_for_certain(self, listener: usize) {
        self.0.inbound[listener].upstream.refused_for_certain(self.now());
    }

    /// All listeners are bound.
    pub(crate) fn bound(self) {
        self.send(Message::Bound);
    }

    /// Our own preStop hook was called.
    pub(crate) fn own_hook(self) {
        self.send(Message::OwnHook);
    }

    /// An app hook was called; resolves when it may return. Dropping the receiver cancels nothing.
    pub(crate) fn app_hook(self, scope: Option<usize>) -> oneshot::Receiver<()> {
        let (released, receiver) = oneshot::channel();
        self.send(Message::AppHook { scope, released });
        receiver
    }

    /// A signal came.
    pub(crate) fn signal(self, name: &'static str) {
        self.send(Message::Signal(name));
    }

    fn counts(self, listener: usize) -> &'static Counts {
        &self.0.inbound[listener].counts
    }

    fn send(self, message: Message) {
        // The driver outlives everybody; after its end nothing is left to be told.
        let _ = self.0.events.send(message);
    }
}

// === impl Tallies ===

impl Tallies {
    /// New work came that the hold and the drain's `quiet` count.
    pub fn arrival(&self, first_byte: Tick) {
        raise(&self.last_arrival, first_byte);
    }

    /// The first request of a new connection came; it is an arrival as well.
    pub fn connection_came(&self, first_byte: Tick) {
        raise(&self.last_connection, first_byte);
        self.arrival(first_byte);
    }

    /// The latest of them. It tells how long the cluster went on sending; requests on older connections only tell
    /// that their clients had not been told to go yet.
    pub fn last_connection(&self) -> Option<Tick> {
        read(&self.last_connection)
    }

    /// The latest of them.
    pub fn last_arrival(&self) -> Option<Tick> {
        read(&self.last_arrival)
    }

    /// A connection came on an outbound listener.
    pub fn outbound_came(&self, at: Tick) {
        raise(&self.last_outbound, at);
    }

    /// The latest of them.
    pub fn last_outbound(&self) -> Option<Tick> {
        read(&self.last_outbound)
    }

    /// A scrape of `/metrics` started.
    pub fn scraped(&self, at: Tick) {
        raise(&self.last_scrape, at);
    }

    /// The latest of them.
    pub fn last_scrape(&self) -> Option<Tick> {
        read(&self.last_scrape)
    }
}

impl Counted {
    /// Counts one up, until dropped.
    pub fn new(counter: &'static AtomicU64) -> Self {
        counter.fetch_add(1, SeqCst);
        Self(counter)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// 0 stands for never, so ticks are stored one nanosecond up.
fn raise(cell: &AtomicU64, tick: Tick) {
    let nanos = u64::try_from(tick.since_start().as_nanos()).unwrap_or(u64::MAX - 1) + 1;
    cell.fetch_max(nanos, Relaxed);
}

fn read(cell: &AtomicU64) -> Option<Tick> {
    match cell.load(Relaxed) {
        0 => None,
        nanos => Some(Tick::new(std::time::Duration::from_nanos(nanos - 1))),
    }
}
