//! Owns tests of an app that restarts in place, by the kubelet's hand or its own, while ebbtide stays.

use std::time::Duration;

use rustix::process::Signal;

use super::{
    APP, Callers, EBBTIDE, MILLIS, OK, SECONDS, assert_nobody_is_killed, assert_orderly_end, call, in_flight, slow,
    slow_post, status, yaml,
};
use crate::harness::app::AppOptions;
use crate::harness::client::{Failure, Load, Plan, Request};
use crate::harness::pod::{Event, HookEnd, Pod, PodBuilder};
use crate::harness::process::KILLED;
use crate::harness::wait::{Mono, eventually, within};
use crate::harness::{SOON, ebbtide::surface::get, heavy};

/// Room for everything that comes while the app is down.
fn roomy() -> PodBuilder {
    let pod = Pod::builder().grace(12).hold("2s").app_stop("1s").app(AppOptions::default());
    let text = yaml(&pod, "", "parking: {max_requests: 10000}\n");
    pod.yaml(&text)
}

/// C26: hook, signal, three seconds of nothing, start; no request fails, and a deletion later on still drains.
#[tokio::test(flavor = "multi_thread")]
async fn an_app_restart_fails_no_request_and_heals_by_itself() {
    let _heavy = heavy().await;
    let pod = roomy().readiness(MILLIS(100)).start().await;
    pod.timeline().wait_for(Event::Ready(true), SOON).await;
    let mut plan = Plan::mixed(pod.address(), 500.0);
    plan.connections = 3000;
    plan.timeout = SECONDS(20);
    let load = Load::start(plan);
    let long = call(pod.address(), slow(3500));
    in_flight(&pod.ebbtide(), 1).await;
    load.has_done(200, SOON).await;
    pod.restart_app_only(0, 10, SECONDS(3)).finished().await;
    let listening = Mono::now();
    assert_eq!(status(&long.await.unwrap()), Ok(200), "in flight when the hook came");
    pod.ready().await;
    assert!(listening.elapsed() < SECONDS(2), "{:?} to be ready again", listening.elapsed());
    load.has_done(load.so_far().ok() + 200, SOON).await;
    let forwarded = [("outcome", "forwarded")];
    pod.ebbtide().metric_becomes("ebbtide_parked_requests_total", &forwarded, SOON, |parked| parked > 300.0).await;
    assert_eq!(pod.ebbtide().metrics().await.value("ebbtide_app_restarts", &[]), Some(1.0));
    eventually("readiness again", SOON, || match pod.timeline().count(|event| event == Event::Ready(true)) {
        2 => Ok(()),
        other => Err(other),
    })
    .await;
    pod.timeline().assert_order(&[
        Event::Restarting(APP),
        Event::HookReturned(APP, HookEnd::Ok),
        Event::Signalled(APP, Signal::TERM),
        Event::Exited(APP, OK),
        Event::Started(APP),
    ]);
    pod.timeline().assert_order(&[Event::Ready(false), Event::Started(APP), Event::Ready(true)]);

    let deletion = pod.delete(12);
    pod.ebbtide().phase_becomes("draining", SOON).await;
    let load = load.stop().await;
    deletion.finished().await;
    load.assert_clean();
    load.assert_at_most_once(&pod.journal(0));
    pod.timeline()
        .assert_never("a signal to ebbtide during the restart", |event| event == Event::Exited(EBBTIDE, KILLED));
    assert_nobody_is_killed(&pod);
    assert_eq!(pod.exit_of(EBBTIDE), Some(OK));
    let (journal, last) = (pod.journal(0), pod.journal(0).last_byte_at());
    assert!(journal.term_at() > last, "the app was told to stop before its last response");
}

/// Row 4: the own hook in the middle of an app restart takes the open app hook into the drain.
#[tokio::test]
async fn a_deletion_in_the_middle_of_an_app_restart_drains() {
    let pod = roomy().start().await;
    pod.ready().await;
    let load = Load::start(Plan::mixed(pod.address(), 100.0));
    let long = Callers::start(pod.address(), 5, &slow(3000));
    in_flight(&pod.ebbtide(), 5).await;
    let restart = pod.restart_app_only(0, 12, SECONDS(1));
    pod.ebbtide().metric_becomes("ebbtide_app_restarts", &[], SOON, |seen| seen == 1.0).await;
    assert!(pod.ebbtide().drain().await.status.success());
    let status = pod.ebbtide().status().await;
    assert_eq!(status["phase"], "holding", "{status}");
    assert_eq!(pod.ebbtide().metrics().await.value("ebbtide_app_hooks_open", &[]), Some(1.0), "it joins the drain");
    pod.ebbtide().phase_becomes("draining", SOON).await;
    let (load, long) = tokio::join!(load.stop(), long.stop());
    restart.finished().await;
    load.assert_clean();
    long.assert_clean();
    let lives = pod.journal(0).lines("term");
    let last = pod.journal(0).lines("done").iter().map(|line| line.at).filter(|at| *at < lives[0].at).max();
    assert!(last.is_some() && pod.journal(0).lines("done").len() == pod.journal(0).lines("req").len());
    pod.signal(EBBTIDE, Signal::TERM);
    assert_eq!(pod.exit(EBBTIDE, SOON).await, OK);
}

/// Row 3 and 4: the pod is deleted while its app is down; who waits for it is told at once.
#[tokio::test]
async fn a_deletion_while_the_app_is_down_refuses_who_waits() {
    let pod = roomy().start().await;
    pod.ready().await;
    let crash = pod.crash_app(0, SECONDS(8));
    pod.timeline().wait_for(Event::Exited(APP, KILLED), SOON).await;
    let waiting = call(pod.address(), Request::echo(100));
    pod.ebbtide().metric_becomes("ebbtide_parked_requests", &[], SOON, |parked| parked == 1.0).await;
    let began = Mono::now();
    pod.delete(12).finished().await;
    let reply = waiting.await.unwrap().expect("an answer");
    assert_eq!((reply.status, reply.closes()), (503, 1));
    assert_eq!(pod.exit_of(EBBTIDE), Some(OK));
    assert!(began.elapsed() < SECONDS(5), "nobody holds for an app that is not there: {:?}", began.elapsed());
    drop(crash);
}

/// C26: an app that crashes takes only what it had been sent; the rest waits for its next life.
#[tokio::test]
async fn a_killed_app_costs_only_what_it_had() {
    let pod = roomy().start().await;
    pod.ready().await;
    let mut plan = Plan::mixed(pod.address(), 200.0);
    plan.connections = 1000;
    let load = Load::start(plan);
    let doomed: Vec<_> = (0..20).map(|_| call(pod.address(), slow_post(30_000))).collect();
    in_flight(&pod.ebbtide(), 20).await;
    load.has_done(100, SOON).await;
    let crash = pod.crash_app(0, SECONDS(2));
    let exited = pod.timeline().wait_for(Event::Exited(APP, KILLED), SOON).await;
    for request in doomed {
        let reply = request.await.unwrap().expect("an answer");
        assert_eq!(reply.status, 502);
    }
    crash.finished().await;
    let again = load.so_far().ok();
    load.has_done(again + 100, SOON).await;
    let load = load.stop().await;

    for record in load.records.iter().filter(|one| one.result.is_err()) {
        assert_eq!(record.result, Err(Failure::Status(502)), "{record:?}");
        assert!(record.began <= exited, "it was sent to a dead app: {record:?}");
    }
    load.assert_at_most_once(&pod.journal(0));
    assert!(load.total() - load.ok() <= 20, "{:?}", load.failures());
    let seen = pod.journal(0).lines("req");
    assert_eq!(seen.iter().filter(|line| line.get("path").starts_with("/slow")).count(), 20, "each once");
    assert_eq!(pod.ebbtide().status().await["phase"], "serving");
    assert_eq!(load.resets(), 0);
}

/// C26: anybody can call the hook; the most it does is one short pause.
#[tokio::test]
async fn a_hook_called_by_anyone_pauses_once_and_never_unreadies() {
    let pod = roomy().readiness(MILLIS(50)).start().await;
    pod.timeline().wait_for(Event::Ready(true), SOON).await;
    let load = Load::start(Plan::mixed(pod.address(), 200.0));
    let admin = pod.admin();
    let callers: Vec<_> = (0..5)
        .map(|_| {
            tokio::spawn(async move {
                for _ in 0..4 {
                    let got = get(admin, "/app-stop", "curl/8", SECONDS(10)).await.expect("the hook answers");
                    assert_eq!(got.status, 200);
                }
            })
        })
        .collect();
    // When requests were parked: the counter's steps.
    let (mut steps, mut last) = (Vec::new(), 0.0);
    while callers.iter().any(|caller| !caller.is_finished()) {
        let parked = pod.ebbtide().metrics().await.sum("ebbtide_parked_requests_total", &[]);
        if parked > last {
            steps.push(Mono::now());
            last = parked;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for caller in callers {
        caller.await.expect("every call returns");
    }
    load.has_done(load.so_far().ok() + 50, SOON).await;
    load.stop().await.assert_clean();
    let (first, final_step) = (steps.first().expect("it paused"), steps.last().expect("it paused"));
    assert!(final_step.since(*first) < MILLIS(1500), "more than one pause: {:?}", final_step.since(*first));
    pod.timeline().assert_never("unreadiness", |event| event == Event::Ready(false));
    assert_eq!(pod.ebbtide().status().await["phase"], "serving");
    assert_eq!(pod.ebbtide().metrics().await.value("ebbtide_termination_start_time_seconds", &[]), Some(0.0));

    let deletion = pod.delete(12);
    within("the deletion", SECONDS(20), deletion.finished()).await;
    assert_orderly_end(&pod);
}
