//! The gate protocol and the deadlines of early closings.

use super::*;

/// A request may have read the open gate a moment before it was closed: only a later count shows it.
#[test]
fn no_count_read_before_the_gate_closed_ends_the_drain() {
    for early in [false, true] {
        let mut bench = Bench::serving(rules(Mode::Sidecar));
        let _ = bench.event(Event::OwnHook);
        let _ = bench.app_hook(None);
        bench.last_arrival = Some(bench.now + ms(10_000));
        bench.pass(10_000);
        // Arrivals that never stop, none in flight at the moment of the look.
        let actions = loop {
            bench.now = bench.now + ms(10);
            bench.last_arrival = Some(bench.now);
            let event = if early { Event::Signal } else { Event::Tick };
            let actions = bench.event(event);
            if bench.phase() == Phase::Closing {
                break actions;
            }
            assert!(!early && actions.release.is_empty());
        };
        assert!(bench.machine.snapshot().gate_closed && actions.again && actions.release.is_empty());
        bench.upstreams[0].in_flight = 1;
        assert!(bench.event(Event::Tick).release.is_empty(), "it slipped in and is served");
        bench.upstreams[0].in_flight = 0;
        assert_eq!(bench.event(Event::Tick).release, [0]);
        assert!(bench.phase() >= Phase::Lingering);
    }
}

#[test]
fn a_quiet_drain_closes_the_gate_first_and_counts_again() {
    let mut bench = Bench::serving(rules(Mode::Sidecar));
    let _ = bench.event(Event::OwnHook);
    let _ = bench.app_hook(None);
    bench.last_arrival = Some(bench.now + ms(10_500));
    bench.pass(10_000);
    assert_eq!(bench.phase(), Phase::Draining);
    bench.connections = 3;
    bench.pass(1900);
    assert!(!bench.machine.snapshot().gate_closed, "the spread is not over");
    bench.pass(100);
    assert!(bench.machine.snapshot().gate_closed);
    assert_eq!(bench.phase(), Phase::Draining);
    bench.upstreams[0].in_flight = 1;
    assert!(bench.pass(5000).is_empty());
    bench.upstreams[0].in_flight = 0;
    assert_eq!(bench.pass(10), [0]);
}

#[test]
fn a_used_up_grace_closes_within_a_second_and_never_later() {
    let mut bench = Bench::serving(rules(Mode::Sidecar));
    let _ = bench.event(Event::OwnHook);
    let _ = bench.app_hook(None);
    bench.upstreams[0].in_flight = 1;
    bench.pass(5000);
    let term = bench.now;
    let _ = bench.event(Event::Signal);
    let first = bench.machine.snapshot();
    assert_eq!(first.kill_at, Some(term + ms(1000)));
    assert_eq!(first.force_at, Some(term + ms(500)));
    assert_eq!(first.exit_by, Some(term + ms(1500)));
    bench.pass(300);
    let _ = bench.event(Event::Signal);
    let second = bench.machine.snapshot();
    assert_eq!((second.kill_at, second.exit_by), (first.kill_at, first.exit_by), "a repeated signal moves nothing");
    bench.until(Phase::Terminated);
    assert!(bench.now <= term + ms(1510));
    assert_eq!(bench.machine.findings().grace_used_up_after_ms, Some(5000));
}

#[test]
fn a_second_signal_in_plain_mode_shortens_and_a_third_does_nothing() {
    let mut bench = Bench::serving(Rules { outbound: false, ..rules(Mode::Plain) });
    bench.upstreams[0].in_flight = 1;
    let _ = bench.event(Event::Signal);
    bench.pass(2000);
    assert_eq!(bench.event(Event::Signal).meaning, Some(Meaning::Hurry));
    let kill = bench.machine.snapshot().kill_at;
    assert_eq!(kill, Some(bench.now + ms(2000)));
    bench.pass(500);
    assert_eq!(bench.event(Event::Signal).meaning, Some(Meaning::Nothing));
    assert_eq!(bench.machine.snapshot().kill_at, kill);
    assert!(bench.until(Phase::Terminated) <= 4010);
}

/// Rows 10 and 15: in sidecar mode a signal before any hook says that the hook is missing.
#[test]
fn a_signal_that_comes_first_means_that_the_own_hook_is_missing() {
    for (mode, gone) in [(Mode::Sidecar, false), (Mode::Sidecar, true), (Mode::Plain, false), (Mode::Plain, true)] {
        let mut bench = Bench::serving(rules(mode));
        if gone {
            bench.app_dies();
            bench.pass(600);
        }
        let _ = bench.event(Event::Signal);
        assert_eq!(bench.machine.findings().own_hook_missing, mode == Mode::Sidecar, "{mode:?}, gone: {gone}");
    }
    let mut bench = Bench::serving(rules(Mode::Sidecar));
    let _ = bench.event(Event::OwnHook);
    let _ = bench.event(Event::Signal);
    assert!(!bench.machine.findings().own_hook_missing);
}

/// C11: only ebbtide is restarted; nobody is left behind, the schedule stands.
#[test]
fn a_signal_right_after_the_own_hook_keeps_the_schedule() {
    let mut bench = Bench::serving(Rules { outbound: false, ..rules(Mode::Sidecar) });
    let _ = bench.event(Event::OwnHook);
    bench.pass(800);
    assert_eq!(bench.event(Event::Signal).meaning, Some(Meaning::OnlySidecarRestarts));
    assert_eq!(bench.until(Phase::Draining), 10_000);
    assert!((10_000..13_000).contains(&bench.until(Phase::Terminated)));
}

#[test]
fn a_drain_by_hand_heals_by_a_restart() {
    let mut bench = Bench::serving(rules(Mode::Sidecar));
    let _ = bench.event(Event::OwnHook);
    assert_eq!(bench.until(Phase::Terminated), 35_000);
    let mut bench = Bench::serving(rules(Mode::Sidecar));
    let _ = bench.event(Event::OwnHook);
    let _ = bench.app_hook(None);
    bench.outbound_open = 1;
    bench.pass(60_000);
    assert_eq!(bench.phase(), Phase::Lingering, "the app still uses its network");
    bench.outbound_open = 0;
    bench.pass(10);
    assert_eq!(bench.phase(), Phase::Terminated);
}

/// Row 14: an app that is told to stop at the same time may still dial.
#[test]
fn without_inbound_listeners_the_network_must_have_been_unused_for_a_second() {
    let outbound_only = || Bench::serving(Rules { inbound: 0, ..rules(Mode::Plain) });
    let mut bench = outbound_only();
    assert_eq!(bench.event(Event::Signal).meaning, Some(Meaning::NothingToHold));
    assert_eq!(bench.until(Phase::Terminated), 1000);

    let mut bench = outbound_only();
    bench.outbound_open = 1;
    let _ = bench.event(Event::Signal);
    bench.pass(5000);
    bench.outbound_open = 0;
    assert_eq!(bench.until(Phase::Terminated), 6000, "counted from the end of the connection");

    let mut bench = outbound_only();
    bench.outbound_open = 1;
    let _ = bench.event(Event::Signal);
    assert_eq!(bench.until(Phase::Terminated), 28_000, "grace minus margin");
}

/// Two apps in one pod, each with a hook of its own: the first to die is not held any longer, the other one is.
#[test]
fn a_hook_is_released_when_its_own_app_is_gone() {
    let mut bench = Bench::serving(Rules { inbound: 2, ..rules(Mode::Sidecar) });
    let _ = bench.event(Event::OwnHook);
    let _ = bench.app_hook(Some(0));
    let _ = bench.app_hook(Some(1));
    bench.upstreams[0].refusing_since = Some(bench.now);
    assert!(bench.pass(490).is_empty());
    assert_eq!(bench.pass(20), [0]);
    assert_eq!(bench.phase(), Phase::Holding, "the other app still answers");
    bench.upstreams[1].refusing_since = Some(bench.now);
    assert_eq!(bench.pass(510), [1]);
    assert_eq!(bench.phase(), Phase::Lingering);
}

/// A queue consumer may be without a connection for a while: the watchdog must not take that for the end.
#[test]
fn a_closed_outbound_connection_does_not_bring_the_end_nearer() {
    let mut bench = Bench::starting(Rules { inbound: 0, ..rules(Mode::Sidecar) });
    let _ = bench.event(Event::Bound);
    bench.outbound_open = 1;
    let _ = bench.event(Event::OwnHook);
    let t0 = bench.now;
    assert_eq!((bench.phase(), bench.machine.snapshot().exit_by), (Phase::Lingering, None));
    bench.outbound_open = 0;
    bench.pass(10);
    assert_eq!(bench.machine.snapshot().exit_by, Some(t0 + ms(35_000)));
    bench.pass(34_900);
    assert_eq!(bench.phase(), Phase::Lingering);
}

/// §2 row 9: the workers still have to answer their accept queues within the promised 1.5 s.
#[test]
fn a_grace_used_up_leaves_time_for_the_last_answers() {
    let mut bench = Bench::serving(rules(Mode::Sidecar));
    let _ = bench.event(Event::OwnHook);
    let _ = bench.app_hook(None);
    bench.pass(3000);
    bench.upstreams[0].in_flight = 1;
    let signal = bench.now;
    let _ = bench.event(Event::Signal);
    while bench.phase() != Phase::Terminated {
        bench.last_arrival = Some(bench.now);
        bench.pass(10);
    }
    assert!(bench.now <= signal + ms(1100), "{:?} after the signal", bench.now.since(signal));
    assert_eq!(bench.machine.snapshot().exit_by, Some(signal + ms(1500)));
}
