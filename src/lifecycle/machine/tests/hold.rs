//! C21: the adaptive hold, min 2 s, quiet 3 s, max 20 s.

use super::*;

fn adaptive() -> Bench {
    let hold = Hold::Adaptive { min: ms(2000), quiet: ms(3000), max: ms(20_000) };
    let budget = budget::divide(Mode::Sidecar, &drain_config(60, hold));
    assert!(budget.shrunk.is_none());
    let mut bench = Bench::serving(Rules { budget, ..rules(Mode::Sidecar) });
    let _ = bench.event(Event::OwnHook);
    bench
}

/// Arrivals every 100 ms for `length`.
fn arrivals(bench: &mut Bench, length: u64) {
    for _ in 0..length / 100 {
        bench.last_arrival = Some(bench.now);
        bench.pass(100);
    }
}

#[test]
fn it_ends_when_arrivals_have_stopped_for_long_enough() {
    let mut bench = adaptive();
    arrivals(&mut bench, 3000);
    assert!((5900..=6010).contains(&bench.until(Phase::Draining)));
}

#[test]
fn it_ends_at_its_max_although_arrivals_go_on() {
    let mut bench = adaptive();
    arrivals(&mut bench, 19_900);
    assert_eq!(bench.phase(), Phase::Holding);
    arrivals(&mut bench, 200);
    assert_eq!(bench.phase(), Phase::Draining);
    assert_eq!(bench.machine.findings().hold_ms, Some(20_000));
}

#[test]
fn it_lasts_its_min_without_any_arrival() {
    let mut bench = adaptive();
    assert!((2000..=3000).contains(&bench.until(Phase::Draining)));
    let mut bench = adaptive();
    bench.last_arrival = Some(bench.now);
    assert!((2000..=3010).contains(&bench.until(Phase::Draining)));
}

#[test]
fn an_early_end_moves_no_deadline() {
    let mut bench = adaptive();
    let before = bench.machine.snapshot();
    bench.until(Phase::Draining);
    let after = bench.machine.snapshot();
    assert_eq!((before.deadlines, before.kill_at), (after.deadlines, after.kill_at));
}

/// `/readyz` follows the notice window, which is the second half of the hold unless told otherwise.
#[test]
fn readiness_turns_with_the_notices() {
    for (fails, at) in [(ReadinessFails::T0, 0), (ReadinessFails::Notice, 5000), (ReadinessFails::Drain, 10_000)] {
        let mut bench = Bench::serving(Rules { readiness_fails: fails, ..rules(Mode::Sidecar) });
        let t0 = bench.now;
        assert!(bench.machine.snapshot().is_ready(t0));
        let _ = bench.event(Event::OwnHook);
        let ready = |after| bench.machine.snapshot().is_ready(t0 + ms(after));
        assert!(at == 0 || ready(at - 1), "{fails:?}");
        assert!(!ready(at), "{fails:?}");
    }
}

/// In the hold, with a connection; idle ones have this time.
fn holding(hold: Hold, idle_after: Option<u64>) -> Bench {
    let config = DrainConfig { idle_after: idle_after.map(ms), ..drain_config(30, hold) };
    let budget = budget::divide(Mode::Sidecar, &config);
    let mut bench = Bench::serving(Rules { budget, ..rules(Mode::Sidecar) });
    bench.connections = 1;
    let _ = bench.event(Event::OwnHook);
    bench
}

/// C32: idle connections may be given more time, but the hold is theirs in any case.
#[test]
fn idle_connections_are_closed_at_their_time_and_not_within_the_hold() {
    let cases = [
        (Hold::Fixed(ms(10_000)), None, (11_000, 13_000)),
        (Hold::Fixed(ms(10_000)), Some(4_000), (11_000, 13_000)),
        (Hold::Fixed(ms(10_000)), Some(15_000), (16_000, 18_000)),
        // Its spread and a second of quiet fit before the drain deadline.
        (Hold::Fixed(ms(10_000)), Some(25_000), (19_000, 21_000)),
        // The hold ends early, at 6 s.
        (Hold::Adaptive { min: ms(5_000), quiet: ms(1_000), max: ms(10_000) }, Some(4_000), (6_000, 8_000)),
        (Hold::Adaptive { min: ms(5_000), quiet: ms(1_000), max: ms(10_000) }, Some(9_000), (10_000, 12_000)),
    ];
    for (hold, after, (start, end)) in cases {
        let mut bench = holding(hold, after);
        assert_eq!(bench.machine.snapshot().idle_close, None, "in the hold");
        bench.until(Phase::Draining);
        let window = bench.machine.snapshot().idle_close.expect("a window");
        assert_eq!(
            window,
            Window { start: Tick::from_millis(start), end: Tick::from_millis(end) },
            "{hold:?} {after:?}"
        );
        assert!(!bench.machine.snapshot().gate_closed);
    }
}

/// C32: they are left open for answers; once there can be none, they are closed.
#[test]
fn idle_connections_do_not_wait_for_answers_of_an_app_that_is_gone() {
    for in_draining in [false, true] {
        let mut bench = holding(Hold::Fixed(ms(10_000)), Some(15_000));
        if in_draining {
            bench.until(Phase::Draining);
        }
        bench.pass(500);
        bench.app_dies();
        bench.until(Phase::Lingering);
        let window = bench.machine.snapshot().idle_close.expect("a window");
        assert_eq!(window, Window::from_start(bench.now, ms(2000)), "{in_draining}");
    }
}

/// C32: they do not make a drain end by force: it ends in quiet, behind the last of them.
#[test]
fn the_latest_time_for_idle_connections_leaves_time_for_quiet() {
    let mut bench = holding(Hold::Fixed(ms(10_000)), Some(25_000));
    bench.until(Phase::Draining);
    bench.last_arrival = Some(bench.now + ms(10_000) - ms(10));
    assert!((20_000..=21_000).contains(&bench.until(Phase::Lingering)));
    assert_eq!(bench.machine.snapshot().force_at, None);
}
