use super::*;
use crate::config::{BudgetParts, ReadinessFails};

fn config(grace: f64) -> DrainConfig {
    let s = Duration::from_secs_f64;
    DrainConfig {
        grace_period: s(grace),
        hold: Hold::Fixed(s(10.0)),
        notice_after: 0.5,
        readiness_fails: ReadinessFails::Notice,
        quiet: s(1.0),
        close_spread: s(2.0),
        idle_after: None,
        websocket_after: None,
        sse_after: None,
        close: s(2.0),
        app_stop: s(5.0),
        margin: s(2.0),
        witness_window: s(2.0),
        app_restart_wait: s(5.0),
        set_by_user: BudgetParts::default(),
    }
}

fn ends(mode: Mode, grace: f64) -> [f64; 3] {
    let d = divide(mode, &config(grace)).deadlines(Tick::from_millis(0));
    [d.hold_end, d.drain_deadline, d.close_deadline]
        .map(|tick| (tick.since_start().as_secs_f64() * 100.0).round() / 100.0)
}

#[test]
fn the_contracts_table_of_deadlines() {
    assert_eq!(ends(Mode::Sidecar, 30.0), [10.0, 21.0, 23.0]);
    assert_eq!(ends(Mode::Sidecar, 10.0), [3.5, 5.25, 6.25]);
    assert_eq!(ends(Mode::Sidecar, 5.0), [1.75, 2.63, 3.13]);
    assert_eq!(ends(Mode::Sidecar, 1.0), [0.35, 0.53, 0.63]);
    assert_eq!(ends(Mode::Plain, 30.0), [10.0, 26.0, 28.0]);
    assert_eq!(ends(Mode::Plain, 10.0), [4.67, 7.0, 8.0]);
    assert_eq!(ends(Mode::Plain, 5.0), [2.33, 3.5, 4.0]);
    assert_eq!(ends(Mode::Plain, 1.0), [0.47, 0.7, 0.8]);
}

#[test]
fn a_part_set_by_hand_that_had_to_shrink_is_named_with_the_way_out() {
    let mut config = config(30.0);
    config.hold = Hold::Fixed(Duration::from_secs(20));
    config.app_stop = Duration::from_secs(15);
    config.set_by_user = BudgetParts { hold: true, app_stop: true, ..BudgetParts::default() };
    let shrunk = divide(Mode::Sidecar, &config).shrunk.expect("44 s do not fit into 30 s");
    assert!(shrunk.user_set);
    assert_eq!(
        shrunk.message,
        "hold 20s + drain 5s + close 2s + app_stop 15s + margin 2s = 44s exceed the grace period of 30s; \
         shrunk to hold 13s, app_stop 9.75s: raise terminationGracePeriodSeconds to 44 or lower hold"
    );
}

#[test]
fn in_plain_mode_the_way_out_is_a_setting_with_a_unit() {
    let shrunk = divide(Mode::Plain, &config(10.0)).shrunk.expect("19 s do not fit into 10 s");
    let way_out = "raise grace_period to 19s (and what stops the process) or lower hold";
    assert!(shrunk.message.ends_with(way_out), "{}", shrunk.message);
}

#[test]
fn defaults_that_shrink_are_nobodys_mistake() {
    let shrunk = divide(Mode::Sidecar, &config(10.0)).shrunk.expect("the defaults do not fit into 10 s");
    assert!(!shrunk.user_set);
}

#[test]
fn an_adaptive_hold_counts_as_its_max_and_shrinks_as_a_whole() {
    let s = Duration::from_secs_f64;
    let mut config = config(10.0);
    config.hold = Hold::Adaptive { min: s(5.0), quiet: s(3.0), max: s(10.0) };
    let budget = divide(Mode::Sidecar, &config);
    assert_eq!(budget.hold, Hold::Adaptive { min: s(1.75), quiet: s(1.05), max: s(3.5) });
    let d = budget.deadlines(Tick::from_millis(1000));
    assert_eq!(d.hold_min, Tick::from_millis(2750));
    assert_eq!(d.hold_end, Tick::from_millis(4500));
    assert_eq!(d.notice.start, Tick::from_millis(1875));
    assert_eq!(d.notice.end, Tick::from_millis(2750));
}

#[test]
fn the_parts_never_exceed_the_grace_period() {
    for seed in 0..2000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut s = |max: f64| Duration::from_secs_f64(rng.f64() * max);
        let mut config = config(1.0);
        config.grace_period = s(60.0).max(Duration::from_secs(1));
        config.hold = Hold::Fixed(s(60.0));
        config.close = s(10.0);
        config.app_stop = s(30.0);
        config.margin = s(10.0);
        config.close_spread = s(10.0);
        config.quiet = s(10.0);
        for mode in [Mode::Sidecar, Mode::Plain] {
            let b = divide(mode, &config);
            let sum = longest(b.hold) + b.drain + b.close + b.app_stop + b.margin;
            let slack = Duration::from_micros(1);
            assert!(sum <= b.grace_period + slack, "seed {seed}: {b:?}");
            assert!(b.close_spread <= b.drain / 2 && b.quiet <= b.drain / 2, "seed {seed}: {b:?}");
            assert!(b.drain > Duration::ZERO, "seed {seed}: {b:?}");
            let d = b.deadlines(Tick::from_millis(5));
            assert!(d.notice.start <= d.notice.end && d.notice.end <= d.hold_end, "seed {seed}");
            assert!(d.hold_end <= d.drain_deadline && d.drain_deadline <= d.close_deadline, "seed {seed}");
        }
    }
}

#[test]
fn a_time_that_the_drain_deadline_comes_before_is_told_with_what_is_done_instead() {
    let s = Duration::from_secs_f64;
    // Hold 10 s, drain 11 s; two seconds of spread, and a second of quiet behind idle connections.
    let mut config = config(30.0);
    config.idle_after = Some(s(18.0));
    config.websocket_after = Some(s(19.0));
    assert_eq!(divide(Mode::Sidecar, &config).too_late(), [""; 0]);
    config.idle_after = Some(s(19.0));
    config.websocket_after = Some(s(20.0));
    let told = divide(Mode::Sidecar, &config).too_late();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].starts_with("drain.idle_after 19s leaves no time before the drain deadline, 21s after"),
        "{told:?}"
    );
    assert!(told[0].contains("idle connections are ended from 18s on"), "{told:?}");
    assert!(told[1].contains("WebSocket sessions are ended from 19s on"), "{told:?}");
}
