//! Owns open-loop load: requests leave at a rate, whatever becomes of earlier ones.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::summary::{Record, Summary};
use super::{Connection, Pool, Request};
use crate::harness::tls::Target;
use crate::harness::wait::{Mono, within};

/// What is sent, how often, how.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) to: Target,
    /// Requests per second, over all lanes.
    pub(crate) rate: f64,
    /// Size of the pool that the pooled lanes share.
    pub(crate) connections: usize,
    pub(crate) lanes: Vec<Lane>,
    /// For each request, connect included.
    pub(crate) timeout: Duration,
}

/// One kind of request in the mix.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) how: How,
    /// Its part of the rate, relative to the other lanes.
    pub(crate) share: u32,
    pub(crate) request: Request,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum How {
    /// On the keep-alive pool.
    Pooled,
    /// On a new connection each.
    Fresh,
}

/// A running load.
#[derive(Debug)]
pub(crate) struct Load {
    shared: Arc<Shared>,
    stopped: watch::Sender<bool>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    plan: Plan,
    name: u64,
    pool: Pool,
    records: Mutex<Vec<Record>>,
    paused: Mutex<Vec<How>>,
}

// === impl Plan ===

impl Plan {
    /// Small POSTs that are echoed, half pooled and half on fresh connections.
    pub(crate) fn mixed(to: impl Into<Target>, rate: f64) -> Self {
        let lane = |how| Lane { how, share: 1, request: Request::echo(64) };
        Self { lanes: vec![lane(How::Pooled), lane(How::Fresh)], ..Self::pooled(to, rate, 20) }
    }

    /// Small POSTs on a pool.
    pub(crate) fn pooled(to: impl Into<Target>, rate: f64, connections: usize) -> Self {
        Self {
            to: to.into(),
            rate,
            connections,
            lanes: vec![Lane { how: How::Pooled, share: 1, request: Request::echo(64) }],
            timeout: Duration::from_secs(10),
        }
    }
}

// === impl Load ===

impl Load {
    /// Begins at once.
    pub(crate) fn start(plan: Plan) -> Self {
        static NAMES: AtomicU64 = AtomicU64::new(1);
        crate::harness::raise_open_files();
        let shared = Arc::new(Shared {
            name: NAMES.fetch_add(1, Ordering::Relaxed),
            pool: Pool::new(plan.to.clone(), plan.connections),
            records: Mutex::default(),
            paused: Mutex::default(),
            plan,
        });
        let (stopped, stop) = watch::channel(false);
        let task = tokio::spawn(run(shared.clone(), stop));
        Self { shared, stopped, task }
    }

    /// No more requests of this kind; the rest of the rate goes on as it was.
    pub(crate) fn pause(&self, how: How) {
        self.shared.paused.lock().expect("no holder panics").push(how);
    }

    /// The records so far.
    pub(crate) fn so_far(&self) -> Summary {
        self.shared.summary()
    }

    /// Waits until so many requests have been answered well.
    pub(crate) async fn has_done(&self, count: usize, deadline: Duration) {
        crate::harness::wait::eventually(&format!("{count} good answers"), deadline, || {
            let summary = self.so_far();
            if summary.ok() >= count { Ok(()) } else { Err(format!("{} good, {:?}", summary.ok(), summary.failures())) }
        })
        .await;
    }

    /// No new requests; waits for those under way.
    pub(crate) async fn stop(self) -> Summary {
        self.stopped.send_replace(true);
        let bound = self.shared.plan.timeout * 2 + crate::harness::SOON;
        within("end of the load", bound, self.task).await.expect("the load does not panic");
        self.shared.pool.settled().await;
        self.shared.pool.sweep();
        self.shared.summary()
    }
}

// === impl Shared ===

impl Shared {
    fn summary(&self) -> Summary {
        Summary {
            records: self.records.lock().expect("no holder panics").clone(),
            idle_endings: self.pool.idle_endings(),
            marked_endings: self.pool.marked_endings(),
        }
    }

    async fn one(&self, lane: usize, number: u64) {
        let lane = &self.plan.lanes[lane];
        let id = format!("load{}-{number}", self.name);
        let mut record = match lane.how {
            How::Pooled => {
                let sent = self.pool.send(&lane.request, &id, self.plan.timeout);
                sent.await.0
            }
            How::Fresh => self.fresh(&lane.request, &id).await,
        };
        record.how = lane.how;
        self.records.lock().expect("no holder panics").push(record);
    }

    async fn fresh(&self, request: &Request, id: &str) -> Record {
        let mut record = Record::new(id, Mono::now());
        let result = match Connection::open(&self.plan.to, self.plan.timeout).await {
            Ok(mut connection) => {
                record.connection = connection.number;
                let result = connection.exchange(request, id, self.plan.timeout).await;
                if result.is_ok() && !connection.is_reusable() {
                    self.pool.await_end(connection);
                }
                result
            }
            Err(failure) => Err(failure),
        };
        record.finish(&result);
        record
    }
}

async fn run(shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    // Shares are dealt round like cards, so that each kind is spread evenly.
    let lanes = &shared.plan.lanes;
    let deck: Vec<usize> =
        (0..lanes.len()).flat_map(|lane| std::iter::repeat_n(lane, lanes[lane].share as usize)).collect();
    let mut deal = deck.iter().copied().cycle();
    let mut tick = tokio::time::interval(Duration::from_millis(2));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut pace = Pace::new(shared.plan.rate);
    let mut number = 0;
    let mut swept = Mono::now();
    let mut requests = JoinSet::new();
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
        for _ in 0..pace.due() {
            let lane = deal.next().expect("a load has a lane");
            number += 1;
            let paused = shared.paused.lock().expect("no holder panics");
            if !paused.contains(&shared.plan.lanes[lane].how) {
                let shared = shared.clone();
                requests.spawn(async move { shared.one(lane, number).await });
            }
        }
        while requests.try_join_next().is_some() {}
        if swept.elapsed() > SWEEP {
            shared.pool.sweep();
            swept = Mono::now();
        }
    }
    while requests.join_next().await.is_some() {}
}

/// How many requests are due at a rate, asked again and again.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: f64,
    last: Mono,
    owed: f64,
}

impl Pace {
    pub(crate) fn new(rate: f64) -> Self {
        Self { rate, last: Mono::now(), owed: 0.0 }
    }

    /// A stalled machine is not answered with a burst.
    pub(crate) fn due(&mut self) -> usize {
        let now = Mono::now();
        self.owed += now.since(self.last).min(CATCH_UP).as_secs_f64() * self.rate;
        self.last = now;
        let due = self.owed.floor();
        self.owed -= due;
        due as usize
    }
}

const CATCH_UP: Duration = Duration::from_millis(100);
const SWEEP: Duration = Duration::from_millis(50);
