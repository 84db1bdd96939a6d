//! Owns the app's side: reuse, staleness, the retry rule, and apps that end connections in their own ways.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::stage::{LONG, Script, Stage, front, pause, plain, terminate};
use crate::harness::app::AppOptions;
use crate::harness::client::{Connection, Raw, Request, fresh_id, send};
use crate::harness::ebbtide::Config;
use crate::harness::http::{Head, Wire};
use crate::harness::wait::{Mono, eventually};
use crate::harness::{SOON, heavy};

async fn answer(wire: &mut Wire<TcpStream>, text: &str) {
    let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len());
    let _ = wire.get_mut().write_all(reply.as_bytes()).await;
}

/// The next request with its body; `None` at the end of the connection.
async fn request(wire: &mut Wire<TcpStream>) -> Option<Head> {
    let head = wire.head().await.ok()?;
    wire.body(head.request_framing(), |_| {}).await.ok()?;
    Some(head)
}

/// C47: an app that closes idle connections after 1.0 s, and requests that come just then: nobody notices.
#[tokio::test]
async fn an_apps_idle_close_never_surfaces() {
    let _heavy = heavy().await;
    let options = AppOptions { idle_close: Some(Duration::from_secs(1)), ..AppOptions::default() };
    let stage = Stage::start(options, plain(LONG)).await;
    let mut lanes = JoinSet::new();
    let end = Mono::now() + Duration::from_secs(10);
    for lane in 0..100_u64 {
        let address = stage.address;
        lanes.spawn(async move {
            let mut random = fastrand::Rng::with_seed(lane);
            let mut connection = Connection::open(address, SOON).await.expect("accepted");
            let request = if lane % 2 == 0 { Request::get("/") } else { Request::echo(20) };
            let mut results = Vec::new();
            while Mono::now() < end {
                let reply = connection.exchange(&request, &fresh_id(), SOON).await;
                results.push(reply.and_then(|reply| reply.verdict()));
                tokio::time::sleep(Duration::from_millis(random.u64(950..=1050))).await;
            }
            results
        });
    }
    let results: Vec<_> = lanes.join_all().await.into_iter().flatten().collect();
    let failed: Vec<_> = results.iter().filter(|result| **result != Ok(200)).collect();
    assert!(failed.is_empty(), "{} of {}: {failed:?}", failed.len(), results.len());
    assert!(results.len() > 500, "{} requests", results.len());
    assert_eq!(stage.px.metrics().await.sum("ebbtide_requests_total", &[("outcome", "bad_gateway")]), 0.0);
}

/// C49: `Connection: close` from the app ends the upstream connection only, or the client's too if so configured.
#[tokio::test]
async fn the_apps_close_is_obeyed_and_handed_on_only_if_configured() {
    for pass_on in [false, true] {
        let options = AppOptions { close_every: 3, ..AppOptions::default() };
        let yaml = format!("drain: {{{LONG}}}\npass_on_close: {pass_on}");
        let stage = Stage::start(options, Config::new().yaml(&yaml)).await;
        let mut connection = stage.connection().await;
        let mut closed = 0;
        for _ in 0..30 {
            let reply = connection.exchange(&Request::get("/"), &fresh_id(), SOON).await.unwrap();
            assert_eq!(reply.status, 200);
            closed += reply.closes();
            if !connection.is_reusable() {
                connection = stage.connection().await;
            }
        }
        assert_eq!(closed, if pass_on { 10 } else { 0 });
        let mut used = std::collections::BTreeMap::<String, usize>::new();
        for line in stage.app.journal.lines("req") {
            *used.entry(line.get("conn").to_owned()).or_default() += 1;
        }
        assert!(used.values().all(|times| *times <= 3), "an upstream connection was used after its close: {used:?}");
    }
}

/// §7: an app that closes without saying so is never met on a connection that it has closed.
#[tokio::test]
async fn an_app_that_closes_unannounced_costs_no_request() {
    let options = AppOptions { drop_every: 2, ..AppOptions::default() };
    let stage = Stage::start(options, plain(LONG)).await;
    let mut connection = stage.connection().await;
    for number in 0..60 {
        let request = if number % 2 == 0 { Request::get("/") } else { Request::echo(30) };
        let reply = connection.exchange(&request, &fresh_id(), SOON).await.unwrap();
        assert_eq!((reply.status, reply.intact), (200, true), "request {number}");
        // The FIN is on its way; a POST that meets it could not be sent again.
        pause(5).await;
    }
    assert!(stage.app.journal.seen().values().all(|times| *times == 1));
}

/// An app whose connections answer once and die, without an answer, as soon as the second request has come.
async fn dies_at_the_second_request() -> (Script, Arc<AtomicUsize>) {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    let script = Script::start(move |_, mut wire| {
        let count = count.clone();
        async move {
            if request(&mut wire).await.is_some() {
                answer(&mut wire, "first").await;
                if request(&mut wire).await.is_some() {
                    count.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    })
    .await;
    (script, seen)
}

/// §7: a reused connection that dies before any response byte: idempotent without a body is sent once more.
#[tokio::test]
async fn only_idempotent_requests_without_a_body_are_sent_again_and_only_once() {
    for (method, body, expected) in [
        ("GET", 0, 200),
        ("HEAD", 0, 200),
        ("DELETE", 0, 200),
        ("OPTIONS", 0, 200),
        ("POST", 0, 502),
        ("PATCH", 0, 502),
        ("POST", 5, 502),
        ("PUT", 5, 502),
    ] {
        let (script, seen) = dies_at_the_second_request().await;
        let (px, address) = front(plain(LONG), &script.upstream()).await;
        assert_eq!(send(address, &Request::get("/"), SOON).await.unwrap().status, 200);
        let mut raw = Raw::connect(address).await.unwrap();
        let head = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: {body}\r\n\r\n");
        let head = if body == 0 && method != "POST" { head.replace("Content-Length: 0\r\n", "") } else { head };
        raw.send([head.as_bytes(), &vec![b'x'; body]].concat()).await.unwrap();
        let reply = raw.reply(method, SOON).await.unwrap();
        assert_eq!(reply.status, expected, "{method} with {body} bytes");
        assert_eq!(seen.load(Ordering::SeqCst), 1, "{method}: reached the dying connection");
        let retries = px.metrics().await.sum("ebbtide_upstream_retries_total", &[]);
        assert_eq!(retries, if expected == 200 { 1.0 } else { 0.0 }, "{method}");
        // A 502 that is not about termination leaves the client's connection usable.
        assert_eq!(reply.closes(), 0);
    }
}

/// §7: a fresh connection that dies is a 502, at once and once.
#[tokio::test]
async fn a_fresh_connection_that_dies_is_a_502_and_no_retry() {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    let script = Script::start(move |_, mut wire| {
        let count = count.clone();
        async move {
            if request(&mut wire).await.is_some() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
    .await;
    let (_px, address) = front(plain(LONG), &script.upstream()).await;
    for (number, request) in [Request::get("/"), Request::echo(10)].iter().enumerate() {
        let reply = send(address, request, SOON).await.unwrap();
        assert_eq!(reply.status, 502);
        assert_eq!(seen.load(Ordering::SeqCst), number + 1);
    }
}

/// §7: half a response head and then the end is a 502 without a retry: response bytes have come.
#[tokio::test]
async fn half_a_response_head_is_a_502_without_a_retry() {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    let script = Script::start(move |_, mut wire| {
        let count = count.clone();
        async move {
            if request(&mut wire).await.is_some() {
                answer(&mut wire, "first").await;
            }
            if request(&mut wire).await.is_some() {
                count.fetch_add(1, Ordering::SeqCst);
                let _ = wire.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-").await;
            }
        }
    })
    .await;
    let (_px, address) = front(plain(LONG), &script.upstream()).await;
    let mut connection = Connection::open(address, SOON).await.unwrap();
    for expected in [200, 502] {
        let reply = connection.exchange(&Request::get("/"), &fresh_id(), SOON).await.unwrap();
        assert_eq!(reply.status, expected);
    }
    assert_eq!(seen.load(Ordering::SeqCst), 1);
}

/// hyper#4176: an app that answers before the upload is through and never reads on does not pile up connections.
#[tokio::test]
async fn early_answers_do_not_pile_up_connections() {
    let script = Script::start(|_, mut wire| async move {
        if wire.head().await.is_ok() {
            answer(&mut wire, "enough").await;
            // Neither reads nor closes; ends when the other side does.
            while !matches!(wire.get_mut().ready(tokio::io::Interest::READABLE).await, Ok(r) if r.is_read_closed()) {
                pause(20).await;
            }
        }
    })
    .await;
    let (px, address) = front(plain(LONG), &script.upstream()).await;
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut raw = Raw::connect(address).await.unwrap();
        raw.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000000\r\n\r\nsome").await.unwrap();
        let reply = raw.reply("POST", SOON).await.unwrap();
        assert_eq!((reply.status, reply.body.as_slice()), (200, b"enough".as_slice()));
        clients.push(raw);
    }
    drop(clients);
    // ebbtide's own dials come and go; what is bound to a request must be let go soon after its client.
    eventually("upstream connections are given up", SOON, || match script.open() {
        0..=1 => Ok(()),
        open => Err(open),
    })
    .await;
    assert!(script.accepted() >= 20);
    px.metric_becomes("ebbtide_in_flight", &[], SOON, |count| count == 0.0).await;
    px.metric_becomes("ebbtide_connections", &[], Duration::from_secs(15), |count| count == 0.0).await;
}

/// §7: an app may answer first and read on; the upload is not cut, and a drain waits for it.
#[tokio::test]
async fn an_upload_goes_on_behind_an_early_answer() {
    let got = Arc::new(AtomicUsize::new(0));
    let count = got.clone();
    let script = Script::start(move |_, mut wire| {
        let count = count.clone();
        async move {
            while let Ok(head) = wire.head().await {
                answer(&mut wire, "early").await;
                let length = wire.body(head.request_framing(), |_| {}).await.unwrap_or(0);
                count.fetch_add(usize::try_from(length).unwrap(), Ordering::SeqCst);
            }
        }
    })
    .await;
    let (px, address) = front(plain(super::stage::DRAINS), &script.upstream()).await;
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n").await.unwrap();
    raw.send(vec![b'x'; 100_000]).await.unwrap();
    assert_eq!(raw.reply("POST", SOON).await.unwrap().body, b"early");
    terminate(&px).await;
    pause(3000).await;
    raw.send(vec![b'x'; 200_000]).await.unwrap();
    eventually("the app has all of it", SOON, || match got.load(Ordering::SeqCst) {
        300_000 => Ok(()),
        other => Err(other),
    })
    .await;
    px.exit(SOON).await;
}

/// RFC 9112 §6.3, §7: what the app frames twice comes whole; what can't be passed on is a 502.
#[tokio::test]
async fn an_apps_odd_framing_is_put_right_or_refused() {
    for (head, expected) in [
        ("200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked", (200, "hello")),
        ("200 OK\r\nTransfer-Encoding: gzip, chunked", (502, "")),
        ("101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x", (502, "")),
    ] {
        let script = Script::start(move |_, mut wire| async move {
            while request(&mut wire).await.is_some() {
                let reply = format!("HTTP/1.1 {head}\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
                let _ = wire.get_mut().write_all(reply.as_bytes()).await;
            }
        })
        .await;
        let (_px, address) = front(plain(LONG), &script.upstream()).await;
        let reply = send(address, &Request::get("/"), SOON).await.unwrap();
        let body = if reply.status == 200 { String::from_utf8_lossy(&reply.body).into_owned() } else { String::new() };
        assert_eq!((reply.status, body.as_str()), expected, "{head:?}");
    }
}

/// §7: an app that sends what nobody asked for is not trusted with the next request.
#[tokio::test]
async fn unasked_bytes_from_the_app_never_reach_a_client() {
    let script = Script::start(|_, mut wire| async move {
        while request(&mut wire).await.is_some() {
            answer(&mut wire, "asked").await;
            answer(&mut wire, "never asked").await;
        }
    })
    .await;
    let (_px, address) = front(plain(LONG), &script.upstream()).await;
    for _ in 0..20 {
        let reply = send(address, &Request::get("/"), SOON).await.unwrap();
        assert_eq!(reply.body, b"asked");
    }
}

/// §2: an app that refuses after t0 is answered for: 503 with `Retry-After`, and the connection ends.
#[tokio::test]
async fn an_app_that_is_gone_after_t0_is_answered_for() {
    let stage = Stage::simple().await;
    let mut used = stage.used().await;
    stage.terminate().await;
    stage.app.process.signal(rustix::process::Signal::KILL);
    stage.app.process.exit(SOON).await;
    let reply = used.exchange(&Request::echo(10), &fresh_id(), SOON).await.unwrap();
    assert_eq!((reply.status, reply.closes()), (503, 1), "{}", reply.head.text);
    assert!(reply.head.get("retry-after").is_some());
    terminate_is_over(&stage).await;
}

async fn terminate_is_over(stage: &Stage) {
    // The app is gone and nothing is in flight, so nothing is left to wait for.
    stage.px.exit(SOON).await;
}

/// §7: an upstream that is a Unix socket works like any other.
#[tokio::test]
async fn a_unix_socket_serves_like_tcp() {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("app.sock");
    let options = AppOptions { listen: crate::harness::app::Listen::Unix(path), ..AppOptions::default() };
    let stage = Stage::start(options, plain(LONG)).await;
    let mut connection = stage.connection().await;
    for request in [
        Request::get("/"),
        Request::echo(200_000),
        Request::echo(200_000).chunked(),
        Request::bytes(2_000_000, true),
        Request::new("HEAD", "/bytes?n=7"),
    ] {
        let reply = connection.exchange(&request, &fresh_id(), SOON).await.unwrap();
        assert_eq!((reply.status, reply.intact), (200, true), "{} {}", request.method, request.path);
    }
    let connections: std::collections::BTreeSet<_> =
        stage.app.journal.lines("req").iter().map(|line| line.get("conn").to_owned()).collect();
    assert_eq!(connections.len(), 1, "the upstream connection is reused: {connections:?}");
    terminate(&stage.px).await;
    assert_eq!(stage.send(&Request::echo(9)).await.unwrap().status, 200);
}
