//! Owns the deletion of a pod with open sessions: none of them loses a message, each ends with a closing handshake.

use super::{CLEAN, MILLIS, SECONDS, ended, in_flight, stage};
use crate::harness::app::AppOptions;
use crate::harness::pod::{Event, Pod, PodBuilder, Who};
use crate::harness::stage::terminate;
use crate::harness::wait::Mono;
use crate::harness::ws::{Answer, Sessions, WsPlan, WsSummary};
use crate::harness::{SOON, heavy};
use crate::lifecycle::{assert_orderly_end, yaml};

/// A hold of 1 s, 1 s for the app, and the rest of both sections as given.
fn pod(grace: u64, drain: &str, rules: &str) -> PodBuilder {
    let pod = Pod::builder().grace(grace).hold("1s").app_stop("1s").app(AppOptions::default());
    let rest = format!("drain: {{{drain}}}\nwebsocket: {{{rules}}}\n");
    let yaml = yaml(&pod, "", &rest);
    pod.yaml(&yaml)
}

fn together(parts: [WsSummary; 2]) -> WsSummary {
    WsSummary { records: parts.into_iter().flat_map(|part| part.records).collect() }
}

/// Panics if one of `slices` equal parts of the time from the first Close to the last has far more than its share, or
/// far less.
fn assert_spread(summary: &WsSummary, slices: usize) {
    let times = summary.closes_since(Mono::from_nanos(0));
    let (first, last) = (times[0], times[times.len() - 1]);
    let width = (last - first) / slices as u32;
    let mut counts = vec![0; slices];
    for time in &times {
        let slice = (time.saturating_sub(first).as_nanos() / width.as_nanos().max(1)) as usize;
        counts[slice.min(slices - 1)] += 1;
    }
    let mean = times.len() / slices;
    assert!(
        counts.iter().all(|count| (mean / 3..mean * 2).contains(count)),
        "closes in slices of {width:?}: {counts:?}"
    );
}

/// C64: half of them silent, half with numbered messages both ways, some of these after they have been told.
#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_sessions_of_a_deleted_pod_lose_no_message() {
    let _heavy = heavy().await;
    let pod = pod(11, "", "").start().await;
    pod.ready().await;
    let talk = WsPlan { path: "/ws?push_ms=150".to_owned(), answer: Answer::After(3), ..WsPlan::talking(MILLIS(150)) };
    let silent = Sessions::start(pod.address(), &WsPlan::new("/ws"), 250).await;
    let talking = Sessions::start(pod.address(), &talk, 250).await;
    talking.all_have(4, SOON).await;
    let px = pod.ebbtide();
    in_flight(&px, 500).await;
    let deletion = pod.delete(11);
    px.phase_becomes("holding", SOON).await;
    assert_eq!(silent.open() + talking.open(), 500, "nobody is told while the hold lasts");
    let summary = together([silent.ended(SECONDS(15)).await, talking.ended(SECONDS(15)).await]);
    ended(&px, "closed_by_notice", 500).await;
    let metrics = px.metrics().await;
    deletion.finished().await;

    summary.assert_closed(1001);
    summary.assert_none_lost(&pod.journal(0));
    assert!(summary.records.iter().filter(|one| one.sent > 0).all(|one| one.echoed >= 2 && one.pushed >= 2));
    assert_spread(&summary, 4);
    assert_eq!(metrics.sum("ebbtide_websocket_sessions_total", &[]), 500.0);
    assert_eq!(metrics.sum("ebbtide_notices_total", &[("kind", "websocket_close")]), 500.0);
    assert_eq!(metrics.sum("ebbtide_forced_endings_total", &[]), 0.0);
    let report = px.report(SOON).await;
    assert_eq!((&report["outcome"], &report["forced"]), (&"drained".into(), &serde_json::json!({})), "{report}");
    assert_orderly_end(&pod);
    let journal = pod.journal(0);
    let (over, term) = (journal.lines("over"), journal.term_at().expect("the app was told to stop"));
    assert!(over.iter().all(|one| one.get("how") == "fin" && one.at < term), "{over:?}");
    let closes = journal.lines("close");
    assert!(closes.iter().all(|one| (one.get("code"), one.get("first")) == ("1001", "client")), "{closes:?}");
    assert_eq!((over.len(), closes.len(), journal.count("violation")), (500, 500, 0));
}

/// C64: another code, and a time of their own.
#[tokio::test]
async fn code_and_time_are_as_configured() {
    let pod = pod(11, "websocket_after: 4s", "close_code: 1012").start().await;
    pod.ready().await;
    let silent = Sessions::start(pod.address(), &WsPlan::new("/ws"), 50).await;
    let talking = Sessions::start(pod.address(), &WsPlan::talking(MILLIS(100)), 50).await;
    talking.all_have(2, SOON).await;
    let t0 = Mono::now();
    let deletion = pod.delete(11);
    let summary = together([silent.ended(SECONDS(15)).await, talking.ended(SECONDS(15)).await]);
    ended(&pod.ebbtide(), "closed_by_notice", 100).await;
    deletion.finished().await;
    summary.assert_closed(1012);
    summary.assert_none_lost(&pod.journal(0));
    let first = summary.closes_since(t0)[0];
    assert!(first >= SECONDS(4), "the first Close came after {first:?}");
    assert_orderly_end(&pod);
}

/// C65: sessions outlive the requests, and the process outlives the sessions.
#[tokio::test]
async fn sessions_go_on_long_after_the_requests() {
    let pod = pod(20, "websocket_after: 8s", "").start().await;
    pod.ready().await;
    let plan = WsPlan::talking(MILLIS(20));
    let talking = Sessions::start(pod.address(), &plan, 10).await;
    let px = pod.ebbtide();
    let t0 = Mono::now();
    let deletion = pod.delete(20);
    px.phase_becomes("draining", SOON).await;
    // Some five seconds of talk, most of it behind the last request's chance.
    talking.all_have(250, SECONDS(15)).await;
    assert_eq!(talking.open(), 10);
    in_flight(&px, 10).await;
    assert!(pod.is_running(Who::App(0)) && pod.journal(0).term_at().is_none());
    let summary = talking.ended(SECONDS(15)).await;
    deletion.finished().await;
    summary.assert_closed(1001);
    summary.assert_none_lost(&pod.journal(0));
    for record in &summary.records {
        let (told, _) = record.close.as_ref().expect("a Close");
        assert!(told.since(t0) >= SECONDS(8), "told after {:?}", told.since(t0));
        // What has come back behind the 250th message is more than what was on its way at the end.
        assert!(record.sent - record.echoed <= 50, "the echo stopped a second before the end: {record:?}");
    }
    let exited = pod.timeline().at(Event::Exited(Who::Ebbtide, CLEAN));
    assert!(summary.records.iter().all(|one| one.ended < exited));
    assert_orderly_end(&pod);
}

/// C66: nobody has to bear the return of all clients at once.
#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_sessions_are_spread_over_the_window() {
    let _heavy = heavy().await;
    let drain = "grace_period: 30s, hold: 300ms, close: 1s, close_spread: 12s, quiet: 300ms, margin: 500ms";
    let stage = stage(drain, "").await;
    let sessions = Sessions::start(stage.address, &WsPlan::new("/ws"), 2000).await;
    in_flight(&stage.px, 2000).await;
    terminate(&stage.px).await;
    let summary = sessions.ended(SECONDS(30)).await;
    summary.assert_closed(1001);
    assert_spread(&summary, 10);
    assert_eq!(stage.px.exit(SECONDS(20)).await, CLEAN);
    let report = stage.px.report(SOON).await;
    assert_eq!((&report["outcome"], &report["forced"]), (&"drained".into(), &serde_json::json!({})), "{report}");
}
