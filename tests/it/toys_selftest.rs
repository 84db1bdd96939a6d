//! Owns tests of the harness's toys: app, clients, balancer, readers of what ebbtide shows.

use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use crate::harness::SOON;
use crate::harness::app::{AppOptions, Listen, OnTerm};
use crate::harness::balancer::Balancer;
use crate::harness::broker::Broker;
use crate::harness::client::{Connection, Ending, Failure, IdleHolder, Load, Plan, Raw, Request, fresh_id, send};
use crate::harness::ebbtide::metrics::Metrics;
use crate::harness::ebbtide::surface::listening_address;
use crate::harness::http::Wire;
use crate::harness::process::Exit;
use crate::harness::stage::app;
use crate::harness::wait::eventually;

#[tokio::test]
async fn the_app_answers_as_its_paths_ask() {
    let (app, address, _dir) = app(AppOptions::default()).await;
    let wanted: [(Request, Result<u16, Failure>); 13] = [
        (Request::get("/"), Ok(200)),
        (Request::echo(100_000), Ok(200)),
        (Request::echo(100_000).chunked(), Ok(200)),
        (Request::echo(200).header("Expect", "100-continue"), Ok(200)),
        (Request::echo(300).drip(100, Duration::from_millis(2)), Ok(200)),
        (Request::bytes(3_000_000, false), Ok(200)),
        (Request::bytes(300_000, true), Ok(200)),
        (Request::get("/chunks?n=5&every_ms=5"), Ok(200)),
        (Request::new("HEAD", "/bytes?n=9"), Ok(200)),
        (Request::get("/status?code=204"), Ok(204)),
        (Request::get("/status?code=418"), Err(Failure::Status(418))),
        (Request::get("/truncate?n=100&sent=10"), Err(Failure::Truncated)),
        (Request::get("/die"), Err(Failure::Eof)),
    ];
    for (request, expected) in wanted {
        let got = send(address, &request, SOON).await;
        let got = got.and_then(|reply| reply.verdict());
        assert_eq!(got, expected, "{} {}", request.method, request.path);
    }
    let slow = send(address, &Request::get("/hang"), Duration::from_millis(100)).await;
    assert_eq!(slow.unwrap_err(), Failure::Timeout);
    let head = send(address, &Request::get("/headers").header("A", "b"), SOON).await;
    assert!(head.unwrap().text().contains("A: b"));
    assert_eq!(app.journal.count("req"), 15);
}

#[tokio::test]
async fn a_connection_is_reused_only_as_it_was_told() {
    let (_app, address, _dir) = app(AppOptions::default()).await;
    for (path, reusable) in
        [("/", true), ("/close", false), ("/http10", false), ("/early?status=413", false), ("/drop", true)]
    {
        let mut connection = Connection::open(address, SOON).await.unwrap();
        let request = Request::get(path);
        let reply = connection.exchange(&request, &fresh_id(), SOON).await;
        assert_eq!(reply.unwrap().status / 100, if path.starts_with("/e") { 4 } else { 2 });
        assert_eq!(connection.is_reusable(), reusable, "{path}");
        if path != "/" {
            assert_eq!(connection.ending(SOON).await, Ending::Fin, "{path}");
        }
    }
}

#[tokio::test]
async fn an_upgrade_echoes_raw_bytes() {
    let (_app, address, _dir) = app(AppOptions::default()).await;
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send("GET /upgrade?ms=20 HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: toy\r\n\r\nearly").await.unwrap();
    assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 101);
    raw.send("late!").await.unwrap();
    assert_eq!(raw.read_exactly(10, SOON).await.unwrap(), b"earlylate!");
    raw.half_close().await.unwrap();
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
}

#[tokio::test]
async fn load_is_clean_and_reaches_the_app_once() {
    let options = AppOptions { close_every: 7, ..AppOptions::default() };
    let (app, address, _dir) = app(options).await;
    let load = Load::start(Plan::mixed(address, 400.0));
    load.has_done(200, SOON).await;
    let summary = load.stop().await;
    summary.assert_clean();
    summary.assert_at_most_once(&app.journal);
    assert!(summary.marked() > 0);

    app.process.signal(Signal::TERM);
    assert_eq!(app.process.exit(SOON).await, Exit::Code(0));
    let refused = send(address, &Request::get("/"), SOON).await;
    assert_eq!(refused.unwrap_err(), Failure::Refused);
}

#[tokio::test]
async fn idle_connections_are_told_apart_by_their_end() {
    let options = AppOptions { idle_close: Some(Duration::from_millis(300)), ..AppOptions::default() };
    let (app, address, _dir) = app(options).await;
    let used = IdleHolder::open(address, 100, Some(Request::echo(10))).await;
    let closed = used.all_closed(SOON).await;
    assert!(closed.iter().all(|one| one.ending == Ending::Fin));
    assert!(used.densest(Duration::from_secs(60)) == 100);
    assert_eq!(app.journal.count("req"), 100);

    // Unread bytes in a dying process end in a reset.
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send("GET /slow?ms=60000 HTTP/1.1\r\n\r\nunread").await.unwrap();
    app.journal.wait("req", 101, SOON).await;
    raw.send([b'x'; 4096]).await.unwrap();
    app.process.signal(Signal::KILL);
    assert_eq!(raw.ending(SOON).await.1, Ending::Reset);
}

#[tokio::test]
async fn the_app_leaves_as_it_is_told() {
    let finishing = AppOptions { on_term: OnTerm::CloseListener, exit_code: 5, ..AppOptions::default() };
    let (finisher, address, _dir) = app(finishing).await;
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send("GET /slow?ms=300 HTTP/1.1\r\n\r\n").await.unwrap();
    finisher.journal.wait("req", 1, SOON).await;
    finisher.process.signal(Signal::TERM);
    finisher.journal.wait("unlistening", 1, SOON).await;
    let refused = send(address, &Request::get("/"), SOON).await;
    assert_eq!(refused.unwrap_err(), Failure::Refused);
    assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 200);
    assert_eq!(finisher.process.exit(SOON).await, Exit::Code(5));
    assert!(finisher.journal.term_at() < finisher.journal.last_byte_at());

    let (_server, served, _dir) = app(AppOptions::default()).await;
    let caller = AppOptions {
        listen: Listen::Nowhere,
        needs: Some(served),
        beat: Some((served, Duration::from_millis(10))),
        on_term: OnTerm::Call { after: Duration::ZERO, http: Some(served), tcp: None },
        ..AppOptions::default()
    };
    let dir = TempDir::new().unwrap();
    let caller = caller.start("caller", dir.path()).await;
    let beats = caller.journal.wait("beat", 3, SOON).await;
    assert!(beats.iter().all(|beat| beat.get("conn") == "1"));
    assert_eq!(beats[0].get("head"), beats[2].get("head"));
    caller.process.signal(Signal::TERM);
    assert_eq!(caller.process.exit(SOON).await, Exit::Code(0));
    assert_eq!(caller.journal.lines("call")[0].get("ok"), "true");
}

#[tokio::test]
async fn the_app_may_start_late_on_a_unix_socket_and_work_one_at_a_time() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("app.sock");
    let options = AppOptions {
        listen: Listen::Unix(path.clone()),
        listen_after: Duration::from_millis(200),
        one_at_a_time: true,
        on_term: OnTerm::FinishInFlight,
        ..AppOptions::default()
    };
    assert_eq!(options.upstream(), format!("unix://{}", path.display()));
    let app = options.start("app", dir.path()).await;
    assert!(UnixStream::connect(&path).await.is_err());
    app.journal.wait("listening", 1, SOON).await;
    let mut wires = Vec::new();
    for _ in 0..2 {
        let mut wire = Wire::new(UnixStream::connect(&path).await.unwrap());
        let request = Request::get("/slow?ms=200").encode("toy", &fresh_id());
        wire.get_mut().write_all(&request).await.unwrap();
        wires.push(wire);
    }
    app.journal.wait("req", 2, SOON).await;
    app.process.signal(Signal::TERM);
    for wire in &mut wires {
        assert_eq!(wire.head().await.unwrap().status().unwrap(), 200);
    }
    assert_eq!(app.process.exit(SOON).await, Exit::Code(0));
    let done = app.journal.lines("done");
    assert!(done[1].at - done[0].at >= Duration::from_millis(190));
}

#[tokio::test]
async fn a_consumer_acknowledges_on_the_connection_it_held() {
    let broker = Broker::start().await;
    let consumer = AppOptions {
        listen: Listen::Nowhere,
        held: Some(broker.address),
        on_term: OnTerm::Ack { after: Duration::from_millis(50) },
        ..AppOptions::default()
    };
    let dir = TempDir::new().unwrap();
    let consumer = consumer.start("consumer", dir.path()).await;
    consumer.journal.wait("held", 1, SOON).await;
    consumer.process.signal(Signal::TERM);
    assert_eq!(consumer.process.exit(SOON).await, Exit::Code(0));
    assert_eq!(consumer.journal.lines("ack")[0].get("ok"), "true");
    let flow = eventually("end of the flow", SOON, || {
        let flow = broker.flows().remove(0);
        flow.ended.map(|_| flow.clone()).ok_or(flow)
    });
    assert_eq!(flow.await.received, b"ack\n");
}

#[tokio::test]
async fn a_balancer_moves_new_flows_only() {
    let (_one, first, _dir) = app(AppOptions::default()).await;
    let (_two, second, _dir) = app(AppOptions::default()).await;
    let balancer = Balancer::start(first).await;
    let request = Request::get("/");
    let mut old = Connection::open(balancer.address, SOON).await.unwrap();
    old.exchange(&request, "1", SOON).await.unwrap();
    balancer.switch(second);
    old.exchange(&request, "2", SOON).await.unwrap();
    send(balancer.address, &request, SOON).await.unwrap();
    assert_eq!(balancer.flows(first).total, 1);
    assert_eq!(balancer.flows(first).open, 1);
    assert_eq!(balancer.flows(second).total, 1);
}

#[test]
fn metrics_and_log_lines_are_read() {
    let metrics = Metrics::parse(
        "# TYPE a counter\na_total{kind=\"x, y\",q=\"\\\"\"} 3\na_total{kind=\"z\"} 4 1700\nb 1.5e3\nc NaN\n",
    );
    assert_eq!(metrics.value("a_total", &[("kind", "x, y"), ("q", "\"")]), Some(3.0));
    assert_eq!(metrics.sum("a_total", &[]), 7.0);
    assert_eq!(metrics.value("b", &[]), Some(1500.0));
    assert_eq!(metrics.value("missing", &[]), None);

    let flat = r#"{"message":"listening","listener":"admin","address":"127.0.0.1:9"}"#;
    let nested = r#"{"fields":{"message":"listening","listener":"web","address":"[::1]:8"}}"#;
    let log = format!("noise\n{flat}\n{nested}\n");
    assert_eq!(listening_address(&log, "admin"), "127.0.0.1:9".parse().ok());
    assert_eq!(listening_address(&log, "web"), "[::1]:8".parse().ok());
    assert_eq!(listening_address(&log, "other"), None);
}
