//! Owns tests of pod deletion: the app's SIGTERM waits for its last response, and no client notices.

use std::time::Duration;

use rustix::process::Signal;
use tokio::task::JoinSet;

use super::{
    APP, Callers, EBBTIDE, MILLIS, OK, Probes, SECONDS, assert_app_was_idle_at_its_end, assert_orderly_end, call,
    in_flight, remarks, report, slow, status,
};
use crate::harness::client::{IdleHolder, Load, Plan, Raw, Request, send};
use crate::harness::http::Sum;
use crate::harness::pod::{Event, Hook, Pod, PodBuilder};
use crate::harness::process::KILLED;
use crate::harness::wait::{Mono, eventually};
use crate::harness::{SOON, app::AppOptions, heavy};

/// Hold 2 s, drain 5 s, close 2 s, app 1 s, margin 2 s.
fn short_pod() -> PodBuilder {
    Pod::builder().grace(12).hold("2s").app_stop("1s").app(AppOptions::default())
}

/// Deletes the pod under short requests at a rate and under slow ones that never stop, goes on with
/// both until the drain has begun, and checks that nobody has noticed anything.
async fn delete_under_load(pod: Pod, grace: u64, rate: f64, slow_calls: usize) -> usize {
    pod.ready().await;
    let short = Load::start(Plan::mixed(pod.address(), rate));
    let long = Callers::start(pod.address(), slow_calls, &slow(3000));
    let ebbtide = pod.ebbtide();
    in_flight(&ebbtide, slow_calls).await;
    let deletion = pod.delete(grace);
    ebbtide.phase_becomes("draining", SECONDS(grace)).await;
    let draining = Mono::now();
    // Clients that are late to learn of the deletion are served beyond the hold.
    eventually("late requests", SOON, || match short.so_far().since(draining).ok() {
        50.. => Ok(()),
        fewer => Err(fewer),
    })
    .await;
    let (short, long) = tokio::join!(short.stop(), long.stop());
    deletion.finished().await;

    for clients in [&short, &long] {
        clients.assert_clean();
        let late = clients.since(draining);
        assert!(late.total() == 0 || late.ok() > 0);
        assert!(late.unmarked().is_empty(), "not told to go: {:?}", late.unmarked());
        assert!(late.per_pooled_connection().values().all(|&requests| requests == 1), "sent on although told to go");
        clients.assert_at_most_once(&pod.journal(0));
    }
    assert_orderly_end(&pod);
    assert_app_was_idle_at_its_end(&pod);
    let report = report(&pod);
    assert_eq!(report["outcome"], "drained", "{report}");
    assert_eq!(report["forced"], serde_json::json!({}), "{report}");
    assert!(!remarks(&report).contains("missing"), "{report}");
    assert!(report["late_arrivals"].as_u64() >= Some(50), "{report}");
    short.total()
}

/// C01, C02: the defaults at full length.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_deleted_under_two_thousand_requests_a_second_fails_none() {
    let _heavy = heavy().await;
    let pod = Pod::builder().app(AppOptions::default()).start().await;
    let sent = delete_under_load(pod, 30, 2000.0, 200).await;
    assert!(sent > 5000, "only {sent} requests were sent");
}

/// C01, C02: many deletions, each with another order of hooks and signals.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_deletions_under_load_fail_no_request() {
    let _heavy = heavy().await;
    for _ in 0..5 {
        let mut pods = JoinSet::new();
        for _ in 0..4 {
            pods.spawn(async { delete_under_load(short_pod().start().await, 12, 60.0, 20).await });
        }
        while let Some(pod) = pods.join_next().await {
            pod.expect("a pod's test");
        }
    }
}

/// C16: liveness and startup never regress, readiness turns once, the admin port is the last to close.
#[tokio::test]
async fn probes_see_one_turn_of_readiness_and_nothing_else() {
    let pod = short_pod().start().await;
    pod.ready().await;
    let probes = Probes::start(pod.admin(), &["/livez", "/startupz", "/readyz"], MILLIS(50));
    let ready = call(pod.address(), Request::get("/"));
    assert_eq!(status(&ready.await.unwrap()), Ok(200));
    pod.delete(12).finished().await;
    let signal = pod.timeline().at(Event::Signalled(EBBTIDE, Signal::TERM));
    let probes = probes.stop().await;

    let answered =
        |path: &str| -> Vec<_> { probes.iter().filter(|one| one.path == path && one.ended < signal).collect() };
    for path in ["/livez", "/startupz"] {
        assert!(answered(path).len() > 20);
        for probe in answered(path) {
            assert_eq!(probe.status, Ok(200), "{path} {:?} before the signal", signal.since(probe.at));
        }
    }
    let readiness: Vec<u16> = answered("/readyz").iter().map(|one| one.status.clone().expect("an answer")).collect();
    let mut turns = readiness.clone();
    turns.dedup();
    assert_eq!(turns, [200, 503], "{readiness:?}");
}

/// C23: only the budget ends a request, and the client gets all of it.
#[tokio::test]
async fn a_long_response_is_completed_within_the_budget() {
    let pod = Pod::builder().grace(18).hold("3s").app_stop("1s").app(AppOptions::default()).start().await;
    pod.ready().await;
    let whole: String = (0..90).map(|index| format!("piece {index}\n")).collect();
    let download = Request { expect: Some(Sum::of(whole.as_bytes())), ..Request::get("/chunks?n=90&every_ms=100") };
    let download = call(pod.address(), download);
    let upload = call(pod.address(), Request::echo(60_000).drip(1000, MILLIS(150)));
    in_flight(&pod.ebbtide(), 2).await;
    let deletion = pod.delete(18);
    for request in [download, upload] {
        let reply = request.await.unwrap();
        assert_eq!(reply.and_then(|reply| reply.verdict()), Ok(200));
    }
    deletion.finished().await;
    assert_orderly_end(&pod);
    assert_app_was_idle_at_its_end(&pod);
}

/// C03: an app that dies early in the hold; its clients get quick 503s, and the hook is let go.
#[tokio::test]
async fn an_app_that_dies_in_the_hold_is_replaced_by_quick_refusals() {
    let pod = Pod::builder().grace(20).hold("6s").app_stop("1s").app(AppOptions::default()).start().await;
    pod.ready().await;
    let address = pod.address();
    let idle = IdleHolder::open(address, 10, Some(Request::get("/"))).await;
    let load = Load::start(Plan::mixed(address, 100.0));
    load.has_done(50, SOON).await;
    let deletion = pod.delete(20);
    pod.ebbtide().phase_becomes("holding", SOON).await;
    pod.signal(APP, Signal::KILL);
    pod.exit(APP, SOON).await;
    let gone = Mono::now();
    pod.ebbtide().phase_becomes("lingering", SOON).await;
    let noticed = Mono::now();

    for request in [
        Request::echo(100),
        Request::get("/"),
        Request::get("/").header("Connection", "Upgrade").header("Upgrade", "websocket"),
    ] {
        let began = Mono::now();
        let reply = send(address, &request, SOON).await.expect("an answer");
        assert_eq!(reply.status, 503, "{request:?}");
        assert_eq!(reply.closes(), 1, "{}", reply.head.text);
        assert!(reply.head.get("retry-after").is_some(), "{}", reply.head.text);
        // Not at the end of the hold.
        assert!(began.elapsed() < SECONDS(3), "{:?}", began.elapsed());
    }
    let refused = pod.ebbtide().metrics().await.sum("ebbtide_requests_total", &[("outcome", "unavailable")]);
    assert!(refused >= 3.0, "{refused}");
    idle.all_closed(SECONDS(8)).await;
    let load = load.stop().await;
    deletion.finished().await;

    let after = load.since(noticed);
    assert!(after.records.iter().all(|one| one.result == Err(crate::harness::client::Failure::Status(503))));
    assert_eq!(load.resets(), 0);
    pod.timeline().assert_order(&[Event::Exited(APP, KILLED), Event::Exited(EBBTIDE, OK)]);
    let returned = pod.timeline().find(|event| matches!(event, Event::HookReturned(APP, _))).expect("the hook returns");
    assert!(returned.since(gone) < SECONDS(3), "{}", pod.timeline().table());
}

/// C02, C03: without its hook the app stops at once; that is told, and no client is left hanging.
#[tokio::test]
async fn an_app_without_its_hook_costs_503s_and_is_reported() {
    let pod = short_pod().app_hook(Hook::None).start().await;
    pod.ready().await;
    let load = Load::start(Plan::mixed(pod.address(), 100.0));
    load.has_done(50, SOON).await;
    let deletion = pod.delete(12);
    pod.timeline().wait_for(Event::Exited(APP, OK), SOON).await;
    pod.ebbtide().phase_becomes("lingering", SOON).await;
    let noticed = Mono::now();
    let load = load.stop().await;
    deletion.finished().await;

    // ebbtide may see the app gone before whoever waits for its process does.
    let told = pod.journal(0).term_at().expect("the app was told to stop");
    for record in &load.records {
        let fits = match record.result {
            Ok(_) => true,
            Err(crate::harness::client::Failure::Status(502)) => record.began < noticed,
            Err(crate::harness::client::Failure::Status(503)) => record.ended >= told,
            Err(_) => false,
        };
        assert!(fits, "{record:?}");
    }
    assert_eq!(load.resets(), 0);
    assert_eq!(pod.exit_of(EBBTIDE), Some(OK));
    assert!(remarks(&report(&pod)).contains("app hook missing"), "{}", report(&pod));
}

/// C32: who has just connected, or was just answered without a notice, may speak before its connection is closed.
#[tokio::test]
async fn a_connection_is_not_closed_right_after_its_last_use() {
    let pod = short_pod().start().await;
    pod.ready().await;
    let deletion = pod.delete(12);
    pod.ebbtide().phase_becomes("holding", SOON).await;
    let since = pod.ebbtide().status().await["seconds_since_t0"].as_f64().unwrap();
    let hold_end = Mono::now() + Duration::from_secs_f64(2.0 - since);
    let mut clients = JoinSet::new();
    for number in 0..40 {
        let address = pod.address();
        clients.spawn(async move {
            let answered = number % 2 == 0;
            if !answered {
                tokio::time::sleep(hold_end.since(Mono::now() + MILLIS(100))).await;
            }
            let mut client = Raw::connect(address).await.unwrap();
            if answered {
                // Its head is out before the notices begin, its end comes when the hold ends.
                client.send("GET /chunks?n=19&every_ms=100 HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
                assert_eq!(client.reply("GET", SOON).await.unwrap().closes(), 0, "it was told to go");
            }
            let used = Mono::now();
            // The closes are spread over two seconds: a fifth of them would come within these.
            tokio::time::sleep(MILLIS(500)).await;
            let sent = client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
            let late = used.elapsed() > MILLIS(900);
            let reply = client.reply("GET", SOON).await;
            assert!(late || (sent.is_ok() && reply.is_ok_and(|reply| reply.closes() == 1)), "client {number}");
            !late
        });
    }
    let in_time = clients.join_all().await.into_iter().filter(|in_time| *in_time).count();
    deletion.finished().await;
    assert!(in_time > 20, "the machine is too slow: {in_time}");
    assert_orderly_end(&pod);
}
