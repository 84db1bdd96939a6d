//! Owns open-loop load over HTTP/2: calls leave at a rate, whatever becomes of earlier ones.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::call::{Call, Counter};
use super::client::H2Client;
use super::summary::{H2Record, H2Summary};
use crate::harness::SOON;
use crate::harness::client::{Pace, Request};
use crate::harness::tls::Target;
use crate::harness::wait::{eventually, within};

/// What is sent, how often, over how many connections.
#[derive(Clone, Debug)]
pub(crate) struct H2Plan {
    pub(crate) to: Target,
    /// Calls per second, over all lanes.
    pub(crate) rate: f64,
    pub(crate) connections: usize,
    /// Dealt in turn.
    pub(crate) lanes: Vec<Call>,
    /// For each call, connect and retries included.
    pub(crate) timeout: Duration,
}

/// A running load.
#[derive(Debug)]
pub(crate) struct H2Load {
    shared: Arc<Shared>,
    stopped: watch::Sender<bool>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    plan: H2Plan,
    name: u64,
    client: H2Client,
    records: Mutex<Vec<H2Record>>,
}

// === impl H2Plan ===

impl H2Plan {
    /// Small answers, echoes, unary calls, and short streams in both forms, over four connections.
    pub(crate) fn mixed(to: impl Into<Target>, rate: f64) -> Self {
        let pause = Duration::from_millis(5);
        let lanes = vec![
            Call::plain(Request::get("/")),
            Call::plain(Request::echo(20_000)),
            Call::unary(100),
            Call::server_stream(Some(5), pause, 300),
            Call::bidi(5, pause, 50),
        ];
        Self { to: to.into(), rate, connections: 4, lanes, timeout: Duration::from_secs(10) }
    }

    /// One kind of call.
    pub(crate) fn of(to: impl Into<Target>, rate: f64, call: Call) -> Self {
        Self { lanes: vec![call], ..Self::mixed(to, rate) }
    }
}

// === impl H2Load ===

impl H2Load {
    /// Begins at once.
    pub(crate) fn start(plan: H2Plan) -> Self {
        static NAMES: AtomicU64 = AtomicU64::new(1);
        let shared = Arc::new(Shared {
            name: NAMES.fetch_add(1, Ordering::Relaxed),
            client: H2Client::new(plan.to.clone(), plan.connections),
            records: Mutex::default(),
            plan,
        });
        let (stopped, stop) = watch::channel(false);
        let task = tokio::spawn(run(shared.clone(), stop));
        Self { shared, stopped, task }
    }

    /// The records so far.
    pub(crate) fn so_far(&self) -> H2Summary {
        let records = self.shared.records.lock().expect("no holder panics").clone();
        self.shared.client.summary(records)
    }

    /// Waits until so many calls have been answered well.
    pub(crate) async fn has_done(&self, count: usize, deadline: Duration) {
        eventually(&format!("{count} good answers"), deadline, || {
            let summary = self.so_far();
            if summary.ok() >= count { Ok(()) } else { Err(format!("{} good, {:?}", summary.ok(), summary.losses())) }
        })
        .await;
    }

    /// No new calls; waits for those under way.
    pub(crate) async fn stop(self) -> H2Summary {
        self.stopped.send_replace(true);
        let Self { shared, task, .. } = self;
        within("end of the load", shared.plan.timeout + SOON, task).await.expect("the load does not panic");
        shared.client.settled().await;
        let records = shared.records.lock().expect("no holder panics").clone();
        shared.client.summary(records)
    }
}

async fn run(shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let mut tick = tokio::time::interval(Duration::from_millis(2));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut pace = Pace::new(shared.plan.rate);
    let mut number = 0;
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
        for _ in 0..pace.due() {
            let lane = number % shared.plan.lanes.len();
            let id = format!("h2load{}-{number}", shared.name);
            number += 1;
            let shared = shared.clone();
            calls.spawn(async move {
                let call = &shared.plan.lanes[lane];
                let mut record = shared.client.call_as(call, &id, shared.plan.timeout, &Counter::default()).await;
                record.lane = lane;
                shared.records.lock().expect("no holder panics").push(record);
            });
        }
        while calls.try_join_next().is_some() {}
    }
    while calls.join_next().await.is_some() {}
}
