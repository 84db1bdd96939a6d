//! Owns long calls over a whole termination: when they end, how they are spread, and what the pod sees of it.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::stage::{ENDS, Stage, plain};
use crate::harness::app::AppOptions;
use crate::harness::h2::{Call, H2Load, H2Plan, H2Summary, Held, Loss};
use crate::harness::pod::{Event, Pod, Who};
use crate::harness::process::Exit;
use crate::harness::wait::Mono;
use crate::harness::{SOON, heavy};

const TICK: Duration = Duration::from_millis(50);
/// Between the signal that a test sends and the moment that ebbtide calls t0, and for what is on its way.
const SLACK: Duration = Duration::from_millis(700);

fn deadline(status: &Value) -> Duration {
    Duration::from_secs_f64(status["deadlines"]["drain_deadline"].as_f64().expect("a deadline"))
}

/// Every call got whole messages without a gap, and then status 14.
fn assert_all_ended_with_14(ended: &H2Summary, at_least: u64) {
    assert_eq!(ended.losses(), [(Loss::Grpc(14), ended.total())].into());
    for call in &ended.records {
        assert!(call.messages >= at_least && call.torn == 0 && !call.trailers_only, "{call:?}");
        assert!(call.grpc_message.as_deref().is_some_and(|why| why.starts_with("ebbtide: ")), "{call:?}");
    }
}

/// C61: 200 streams without an end: told by GOAWAY, ended with 14 over the last `close_spread`, and the app hears it.
#[tokio::test]
async fn endless_streams_end_spread_before_the_drain_deadline() {
    let _heavy = heavy().await;
    let pod = Pod::builder().grace(15).hold("2s").app_stop("1s").app(AppOptions::default().h2c()).start().await;
    pod.ready().await;
    let client = crate::harness::h2::H2Client::new(pod.address(), 8);
    let held = Held::start(&client, &Call::bidi(u64::MAX, TICK, 20), 200);
    held.all_have(3, SOON).await;
    pod.ebbtide().metric_becomes("ebbtide_in_flight", &[("kind", "stream")], SOON, |open| open == 200.0).await;
    let t0 = Mono::now();
    let deletion = pod.delete(15);
    pod.ebbtide().phase_becomes("draining", SOON).await;
    // Their streams never pause, so they are told at the end of the hold.
    pod.ebbtide().metric_becomes("ebbtide_notices_total", &[("kind", "goaway")], SOON, |told| told == 8.0).await;
    let deadline = t0 + deadline(&pod.ebbtide().status().await);
    let spread = Duration::from_secs(2);
    let ended = held.ended(Duration::from_secs(20)).await;
    deletion.finished().await;

    assert_all_ended_with_14(&ended, 50);
    let (first, last) =
        (ended.records.iter().map(|one| one.ended).min(), ended.records.iter().map(|one| one.ended).max());
    let (first, last) = (first.unwrap(), last.unwrap());
    assert!(first + SLACK >= t0 + deadline.since(t0).saturating_sub(spread), "{:?} before", deadline.since(first));
    assert!(last <= deadline + SLACK, "{:?} late", last.since(deadline));
    for part in 0..4 {
        let (from, to) = (first + last.since(first) * part / 4, first + last.since(first) * (part + 1) / 4);
        let here = ended.records.iter().filter(|one| one.ended >= from && one.ended <= to).count();
        assert!(here >= 20, "{here} of 200 ended in part {part} of {:?}", last.since(first));
    }
    assert!(last.since(first) > spread / 2, "all within {:?}", last.since(first));
    let cancels = pod.journal(0).lines("cancel");
    assert_eq!((cancels.len(), cancels.iter().filter(|one| one.get("code") == "8").count()), (200, 200));
    let term = pod.journal(0).term_at().expect("the app was told to stop");
    assert!(cancels.iter().all(|one| one.at < term), "an end after SIGTERM");
    pod.timeline()
        .assert_order(&[Event::Exited(Who::App(0), Exit::Code(0)), Event::Exited(Who::Ebbtide, Exit::Code(0))]);
    let report: Value = serde_json::from_str(&pod.ebbtide().termination_text()).expect("a report");
    assert_eq!(report["forced"], serde_json::json!({"grpc_stream": 200}), "{report}");
}

/// §6: calls that are short and only came late are not ended early by the spread, streams without an end are.
#[tokio::test]
async fn short_calls_that_come_late_are_not_ended_early() {
    let stage = Stage::start(AppOptions::default().h2c(), plain(ENDS)).await;
    let held = Held::start(&stage.client(1), &Call::server_stream(None, TICK, 20), 10);
    held.all_have(2, SOON).await;
    let t0 = Mono::now();
    stage.terminate().await;
    stage.px.phase_becomes("draining", SOON).await;
    let deadline = t0 + deadline(&stage.px.status().await);
    let mut plan = H2Plan::of(stage.address, 40.0, Call::server_stream(Some(4), TICK, 20));
    plan.lanes.push(Call::slow_unary(20, Duration::from_millis(200)));
    let load = H2Load::start(plan);
    // The spread has begun long before, and the last of them is through well before the deadline.
    (t0 + deadline.since(t0).saturating_sub(Duration::from_millis(900))).reached().await;
    let load = load.stop().await;
    let ended = held.ended(SOON).await;
    assert_all_ended_with_14(&ended, 2);
    assert!(ended.records.iter().any(|one| one.ended < load.records.iter().map(|one| one.ended).max().unwrap()));
    load.assert_clean();
    assert!(load.total() > 100, "{} calls", load.total());
    assert_eq!(stage.px.exit(SOON).await, Exit::Code(0));
    assert_eq!(stage.px.report(SOON).await["forced"], serde_json::json!({"grpc_stream": 10}));
}

/// Rows 9 and 12: the real grace is used up: all streams end without a spread, within what the kubelet leaves.
#[tokio::test]
async fn streams_end_at_once_when_the_real_grace_is_used_up() {
    for blocked in [true, false] {
        let app = AppOptions { on_term: crate::harness::app::OnTerm::Ignore, ..AppOptions::default().h2c() };
        let config = plain("grace_period: 30s, hold: 10s").env("EBBTIDE_MODE", "sidecar");
        let stage = Stage::start(app, config).await;
        let client = stage.client(2);
        let held = Held::start(&client, &Call::bidi(u64::MAX, TICK, 20), 40);
        held.all_have(2, SOON).await;
        let waiting = Held::start(&client, &Call::slow_unary(20, Duration::from_secs(60)), 5);
        stage.app.journal.wait("req", 45, SOON).await;
        let began = Mono::now();
        assert!(stage.px.drain().await.status.success());
        let admin = stage.px.admin;
        let hook = blocked.then(|| {
            let work = crate::harness::ebbtide::surface::get(admin, "/app-stop", "kube", Duration::from_secs(60));
            tokio::spawn(async move { work.await.expect("an answer").status })
        });
        if blocked {
            stage.px.metric_becomes("ebbtide_app_hooks_open", &[], SOON, |open| open == 1.0).await;
        }
        // Row 11: a signal this close to the own hook is a restart of ebbtide alone.
        (began + Duration::from_secs(1)).reached().await;
        let signalled = Mono::now();
        stage.px.signal(Signal::TERM);
        let (ended, waited) = tokio::join!(held.ended(SOON), waiting.ended(SOON));
        assert_eq!(stage.px.exit(SOON).await, Exit::Code(0));
        let took = stage.px.exited_at().unwrap().since(signalled);
        assert!(took < Duration::from_secs(2), "{took:?} is more than the kubelet gives");
        assert_all_ended_with_14(&ended, 2);
        assert_eq!(waited.losses(), [(Loss::Grpc(14), 5)].into());
        assert!(waited.records.iter().all(|one| one.trailers_only), "{waited:?}");
        let report = stage.px.report(SOON).await;
        assert_eq!(report["forced"], serde_json::json!({"grpc_stream": 40, "request_unanswered": 5}), "{report}");
        if let Some(hook) = hook {
            assert_eq!(hook.await.unwrap(), 200);
        }
    }
}

/// §6: without anybody who presses, a drain whose calls come to an end by themselves forces nothing.
#[tokio::test]
async fn calls_that_end_in_time_are_waited_for() {
    let drain = "grace_period: 20s, hold: 300ms, close: 1s, close_spread: 300ms, quiet: 300ms, margin: 500ms";
    let stage = Stage::start(AppOptions::default().h2c(), plain(drain)).await;
    let client = stage.client(2);
    let streams = Held::start(&client, &Call::server_stream(Some(60), TICK, 20), 20);
    let calls = Held::start(&client, &Call::slow_unary(100, Duration::from_secs(3)), 20);
    streams.all_have(2, SOON).await;
    stage.app.journal.wait("req", 40, SOON).await;
    stage.terminate().await;
    let (streams, calls) = tokio::join!(streams.ended(SOON), calls.ended(SOON));
    streams.assert_clean();
    calls.assert_clean();
    assert_eq!(stage.px.exit(SOON).await, Exit::Code(0));
    assert_eq!(stage.px.report(SOON).await["outcome"], "drained");
    assert_eq!(stage.app.journal.count("done"), 40);
}
