//! Owns what a whole drain does to HTTP/2 clients that behave: nothing of theirs is lost, in a pod and outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinSet;

use super::{CLEAN, DRAINS, MILLIS, SECONDS, Stage};
use crate::harness::SOON;
use crate::harness::app::{After, AppOptions, Farewell, OnTerm, Scheme};
use crate::harness::balancer::Balancer;
use crate::harness::client::Request;
use crate::harness::ebbtide::Config;
use crate::harness::h2::{Call, H2Client, H2Load, H2Plan, H2Record};
use crate::harness::http::{Sum, pattern};
use crate::harness::pod::{Event, Pod, Who};
use crate::harness::wait::Mono;

/// C55: a connection is busy as long as any stream goes on in any direction.
#[tokio::test]
async fn uploads_waits_and_downloads_survive_the_drain() {
    for options in [AppOptions::default().h2c(), AppOptions::default()] {
        let is_h2c = options.scheme == Scheme::H2c;
        let yaml = format!("drain: {{{DRAINS}}}");
        let stage = Stage::with(options, Config::new().yaml(&yaml)).await;
        let client = H2Client::new(stage.address, 1);
        let expect = Some(Sum::of(&pattern(60_000)));
        let mut calls = vec![
            Call::plain(Request::echo(60_000).drip(1000, MILLIS(60))),
            Call::plain(Request::get("/slow?ms=3500")),
            Call::plain(Request { expect, ..Request::get("/bytes?n=60000&piece=1000&every_ms=60") }),
        ];
        if is_h2c {
            calls.push(Call::slow_unary(100, MILLIS(3500)));
            calls.push(Call::server_stream(Some(60), MILLIS(60), 100));
            calls.push(Call::bidi(60, MILLIS(60), 100));
            // Everything has been said but the trailers.
            calls.push(Call::numbered("/grpc/half?before=3&size=100&sent=50&ms=3500"));
        }
        let count = calls.len();
        let mut running = JoinSet::new();
        for call in calls {
            let client = client.clone();
            running.spawn(async move { client.call(&call, SECONDS(15)).await });
        }
        stage.has_seen(count).await;
        stage.terminate().await;
        let summary = client.summary(running.join_all().await);
        summary.assert_clean();
        assert_eq!(summary.connections(), 1);
        summary.assert_at_most_once(&stage.app.journal);
        let report = stage.report_at_exit(SOON).await;
        assert_eq!(report["outcome"], "drained", "{report}");
        assert_eq!(report["notices"]["goaway"], 1, "{report}");
    }
}

/// C10: clients that call every so often move to the next instance without an error, whatever the app does with its own
/// connections meanwhile, until it is gone.
#[tokio::test]
async fn clients_with_pauses_move_to_another_instance_without_an_error() {
    let recycles = Some((After::Requests(3), Farewell::Graceful));
    for goaway in [None, recycles] {
        let app = AppOptions { on_term: OnTerm::CloseListener, goaway, ..AppOptions::default().h2c() };
        let pod = Pod::builder().grace(10).app_stop("1s").app(app).start().await;
        pod.ready().await;
        let next = Stage::start(super::LONG).await;
        let balancer = Balancer::start(pod.address()).await;
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for number in 0..8 {
            let (address, stop) = (balancer.address, stop.clone());
            clients.spawn(async move {
                let client = H2Client::new(address, 1);
                let mut records: Vec<H2Record> = Vec::new();
                while !stop.load(Ordering::Acquire) {
                    records.push(client.call(&Call::unary(20), SOON).await);
                    tokio::time::sleep(MILLIS(150 + 20 * number)).await;
                }
                client.summary(records)
            });
        }
        pod.journal(0).wait("req", 16, SOON).await;
        let deletion = pod.delete(10);
        balancer.switch(next.address);
        deletion.finished().await;
        let gone = Mono::now();
        // Each has called the next one at least once.
        next.app.journal.wait("req", next.app.journal.count("req") + 16, SOON).await;
        stop.store(true, Ordering::Release);
        for summary in clients.join_all().await {
            summary.assert_clean();
            assert!(summary.since(gone).total() > 0 && summary.connections() >= 2, "{summary:?}");
            assert_eq!(summary.retried(), 0, "a call that was refused first");
        }
        pod.timeline().assert_order(&[Event::Exited(Who::App(0), CLEAN), Event::Exited(Who::Ebbtide, CLEAN)]);
        assert!(goaway.is_none() || pod.journal(0).count("goaway") > 2, "the app has kept its connections");
    }
}

/// Sidecar mode, with every kind of call: the app hears of its end after the last of them.
#[tokio::test]
async fn a_pod_deleted_under_mixed_calls_fails_none_and_its_app_ends_idle() {
    let pod = Pod::builder().grace(12).hold("2s").app_stop("1s").app(AppOptions::default().h2c()).start().await;
    pod.ready().await;
    let load = H2Load::start(H2Plan::mixed(pod.address(), 100.0));
    load.has_done(100, SOON).await;
    let deletion = pod.delete(12);
    let px = pod.ebbtide();
    px.phase_becomes("draining", SOON).await;
    let summary = load.stop().await;
    deletion.finished().await;
    summary.assert_clean();
    summary.assert_at_most_once(&pod.journal(0));
    let journal = pod.journal(0);
    assert!(journal.last_byte_at() < journal.term_at(), "SIGTERM came before the last answer was out");
    let report: serde_json::Value = serde_json::from_str(&px.termination_text()).expect("a report");
    assert_eq!(report["outcome"], "drained", "{report}");
    assert_eq!(report["forced"], serde_json::json!({}), "{report}");
    // Told once each: the first four connections, and those that came instead of them.
    assert!(report["notices"]["goaway"].as_u64() >= Some(4), "{report}");
}
