//! Owns tests of pods that are no web servers: Jobs, queue consumers, several apps, and the order of a start.

use std::net::SocketAddr;

use rustix::process::Signal;
use tokio::task::JoinSet;

use super::{
    APP, Callers, EBBTIDE, MILLIS, OK, Probes, SECONDS, assert_nobody_is_killed, call, in_flight, outbound, slow,
    status, yaml,
};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, Listen, OnTerm};
use crate::harness::broker::Broker;
use crate::harness::client::{Load, Plan, Request, send};
use crate::harness::pod::{Event, Hook, HookEnd, Pod, PodBuilder, Who};
use crate::harness::process::Exit;

const SECOND: Who = Who::App(1);

/// A pod that serves nobody: its app's network goes out through ebbtide.
fn worker(to: SocketAddr, app: impl FnOnce(SocketAddr) -> AppOptions) -> PodBuilder {
    let pod = Pod::builder().grace(10).app_stop("2s");
    let (line, outbound) = outbound(&pod, to);
    let app = AppOptions { listen: Listen::Nowhere, ..app(outbound) };
    pod.app(app).yaml(&format!("listeners:\n{line}"))
}

/// C30: exit code 0, whenever the Job ends; every probe is answered until the last moment.
#[tokio::test]
async fn a_finished_job_is_followed_by_a_clean_exit_every_time() {
    let broker = Broker::start().await;
    for _ in 0..5 {
        let mut jobs = JoinSet::new();
        for number in 0..4 {
            let lifetime = MILLIS(30 * number);
            let pod =
                worker(broker.address, |_| AppOptions { ends_after: Some((lifetime, 0)), ..AppOptions::default() });
            jobs.spawn(async move {
                let pod = pod.start().await;
                let probes = Probes::start(pod.admin(), &["/livez", "/readyz"], MILLIS(50));
                pod.finish_job(SOON).finished().await;
                let exit = pod.timeline().at(Event::Exited(EBBTIDE, OK));
                assert_nobody_is_killed(&pod);
                let took = exit.since(pod.timeline().at(Event::MainsFinished));
                assert!(took < SECONDS(3), "{took:?}\n{}", pod.timeline().table());
                let signal = pod.timeline().at(Event::Signalled(EBBTIDE, Signal::TERM));
                for probe in probes.stop().await.iter().filter(|one| one.ended < signal) {
                    assert!(probe.status.is_ok(), "{:?} before the signal: {probe:?}", signal.since(probe.at));
                }
            });
        }
        while let Some(job) = jobs.join_next().await {
            job.expect("a job");
        }
    }
}

/// C28: an app's exit alone ends nothing; each of its lives has its network.
#[tokio::test]
async fn a_job_that_is_tried_again_keeps_its_network() {
    let target = AppOptions::at(SocketAddr::new(crate::harness::fresh_ip(), 9000));
    let dir = tempfile::TempDir::new().unwrap();
    let server = target.start("target", dir.path()).await;
    let Listen::Tcp(address) = target.listen else { panic!("it listens on TCP") };
    let pod = worker(address, |outbound| AppOptions {
        needs: Some(outbound),
        ends_after: Some((MILLIS(50), 1)),
        ..AppOptions::default()
    });
    let pod = pod.start().await;
    for life in 1..=4 {
        assert_eq!(pod.exit(APP, SOON).await, Exit::Code(1));
        assert!(pod.is_running(EBBTIDE), "the app's exit ended ebbtide");
        let needs = pod.journal(0).lines("need");
        assert_eq!(needs.len(), life);
        assert!(needs.iter().all(|need| need.get("ok") == "true"), "{}", pod.journal(0).tail(9));
        if life < 4 {
            pod.start_container(APP).await;
        }
    }
    assert_eq!(server.journal.count("done"), 4);
    pod.finish_job(SOON).finished().await;
    assert_eq!(pod.exit_of(EBBTIDE), Some(OK));
}

/// Row 3: a queue consumer acknowledges its last message on the connection it held all the time (C08).
#[tokio::test]
async fn a_queue_consumer_keeps_its_connection_until_it_has_gone() {
    let broker = Broker::start().await;
    let pod = worker(broker.address, |outbound| AppOptions {
        held: Some(outbound),
        on_term: OnTerm::Ack { after: SECONDS(2) },
        ..AppOptions::default()
    });
    let pod = pod.start().await;
    pod.ready().await;
    let deletion = pod.delete(10);
    let hook = pod.timeline().wait_for(Event::HookReturned(APP, HookEnd::Ok), SOON).await;
    deletion.finished().await;
    let t0 = pod.timeline().at(Event::Deleting(10));
    assert!(hook.since(t0) < SECONDS(2), "there is nothing to hold for: {:?}", hook.since(t0));
    let acks = pod.journal(0).lines("ack");
    assert_eq!(acks[0].get("ok"), "true", "{}", pod.journal(0).tail(5));
    pod.timeline().assert_order(&[Event::Signalled(APP, Signal::TERM), Event::Exited(APP, OK)]);
    pod.timeline().assert_order(&[Event::Exited(APP, OK), Event::Exited(EBBTIDE, OK)]);
    assert_eq!(broker.flows()[0].received, b"ack\n");
}

/// C107: nothing after it starts before all listeners are bound, so the app's first call goes through.
#[tokio::test]
async fn the_app_starts_when_its_network_is_there() {
    let target = AppOptions::at(SocketAddr::new(crate::harness::fresh_ip(), 9000));
    let dir = tempfile::TempDir::new().unwrap();
    let _server = target.start("target", dir.path()).await;
    let Listen::Tcp(address) = target.listen else { panic!("it listens on TCP") };
    let mut pod = Pod::builder().grace(10).hold("1s").readiness(MILLIS(50));
    let (line, outbound) = outbound(&pod, address);
    pod = pod.app(AppOptions { needs: Some(outbound), listen_after: SECONDS(2), ..AppOptions::default() });
    let text = yaml(&pod, &line, "");
    let pod = pod.yaml(&text).start().await;
    let early = call(pod.address(), Request::echo(10));
    assert_eq!(pod.journal(0).count("listening"), 0, "the test was too slow to meet the start");
    assert_eq!(status(&early.await.unwrap()), Ok(200), "a request from before the app listened");
    pod.timeline().wait_for(Event::Ready(true), SOON).await;
    let listening = pod.journal(0).lines("listening")[0].at;
    assert!(pod.timeline().at(Event::Ready(true)) > listening, "ready before the app was");
    assert!(pod.timeline().at(Event::StartupPassed(EBBTIDE)) < pod.journal(0).lines("up")[0].at);
    assert_eq!(pod.journal(0).lines("need")[0].get("ok"), "true");
}

/// Two apps, each with a listener and a hook of its own.
fn two_apps() -> PodBuilder {
    let pod = Pod::builder()
        .grace(12)
        .hold("2s")
        .app_stop("1s")
        .app(AppOptions::default())
        .app_hook(Hook::get("/app-stop?listener=web"))
        .app(AppOptions::default())
        .app_hook(Hook::get("/app-stop?listener=api"));
    let ip = pod.ip();
    let line = format!("  - {{name: api, bind: \"{ip}:14081\", upstream: \"http://{ip}:8081\"}}\n");
    let text = yaml(&pod, &line, "parking: {max_requests: 10000}\n");
    pod.yaml(&text)
}

#[tokio::test]
async fn several_apps_stop_after_the_last_response_of_all() {
    let pod = two_apps().start().await;
    pod.ready().await;
    let second = SocketAddr::new(pod.address().ip(), 14081);
    let load = Load::start(Plan::mixed(pod.address(), 50.0));
    let long = Callers::start(second, 5, &slow(3000));
    in_flight(&pod.ebbtide(), 5).await;
    let deletion = pod.delete(12);
    pod.ebbtide().phase_becomes("draining", SOON).await;
    let (load, long) = tokio::join!(load.stop(), long.stop());
    deletion.finished().await;
    load.assert_clean();
    long.assert_clean();
    assert_nobody_is_killed(&pod);
    let last = pod.journal(1).last_byte_at().expect("it has answered");
    for app in [APP, SECOND] {
        let term = pod.timeline().at(Event::Signalled(app, Signal::TERM));
        assert!(term > last, "{app} was told to stop {:?} early", last.since(term));
    }
    pod.timeline().assert_order(&[Event::Exited(SECOND, OK), Event::Turn(EBBTIDE), Event::Exited(EBBTIDE, OK)]);
}

/// A restart of one app pauses its own listener and no other.
#[tokio::test]
async fn a_restart_of_one_app_leaves_the_other_alone() {
    let pod = two_apps().start().await;
    pod.ready().await;
    let second = SocketAddr::new(pod.address().ip(), 14081);
    let mut plan = Plan::mixed(second, 50.0);
    plan.connections = 500;
    let restarted = Load::start(plan);
    let untouched = Callers::start(pod.address(), 5, &Request::get("/slow?ms=20"));
    restarted.has_done(20, SOON).await;
    let restart = pod.restart_app_only(1, 10, SECONDS(2));
    pod.timeline().wait_for(Event::Exited(SECOND, OK), SOON).await;
    pod.ebbtide().metric_becomes("ebbtide_upstream_up", &[("listener", "api")], SOON, |up| up == 0.0).await;
    assert_eq!(pod.ebbtide().code("/readyz").await, 503, "readiness needs every app");
    assert_eq!(status(&send(pod.address(), &Request::get("/"), SOON).await), Ok(200));
    restart.finished().await;
    pod.ready().await;
    restarted.has_done(restarted.so_far().ok() + 20, SOON).await;
    let (restarted, untouched) = tokio::join!(restarted.stop(), untouched.stop());
    restarted.assert_clean();
    untouched.assert_clean();
    let slowest = untouched.records.iter().map(|one| one.ended.since(one.began)).max().unwrap();
    let waited = restarted.records.iter().map(|one| one.ended.since(one.began)).max().unwrap();
    assert!(waited > SECONDS(1) && slowest < SECONDS(1), "{slowest:?} beside {waited:?}");
    assert_eq!(pod.journal(0).count("term"), 0);
}
