//! Owns tests of hooks that are missing, fail, come twice, or come from anyone.

use std::time::Duration;

use rustix::process::Signal;

use super::{
    APP, EBBTIDE, OK, SECONDS, assert_app_was_idle_at_its_end, assert_nobody_is_killed, assert_orderly_end, call,
    in_flight, remarks, report, slow, status,
};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, OnTerm};
use crate::harness::client::{Failure, Load, Plan, Raw};
use crate::harness::ebbtide::surface::get;
use crate::harness::pod::{Event, Hook, HookEnd, Pod, PodBuilder};
use crate::harness::process::Exit;
use crate::harness::wait::within;

fn pod() -> PodBuilder {
    Pod::builder().grace(12).hold("2s").app_stop("1s").app(AppOptions::default())
}

/// C15: a failed own hook costs the drain, and is reported; nothing hangs and nobody is killed.
#[tokio::test]
async fn a_failed_own_hook_is_reported_and_nothing_hangs() {
    let pod = pod().own_hook(Hook::Fails).start().await;
    pod.ready().await;
    let load = Load::start(Plan::mixed(pod.address(), 50.0));
    let long = call(pod.address(), slow(3000));
    in_flight(&pod.ebbtide(), 1).await;
    let deletion = pod.delete(12);
    let exited = pod.timeline().wait_for(Event::Exited(APP, OK), SOON).await;
    let load = load.stop().await;
    deletion.finished().await;

    // What was in flight when the app hook came is served to its end even so.
    assert_eq!(status(&long.await.unwrap()), Ok(200));
    // ebbtide may see the app gone before whoever waits for its process does.
    let told = pod.journal(0).term_at().expect("the app was told to stop");
    for record in &load.records {
        let fits = record.result.is_ok()
            || (record.result == Err(Failure::Status(503)) && record.ended >= told)
            || (record.result == Err(Failure::Status(502)) && record.began <= exited);
        assert!(fits, "{record:?}");
    }
    pod.timeline().assert_order(&[
        Event::HookReturned(APP, HookEnd::Ok),
        Event::Exited(APP, OK),
        Event::Exited(EBBTIDE, OK),
    ]);
    assert_nobody_is_killed(&pod);
    assert!(remarks(&report(&pod)).contains("own hook missing"), "{}", report(&pod));
}

/// Row 15: a signal and nothing else, the app alive: all of the hold and the drain, and a remark.
#[tokio::test]
async fn a_signal_alone_drains_and_reports_the_missing_hook() {
    let pod = pod().start().await;
    pod.ready().await;
    let load = Load::start(Plan::mixed(pod.address(), 50.0));
    let long = call(pod.address(), slow(4000));
    in_flight(&pod.ebbtide(), 1).await;
    pod.signal(EBBTIDE, Signal::TERM);
    pod.ebbtide().phase_becomes("draining", SOON).await;
    let missing = pod.ebbtide().metrics().await.value("ebbtide_own_hook_missing", &[]);
    assert_eq!(missing, Some(1.0));
    load.stop().await.assert_clean();
    assert_eq!(status(&long.await.unwrap()), Ok(200));
    assert_eq!(pod.exit(EBBTIDE, SOON).await, OK);
    let remarks = remarks(&report(&pod));
    assert!(remarks.contains("own hook missing") && remarks.contains("app hook missing"), "{remarks}");
}

/// C15: the app hook never comes and the app takes its time; it is served until it refuses.
#[tokio::test]
async fn an_app_hook_that_never_comes_leaves_the_app_its_work() {
    let app = AppOptions { on_term: OnTerm::FinishInFlight, ..AppOptions::default() };
    let pod = Pod::builder().grace(12).hold("6s").app_stop("1s").app(app).app_hook(Hook::None).start().await;
    pod.ready().await;
    let long = call(pod.address(), slow(2500));
    in_flight(&pod.ebbtide(), 1).await;
    let deletion = pod.delete(12);
    pod.timeline().wait_for(Event::Signalled(APP, Signal::TERM), SOON).await;
    assert_eq!(status(&long.await.unwrap()), Ok(200));
    deletion.finished().await;
    assert_nobody_is_killed(&pod);
    pod.timeline().assert_order(&[Event::Exited(APP, OK), Event::Exited(EBBTIDE, OK)]);
    assert!(remarks(&report(&pod)).contains("app hook missing"), "{}", report(&pod));
}

/// Hooks come at least once: again and again they join the same drain, and each call returns.
#[tokio::test]
async fn hooks_that_come_twice_join_the_same_drain() {
    let pod = pod().start().await;
    pod.ready().await;
    let long = call(pod.address(), slow(3500));
    in_flight(&pod.ebbtide(), 1).await;
    let deletion = pod.delete(12);
    pod.ebbtide().phase_becomes("holding", SOON).await;
    let before = pod.ebbtide().status().await["deadlines"].clone();
    let again = [pod.deliver_hook(EBBTIDE, 12), pod.deliver_hook(APP, 12), pod.deliver_hook(EBBTIDE, 12)];
    pod.ebbtide().metric_becomes("ebbtide_app_hooks_open", &[], SOON, |open| open == 2.0).await;
    assert_eq!(pod.ebbtide().status().await["deadlines"], before);
    assert_eq!(status(&long.await.unwrap()), Ok(200));
    for hook in again {
        hook.finished().await;
    }
    deletion.finished().await;
    assert_eq!(pod.timeline().count(|event| event == Event::HookReturned(APP, HookEnd::Ok)), 2);
    assert_orderly_end(&pod);
    assert_app_was_idle_at_its_end(&pod);
}

/// C11: `drain` begins a drain and nothing else, however often it comes; only the signal ends the process.
#[tokio::test]
async fn a_drain_by_hand_starts_once_and_ends_nothing() {
    let pod = pod().start().await;
    pod.ready().await;
    let ebbtide = pod.ebbtide();
    let (a, b, c, d, e) =
        tokio::join!(ebbtide.drain(), ebbtide.drain(), ebbtide.drain(), ebbtide.drain(), ebbtide.drain());
    for output in [a, b, c, d, e] {
        assert!(output.status.success(), "{output:?}");
    }
    let t0 = ebbtide.metrics().await.value("ebbtide_termination_start_time_seconds", &[]);
    ebbtide.phase_becomes("lingering", SOON).await;
    assert!(ebbtide.drain().await.status.success());
    assert_eq!(ebbtide.metrics().await.value("ebbtide_termination_start_time_seconds", &[]), t0);
    assert_eq!(ebbtide.code("/livez").await, 200);
    assert_eq!(ebbtide.logged("phase changed", 4).await.len(), 4, "starting, serving, holding, draining, lingering");
    assert!(pod.is_running(EBBTIDE) && pod.is_running(APP));
    pod.signal(EBBTIDE, Signal::TERM);
    assert_eq!(pod.exit(EBBTIDE, SOON).await, OK);
}

/// Row 2: a call after the release returns at once.
#[tokio::test]
async fn a_hook_after_the_drain_returns_at_once() {
    let pod = pod().start().await;
    pod.ready().await;
    assert!(pod.ebbtide().drain().await.status.success());
    pod.ebbtide().phase_becomes("lingering", SOON).await;
    let hook = pod.deliver_hook(APP, 12);
    within("the hook", SECONDS(2), hook.finished()).await;
}

/// Row 11: ebbtide alone is restarted; the schedule stands, the app is not touched, and it serves again.
#[tokio::test]
async fn a_restart_of_the_sidecar_alone_drains_and_comes_back() {
    let pod = pod().start().await;
    pod.ready().await;
    let load = Load::start(Plan::mixed(pod.address(), 50.0));
    let long = call(pod.address(), slow(3000));
    in_flight(&pod.ebbtide(), 1).await;
    let restart = pod.restart_sidecar_only(12, Duration::from_millis(200));
    pod.ebbtide().phase_becomes("draining", SOON).await;
    load.stop().await.assert_clean();
    assert_eq!(status(&long.await.unwrap()), Ok(200));
    restart.finished().await;

    pod.timeline().assert_order(&[
        Event::HookReturned(EBBTIDE, HookEnd::Ok),
        Event::Signalled(EBBTIDE, Signal::TERM),
        Event::Exited(EBBTIDE, OK),
        Event::Started(EBBTIDE),
        Event::StartupPassed(EBBTIDE),
    ]);
    assert_nobody_is_killed(&pod);
    assert_eq!(pod.journal(0).count("term"), 0);
    pod.ready().await;
    let load = Load::start(Plan::mixed(pod.address(), 50.0));
    load.has_done(20, SOON).await;
    load.stop().await.assert_clean();
}

/// C18: a kill without warning leaves nothing behind that the next start would trip over.
#[tokio::test]
async fn a_killed_ebbtide_starts_again() {
    let pod = pod().start().await;
    pod.ready().await;
    pod.signal(EBBTIDE, Signal::KILL);
    assert_eq!(pod.exit(EBBTIDE, SOON).await, Exit::Signal(9));
    pod.start_container(EBBTIDE).await;
    pod.ready().await;
    assert!(pod.ebbtide().drain().await.status.success(), "the control socket is there again");
}

/// The hook is open to anyone: a flood of calls neither frees the app early nor starves the probes.
#[tokio::test]
async fn a_flood_of_hook_calls_frees_nobody_early() {
    crate::harness::raise_open_files();
    let pod = Pod::builder().grace(16).hold("6s").app_stop("1s").app(AppOptions::default()).start().await;
    pod.ready().await;
    assert!(pod.ebbtide().drain().await.status.success());
    let mut flood = Vec::new();
    for _ in 0..1300 {
        let mut call = Raw::connect(pod.admin()).await.unwrap();
        call.send("GET /app-stop HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        flood.push(call);
    }
    let status = String::from_utf8(pod.ebbtide().run(&["status"]).await.stdout).unwrap();
    assert!(status.contains("holding"), "the test was too slow: {status}");
    let hook = pod.deliver_hook(APP, 16);
    for path in ["/readyz", "/livez"] {
        let got = get(pod.admin(), path, "kube-probe/1.34", SECONDS(1)).await;
        assert!(got.is_ok(), "{path}: {got:?}");
    }
    hook.finished().await;
    let returned = pod.timeline().at(Event::HookReturned(APP, HookEnd::Ok));
    let drained = pod.ebbtide().logged("app hooks released", 1).await.len();
    assert_eq!(drained, 1, "released once, at the end of the drain");
    let t0 = pod.timeline().at(Event::HookStarted(APP));
    assert!(returned.since(t0) > SECONDS(2), "freed {:?} after its call", returned.since(t0));
    for mut call in flood {
        let reply = call.reply("GET", SOON).await.expect("no call is refused");
        assert_eq!(reply.status, 200);
    }
    pod.ebbtide().phase_becomes("lingering", SOON).await;
    pod.signal(EBBTIDE, Signal::TERM);
    assert_eq!(pod.exit(EBBTIDE, SOON).await, OK);
}
