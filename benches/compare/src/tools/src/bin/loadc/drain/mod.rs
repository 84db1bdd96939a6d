//! Owns the terminations: the same story for every protocol, told to a proxy that is being stopped.
//!
//! Load runs for two seconds, `READY` is said, and the harness stops the proxy and says `SIGNAL`: that is t0. For five
//! seconds (the hold: the balancers have not noticed yet) all goes on as before, new connections included; refused is
//! failed. After it only what is still open is used: a client without a connection has found another pod, and nobody
//! new comes. It ends when the harness has said `GONE` and the hold is over.
//!
//! Between a client's last look at its connection and its request's arrival lies RTT, as on a network: that is the
//! window in which a close and a request cross. 50 answers that take three seconds are under way at t0, and 50 more
//! begin 3.5 s after it.

mod h1;
mod h2;
mod tcp;
mod ws;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, sleep_until};

use crate::net::{Fail, percentile, stdin, stdin_line};

const HOLD: Duration = Duration::from_secs(5);
/// The harness kills at 20 s; this is for a harness that has died.
const LONGEST: Duration = Duration::from_secs(45);
const SLOW: usize = 50;

/// What is counted, protocol by protocol; the first three decide, the others explain.
#[derive(Default)]
struct Stats {
    ok: BTreeMap<&'static str, u64>,
    /// By phase, kind of request, and way to fail.
    fail: BTreeMap<(&'static str, &'static str, Fail), u64>,
    fail_times: Vec<f64>,
    latencies: Vec<u32>,
    notes: BTreeMap<&'static str, u64>,
}

struct World {
    proxy: SocketAddr,
    app: SocketAddr,
    conns: usize,
    rate: usize,
    rtt: Duration,
    stats: RefCell<Stats>,
    /// When the proxy was told to stop.
    t0: Cell<Option<Instant>>,
    gone: Cell<bool>,
}

/// What the driver asks a protocol for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    /// A request of a client that keeps its connection.
    Pooled,
    /// A client that is new: connect, one request, close.
    Fresh,
    /// The same with an answer that takes three seconds.
    Slow,
}

impl World {
    fn phase(&self) -> &'static str {
        match self.t0.get() {
            None => "before",
            Some(t0) if t0.elapsed() < HOLD => "hold",
            Some(_) => "after",
        }
    }

    /// Whether clients still know this pod: a new connection would come here.
    fn is_known(&self) -> bool {
        self.phase() != "after"
    }

    fn ok(&self, phase: &'static str, due: Instant) {
        let mut stats = self.stats.borrow_mut();
        *stats.ok.entry(phase).or_default() += 1;
        stats.latencies.push(due.elapsed().as_micros() as u32);
    }

    fn failed(&self, phase: &'static str, kind: &'static str, fail: Fail) {
        let mut stats = self.stats.borrow_mut();
        *stats.fail.entry((phase, kind, fail)).or_default() += 1;
        if let Some(t0) = self.t0.get() {
            stats.fail_times.push(t0.elapsed().as_secs_f64());
        }
    }

    fn note(&self, what: &'static str, count: u64) {
        *self.stats.borrow_mut().notes.entry(what).or_default() += count;
    }

    fn is_over(&self) -> bool {
        self.gone.get() && self.t0.get().is_some_and(|t0| t0.elapsed() > HOLD + Duration::from_millis(500))
    }
}

/// The story of this module. `dispatch` starts what it is asked for and does not wait for it.
async fn tell(world: &Rc<World>, fresh_every: usize, mut dispatch: impl FnMut(Ask, Instant)) {
    let start = Instant::now();
    let slow_at = Rc::new(Cell::new(Some(start + Duration::from_secs(1))));
    let (teller, next_slow) = (world.clone(), slow_at.clone());
    tokio::task::spawn_local(async move {
        sleep(Duration::from_secs(2)).await;
        println!("READY {} {}", teller.conns, notes(&teller));
        let mut stdin = stdin();
        while let Some(line) = stdin_line(&mut stdin).await {
            match line.as_str() {
                "SIGNAL" => {
                    teller.t0.set(Some(Instant::now()));
                    next_slow.set(Some(Instant::now() + Duration::from_millis(3500)));
                }
                _ => {
                    sleep(Duration::from_millis(200)).await;
                    teller.gone.set(true);
                }
            }
        }
    });
    let mut sent = 0;
    while !world.is_over() && start.elapsed() < LONGEST {
        let now = Instant::now();
        if slow_at.get().is_some_and(|at| now >= at) {
            slow_at.set(None);
            (0..SLOW).for_each(|_| dispatch(Ask::Slow, now));
        }
        let due = ((now - start).as_secs_f64() * world.rate as f64) as usize;
        while sent < due {
            let moment = start + Duration::from_secs_f64(sent as f64 / world.rate as f64);
            sent += 1;
            if fresh_every == 0 || sent % fresh_every != 0 {
                dispatch(Ask::Pooled, moment);
            } else if world.is_known() {
                dispatch(Ask::Fresh, moment);
            }
            // What was started gets to mark its connection as busy.
            tokio::task::yield_now().await;
        }
        sleep_until((now + Duration::from_millis(1)).into()).await;
    }
    sleep(Duration::from_millis(500)).await;
}

fn notes(world: &World) -> String {
    let stats = world.stats.borrow();
    stats.notes.iter().map(|(what, count)| format!("{what}={count}")).collect::<Vec<_>>().join(" ")
}

fn print(world: &World, still_open: usize) {
    let mut stats = world.stats.borrow_mut();
    let failed: u64 = stats.fail.values().sum();
    let fails = stats.fail.iter().map(|((phase, kind, fail), n)| format!(r#""{phase}/{kind}/{}":{n}"#, fail.name()));
    let fails = fails.collect::<Vec<_>>().join(",");
    let pairs = |map: &BTreeMap<&'static str, u64>| {
        map.iter().map(|(name, count)| format!(r#""{name}":{count}"#)).collect::<Vec<_>>().join(",")
    };
    let (ok, notes) = (pairs(&stats.ok), pairs(&stats.notes));
    let first = stats.fail_times.iter().copied().fold(f64::INFINITY, f64::min);
    let last = stats.fail_times.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let second = |at: f64| if at.is_finite() { format!("{at:.3}") } else { "null".to_owned() };
    let p99 = percentile(&mut stats.latencies, 0.99);
    println!(
        r#"{{"failed":{failed},"fail":{{{fails}}},"ok":{{{ok}}},"notes":{{{notes}}},"still_open":{still_open},"first_fail_s":{},"last_fail_s":{},"p99":{p99}}}"#,
        second(first),
        second(last),
    );
}

pub async fn run(kind: &str, proxy: SocketAddr, app: SocketAddr, conns: usize, rate: usize, rtt_ms: u64) {
    let world = Rc::new(World {
        proxy,
        app,
        conns,
        rate,
        rtt: Duration::from_millis(rtt_ms),
        stats: RefCell::default(),
        t0: Cell::new(None),
        gone: Cell::new(false),
    });
    let still_open = match kind {
        "h1" => h1::run(&world).await,
        "h2" => h2::run(&world, h2::Shape::Plain).await,
        "grpc" => h2::run(&world, h2::Shape::Grpc).await,
        "ws" => ws::run(&world).await,
        "tcp" => tcp::run(&world).await,
        _ => panic!("no protocol {kind}"),
    };
    print(&world, still_open);
}
