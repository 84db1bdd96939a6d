//! An app hook and no other witness: the app alone is restarted (contract §8), or the pod after all.

use super::*;

fn with_work(in_flight: u64) -> Bench {
    let mut bench = Bench::serving(rules(Mode::Sidecar));
    bench.upstreams[0].in_flight = in_flight;
    bench.upstreams[0].in_flight_before_hook = in_flight;
    bench
}

#[test]
fn it_waits_for_earlier_work_then_pauses_then_lets_the_app_go() {
    let mut bench = with_work(1);
    let actions = bench.app_hook(None);
    assert_eq!(actions.meaning, Some(Meaning::PerhapsRestart));
    assert!(actions.mark_in_flight && bench.machine.wants_ticks());
    assert!(bench.pass(3000).is_empty());
    assert_eq!(bench.paused(), 0, "new requests go on while old ones end");
    // The old one is done, a later one is under way.
    bench.upstreams[0].in_flight_before_hook = 0;
    assert!(bench.pass(20).is_empty());
    assert_ne!(bench.paused(), 0);
    bench.upstreams[0].in_flight = 0;
    assert_eq!(bench.pass(10), [0]);
    assert_ne!(bench.paused(), 0, "nothing may start in an app that is told to stop");
    bench.app_dies();
    bench.pass(10);
    assert_eq!(bench.paused(), 0, "parking has taken over");
    assert_eq!(bench.phase(), Phase::Serving);
    assert!(!bench.machine.wants_ticks());
    assert_eq!(bench.machine.findings().app_restarts, 1);
}

#[test]
fn nothing_in_flight_means_the_window_and_no_more() {
    let mut bench = with_work(0);
    let _ = bench.app_hook(None);
    assert!(bench.pass(1990).is_empty());
    assert_eq!(bench.pass(30), [0]);
}

#[test]
fn work_that_never_ends_holds_the_hook_for_five_seconds_only() {
    let mut bench = with_work(1);
    let _ = bench.app_hook(None);
    assert!(bench.pass(4490).is_empty());
    assert_eq!(bench.paused(), 0);
    assert!(bench.pass(20).is_empty());
    assert_ne!(bench.paused(), 0);
    assert_eq!(bench.pass(500), [0]);
    bench.pass(510);
    assert_eq!(bench.paused(), 0, "an app that was not restarted after all gets its requests back");
}

/// C26: the hook comes over the network from anyone.
#[test]
fn a_second_call_within_a_minute_brings_no_pause() {
    let mut bench = with_work(0);
    let _ = bench.app_hook(None);
    bench.pass(4000);
    let mut paused = 0;
    for _ in 0..12 {
        let _ = bench.app_hook(None);
        for _ in 0..500 {
            bench.pass(10);
            paused += u32::from(bench.paused() != 0);
        }
    }
    assert_eq!(paused, 0);
    assert_eq!(bench.next_hook, 13);
    assert!(bench.machine.snapshot().is_ready(bench.now) && bench.machine.snapshot().t0.is_none());
    let _ = bench.app_hook(None);
    assert!(bench.pass(1990).is_empty());
    bench.pass(10);
    assert_ne!(bench.paused(), 0, "a minute later it may pause again");
}

#[test]
fn many_callers_at_once_share_one_pause() {
    let mut bench = with_work(0);
    for _ in 0..50 {
        let _ = bench.app_hook(None);
    }
    let released = bench.pass(2100);
    assert_eq!(released.len(), 50);
    bench.pass(510);
    assert_eq!(bench.paused(), 0);
    assert!(!bench.machine.wants_ticks());
}

#[test]
fn the_own_hook_within_the_window_dates_the_termination_back() {
    let mut bench = with_work(1);
    let came = bench.now;
    let _ = bench.app_hook(None);
    bench.pass(1500);
    let actions = bench.event(Event::OwnHook);
    assert_eq!(actions.meaning, Some(Meaning::PodTermination));
    assert!(actions.release.is_empty(), "the open call joins");
    assert_eq!(bench.machine.snapshot().t0, Some(came));
}

/// Row 4: also in the middle of an app restart.
#[test]
fn the_own_hook_after_the_window_begins_now_and_takes_the_open_hooks() {
    let mut bench = with_work(1);
    let _ = bench.app_hook(None);
    bench.pass(4600);
    assert_ne!(bench.paused(), 0);
    let actions = bench.event(Event::OwnHook);
    assert!(actions.release.is_empty());
    assert_eq!(bench.machine.snapshot().t0, Some(bench.now));
    assert_eq!(bench.paused(), 0, "nothing is parked after t0");
    bench.upstreams[0].in_flight = 0;
    assert!(bench.pass(10_000).is_empty());
    bench.until(Phase::Lingering);
    assert!(!bench.machine.findings().app_hook_missing);
}

/// Row 15: the own hook is missing, and the signal comes while the app hook is still young.
#[test]
fn a_signal_within_the_window_dates_the_termination_back_too() {
    let mut bench = with_work(1);
    let came = bench.now;
    let _ = bench.app_hook(None);
    bench.pass(900);
    assert_eq!(bench.event(Event::Signal).meaning, Some(Meaning::SignalTermination));
    assert_eq!(bench.machine.snapshot().t0, Some(came));
    assert!(bench.machine.findings().own_hook_missing && !bench.machine.findings().app_hook_missing);
}

#[test]
fn an_app_that_dies_lets_its_hook_go_at_once() {
    let mut bench = with_work(0);
    let _ = bench.app_hook(None);
    bench.app_dies();
    assert!(bench.pass(490).is_empty());
    assert_eq!(bench.pass(10), [0]);
    assert_eq!(bench.app_hook(None).release, [1], "row 5");
}

#[test]
fn a_hook_of_one_listener_pauses_no_other() {
    let mut bench = Bench::serving(Rules { inbound: 2, ..rules(Mode::Sidecar) });
    bench.upstreams[0].in_flight_before_hook = 7;
    let _ = bench.app_hook(Some(1));
    bench.pass(2010);
    assert_eq!(bench.paused(), 0b10, "work of the other listener is not waited for");
    bench.upstreams[1].refusing_since = Some(bench.now);
    bench.pass(510);
    assert_eq!(bench.paused(), 0);
    assert_eq!(bench.app_hook(Some(1)).meaning, Some(Meaning::HookReturns));
    assert_eq!(bench.app_hook(Some(0)).meaning, Some(Meaning::PerhapsRestart));
}
