//! Owns tests of the kubelet that the harness plays, with a toy in ebbtide's place.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::SOON;
use crate::harness::app::{AppOptions, Listen, OnTerm};
use crate::harness::pod::{Event, Hook, HookEnd, Mode, Pod, PodBuilder, Who, left_after, stop_grace};
use crate::harness::process::{Exit, KILLED};

const EBBTIDE: Who = Who::Ebbtide;
const APP: Who = Who::App(0);
const OK: Exit = Exit::Code(0);

fn toy() -> AppOptions {
    AppOptions::default()
}

fn stubborn() -> AppOptions {
    AppOptions { on_term: OnTerm::Ignore, ..toy() }
}

fn pod_with(fake: AppOptions, app: AppOptions) -> PodBuilder {
    Pod::builder().fake(fake).app(app)
}

#[test]
fn grace_is_counted_in_whole_seconds_with_a_floor() {
    assert_eq!(left_after(10, Duration::from_millis(2_999)), 8);
    assert_eq!(left_after(10, Duration::from_millis(999)), 10);
    assert_eq!(left_after(1, Duration::from_secs(3)), 0);
    assert_eq!(stop_grace(0), 2);
    assert_eq!(stop_grace(1), 2);
    assert_eq!(stop_grace(7), 7);
}

#[tokio::test]
async fn hooks_start_together_and_each_signal_waits_its_turn() {
    let pod = pod_with(toy(), toy())
        .own_hook(Hook::exec(&["/bin/sleep", "0.1"]))
        .app_hook(Hook::get("/slow?ms=700"))
        .start()
        .await;
    pod.delete(5).finished().await;

    let timeline = pod.timeline();
    let (own, other) = (Event::HookStarted(EBBTIDE), Event::HookStarted(APP));
    let apart = timeline.between(own, other).max(timeline.between(other, own));
    assert!(apart < Duration::from_millis(500), "{}", timeline.table());
    timeline.assert_order(&[
        Event::StartupPassed(EBBTIDE),
        Event::Started(APP),
        Event::Deleting(5),
        Event::HookReturned(EBBTIDE, HookEnd::Ok),
        Event::HookReturned(APP, HookEnd::Ok),
        Event::Signalled(APP, Signal::TERM),
        Event::Exited(APP, OK),
        Event::Turn(EBBTIDE),
        Event::Signalled(EBBTIDE, Signal::TERM),
        Event::Exited(EBBTIDE, OK),
    ]);
    let blocked = timeline.between(other, Event::HookReturned(APP, HookEnd::Ok));
    assert!(blocked >= Duration::from_millis(700), "{blocked:?}");
}

#[tokio::test]
async fn hook_time_is_truncated_before_it_is_taken_off() {
    let pod = pod_with(toy(), stubborn()).app_hook(Hook::exec(&["/bin/sleep", "1.4"])).start().await;
    pod.delete(4).finished().await;

    let timeline = pod.timeline();
    let term = Event::Signalled(APP, Signal::TERM);
    let kill = Event::Signalled(APP, Signal::KILL);
    timeline.assert_order(&[term, kill, Event::Exited(APP, KILLED)]);
    // 4 - 1.4 would be 2.6; the kubelet gives 4 - 1.
    let given = timeline.between(term, kill);
    assert!(given >= Duration::from_millis(2_950), "{given:?}");
    // The sidecar's wait ends with the grace, before the app has gone.
    timeline.assert_order(&[Event::Turn(EBBTIDE), Event::Exited(APP, KILLED)]);
}

#[tokio::test]
async fn a_used_up_grace_leaves_the_floor_to_everyone() {
    let pod = pod_with(stubborn(), stubborn()).app_hook(Hook::get("/slow?ms=60000")).start().await;
    pod.delete(1).finished().await;

    let timeline = pod.timeline();
    timeline.assert_order(&[
        Event::HookReturned(APP, HookEnd::TimedOut),
        Event::Signalled(APP, Signal::TERM),
        Event::Signalled(APP, Signal::KILL),
    ]);
    for who in [APP, EBBTIDE] {
        let term = Event::Signalled(who, Signal::TERM);
        assert!(timeline.between(Event::Deleting(1), term) >= Duration::from_millis(990));
        let given = timeline.between(term, Event::Signalled(who, Signal::KILL));
        assert!(given >= Duration::from_millis(1_990), "{given:?}");
        assert_eq!(pod.exit_of(who), Some(KILLED));
    }
    // At the end of the grace the order is lost: the sidecar does not wait for the app's exit.
    timeline.assert_order(&[Event::Signalled(EBBTIDE, Signal::TERM), Event::Exited(APP, KILLED)]);
}

#[tokio::test]
async fn a_failed_hook_is_only_an_event() {
    let slow_to_go = AppOptions { on_term: OnTerm::ExitAfter(Duration::from_millis(300)), exit_code: 3, ..toy() };
    let pod = pod_with(toy(), slow_to_go).own_hook(Hook::exec(&["/bin/false"])).app_hook(Hook::Fails).start().await;
    pod.delete(5).finished().await;
    pod.timeline().assert_order(&[
        Event::HookReturned(APP, HookEnd::Failed),
        Event::Signalled(APP, Signal::TERM),
        Event::Exited(APP, Exit::Code(3)),
        Event::Turn(EBBTIDE),
        Event::Signalled(EBBTIDE, Signal::TERM),
    ]);
    pod.timeline().assert_order(&[Event::HookReturned(EBBTIDE, HookEnd::Failed), Event::Turn(EBBTIDE)]);
}

#[tokio::test]
async fn an_http_hook_fails_only_on_transport_errors() {
    let pod = pod_with(toy(), toy()).app_hook(Hook::get("/status?code=500")).start().await;
    pod.deliver_hook(APP, 5).finished().await;
    pod.timeline().wait_for(Event::HookReturned(APP, HookEnd::Ok), SOON).await;

    pod.signal(EBBTIDE, Signal::KILL);
    pod.exit(EBBTIDE, SOON).await;
    pod.delete(5).finished().await;
    pod.timeline().assert_order(&[
        Event::Exited(EBBTIDE, KILLED),
        Event::HookReturned(APP, HookEnd::Failed),
        Event::Signalled(APP, Signal::TERM),
    ]);
    pod.timeline().assert_never("a hook of a dead container", |event| event == Event::HookStarted(EBBTIDE));
}

#[tokio::test]
async fn a_finished_job_stops_its_sidecars_only() {
    let job = AppOptions { listen: Listen::Nowhere, ends_after: Some((Duration::from_millis(200), 4)), ..toy() };
    let pod = pod_with(toy(), job).own_hook(Hook::exec(&["/bin/true"])).start().await;
    pod.finish_job(SOON).finished().await;
    pod.timeline().assert_order(&[
        Event::Exited(APP, Exit::Code(4)),
        Event::MainsFinished,
        Event::HookReturned(EBBTIDE, HookEnd::Ok),
        Event::Turn(EBBTIDE),
        Event::Exited(EBBTIDE, OK),
    ]);
    pod.timeline().assert_never("something to the app", |event| {
        matches!(event, Event::HookStarted(APP) | Event::Signalled(APP, _))
    });
}

#[tokio::test]
async fn sidecars_stop_in_reverse_order_after_all_apps() {
    let pod = Pod::builder()
        .fake(toy())
        .later_sidecar(toy(), Hook::None)
        .app(toy())
        .app_hook(Hook::None)
        .app(toy())
        .app_hook(Hook::exec(&["/bin/sleep", "0.3"]))
        .stop_signal(EBBTIDE, Signal::INT)
        .start()
        .await;
    pod.delete(5).finished().await;
    pod.timeline().assert_order(&[
        Event::Exited(APP, OK),
        Event::Signalled(Who::App(1), Signal::TERM),
        Event::Exited(Who::App(1), OK),
        Event::Turn(Who::Sidecar(0)),
        Event::Exited(Who::Sidecar(0), OK),
        Event::Turn(EBBTIDE),
        Event::Signalled(EBBTIDE, Signal::INT),
        Event::Exited(EBBTIDE, OK),
    ]);
}

#[tokio::test]
async fn an_ordinary_container_is_signalled_without_any_turn() {
    let pod = pod_with(toy(), toy()).mode(Mode::Ordinary).app_hook(Hook::exec(&["/bin/sleep", "0.8"])).start().await;
    pod.delete(5).finished().await;
    pod.timeline().assert_order(&[
        Event::Exited(EBBTIDE, OK),
        Event::HookReturned(APP, HookEnd::Ok),
        Event::Signalled(APP, Signal::TERM),
    ]);
}

#[tokio::test]
async fn a_deletion_waits_for_a_restart_of_the_app() {
    let pod = pod_with(toy(), toy())
        .own_hook(Hook::exec(&["/bin/true"]))
        .app_hook(Hook::exec(&["/bin/sleep", "0.6"]))
        .start()
        .await;
    let restart = pod.restart_app_only(0, 5, Duration::from_millis(10));
    pod.timeline().wait_for(Event::HookStarted(APP), SOON).await;
    let deletion = pod.delete(5);
    deletion.finished().await;
    restart.finished().await;

    pod.timeline().assert_order(&[
        Event::Restarting(APP),
        Event::HookStarted(APP),
        Event::Deleting(5),
        Event::Exited(APP, OK),
        Event::HookStarted(EBBTIDE),
    ]);
    let starts = pod.timeline().count(|event| event == Event::Started(APP));
    assert_eq!(starts, 1, "{}", pod.timeline().table());
}

#[tokio::test]
async fn restarts_touch_one_container_and_readiness_is_recorded() {
    let pod = pod_with(toy(), toy())
        .own_hook(Hook::exec(&["/bin/true"]))
        .app_hook(Hook::None)
        .readiness(Duration::from_millis(50))
        .start()
        .await;
    pod.timeline().wait_for(Event::Ready(true), SOON).await;
    pod.restart_app_only(0, 5, Duration::ZERO).finished().await;
    pod.crash_app(0, Duration::ZERO).finished().await;
    pod.timeline().assert_order(&[
        Event::Restarting(APP),
        Event::Exited(APP, OK),
        Event::Started(APP),
        Event::Signalled(APP, Signal::KILL),
        Event::Exited(APP, KILLED),
        Event::Started(APP),
    ]);
    assert!(pod.is_running(APP));
    pod.timeline().assert_never("an exit of the sidecar", |event| {
        matches!(event, Event::Exited(EBBTIDE, _) | Event::HookStarted(EBBTIDE))
    });

    pod.restart_sidecar_only(5, Duration::from_millis(200)).finished().await;
    pod.timeline().assert_order(&[
        Event::Restarting(EBBTIDE),
        Event::HookReturned(EBBTIDE, HookEnd::Ok),
        Event::Signalled(EBBTIDE, Signal::TERM),
        Event::Exited(EBBTIDE, OK),
        Event::Started(EBBTIDE),
        Event::StartupPassed(EBBTIDE),
    ]);
    assert!(pod.readings().iter().any(|one| one.status == Some(200)));
    assert_eq!(pod.journal(0).count("up"), 3);
}

#[tokio::test]
async fn a_plain_stop_signals_at_once_and_kills_at_the_end() {
    let pod = pod_with(toy(), stubborn()).mode(Mode::Plain).start().await;
    pod.stop_plain(&[EBBTIDE, APP], 1).finished().await;
    pod.timeline().assert_order(&[
        Event::Deleting(1),
        Event::Signalled(EBBTIDE, Signal::TERM),
        Event::Signalled(APP, Signal::TERM),
        Event::Signalled(APP, Signal::KILL),
    ]);
    pod.timeline().assert_never("a hook", |event| matches!(event, Event::HookStarted(_)));
}
