//! Owns apps that let go of their HTTP/2 connections, in order and otherwise (C50).

use std::time::Duration;

use crate::grpc::stage::{LONG, Stage, plain};
use crate::harness::app::{After, AppOptions, Farewell};
use crate::harness::client::Request;
use crate::harness::h2::{Call, H2Load, H2Plan, Held, Loss, code};
use crate::harness::{SOON, heavy};

fn recycling(after: After, farewell: Farewell) -> AppOptions {
    AppOptions { goaway: Some((after, farewell)), ..AppOptions::default().h2c() }
}

/// C50: a maximum age while a stream hangs: calls go to a new connection, and nobody notices.
#[tokio::test]
async fn a_maximum_age_costs_no_call() {
    let _heavy = heavy().await;
    let options = recycling(After::Age(Duration::from_millis(400)), Farewell::Graceful);
    let stage = Stage::start(options, plain(LONG)).await;
    let hanging = Held::start(&stage.client(2), &Call::bidi(u64::MAX, Duration::from_millis(20), 20), 4);
    hanging.all_have(2, SOON).await;
    let unary = H2Load::start(H2Plan::of(stage.address, 10.0, Call::unary(100)));
    let mixed = H2Load::start(H2Plan::mixed(stage.address, 100.0));
    stage.app.journal.wait("goaway", 12, Duration::from_secs(30)).await;
    for load in [unary, mixed] {
        let summary = load.stop().await;
        summary.assert_clean();
        summary.assert_at_most_once(&stage.app.journal);
    }
    assert_eq!(hanging.open(), 4, "streams of a connection that leaves go on");
    hanging.cancel();
    let metrics = stage.px.metrics().await;
    assert_eq!(metrics.sum("ebbtide_requests_total", &[("outcome", "bad_gateway")]), 0.0);
    assert_eq!(metrics.sum("ebbtide_requests_total", &[("outcome", "broken")]), 0.0);
}

/// C50: an app that lets go after so many requests, under load.
#[tokio::test]
async fn recycled_connections_cost_no_call() {
    let _heavy = heavy().await;
    let stage = Stage::start(recycling(After::Requests(25), Farewell::Graceful), plain(LONG)).await;
    let load = H2Load::start(H2Plan::mixed(stage.address, 300.0));
    load.has_done(600, Duration::from_secs(20)).await;
    let summary = load.stop().await;
    summary.assert_clean();
    summary.assert_at_most_once(&stage.app.journal);
    assert!(stage.app.journal.count("goaway") >= 10, "{}", stage.app.journal.count("goaway"));
}

/// C50: gone without a farewell: open streams fail at once, and the next ones have a new connection.
#[tokio::test]
async fn an_abrupt_end_fails_open_streams_at_once() {
    let stage = Stage::start(AppOptions::default().h2c(), plain(LONG).env("EBBTIDE_WORKERS", "1")).await;
    for (number, path) in ["/die", "/goaway?code=2&ms=60000", "/goaway?code=0&ms=60000", "/goaway?gone_ms=50&ms=60000"]
        .into_iter()
        .enumerate()
    {
        let before = stage.app.journal.count("req");
        let client = stage.client(1);
        let streams = Held::start(&client, &Call::bidi(u64::MAX, Duration::from_millis(20), 20), 3);
        streams.all_have(2, SOON).await;
        let calls = Held::start(&client, &Call::slow_unary(20, Duration::from_secs(60)), 3);
        let posts = Held::start(&client, &Call::plain(Request::new("POST", "/slow?ms=60000").header("x", "y")), 3);
        stage.app.journal.wait("req", before + 9, SOON).await;
        let last = client.call(&Call::plain(Request::new("POST", path)), SOON).await;
        assert_eq!(last.result, Err(Loss::Status(502)), "{path}");
        let (streams, calls, posts) = tokio::join!(streams.ended(SOON), calls.ended(SOON), posts.ended(SOON));
        assert_eq!(calls.losses(), [(Loss::Grpc(14), 3)].into(), "{path}");
        assert_eq!(posts.losses(), [(Loss::Status(502), 3)].into(), "{path}");
        assert!(streams.records.iter().all(|one| matches!(one.result, Err(Loss::Reset(_)))), "{path}: {streams:?}");
        for summary in [streams, calls, posts] {
            summary.assert_at_most_once(&stage.app.journal);
        }
        assert_eq!(stage.app.journal.times_seen(&last.id), 1, "{path}");
        let after = client.call(&Call::unary(20), SOON).await;
        assert_eq!(after.result, Ok(0), "{path}");
        assert!(stage.app.journal.count("preface") >= number + 2, "{path}");
    }
}

/// §7: without proof nothing that may have an effect is sent twice; what is idempotent and has no body is, once.
#[tokio::test]
async fn without_proof_only_the_harmless_is_sent_again() {
    let stage = Stage::start(AppOptions::default().h2c(), plain(LONG).env("EBBTIDE_WORKERS", "1")).await;
    let client = stage.client(1);
    let call = |method, body: usize| {
        let mut request = Request::new(method, "/die");
        request.body = vec![b'x'; body].into();
        Call::plain(request)
    };
    for (method, body, times) in [
        ("GET", 0, 2),
        ("HEAD", 0, 2),
        ("DELETE", 0, 2),
        ("POST", 0, 1),
        ("PATCH", 0, 1),
        ("PUT", 5, 1),
        ("POST", 5, 1),
    ] {
        // A request before it shows that the app answers there.
        assert_eq!(client.call(&Call::plain(Request::get("/")), SOON).await.result, Ok(200));
        let record = client.call(&call(method, body), SOON).await;
        assert_eq!(record.result, Err(Loss::Status(502)), "{method} with {body} bytes");
        assert_eq!(stage.app.journal.times_seen(&record.id), times, "{method} with {body} bytes");
    }
    // A first request on a connection has no such proof.
    let record = client.call(&call("GET", 0), SOON).await;
    assert_eq!((record.result, stage.app.journal.times_seen(&record.id)), (Err(Loss::Status(502)), 1));
}

/// An app that takes few streams at once gets more connections or has callers wait, and loses none.
#[tokio::test]
async fn an_app_that_takes_few_streams_at_once_loses_none() {
    let options = AppOptions { max_streams: Some(2), ..AppOptions::default().h2c() };
    let stage = Stage::start(options, plain(LONG)).await;
    let client = stage.client(2);
    let calls = Held::start(&client, &Call::slow_unary(100, Duration::from_millis(100)), 40);
    let ended = calls.ended(SOON).await;
    ended.assert_clean();
    ended.assert_at_most_once(&stage.app.journal);
    let hanging = Held::start(&client, &Call::bidi(u64::MAX, Duration::from_millis(20), 20), 10);
    hanging.all_have(2, SOON).await;
    assert_eq!(client.call(&Call::unary(20), SOON).await.result, Ok(0), "long streams leave no room");
    hanging.cancel();
    let cancelled = stage.app.journal.wait("cancel", 10, SOON).await;
    assert!(cancelled.iter().all(|one| one.get("code") == code::CANCEL.to_string()));
}
