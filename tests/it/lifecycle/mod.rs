//! Owns tests of the whole life of a pod: real processes, real signals, the kubelet's order.

mod budget;

mod deletion;

mod hangs;

mod jobs;

mod plain;

mod restart;

mod witness;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::harness::SOON;
use crate::harness::client::{Failure, Pool, Record, Reply, Request, Summary, fresh_id};
use crate::harness::ebbtide::surface::{Surface, get};
use crate::harness::pod::{APP_PORT, Event, HookEnd, INBOUND_PORT, Pod, PodBuilder, Who};
use crate::harness::process::Exit;
use crate::harness::wait::{Mono, within};

const EBBTIDE: Who = Who::Ebbtide;
const APP: Who = Who::App(0);
const OK: Exit = Exit::Code(0);
const MILLIS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;

/// A fixed number of requests in flight: each caller sends its next one when the last is answered.
#[derive(Debug)]
struct Callers {
    pool: Arc<Pool>,
    stopped: watch::Sender<bool>,
    tasks: JoinSet<Vec<Record>>,
}

/// Endpoints asked again and again until [`Probes::stop`].
#[derive(Debug)]
struct Probes {
    stopped: watch::Sender<bool>,
    task: JoinHandle<Vec<Probe>>,
}

#[derive(Clone, Debug)]
struct Probe {
    at: Mono,
    ended: Mono,
    path: &'static str,
    status: Result<u16, String>,
}

/// The `slow` toy path.
fn slow(ms: u64) -> Request {
    Request::get(&format!("/slow?ms={ms}"))
}

/// The same, as a request that may reach the app once only.
fn slow_post(ms: u64) -> Request {
    Request::new("POST", &format!("/slow?ms={ms}"))
}

/// Sends in the background, on a connection of its own.
fn call(address: SocketAddr, request: Request) -> JoinHandle<Result<Reply, Failure>> {
    tokio::spawn(async move { crate::harness::client::send(address, &request, SECONDS(60)).await })
}

/// The status of an answer, whatever it is.
fn status(result: &Result<Reply, Failure>) -> Result<u16, Failure> {
    result.as_ref().map(|reply| reply.status).map_err(|failure| *failure)
}

/// Waits until so many requests are in flight to the app.
async fn in_flight(ebbtide: &Surface, at_least: usize) {
    let wanted = at_least as f64;
    ebbtide.metric_becomes("ebbtide_in_flight", &[("kind", "request")], SOON, |value| value >= wanted).await;
}

/// The report of an ebbtide that has ended.
fn report(pod: &Pod) -> Value {
    let text = pod.ebbtide().termination_text();
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("no report but {text:?}"))
}

fn remarks(report: &Value) -> String {
    report["remarks"].as_array().expect("remarks are a list").iter().map(|one| format!("{one}\n")).collect()
}

/// A configuration file with one listener in front of each app of the pod, and more text of its own.
pub(crate) fn yaml(pod: &PodBuilder, listeners: &str, rest: &str) -> String {
    let (ip, upstream) = (pod.ip(), SocketAddr::new(pod.ip(), APP_PORT));
    format!(
        "listeners:\n  - {{name: web, bind: \"{ip}:{INBOUND_PORT}\", upstream: \"http://{upstream}\"}}\n{listeners}{rest}"
    )
}

/// The line of an outbound listener, and where the app finds it.
fn outbound(pod: &PodBuilder, to: SocketAddr) -> (String, SocketAddr) {
    let bind = SocketAddr::new(pod.ip(), 15432);
    let line = format!("  - {{name: db, direction: outbound, bind: \"{bind}\", upstream: \"tcp://{to}\"}}\n");
    (line, bind)
}

/// The contract's picture: hook, app, ebbtide, each after the other, and nobody is killed.
pub(crate) fn assert_orderly_end(pod: &Pod) {
    let timeline = pod.timeline();
    timeline.assert_order(&[
        Event::HookReturned(APP, HookEnd::Ok),
        Event::Signalled(APP, Signal::TERM),
        Event::Exited(APP, OK),
        Event::Turn(EBBTIDE),
        Event::Signalled(EBBTIDE, Signal::TERM),
        Event::Exited(EBBTIDE, OK),
    ]);
    timeline.assert_order(&[Event::HookReturned(EBBTIDE, HookEnd::Ok), Event::Turn(EBBTIDE)]);
    assert_nobody_is_killed(pod);
    let after_app = timeline.between(Event::Exited(APP, OK), Event::Exited(EBBTIDE, OK));
    assert!(after_app < SECONDS(3), "{after_app:?} after the app\n{}", timeline.table());
}

fn assert_nobody_is_killed(pod: &Pod) {
    pod.timeline()
        .assert_never("SIGKILL", |event| matches!(event, Event::Signalled(_, signal) if signal == Signal::KILL));
}

/// An untouched app is told to stop only after its last response.
fn assert_app_was_idle_at_its_end(pod: &Pod) {
    let journal = pod.journal(0);
    let last = journal.last_byte_at().expect("the app has answered");
    let term = journal.term_at().expect("the app was told to stop");
    assert!(last < term, "the last response ended {:?} after SIGTERM", last.since(term));
    assert_eq!(journal.count("req"), journal.count("done"), "requests the app could not finish");
}

// === impl Callers ===

impl Callers {
    fn start(address: SocketAddr, count: usize, request: &Request) -> Self {
        let pool = Arc::new(Pool::new(address, count));
        let (stopped, stop) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for number in 0..count {
            let (pool, request, mut stop) = (pool.clone(), request.clone(), stop.clone());
            tasks.spawn(async move {
                let mut records = Vec::new();
                let stagger = STAGGER.mul_f64(number as f64 / count as f64);
                if tokio::time::timeout(stagger, stop.wait_for(|stop| *stop)).await.is_ok() {
                    return records;
                }
                while !*stop.borrow() {
                    let (record, _) = pool.send(&request, &fresh_id(), SECONDS(30)).await;
                    let failed = record.result.is_err();
                    records.push(record);
                    if failed {
                        // A refused caller must not spin.
                        let _ = tokio::time::timeout(MILLIS(50), stop.wait_for(|stop| *stop)).await;
                    }
                }
                records
            });
        }
        Self { pool, stopped, tasks }
    }

    /// No new requests; waits for those under way.
    async fn stop(mut self) -> Summary {
        self.stopped.send_replace(true);
        let mut records = Vec::new();
        while let Some(task) = within("end of a caller", SECONDS(40), self.tasks.join_next()).await {
            records.extend(task.expect("no caller panics"));
        }
        self.pool.sweep();
        Summary { records, idle_endings: self.pool.idle_endings(), marked_endings: self.pool.marked_endings() }
    }
}

/// Callers start within this time, so that their answers are spread as well.
const STAGGER: Duration = Duration::from_secs(2);

// === impl Probes ===

impl Probes {
    fn start(admin: SocketAddr, paths: &'static [&'static str], period: Duration) -> Self {
        let (stopped, stop) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut probes = Vec::new();
            while !*stop.borrow() {
                for path in paths {
                    let at = Mono::now();
                    let got = get(admin, path, "kube-probe/1.34", SECONDS(2)).await;
                    probes.push(Probe { at, ended: Mono::now(), path, status: got.map(|got| got.status) });
                }
                tokio::time::sleep(period).await;
            }
            probes
        });
        Self { stopped, task }
    }

    async fn stop(self) -> Vec<Probe> {
        self.stopped.send_replace(true);
        within("end of the probes", SOON, self.task).await.expect("probes do not panic")
    }
}
