//! Owns what becomes of requests that are still in flight when the time is up: each kind has its own ending.

use std::time::Duration;

use rustix::process::Signal;

use super::stage::{LONG, Script, Stage, front, pause, plain, terminate};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::{Ending, Failure, Raw, Request, fresh_id};
use crate::harness::process::Exit;
use crate::harness::wait::Mono;

/// §6: unanswered requests get 504, responses under way break visibly, all are counted by kind.
#[tokio::test]
async fn each_kind_of_work_has_its_ending_and_is_counted() {
    let stage = Stage::simple().await;
    let mut hanging = Vec::new();
    for request in ["GET /hang HTTP/1.1\r\nHost: a\r\n\r\n", "GET /hang HTTP/1.0\r\n\r\n"] {
        let mut raw = stage.raw().await;
        raw.send(request).await.unwrap();
        hanging.push(raw);
    }
    let mut uploading = stage.raw().await;
    uploading.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf").await.unwrap();
    let mut streaming = Vec::new();
    for (request, kind) in [
        ("GET /chunks?n=100000&every_ms=20 HTTP/1.1\r\nHost: a\r\n\r\n", "chunked"),
        ("GET /chunks?n=100000&every_ms=20 HTTP/1.0\r\n\r\n", "close-delimited"),
    ] {
        let mut raw = stage.raw().await;
        raw.send(request).await.unwrap();
        raw.read_until(b"piece 3", SOON).await.expect("the stream runs");
        streaming.push((raw, kind));
    }
    stage.app.journal.wait("req", 5, SOON).await;
    stage.terminate().await;
    stage.px.signal(Signal::TERM);
    for raw in hanging.iter_mut().chain([&mut uploading]) {
        let reply = raw.reply("GET", SOON).await.expect("an answer");
        assert_eq!((reply.status, reply.closes()), (504, 1), "{}", reply.head.text);
        assert_eq!(reply.head.get("retry-after"), None, "it may have been executed");
        assert_eq!(raw.ending(SOON).await.1, Ending::Fin);
    }
    for (mut raw, kind) in streaming {
        let (rest, ending) = raw.ending(SOON).await;
        assert!(!rest.ends_with(b"0\r\n\r\n"), "{kind}: a clean end");
        if kind == "close-delimited" {
            assert_eq!(ending, Ending::Reset, "{kind}: a plain close would be a clean end");
        }
    }
    assert_eq!(stage.px.exit(SOON).await, Exit::Code(0));
    let report = stage.px.report(SOON).await;
    assert_eq!(report["outcome"], "forced", "{report}");
    assert_eq!(report["forced"]["request_unanswered"], 3, "{report}");
    assert_eq!(report["forced"]["response"], 2, "{report}");
}

/// §6: a response of known length that is cut is short of it.
#[tokio::test]
async fn a_response_of_known_length_is_cut_short() {
    let script = Script::start(|_, mut wire| async move {
        while let Ok(_head) = wire.head().await {
            let stream = wire.get_mut();
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbeginning";
            let _ = tokio::io::AsyncWriteExt::write_all(stream, head).await;
        }
    })
    .await;
    let (px, address) = front(plain(LONG), &script.upstream()).await;
    let mut raws = Vec::new();
    for version in ["1.1", "1.0"] {
        let mut raw = Raw::connect(address).await.unwrap();
        raw.send(format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n")).await.unwrap();
        raw.read_until(b"beginning", SOON).await.unwrap();
        raws.push(raw);
    }
    terminate(&px).await;
    px.signal(Signal::TERM);
    for mut raw in raws {
        let (rest, ending) = raw.ending(SOON).await;
        assert!(rest.is_empty() && ending != Ending::StillOpen, "{rest:?} {ending:?}");
    }
    assert_eq!(px.exit(SOON).await, Exit::Code(0));
    assert_eq!(px.report(SOON).await["forced"]["response"], 2);
}

/// §6: a request that has not reached the app gets 503 with an invitation to retry.
#[tokio::test]
async fn a_request_of_which_nothing_was_sent_gets_503() {
    // A backlog that is full: connecting hangs, so nothing is sent.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    socket.listen(8).unwrap();
    let listener: std::net::TcpListener = socket.into();
    let app = listener.local_addr().unwrap();
    let (px, address) = front(plain("grace_period: 60s, hold: 30s, close: 1s"), &format!("http://{app}")).await;
    let mut fillers = Vec::new();
    while let Ok(filler) = tokio::time::timeout(Duration::from_millis(300), tokio::net::TcpStream::connect(app)).await {
        fillers.push(filler);
    }
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi").await.unwrap();
    pause(200).await;
    terminate(&px).await;
    px.signal(Signal::TERM);
    let reply = raw.reply("POST", SOON).await.expect("an answer");
    assert_eq!((reply.status, reply.closes()), (503, 1), "{}", reply.head.text);
    assert!(reply.head.get("retry-after").is_some());
    assert_eq!(px.exit(SOON).await, Exit::Code(0));
    let report = px.report(SOON).await;
    assert_eq!(report["forced"]["request_unsent"], 1, "{report}");
}

/// §6, C105: a client that does not read is cut as well; what it reads later does not look whole.
#[tokio::test]
async fn a_stalled_reader_is_cut_visibly_and_counted() {
    let stage = Stage::start(AppOptions::default(), plain(LONG)).await;
    let mut stalled = Vec::new();
    for (request, kind) in [
        ("GET /bytes?n=50000000 HTTP/1.1\r\nHost: a\r\n\r\n", "content-length"),
        ("GET /bytes?n=50000000&chunked=1 HTTP/1.1\r\nHost: a\r\n\r\n", "chunked"),
        ("GET /bytes?n=50000000&chunked=1 HTTP/1.0\r\n\r\n", "close-delimited"),
    ] {
        let mut raw = stage.raw().await;
        raw.send(request).await.unwrap();
        raw.read_until(b"\r\n\r\n", SOON).await.unwrap();
        stalled.push((raw, kind));
    }
    stage.terminate().await;
    stage.px.signal(Signal::TERM);
    assert_eq!(stage.px.exit(SOON).await, Exit::Code(0));
    for (mut raw, kind) in stalled {
        let (rest, ending) = raw.ending(SOON).await;
        assert!(rest.len() < 50_000_000, "{kind}: all of it came");
        assert!(!rest.ends_with(b"0\r\n\r\n"), "{kind}: a clean end");
        if kind == "close-delimited" {
            assert_eq!(ending, Ending::Reset, "{kind}: a plain close would be a clean end");
        }
    }
    let report = stage.px.report(SOON).await;
    let forced = &report["forced"];
    let cut = forced["stalled"].as_u64().unwrap_or(0) + forced["response"].as_u64().unwrap_or(0);
    assert_eq!(cut, 3, "{report}");
}

/// C39: what was accepted before the end of the hold is served while there is time.
#[tokio::test]
async fn requests_that_wait_for_a_slow_app_are_served_while_there_is_time() {
    let options = AppOptions { one_at_a_time: true, reply_delay: Duration::from_millis(500), ..AppOptions::default() };
    let stage = Stage::start(options.clone(), plain("grace_period: 20s, hold: 300ms")).await;
    let requests: Vec<_> = (0..5)
        .map(|_| {
            let address = stage.address;
            tokio::spawn(async move {
                let mut connection = crate::harness::client::Connection::open(address, SOON).await?;
                connection.exchange(&Request::echo(10), &fresh_id(), SOON).await
            })
        })
        .collect();
    stage.app.journal.wait("req", 5, SOON).await;
    stage.terminate().await;
    for request in requests {
        assert_eq!(request.await.unwrap().expect("an answer").status, 200);
    }
    stage.px.exit(SOON).await;

    // A grace period that is too short for all: those that were not served hear that they may have been.
    let options = AppOptions { reply_delay: Duration::from_secs(2), ..options };
    let stage = Stage::start(options, plain("grace_period: 5s, hold: 200ms, close: 500ms, margin: 500ms")).await;
    let mut raws = Vec::new();
    for _ in 0..5 {
        let mut raw = stage.raw().await;
        raw.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi").await.unwrap();
        raws.push(raw);
    }
    stage.app.journal.wait("req", 5, SOON).await;
    stage.terminate().await;
    let t0 = Mono::now();
    let (mut served, mut cut) = (0, 0);
    for mut raw in raws {
        match raw.reply("POST", SOON).await {
            Ok(reply) if reply.status == 200 => served += 1,
            Ok(reply) if reply.status == 504 && reply.closes() == 1 => cut += 1,
            other => panic!("{other:?}"),
        }
        assert_eq!(raw.ending(SOON).await.1, Ending::Fin);
    }
    assert!(served >= 1 && cut >= 1 && served + cut == 5, "{served} served, {cut} cut");
    assert_eq!(stage.px.exit(SOON).await, Exit::Code(0));
    assert!(t0.elapsed() < Duration::from_secs(7), "{:?}", t0.elapsed());
    assert_eq!(stage.px.report(SOON).await["forced"]["request_unanswered"], cut);
}

/// §7: an app that breaks off in the middle of a response is seen by every kind of client.
#[tokio::test]
async fn a_response_that_the_app_breaks_off_is_visibly_broken() {
    let stage = Stage::simple().await;
    let broken = stage.send(&Request::get("/truncate?n=100000&sent=50000")).await;
    assert_eq!(broken.unwrap_err(), Failure::Truncated);
    let script = Script::start(|_, mut wire| async move {
        if wire.head().await.is_ok() {
            let stream = wire.get_mut();
            let half = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n";
            let _ = tokio::io::AsyncWriteExt::write_all(stream, half).await;
            pause(100).await;
        }
    })
    .await;
    let (_px, address) = front(plain(LONG), &script.upstream()).await;
    for (version, expected) in [("1.1", None), ("1.0", Some(Ending::Reset))] {
        let mut raw = Raw::connect(address).await.unwrap();
        raw.send(format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n")).await.unwrap();
        raw.read_until(b"\r\n\r\n", SOON).await.unwrap();
        let (rest, ending) = raw.ending(SOON).await;
        assert!(!rest.ends_with(b"0\r\n\r\n"), "{version}: a clean end");
        assert!(expected.is_none_or(|expected| expected == ending), "{version}: {ending:?}");
    }
}
