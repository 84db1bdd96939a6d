//! Owns calls that find no app before t0: they wait for its next life.

use std::time::Duration;

use crate::grpc::stage::{LONG, Stage, plain};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::{Request, send};
use crate::harness::h2::grpc::{message, numbered};
use crate::harness::h2::{Call, Frame, H2Load, H2Plan, Held};

/// §8: the app restarts in place: calls of every kind wait, with their bodies, and are answered by its next life.
#[tokio::test]
async fn calls_wait_for_the_next_life_of_the_app() {
    let mut stage = Stage::start(AppOptions::default().h2c(), plain(LONG)).await;
    let client = stage.client(2);
    assert_eq!(client.call(&Call::unary(100), SOON).await.result, Ok(0));
    stage.kill_app().await;
    stage.px.metric_becomes("ebbtide_upstream_up", &[], SOON, |up| up == 0.0).await;
    let unary = Held::start(&client, &Call::unary(20_000), 20);
    let streams = Held::start(&client, &Call::server_stream(Some(5), Duration::from_millis(5), 100), 10);
    let bidi = Held::start(&client, &Call::bidi(5, Duration::from_millis(5), 100), 10);
    let posts = Held::start(&client, &Call::plain(Request::echo(30_000)), 10);
    let address = stage.address;
    let http1 = tokio::spawn(async move { send(address, &Request::echo(10), Duration::from_secs(30)).await });
    stage.px.metric_becomes("ebbtide_parked_requests", &[], SOON, |parked| parked == 51.0).await;
    assert_eq!(stage.px.metrics().await.sum("ebbtide_in_flight", &[]), 0.0, "who waits is not in flight");
    stage.restart_app(|_| {}).await;
    for held in [unary, streams, bidi, posts] {
        let ended = held.ended(Duration::from_secs(20)).await;
        ended.assert_clean();
        ended.assert_at_most_once(&stage.app.journal);
    }
    assert_eq!(http1.await.unwrap().unwrap().status, 200);
    let metrics = stage.px.metrics().await;
    assert_eq!(metrics.sum("ebbtide_parked_requests_total", &[("outcome", "forwarded")]), 51.0);
}

/// §8: a client that gives up while it waits is forgotten, and its call never reaches the app.
#[tokio::test]
async fn a_call_that_is_given_up_while_it_waits_never_reaches_the_app() {
    let mut stage = Stage::simple().await;
    stage.kill_app().await;
    stage.px.metric_becomes("ebbtide_upstream_up", &[], SOON, |up| up == 0.0).await;
    let mut raw = stage.open().await;
    let given_up = raw.unary("/grpc/unary", b"given up").await.unwrap();
    let kept = raw.begin_grpc("/grpc/collect").await.unwrap();
    raw.data(kept, &message(&numbered(0, 20)), false).await.unwrap();
    stage.px.metric_becomes("ebbtide_parked_requests", &[], SOON, |parked| parked == 2.0).await;
    raw.frame(Frame::reset(given_up, 8)).await.unwrap();
    stage.px.metric_becomes("ebbtide_parked_requests", &[], SOON, |parked| parked == 1.0).await;
    let before = stage.app.journal.count("req");
    raw.during(stage.restart_app(|_| {})).await;
    raw.data(kept, &message(&numbered(1, 20)), true).await.unwrap();
    assert_eq!(raw.answer(kept, SOON).await.unwrap().grpc_status(), Some(0));
    let paths: Vec<_> =
        stage.app.journal.lines("req").split_off(before).iter().map(|one| one.get("path").to_owned()).collect();
    assert_eq!(paths, ["/grpc/collect"]);
    let abandoned = stage.px.metrics().await.sum("ebbtide_parked_requests_total", &[("outcome", "abandoned")]);
    assert_eq!(abandoned, 1.0);
}

/// §8: under load, with a restart in its middle: what was in flight when the app died is lost, all else waits.
#[tokio::test]
async fn a_restart_under_load_costs_only_what_was_in_flight() {
    let mut stage = Stage::simple().await;
    let load = H2Load::start(H2Plan::of(stage.address, 100.0, Call::unary(200)));
    load.has_done(50, SOON).await;
    stage.kill_app().await;
    let died = crate::harness::wait::Mono::now();
    stage.px.metric_becomes("ebbtide_upstream_up", &[], SOON, |up| up == 0.0).await;
    stage.restart_app(|_| {}).await;
    let done = load.so_far().total();
    load.has_done(done + 100, SOON).await;
    let summary = load.stop().await;
    summary.since(died).assert_clean();
    summary.assert_at_most_once(&stage.app.journal);
    assert!(summary.total() - summary.ok() <= 5, "{:?}", summary.losses());
}
