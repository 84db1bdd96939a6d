//! Owns the deletion of a pod whose clients speak TLS: no request is lost, and every connection ends with a `close_notify`.

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{BOTH, MILLIS, SECONDS, Site, short_pod};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::{Ending, IdleHolder, Load, Plan, Raw, Request, fresh_id, send};
use crate::harness::events::{EventSource, StreamEnd};
use crate::harness::h2::{Call, H2Client, H2Load, H2Plan, RawH2};
use crate::harness::pod::Pod;
use crate::harness::tls::{Target, TlsEnd, Versions};
use crate::harness::wait::{Mono, eventually};
use crate::harness::ws::{Sessions, WsPlan};
use crate::lifecycle::assert_orderly_end;

/// The report of an ebbtide that has lost nothing.
fn assert_drained(pod: &Pod) -> Value {
    let report: Value = serde_json::from_str(&pod.ebbtide().termination_text()).expect("a report");
    assert_eq!((&report["outcome"], &report["forced"]), (&json!("drained"), &json!({})), "{report}");
    report
}

/// The app's SIGTERM was held back, and it had nothing left to do.
fn assert_app_ended_idle(pod: &Pod) {
    assert_orderly_end(pod);
    let journal = pod.journal(0);
    assert!(
        journal.last_byte_at().unwrap() < journal.term_at().unwrap(),
        "SIGTERM came before the last answer was out"
    );
    assert_eq!(journal.count("req"), journal.count("done"), "half-served by the app");
}

/// Deletes the pod under short and slow requests and idle connections, and goes on until the drain has begun.
pub(super) async fn delete_under_http1(pod: &Pod, target: &Target) {
    pod.ready().await;
    let load = Load::start(Plan::mixed(target, 100.0));
    load.has_done(50, SOON).await;
    let idle = IdleHolder::open(target, 10, Some(Request::get("/"))).await;
    let silent = IdleHolder::open(target, 10, None).await;
    let mut slow = JoinSet::new();
    for _ in 0..20 {
        let target = target.clone();
        slow.spawn(async move { send(target, &Request::get("/slow?ms=4000"), SECONDS(20)).await });
    }
    let px = pod.ebbtide();
    px.metric_becomes("ebbtide_in_flight", &[("kind", "request")], SOON, |count| count >= 20.0).await;
    let deletion = pod.delete(12);
    px.phase_becomes("draining", SOON).await;
    let draining = Mono::now();
    eventually("late requests", SOON, || match load.so_far().since(draining).ok() {
        20.. => Ok(()),
        fewer => Err(fewer),
    })
    .await;
    let summary = load.stop().await;
    for answer in slow.join_all().await {
        assert_eq!(answer.and_then(|reply| reply.verdict()), Ok(200));
    }
    for holder in [idle, silent] {
        let closed = holder.all_closed(SECONDS(12)).await;
        assert!(closed.iter().all(|one| one.ending == Ending::Fin && one.bytes == 0), "{closed:?}");
    }
    deletion.finished().await;

    summary.assert_clean();
    summary.assert_at_most_once(&pod.journal(0));
    let late = summary.since(draining);
    assert!(late.unmarked().is_empty(), "not told to go: {:?}", late.unmarked());
    let endings = summary.endings();
    assert_eq!(endings.keys().collect::<Vec<_>>(), [&Ending::Fin], "{endings:?}");
    assert!(endings[&Ending::Fin] >= 20, "{endings:?}");
    assert_app_ended_idle(pod);
    assert_drained(pod);
}

/// The same with calls of every kind over HTTP/2.
pub(super) async fn delete_under_http2(pod: &Pod, target: &Target) {
    pod.ready().await;
    let load = H2Load::start(H2Plan::mixed(target, 100.0));
    load.has_done(100, SOON).await;
    let mut idle = RawH2::open(target).await.unwrap();
    let slow = H2Client::new(target, 1);
    let long = tokio::spawn({
        let slow = slow.clone();
        async move { slow.call(&Call::server_stream(Some(80), MILLIS(50), 100), SECONDS(20)).await }
    });
    let px = pod.ebbtide();
    let deletion = pod.delete(12);
    let idle_end = tokio::spawn(async move { idle.ending(SECONDS(12)).await });
    px.phase_becomes("draining", SOON).await;
    let draining = Mono::now();
    eventually("late calls", SOON, || match load.so_far().since(draining).ok() {
        20.. => Ok(()),
        fewer => Err(fewer),
    })
    .await;
    let summary = load.stop().await;
    assert_eq!(long.await.unwrap().result, Ok(0));
    assert_eq!(idle_end.await.unwrap(), Ending::Fin);
    deletion.finished().await;

    summary.assert_clean();
    summary.assert_at_most_once(&pod.journal(0));
    assert!(summary.connections() > 4, "nobody was told to go");
    assert_eq!(summary.ends().keys().collect::<Vec<_>>(), [&Ending::Fin], "{:?}", summary.endings);
    assert_app_ended_idle(pod);
    let report = assert_drained(pod);
    assert!(report["notices"]["goaway"].as_u64() >= Some(5), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn http1_clients_over_either_version_lose_no_request() {
    let delete = async |versions: Versions| {
        let site = Site::new();
        let pod = site.pod(short_pod(AppOptions::default()), "http", "").start().await;
        delete_under_http1(&pod, &site.target(versions, pod.address())).await;
    };
    tokio::join!(delete(BOTH[0]), delete(BOTH[1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_clients_over_either_version_lose_no_call() {
    let delete = async |versions: Versions| {
        let site = Site::new();
        let pod = site.pod(short_pod(AppOptions::default().h2c()), "h2c", "").start().await;
        delete_under_http2(&pod, &site.target(versions, pod.address())).await;
    };
    tokio::join!(delete(BOTH[0]), delete(BOTH[1]));
}

/// Both end where a client can take it: with both Closes, and between two events; and TLS ends behind that.
#[tokio::test]
async fn sessions_and_event_streams_end_as_they_should_inside_tls() {
    /// A client that does not come back within this test.
    const ONCE: std::time::Duration = std::time::Duration::from_secs(600);
    for versions in BOTH {
        let site = Site::new();
        let pod = site.pod(short_pod(AppOptions::default()).hold("1s"), "http", "").start().await;
        let target = site.target(versions, pod.address());
        pod.ready().await;
        let talking = Sessions::start(&target, &WsPlan::talking(MILLIS(50)), 10).await;
        let silent = Sessions::start(&target, &WsPlan::new("/ws"), 10).await;
        let sources: Vec<_> = (0..5)
            .map(|number| EventSource::start(&target, &format!("/events?every_ms={}", 5 + number), ONCE))
            .collect();
        let mut watched = Raw::connect(&target).await.unwrap();
        let request = Request::get("/events?every_ms=20").header("Accept", "text/event-stream");
        watched.send(request.encode("toy", &fresh_id())).await.unwrap();
        watched.read_until(b"\r\n\r\n", SOON).await.unwrap();
        talking.all_have(4, SOON).await;
        for source in &sources {
            source.has_events(5, SOON).await;
        }
        let deletion = pod.delete(12);
        pod.ebbtide().phase_becomes("holding", SOON).await;
        assert_eq!(talking.open() + silent.open(), 20, "nobody is told while the hold lasts");
        for sessions in [talking, silent] {
            let summary = sessions.ended(SECONDS(15)).await;
            summary.assert_closed(1001);
            summary.assert_none_lost(&pod.journal(0));
            assert_eq!(summary.endings().into_keys().collect::<Vec<_>>(), [Ending::Fin]);
        }
        let (rest, ending) = watched.ending(SECONDS(15)).await;
        assert_eq!((rest.ends_with(b"0\r\n\r\n"), ending), (true, Ending::Fin));
        assert_eq!(watched.socket().tls_ended(SOON).await, TlsEnd::good());
        for source in sources {
            source.has("the end of a stream", SECONDS(15), |heard| !heard.ends().is_empty()).await;
            let heard = source.stop().await;
            assert_eq!(heard.ends(), [StreamEnd::Clean], "{:?}", heard.attempts);
            heard.assert_gapless();
        }
        deletion.finished().await;
        assert_orderly_end(&pod);
        let report = assert_drained(&pod);
        assert_eq!(report["notices"]["websocket_close"], 20, "{report}");
    }
}
