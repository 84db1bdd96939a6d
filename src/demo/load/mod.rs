//! The load: clients of several kinds that take every answer as it comes.
//!
//! None has a policy of retries. HTTP/1 clients repeat nothing; HTTP/2 clients only what the server has provably not
//! looked at, which is part of the protocol.

mod http2;
mod calls;
mod sessions;
mod events;
mod lines;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep, timeout};

use http2::Channel;
use sessions::Said;

use super::app::{ROW, report_rows};
use super::balancer::{Balancer, Refusals};
use super::http::{Answer, Broken, Head, begin, exchange};
use super::outcome::{Counts, Failure, LoadKind};

/// Running load clients; dropping it abandons them.
#[derive(Debug)]
pub(super) struct Load {
    tally: Arc<Tally>,
    said: Arc<Said>,
    stop: watch::Sender<bool>,
    clients: JoinSet<()>,
}

/// What all clients have seen so far.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<BTreeMap<LoadKind, Counts>>);

/// How something without an end was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// It was still going on when the load ended.
    Running,
    /// The server has ended it in order and wants its client to come again.
    Told,
}

/// What a client needs.
#[derive(Debug, Clone)]
struct Client {
    kind: LoadKind,
    target: SocketAddr,
    refusals: Refusals,
    tally: Arc<Tally>,
    stop: watch::Receiver<bool>,
}

// === impl Load ===

impl Load {
    /// Starts every kind of load, about `rate` requests per second in all: against `balancer`, and the app's own
    /// protocol against `raw`.
    pub(super) fn start(balancer: &Balancer, raw: &Balancer, rate: u32) -> Self {
        let said = Arc::new(Said::default());
        let tally = Arc::new(Tally::default());
        let (stop, stopped) = watch::channel(false);
        let mut clients = JoinSet::new();
        for kind in LoadKind::ALL {
            let balancer = if kind == LoadKind::RawTcp { raw } else { balancer };
            let client = Client {
                kind,
                target: balancer.address,
                refusals: balancer.refusals(),
                tally: Arc::clone(&tally),
                stop: stopped.clone(),
            };
            let stop = stopped.clone();
            match kind {
                LoadKind::KeepAlivePost => {
                    for _ in 0..(rate * 3 / 10 / KEEP_ALIVE_RATE).max(1) {
                        clients.spawn(keep_alive(client.clone()));
                    }
                }
                LoadKind::NewConnection => {
                    clients.spawn(paced(client, stop, rate * 3 / 10, fetch));
                }
                LoadKind::SlowRequest => {
                    clients.spawn(paced(client, stop, (rate / 100).max(1), slow));
                }
                LoadKind::Http2Request => start_channels(&mut clients, &client, rate / 5, http2::order),
                LoadKind::GrpcUnary => start_channels(&mut clients, &client, rate / 5, calls::price),
                LoadKind::GrpcStream => {
                    for _ in 0..(rate / 50).max(1) {
                        clients.spawn(calls::watch(client.clone()));
                    }
                }
                LoadKind::WebSocket => {
                    for _ in 0..(rate / 10).max(1) {
                        clients.spawn(sessions::talk(client.clone(), Arc::clone(&said)));
                    }
                }
                LoadKind::EventStream => {
                    for _ in 0..(rate / 20).max(1) {
                        clients.spawn(events::listen(client.clone()));
                    }
                }
                LoadKind::RawTcp => {
                    for _ in 0..(rate / 40).max(1) {
                        clients.spawn(lines::order(client.clone()));
                    }
                }
            }
        }
        Self { tally, said, stop, clients }
    }

    /// The counts, while they grow.
    pub(super) fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.tally)
    }

    /// Starts no further request, waits for the answers that are due, and returns the counts; `heard` tells then how
    /// many messages of each session the apps have read.
    pub(super) async fn finish(mut self, heard: impl FnOnce() -> BTreeMap<u64, u64>) -> BTreeMap<LoadKind, Counts> {
        self.stop.send_replace(true);
        while self.clients.join_next().await.is_some() {}
        self.said.compare(&heard(), &self.tally);
        self.tally.lock().clone()
    }
}

// === impl Tally ===

impl Tally {
    /// Requests and failures of all kinds.
    pub(super) fn totals(&self) -> (u64, u64) {
        self.lock()
            .values()
            .fold((0, 0), |(requests, failed), counts| (requests + counts.requests, failed + counts.failed))
    }

    fn record(&self, kind: LoadKind, result: Result<(), Failure>) {
        self.lock().entry(kind).or_default().record(result);
    }

    fn repeated(&self, kind: LoadKind) {
        self.lock().entry(kind).or_default().repeated += 1;
    }

    fn told(&self, kind: LoadKind) {
        self.lock().entry(kind).or_default().told += 1;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<LoadKind, Counts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Client ===

impl Client {
    async fn connect(&self) -> Result<TcpStream, Failure> {
        let stream = TcpStream::connect(self.target).await.map_err(|_| Failure::Other)?;
        stream.set_nodelay(true).map_err(|_| Failure::Other)?;
        Ok(stream)
    }

    /// One request, one verdict; `Ok(true)` if the connection can be used again.
    async fn attempt(&self, stream: &mut TcpStream, request: &str, expected: &[u8]) -> Result<bool, Failure> {
        let local = stream.local_addr().map_err(|_| Failure::Other)?;
        let answer = self.answered(local, exchange(stream, request.as_bytes())).await?;
        judge(&answer, expected).map(|()| answer.keep_alive)
    }

    /// A connection with the head of the answer to `request`, which must be `status`, and what has come behind it.
    async fn open(&self, request: &str, status: u16) -> Result<(TcpStream, Head, Vec<u8>), Failure> {
        let mut stream = self.connect().await?;
        let local = stream.local_addr().map_err(|_| Failure::Other)?;
        let (head, behind) = self.answered(local, begin(&mut stream, request.as_bytes())).await?;
        match head.status() {
            Ok(answer) if answer == status => Ok((stream, head, behind)),
            Ok(500..=599) => Err(Failure::ServerError),
            Ok(_) | Err(_) => Err(Failure::Other),
        }
    }

    async fn answered<T>(
        &self,
        local: SocketAddr,
        answer: impl Future<Output = Result<T, Broken>>,
    ) -> Result<T, Failure> {
        match timeout(REQUEST_TIMEOUT, answer).await.map_err(|_| Failure::Timeout)? {
            Ok(answer) => Ok(answer),
            Err(_) if self.refusals.take(local) => Err(Failure::Refused),
            Err(broken) => Err(broken.failure()),
        }
    }

    /// Something without an end has come to one.
    fn left(&self, result: Result<Left, Failure>) {
        if result == Ok(Left::Told) {
            self.tally.told(self.kind);
        }
        self.tally.record(self.kind, result.map(|_| ()));
    }

    /// One request on a connection of its own.
    async fn once(&self, request: &str, expected: &[u8]) {
        let result = match self.connect().await {
            Ok(mut stream) => self.attempt(&mut stream, request, expected).await,
            Err(failure) => Err(failure),
        };
        self.tally.record(self.kind, result.map(|_| ()));
    }
}

/// POSTs again and again on one connection; takes a new one only when the old one was closed or told to go.
async fn keep_alive(mut client: Client) {
    let period = Duration::from_secs(1) / KEEP_ALIVE_RATE;
    // Without this all clients of the pool would send in the same instant.
    sleep(period.mul_f64(fastrand::f64())).await;
    let mut pace = ticker(period);
    let mut connection: Option<TcpStream> = None;
    while next(&mut pace, &mut client.stop).await {
        let mut stream = match connection.take().filter(is_open) {
            Some(stream) => stream,
            None => match client.connect().await {
                Ok(stream) => stream,
                Err(failure) => {
                    client.tally.record(client.kind, Err(failure));
                    continue;
                }
            },
        };
        let body = format!("order {:016x}\n", fastrand::u64(..));
        let request = format!("POST /order HTTP/1.1\r\nHost: demo\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let result = client.attempt(&mut stream, &request, body.as_bytes()).await;
        if result == Ok(true) {
            connection = Some(stream);
        }
        client.tally.record(client.kind, result.map(|_| ()));
    }
}

/// Starts as many HTTP/2 connections as share `rate` requests a second.
fn start_channels<F>(clients: &mut JoinSet<()>, client: &Client, rate: u32, one: fn(Arc<Channel>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let count = (rate / CHANNEL_RATE).max(1);
    for _ in 0..count {
        let channel = Arc::new(Channel::new(client.clone()));
        let stop = client.stop.clone();
        clients.spawn(async move {
            sleep((Duration::from_secs(1) / CHANNEL_RATE).mul_f64(fastrand::f64())).await;
            paced(channel, stop, rate / count, one).await;
        });
    }
}

/// Starts `one` request `rate` times a second, however long the answers take.
async fn paced<C, F>(context: C, mut stop: watch::Receiver<bool>, rate: u32, one: fn(C) -> F)
where
    C: Clone,
    F: Future<Output = ()> + Send + 'static,
{
    let mut pace = ticker(Duration::from_secs(1) / rate.max(1));
    let mut requests = JoinSet::new();
    while next(&mut pace, &mut stop).await {
        requests.spawn(one(context.clone()));
        while requests.try_join_next().is_some() {}
    }
    while requests.join_next().await.is_some() {}
}

async fn fetch(client: Client) {
    client.once("GET / HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n", b"hello\n").await;
}

async fn slow(client: Client) {
    let path = format!("/report?ms={}", SLOW_TIME.as_millis());
    let request = format!("GET {path} HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n");
    client.once(&request, &ROW.repeat(report_rows(SLOW_TIME))).await;
}

/// Waits for the next moment to send; `false` when the load is over.
async fn next(pace: &mut Interval, stop: &mut watch::Receiver<bool>) -> bool {
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => false,
        _ = pace.tick() => true,
    }
}

fn ticker(period: Duration) -> Interval {
    let mut ticker = interval(period);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticker
}

/// What every connection pool checks before it uses a connection again; this is no retry.
fn is_open(stream: &TcpStream) -> bool {
    matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

fn judge(answer: &Answer, expected: &[u8]) -> Result<(), Failure> {
    match answer.status {
        200 if answer.body == expected => Ok(()),
        500..=599 => Err(Failure::ServerError),
        _ => Err(Failure::Other),
    }
}

/// Requests per second of one keep-alive client.
const KEEP_ALIVE_RATE: u32 = 10;

/// Requests per second on one HTTP/2 connection.
const CHANNEL_RATE: u32 = 10;

/// What was ended is opened again this soon.
const REOPEN: Duration = Duration::from_millis(250);

const SLOW_TIME: Duration = Duration::from_secs(3);

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
