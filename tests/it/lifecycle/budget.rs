//! Owns tests of the grace period: shorter than told, used up by the app, or by traffic that never stops.

use rustix::process::Signal;

use super::{
    APP, Callers, EBBTIDE, MILLIS, OK, SECONDS, assert_app_was_idle_at_its_end, assert_nobody_is_killed,
    assert_orderly_end, call, in_flight, remarks, report, slow, slow_post, status, yaml,
};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, OnTerm};
use crate::harness::broker::Broker;
use crate::harness::client::{Failure, How, IdleHolder, Lane, Load, Plan, Raw, Request, send};
use crate::harness::pod::{Event, HookEnd, Pod, PodBuilder};
use crate::harness::process::KILLED;
use crate::harness::wait::{Mono, eventually};

fn stubborn() -> AppOptions {
    AppOptions { on_term: OnTerm::Ignore, ..AppOptions::default() }
}

/// C18, row 9: the signal comes while the app hook is blocked; what is left gets its proper ending.
async fn a_real_grace_is_used_up(real: u64) {
    // The app ignores its signal, so that it is not its death that ends the requests.
    let pod = Pod::builder().grace(30).app(stubborn()).start().await;
    pod.ready().await;
    let address = pod.address();
    let unanswered = call(address, slow_post(20_000));
    let mut download = Raw::connect(address).await.unwrap();
    download.send("GET /chunks?n=1000&every_ms=50 HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    download.read_until(b"piece 1\n", SOON).await.unwrap();
    in_flight(&pod.ebbtide(), 2).await;
    let deletion = pod.delete(real);
    let signalled = pod.timeline().wait_for(Event::Signalled(EBBTIDE, Signal::TERM), SECONDS(real) + SOON).await;
    pod.ebbtide().phase_becomes("closing", SOON).await;
    let refused = send(address, &Request::get("/"), SOON).await;
    let after = pod.ebbtide().metrics().await.value("ebbtide_grace_used_up_after_seconds", &[]);
    let exit = pod.exit(EBBTIDE, SOON).await;
    let took = pod.timeline().at(Event::Exited(EBBTIDE, OK)).since(signalled);
    deletion.finished().await;

    assert_eq!(exit, OK, "killed\n{}", pod.timeline().table());
    assert!(took < SECONDS(2), "{took:?} is more than the kubelet gives");
    assert_eq!(pod.exit_of(APP), Some(KILLED));
    let after = after.expect("a sample");
    assert!(after > 0.0 && after <= real as f64 + 1.0, "{after} s, as the kubelet gave");
    let refused = refused.expect("an answer");
    assert_eq!((refused.status, refused.closes()), (503, 1));
    let unanswered = unanswered.await.unwrap().expect("an answer");
    assert_eq!((unanswered.status, unanswered.closes()), (504, 1));
    assert!(unanswered.head.get("retry-after").is_none(), "it may have been executed");
    let (rest, _) = download.ending(SOON).await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "a cut response must not look whole");
    assert_eq!(pod.journal(0).lines("req").iter().filter(|line| line.get("path") == "/").count(), 0);
    let report = report(&pod);
    assert!(remarks(&report).contains("real grace period ended"), "{report}");
    assert_eq!(report["outcome"], "forced");
    assert_eq!(report["forced"], serde_json::json!({"request_unanswered": 1, "response": 1}), "{report}");
}

#[tokio::test]
async fn a_real_grace_of_five_seconds_ends_in_order() {
    a_real_grace_is_used_up(5).await;
}

/// As a hard eviction has it.
#[tokio::test]
async fn a_real_grace_of_one_second_ends_in_order() {
    a_real_grace_is_used_up(1).await;
}

/// Node shutdown: two thirds of the grace are enough for a drain that has nothing to wait for.
#[tokio::test]
async fn a_node_shutdown_that_leaves_enough_time_is_not_noticed() {
    let pod = Pod::builder().grace(15).hold("3s").app_stop("1s").app(AppOptions::default()).start().await;
    pod.ready().await;
    let load = Load::start(Plan::mixed(pod.address(), 50.0));
    let long = Callers::start(pod.address(), 10, &slow(2000));
    in_flight(&pod.ebbtide(), 10).await;
    let deletion = pod.delete(10);
    pod.ebbtide().phase_becomes("draining", SOON).await;
    let (load, long) = tokio::join!(load.stop(), long.stop());
    deletion.finished().await;
    load.assert_clean();
    long.assert_clean();
    assert_orderly_end(&pod);
    assert_app_was_idle_at_its_end(&pod);
    assert!(!remarks(&report(&pod)).contains("real grace"), "{}", report(&pod));
}

/// Row 8: an app that ignores its signal is killed, ebbtide is not.
#[tokio::test]
async fn an_app_that_ignores_its_signal_does_not_take_ebbtide_with_it() {
    let pod = Pod::builder().grace(6).hold("1s").app_stop("1s").app(stubborn()).start().await;
    pod.ready().await;
    let reply = call(pod.address(), slow(1500));
    in_flight(&pod.ebbtide(), 1).await;
    let deletion = pod.delete(6);
    assert_eq!(status(&reply.await.unwrap()), Ok(200));
    pod.timeline().wait_for(Event::Signalled(APP, Signal::TERM), SECONDS(6)).await;
    let late = send(pod.address(), &Request::get("/"), SOON).await.expect("an answer until the end");
    assert_eq!((late.status, late.closes()), (503, 1));
    deletion.finished().await;
    assert_eq!(pod.exit_of(APP), Some(KILLED));
    assert_eq!(pod.exit_of(EBBTIDE), Some(OK), "{}", pod.timeline().table());
    pod.timeline().assert_order(&[Event::HookReturned(APP, HookEnd::Ok), Event::Signalled(EBBTIDE, Signal::TERM)]);
    assert_eq!(report(&pod)["outcome"], "drained");
}

/// C20: arrivals after the hold are served until the drain deadline, and refused politely from then on.
#[tokio::test]
async fn traffic_that_never_stops_is_served_to_the_deadline() {
    let pod = Pod::builder().grace(12).hold("2s").app_stop("1s").app(AppOptions::default()).start().await;
    pod.ready().await;
    let load = Load::start(Plan::mixed(pod.address(), 60.0));
    let long = Callers::start(pod.address(), 3, &slow(700));
    load.has_done(30, SOON).await;
    let deletion = pod.delete(12);
    pod.ebbtide().phase_becomes("draining", SOON).await;
    let late = pod.ebbtide().metric_becomes("ebbtide_late_arrivals_total", &[], SOON, |late| late > 50.0).await;
    pod.timeline().wait_for(Event::HookReturned(APP, HookEnd::Ok), SOON).await;
    pod.timeline().wait_for(Event::Exited(EBBTIDE, OK), SOON).await;
    let signal = pod.timeline().at(Event::Signalled(EBBTIDE, Signal::TERM));
    let (load, long) = tokio::join!(load.stop(), long.stop());
    deletion.finished().await;

    let t0 = pod.timeline().at(Event::Deleting(12));
    for record in load.records.iter().chain(&long.records) {
        let fits = match record.result {
            Ok(_) => true,
            // Not before the deadline: hold 2 s, drain 5 s.
            Err(Failure::Status(503)) => record.ended >= t0 + MILLIS(6900),
            // Behind the signal nobody is left, and a connection may reach the socket in the moment of its close.
            Err(Failure::Refused | Failure::Reset | Failure::Eof) => record.ended >= signal,
            Err(Failure::Status(504)) => record.ended >= t0 + MILLIS(6900),
            Err(_) => false,
        };
        assert!(fits, "{:?} before the signal: {record:?}", signal.since(record.ended));
    }
    assert!(load.records.iter().any(|one| one.result == Err(Failure::Status(503))), "the gate was never met");
    assert_orderly_end(&pod);
    let report = report(&pod);
    assert!(report["late_arrivals"].as_f64() >= Some(late), "{report}");
    assert!(report["hold_needed_seconds"].as_u64() >= Some(5), "{report}");
    assert!(remarks(&report).contains("came after the hold"), "{report}");
}

/// C22: idle connections, inbound and outbound, keep nobody; the end comes before the grace does.
#[tokio::test]
async fn idle_connections_do_not_use_up_the_grace() {
    let broker = Broker::start().await;
    let pod = Pod::builder().grace(5).app(AppOptions::default());
    let (line, outbound) = super::outbound(&pod, broker.address);
    let text = yaml(&pod, &line, "");
    let pod = pod.yaml(&text).start().await;
    pod.ready().await;
    let idle = IdleHolder::open(pod.address(), 20, Some(Request::get("/"))).await;
    let held = Raw::connect(outbound).await.unwrap();
    eventually("a flow to the broker", SOON, || if broker.flows().len() == 1 { Ok(()) } else { Err(()) }).await;
    pod.delete(5).finished().await;
    assert_orderly_end(&pod);
    let took = pod.timeline().between(Event::Deleting(5), Event::Exited(EBBTIDE, OK));
    assert!(took < SECONDS(5), "{took:?}");
    assert!(idle.all_closed(SOON).await.iter().all(|one| one.ending == crate::harness::client::Ending::Fin));
    let app_gone = pod.timeline().at(Event::Exited(APP, OK));
    let flow = eventually("the broker's end", SOON, || broker.flows()[0].ended.ok_or(())).await;
    assert!(flow.0 >= app_gone, "an outbound connection was cut before the app had gone");
    drop(held);
}

/// C05: readiness turns while every listener goes on taking connections, to the end of the hold and beyond.
#[tokio::test]
async fn a_balancer_that_is_slow_to_learn_loses_nothing() {
    let pod = Pod::builder()
        .grace(14)
        .hold("4s")
        .app_stop("1s")
        .readiness(MILLIS(100))
        .app(AppOptions::default())
        .start()
        .await;
    pod.timeline().wait_for(Event::Ready(true), SOON).await;
    let load = Load::start(Plan::mixed(pod.address(), 50.0));
    load.has_done(20, SOON).await;
    let deletion = pod.delete(14);
    let unready = pod.timeline().wait_for(Event::Ready(false), SOON).await;
    assert_eq!(pod.ebbtide().status().await["phase"], "holding", "readiness turns within the hold");
    // Two failed probes, ten times slower than ours.
    (unready + SECONDS(2)).reached().await;
    let load = load.stop().await;
    deletion.finished().await;
    load.assert_clean();
    assert!(load.since(unready).total() > 20);
    assert_orderly_end(&pod);
    assert_eq!(pod.timeline().count(|event| matches!(event, Event::Ready(_))), 2, "{}", pod.timeline().table());
}

fn starts_late(wait: &str) -> PodBuilder {
    let app = AppOptions { listen_after: SECONDS(4), ..AppOptions::default() };
    let pod = Pod::builder().grace(8).app_stop("1s").app(app);
    let text = yaml(&pod, "", &format!("parking: {{wait_timeout: {wait}}}\n"));
    pod.yaml(&text)
}

/// C107: an app that listens late; its first requests wait, or are told to come again.
#[tokio::test]
async fn requests_wait_for_an_app_that_starts_slowly() {
    let (patient, hasty) = tokio::join!(starts_late("20s").start(), starts_late("1s").start());
    let began = Mono::now();
    let parked = call(patient.address(), Request::echo(100));
    let refused = send(hasty.address(), &Request::echo(100), SOON).await.expect("an answer");
    assert_eq!(refused.status, 503);
    assert!(refused.head.get("retry-after").is_some());
    assert_eq!(hasty.ebbtide().code("/readyz").await, 503);
    assert_eq!(hasty.ebbtide().code("/startupz").await, 200, "the app starts only after it");
    assert_eq!(hasty.journal(0).count("listening"), 0, "the test was too slow to meet the start");
    let reply = parked.await.unwrap();
    assert_eq!(reply.and_then(|reply| reply.verdict()), Ok(200));
    assert!(began.elapsed() >= SECONDS(2));
    hasty.ready().await;
    assert_eq!(status(&send(hasty.address(), &Request::echo(100), SOON).await), Ok(200));
    patient.ready().await;
    assert_eq!(patient.ebbtide().status().await["phase"], "serving");
}

/// Row 3: nobody holds for an app that has never accepted; what was parked is refused at once.
#[tokio::test]
async fn a_deletion_before_the_app_has_ever_listened_is_quick() {
    let pod = starts_late("20s").start().await;
    let parked = call(pod.address(), Request::echo(100));
    pod.ebbtide().metric_becomes("ebbtide_parked_requests", &[], SOON, |parked| parked == 1.0).await;
    let deletion = pod.delete(8);
    let reply = parked.await.unwrap().expect("an answer");
    assert_eq!((reply.status, reply.closes()), (503, 1));
    deletion.finished().await;
    assert_eq!(pod.journal(0).count("listening"), 0, "the test was too slow to meet the start");
    assert_nobody_is_killed(&pod);
    pod.timeline().assert_order(&[Event::Exited(APP, OK), Event::Exited(EBBTIDE, OK)]);
    let took = pod.timeline().between(Event::Deleting(8), Event::Exited(EBBTIDE, OK));
    assert!(took < SECONDS(4), "{took:?}");
}

/// C21: an adaptive hold follows the clients; probes of any kind don't count.
#[tokio::test]
async fn an_adaptive_hold_ends_with_the_traffic_and_not_with_the_probes() {
    let adaptive = || {
        let pod = Pod::builder().grace(20).app_stop("1s").app(AppOptions::default());
        pod.env("EBBTIDE_HOLD_MIN", "1s").env("EBBTIDE_HOLD_QUIET", "1s").env("EBBTIDE_HOLD_MAX", "4s")
    };
    let (busy, probed) = tokio::join!(adaptive().start(), adaptive().start());
    busy.ready().await;
    probed.ready().await;
    let with = |agent| Request::get("/").header("User-Agent", agent);
    let load = |pod: &Pod, agent| {
        let lane = Lane { how: How::Fresh, share: 1, request: with(agent) };
        Load::start(Plan { lanes: vec![lane], ..Plan::pooled(pod.address(), 20.0, 1) })
    };
    let (clients, probes) = (load(&busy, "curl/8"), load(&probed, "kube-probe/1.34"));
    clients.has_done(5, SOON).await;
    let deletions = (busy.delete(20), probed.delete(20));
    busy.ebbtide().phase_becomes("draining", SOON).await;
    clients.stop().await.assert_clean();
    deletions.0.finished().await;
    deletions.1.finished().await;
    assert!(probes.stop().await.ok() > 10);
    let hold = |pod: &Pod| report(pod)["hold_seconds"].as_f64().expect("the hold is reported");
    assert!((3.9..5.0).contains(&hold(&busy)), "to its max: {}", report(&busy));
    assert!((0.9..3.5).contains(&hold(&probed)), "not to its max: {}", report(&probed));
}
