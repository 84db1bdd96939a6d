//! The tonic client: unary calls, server streams and bidi streams until standard input ends. No generated code.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

const CHANNELS: usize = 2;
const TASKS: usize = 4;
const CHUNK: usize = 3072;
const REPEATS: usize = 3;
const PACE: Duration = Duration::from_millis(20);
const BIDI_INTERVAL: Duration = Duration::from_millis(50);

/// Every message of the service: one bytes field.
#[derive(Clone, PartialEq, prost::Message)]
struct Blob {
    #[prost(bytes = "vec", tag = "1")]
    data: Vec<u8>,
}

#[derive(Default)]
struct Tally {
    ok: u64,
    failed: u64,
    repeated: u64,
    codes: BTreeMap<String, u64>,
    errors: Vec<String>,
    streams: Vec<Value>,
}

/// What all tasks share.
#[derive(Clone)]
struct Run {
    tally: Arc<Mutex<Tally>>,
    stop: watch::Receiver<bool>,
    /// Each task drops its clone when its first answer is there.
    ready: mpsc::Sender<()>,
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

fn blob(text: impl ToString) -> Blob {
    Blob { data: text.to_string().into_bytes() }
}

/// The sequence number and the pod of a chunk, if it is whole to the last byte.
fn check(chunk: &[u8]) -> Option<(u64, String)> {
    let head: Vec<&[u8]> = chunk.splitn(3, |&byte| byte == b' ').collect();
    let [seq, pod, _] = head[..] else { return None };
    let start = seq.len() + pod.len() + 2;
    let number: u64 = std::str::from_utf8(seq).ok()?.parse().ok()?;
    let pattern = (start..chunk.len()).all(|at| chunk[at] == b'a' + ((number + at as u64) % 26) as u8);
    (chunk.len() == CHUNK && pattern).then(|| (number, String::from_utf8_lossy(pod).into_owned()))
}

async fn client(channel: &Channel) -> Result<Grpc<Channel>, Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.map_err(|error| Status::unavailable(format!("not ready: {error}")))?;
    Ok(client)
}

fn path(method: &'static str) -> PathAndQuery {
    PathAndQuery::from_static(method)
}

/// Whether the server has certainly not begun with a call: it was never sent, or refused by GOAWAY or RST_STREAM.
///
/// The other gRPC clients repeat such calls by themselves ("transparent retry"); tonic leaves it to its user. That a
/// call is not executed twice is checked by the app, since the id stays the same.
fn never_begun(status: &Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) {
            return true;
        }
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
            return refused || error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
        }
        source = error.source();
    }
    false
}

/// Makes an attempt, and another one if the first was never begun.
macro_rules! attempts {
    ($run:expr, $attempt:expr) => {{
        let mut left = REPEATS;
        loop {
            match $attempt.await {
                Err(status) if left > 0 && never_begun(&status) => {
                    left -= 1;
                    if let Ok(mut tally) = $run.tally.lock() {
                        tally.repeated += 1;
                    }
                }
                result => break result,
            }
        }
    }};
}

async fn call(channel: &Channel, id: &str) -> Result<(), Status> {
    let codec = ProstCodec::<Blob, Blob>::default();
    let request = client(channel).await?;
    let mut request = pin!(request);
    let answer = request.unary(Request::new(blob(id)), path("/interop.Echo/Unary"), codec);
    let answer = tokio::time::timeout(Duration::from_secs(10), answer).await;
    let answer = answer.map_err(|_| Status::deadline_exceeded("no answer"))??.into_inner();
    let text = String::from_utf8_lossy(&answer.data).into_owned();
    if text.ends_with(&format!(" {id}")) { Ok(()) } else { Err(Status::data_loss("not the answer to this call")) }
}

async fn unary_task(mut run: Run, channel: Channel, number: usize) {
    let mut ready = Some(run.ready.clone());
    drop(std::mem::replace(&mut run.ready, mpsc::channel(1).0));
    for count in 0.. {
        if *run.stop.borrow() {
            break;
        }
        let id = format!("tonic-{number}-{count}");
        let result = attempts!(run, call(&channel, &id));
        ready.take();
        if let Ok(mut tally) = run.tally.lock() {
            match result {
                Ok(()) => tally.ok += 1,
                Err(status) => {
                    tally.failed += 1;
                    *tally.codes.entry((status.code() as i32).to_string()).or_default() += 1;
                    if tally.errors.len() < 5 {
                        tally.errors.push(status.to_string());
                    }
                }
            }
        }
        tokio::time::sleep(PACE).await;
    }
}

/// Opens one stream; for a bidi stream a task of its own sends until the stream is dropped.
async fn open(channel: &Channel, kind: &str) -> Result<Streaming<Blob>, Status> {
    let codec = ProstCodec::<Blob, Blob>::default();
    let mut client = client(channel).await?;
    if kind == "server" {
        let answer = client.server_streaming(Request::new(blob("go")), path("/interop.Echo/Server"), codec).await?;
        return Ok(answer.into_inner());
    }
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        for seq in 1_u64.. {
            if sender.send(blob(seq)).await.is_err() {
                break;
            }
            tokio::time::sleep(BIDI_INTERVAL).await;
        }
    });
    let request = Request::new(ReceiverStream::new(receiver));
    Ok(client.streaming(request, path("/interop.Echo/Bidi"), codec).await?.into_inner())
}

/// Lives through one stream and tells how it ended.
async fn stream(run: &mut Run, channel: &Channel, kind: &str, ready: &mut Option<mpsc::Sender<()>>) -> Value {
    let (mut messages, mut contiguous, mut whole, mut pod, mut by_client) = (0_u64, true, true, String::new(), false);
    let status = match attempts!(run, open(channel, kind)) {
        Err(status) => status,
        Ok(mut stream) => loop {
            let message = tokio::select! {
                message = stream.message() => message,
                _ = run.stop.wait_for(|stop| *stop) => {
                    by_client = true;
                    break Status::cancelled("by the client");
                }
            };
            match message {
                Err(status) => break status,
                Ok(None) => break Status::ok(""),
                Ok(Some(blob)) => {
                    messages += 1;
                    let checked = check(&blob.data);
                    whole &= checked.is_some();
                    if let Some((seq, from)) = checked {
                        contiguous &= seq == messages;
                        pod = from;
                    }
                    ready.take();
                }
            }
        },
    };
    json!({
        "kind": kind, "pod": pod, "code": status.code() as i32, "message": status.message(), "messages": messages,
        "contiguous": contiguous, "whole": whole, "by_client": by_client || status.code() == Code::Cancelled && *run.stop.borrow(),
        "end_ms": now_ms(),
    })
}

async fn stream_task(mut run: Run, channel: Channel, kind: &'static str) {
    let mut ready = Some(run.ready.clone());
    drop(std::mem::replace(&mut run.ready, mpsc::channel(1).0));
    while !*run.stop.borrow() {
        let told = stream(&mut run, &channel, kind, &mut ready).await;
        if let Ok(mut tally) = run.tally.lock() {
            tally.streams.push(told);
        }
        // A client that comes back at once would hammer a service that is down.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = std::env::args().nth(1).ok_or("usage: tonic_client ADDRESS")?;
    let tally = Arc::new(Mutex::new(Tally::default()));
    let (stop, stopped) = watch::channel(false);
    let (ready, mut all_ready) = mpsc::channel(1);
    let run = Run { tally: tally.clone(), stop: stopped, ready };
    let mut tasks = Vec::new();
    for channel in 0..CHANNELS {
        let channel_of_its_own = Endpoint::from_shared(format!("http://{target}"))?.connect_lazy();
        for number in 0..TASKS / CHANNELS {
            let channel_copy = || channel_of_its_own.clone();
            tasks.push(tokio::spawn(unary_task(run.clone(), channel_copy(), channel * TASKS + number)));
            tasks.push(tokio::spawn(stream_task(run.clone(), channel_copy(), "server")));
            tasks.push(tokio::spawn(stream_task(run.clone(), channel_copy(), "bidi")));
        }
    }
    drop(run);
    tokio::spawn(async move {
        all_ready.recv().await;
        println!("{}", json!({"event": "ready"}));
    });
    // Standard input ends when the runner has seen enough.
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    stop.send_replace(true);
    for task in tasks {
        task.await?;
    }
    let tally = tally.lock().map_err(|_| "a task panicked")?;
    let report = json!({
        "client": "tonic", "ok": tally.ok, "failed": tally.failed, "codes": tally.codes, "errors": tally.errors,
        "repeated": tally.repeated,
        "streams": tally.streams,
    });
    println!("{report}");
    Ok(())
}
