//! Owns long-lived raw TCP connections that talk in bursts to an echo, and how each was closed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::{Ending, Failure};
use crate::harness::http::pattern_byte;
use crate::harness::tls::{Socket, Target, alpn};
use crate::harness::wait::{Mono, densest, eventually, within};
use crate::harness::{SOON, tally};

/// A burst is some pieces with a pause between them; each connection begins at a moment of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BurstPlan {
    pub(crate) every: Duration,
    pub(crate) pieces: u32,
    pub(crate) pause: Duration,
    pub(crate) size: u64,
}

/// Connections that run beside the test.
#[derive(Debug)]
pub(crate) struct Bursts {
    whole: Vec<Arc<AtomicU64>>,
    stopped: watch::Sender<bool>,
    tasks: Vec<JoinHandle<BurstRecord>>,
}

/// One connection.
#[derive(Clone, Debug)]
pub(crate) struct BurstRecord {
    pub(crate) sent: u64,
    /// Bytes that came back as they were sent.
    pub(crate) echoed: u64,
    /// False if any byte was another one.
    pub(crate) intact: bool,
    pub(crate) ending: Ending,
    pub(crate) ended: Mono,
    /// Whether it ended between the first byte of a burst and the last byte's echo.
    pub(crate) in_burst: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct BurstSummary {
    pub(crate) records: Vec<BurstRecord>,
}

struct Talk {
    stream: Socket,
    plan: BurstPlan,
    record: BurstRecord,
    /// Of the burst under way.
    pieces_left: u32,
    next: Mono,
    whole: Arc<AtomicU64>,
}

impl Default for BurstPlan {
    /// 50 ms each second.
    fn default() -> Self {
        Self { every: Duration::from_secs(1), pieces: 10, pause: Duration::from_millis(5), size: 100 }
    }
}

// === impl Bursts ===

impl Bursts {
    /// Opens all; panics if one fails.
    pub(crate) async fn start(to: impl Into<Target>, plan: BurstPlan, count: usize) -> Self {
        let to = to.into();
        crate::harness::raise_open_files();
        let turns = Arc::new(Semaphore::new(50));
        let mut openings = JoinSet::new();
        for _ in 0..count {
            let (to, turns) = (to.clone(), turns.clone());
            openings.spawn(async move {
                let _turn = turns.acquire().await.expect("never closed");
                let stream = timeout(SOON, to.connect(alpn::NONE)).await.map_err(|_| Failure::Timeout)??;
                // Connecting is faster than accepting: a full backlog would cost a second each time.
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok::<_, Failure>(stream)
            });
        }
        let (stopped, stop) = watch::channel(false);
        let (mut whole, mut tasks) = (Vec::new(), Vec::new());
        while let Some(opened) = openings.join_next().await {
            let stream = opened.expect("no opener panics").expect("every connection can be opened");
            let counter = Arc::new(AtomicU64::new(0));
            whole.push(counter.clone());
            tasks.push(tokio::spawn(Talk::new(stream, plan, counter).run(stop.clone())));
        }
        Self { whole, stopped, tasks }
    }

    pub(crate) fn open(&self) -> usize {
        self.tasks.iter().filter(|task| !task.is_finished()).count()
    }

    /// Waits until each connection has had so many bursts come back.
    pub(crate) async fn all_have(&self, bursts: u64, deadline: Duration) {
        eventually(&format!("{bursts} bursts on every connection"), deadline, || {
            let least = self.whole.iter().map(|one| one.load(Ordering::Acquire)).min().unwrap_or(0);
            if least >= bursts { Ok(()) } else { Err(format!("{least}, {} open", self.open())) }
        })
        .await;
    }

    /// Each ends its own side after the burst under way.
    pub(crate) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Waits for the end of all.
    pub(crate) async fn ended(self, deadline: Duration) -> BurstSummary {
        let work = async {
            let mut records = Vec::new();
            for task in self.tasks {
                records.push(task.await.expect("no connection panics"));
            }
            records
        };
        BurstSummary { records: within("end of all connections", deadline, work).await }
    }
}

// === impl Talk ===

impl Talk {
    fn new(stream: Socket, plan: BurstPlan, whole: Arc<AtomicU64>) -> Self {
        let now = Mono::now();
        let record =
            BurstRecord { sent: 0, echoed: 0, intact: true, ending: Ending::StillOpen, ended: now, in_burst: false };
        let next = now + plan.every.mul_f64(fastrand::f64());
        Self { stream, plan, record, pieces_left: plan.pieces, next, whole }
    }

    async fn run(mut self, mut stop: watch::Receiver<bool>) -> BurstRecord {
        let mut buffer = vec![0; 4096];
        let (mut stopped, mut writes) = (false, true);
        let ending = loop {
            if writes && stopped && self.is_quiet() {
                writes = false;
                let _ = self.stream.shutdown().await;
            }
            let speaks = writes && !(stopped && self.pieces_left == self.plan.pieces);
            tokio::select! {
                read = self.stream.read(&mut buffer) => match read {
                    Ok(read @ 1..) => self.compare(&buffer[..read]),
                    _ => break self.stream.ending(),
                },
                () = self.next.reached(), if speaks => {
                    // Only a reset makes a write fail whose connection has not been read to its end.
                    if self.piece().await.is_err() {
                        break Ending::Reset;
                    }
                }
                () = told(&mut stop), if !stopped => stopped = true,
            }
        };
        self.record.ending = match self.stream.ending() {
            Ending::Reset => Ending::Reset,
            _ => ending,
        };
        self.record.in_burst = !self.is_quiet();
        self.record.ended = Mono::now();
        self.record
    }

    fn is_quiet(&self) -> bool {
        self.pieces_left == self.plan.pieces && self.record.echoed == self.record.sent
    }

    async fn piece(&mut self) -> std::io::Result<()> {
        let from = self.record.sent;
        let piece: Vec<u8> = (from..from + self.plan.size).map(pattern_byte).collect();
        self.stream.write_all(&piece).await?;
        self.record.sent += self.plan.size;
        self.pieces_left -= 1;
        self.next = Mono::now() + self.plan.pause;
        if self.pieces_left == 0 {
            self.pieces_left = self.plan.pieces;
            self.next = Mono::now() + self.plan.every;
        }
        Ok(())
    }

    fn compare(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.record.intact &= *byte == pattern_byte(self.record.echoed) && self.record.echoed < self.record.sent;
            self.record.echoed += 1;
        }
        let burst = self.plan.size * u64::from(self.plan.pieces);
        self.whole.store(self.record.echoed / burst, Ordering::Release);
    }
}

async fn told(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

// === impl BurstSummary ===

impl BurstSummary {
    pub(crate) fn endings(&self) -> BTreeMap<Ending, usize> {
        tally(self.records.iter().map(|one| one.ending))
    }

    /// Connections that were closed inside a burst.
    pub(crate) fn in_burst(&self) -> usize {
        self.records.iter().filter(|one| one.in_burst).count()
    }

    /// Bytes that were sent and never came back, or came back as others.
    pub(crate) fn lost(&self) -> u64 {
        let lost = |one: &BurstRecord| if one.intact { one.sent - one.echoed } else { one.sent };
        self.records.iter().map(lost).sum()
    }

    /// When the connections ended, counted from this moment, in order.
    pub(crate) fn ends_since(&self, t0: Mono) -> Vec<Duration> {
        let mut times: Vec<Duration> = self.records.iter().map(|one| one.ended.since(t0)).collect();
        times.sort_unstable();
        times
    }

    /// The greatest number of ends in any slice of this width.
    pub(crate) fn densest(&self, slice: Duration) -> usize {
        densest(self.records.iter().map(|one| one.ended), slice)
    }
}
