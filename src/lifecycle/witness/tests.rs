//! The contract's table, row by row, each with the case that the next row must not take.

use super::Meaning::*;
use super::*;

/// Serving, an app that accepts, no witness yet.
fn facts(mode: Mode) -> Facts {
    Facts {
        mode,
        bound: true,
        phase: Phase::Serving,
        terminating: false,
        own_hook_age: None,
        app_hook_blocked: false,
        inbound: true,
        ever_accepted: true,
        gone: false,
        earlier_signals: 0,
    }
}

fn terminating(mode: Mode, phase: Phase) -> Facts {
    Facts { phase, terminating: true, own_hook_age: Some(Duration::from_secs(3)), ..facts(mode) }
}

const BOTH: [Mode; 2] = [Mode::Sidecar, Mode::Plain];
const AFTER_T0: [Phase; 4] = [Phase::Holding, Phase::Draining, Phase::Closing, Phase::Lingering];

fn own_hook(facts: Facts) -> Meaning {
    meaning(Witness::OwnHook, &facts)
}

fn app_hook(facts: Facts) -> Meaning {
    meaning(Witness::AppHook, &facts)
}

fn signal(facts: Facts) -> Meaning {
    meaning(Witness::Signal, &facts)
}

#[test]
fn row_1_a_signal_before_anything_is_bound() {
    for mode in BOTH {
        let early = Facts { bound: false, phase: Phase::Starting, ever_accepted: false, ..facts(mode) };
        assert_eq!(signal(early), LeaveAtOnce);
    }
}

#[test]
fn row_2_hooks_after_t0_join() {
    for mode in BOTH {
        for phase in AFTER_T0 {
            for gone in [false, true] {
                let late = Facts { gone, ..terminating(mode, phase) };
                assert_eq!(own_hook(late), Joins);
                assert_eq!(app_hook(late), Joins);
            }
        }
    }
}

#[test]
fn row_3_an_own_hook_with_nobody_to_hold_for() {
    for mode in BOTH {
        assert_eq!(own_hook(Facts { inbound: false, ..facts(mode) }), NothingToHold);
        let slow = Facts { ever_accepted: false, phase: Phase::Starting, ..facts(mode) };
        assert_eq!(own_hook(slow), NothingToHold);
        assert_eq!(own_hook(Facts { gone: true, ..facts(mode) }), NothingToHold);
    }
}

#[test]
fn row_4_an_own_hook_is_a_pod_termination() {
    for mode in BOTH {
        assert_eq!(own_hook(facts(mode)), PodTermination);
        // One of several apps may still be starting.
        assert_eq!(own_hook(Facts { phase: Phase::Starting, ..facts(mode) }), PodTermination);
        assert_eq!(own_hook(Facts { app_hook_blocked: true, ..facts(mode) }), PodTermination);
    }
}

#[test]
fn row_5_and_6_an_app_hook_alone() {
    for mode in BOTH {
        assert_eq!(app_hook(Facts { gone: true, ..facts(mode) }), HookReturns);
        assert_eq!(app_hook(facts(mode)), PerhapsRestart);
        assert_eq!(app_hook(Facts { inbound: false, ever_accepted: false, ..facts(mode) }), PerhapsRestart);
    }
}

#[test]
fn row_7_a_second_signal_in_plain_mode() {
    for phase in AFTER_T0 {
        for gone in [false, true] {
            let second = Facts { earlier_signals: 1, gone, ..terminating(Mode::Plain, phase) };
            let expected = if matches!(phase, Phase::Holding | Phase::Draining) { Hurry } else { Nothing };
            assert_eq!(signal(second), expected, "{phase:?}");
            assert_eq!(signal(Facts { earlier_signals: 5, ..second }), expected, "{phase:?}");
        }
    }
}

#[test]
fn row_8_a_sidecars_signal_while_it_lingers() {
    for blocked in [false, true] {
        for gone in [false, true] {
            let facts = terminating(Mode::Sidecar, Phase::Lingering);
            assert_eq!(signal(Facts { app_hook_blocked: blocked, gone, ..facts }), Finish);
        }
    }
}

#[test]
fn row_9_a_sidecars_signal_while_an_app_hook_is_blocked() {
    for phase in [Phase::Holding, Phase::Draining, Phase::Closing] {
        for age in [0, 100, 5000] {
            let blocked = Facts {
                app_hook_blocked: true,
                own_hook_age: Some(Duration::from_millis(age)),
                ..terminating(Mode::Sidecar, phase)
            };
            assert_eq!(signal(blocked), GraceUsedUp, "also earlier than row 11 would say");
            assert_eq!(signal(Facts { gone: true, ..blocked }), GraceUsedUp);
        }
    }
}

#[test]
fn row_10_a_signal_when_the_app_is_gone() {
    for mode in BOTH {
        assert_eq!(signal(Facts { gone: true, ..facts(mode) }), Finish);
        assert_eq!(signal(Facts { gone: true, ..terminating(mode, Phase::Holding) }), Finish);
    }
    let never = Facts { ever_accepted: false, phase: Phase::Starting, ..facts(Mode::Sidecar) };
    assert_eq!(signal(never), Finish);
    assert_eq!(signal(Facts { mode: Mode::Plain, ..never }), SignalTermination, "it may be about to accept");
    assert_eq!(signal(Facts { inbound: false, ever_accepted: false, ..facts(Mode::Sidecar) }), Finish);
}

#[test]
fn row_11_a_sidecars_signal_right_after_the_own_hook() {
    for phase in [Phase::Holding, Phase::Draining] {
        let soon = |age| Facts { own_hook_age: Some(Duration::from_millis(age)), ..terminating(Mode::Sidecar, phase) };
        assert_eq!(signal(soon(0)), OnlySidecarRestarts);
        assert_eq!(signal(soon(899)), OnlySidecarRestarts);
        assert_eq!(signal(soon(900)), GraceUsedUp, "row 12");
    }
}

#[test]
fn row_12_any_other_signal_to_a_sidecar_that_terminates() {
    for phase in [Phase::Holding, Phase::Draining, Phase::Closing] {
        assert_eq!(signal(terminating(Mode::Sidecar, phase)), GraceUsedUp);
        let by_signal = Facts { own_hook_age: None, earlier_signals: 1, ..terminating(Mode::Sidecar, phase) };
        assert_eq!(signal(by_signal), GraceUsedUp);
    }
}

#[test]
fn row_13_the_first_signal_after_an_own_hook_in_plain_mode() {
    for phase in AFTER_T0 {
        for age in [0, 5000] {
            let facts = Facts { own_hook_age: Some(Duration::from_millis(age)), ..terminating(Mode::Plain, phase) };
            assert_eq!(signal(facts), KeepSchedule);
            assert_eq!(signal(Facts { app_hook_blocked: true, ..facts }), KeepSchedule);
        }
    }
}

#[test]
fn row_14_and_15_the_first_signal_of_all() {
    let outbound_only = Facts { inbound: false, ever_accepted: false, ..facts(Mode::Plain) };
    assert_eq!(signal(outbound_only), NothingToHold);
    for mode in BOTH {
        assert_eq!(signal(facts(mode)), SignalTermination);
        assert_eq!(signal(Facts { app_hook_blocked: true, ..facts(mode) }), SignalTermination);
    }
}
