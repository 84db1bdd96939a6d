//! Every event in every phase, with the app there and gone, as one text: see `table.txt` beside this file.

use std::fmt::Write as _;

use super::*;

#[derive(Debug, Clone, Copy, PartialEq)]
enum App {
    There,
    Gone,
}

/// What the bench is brought to before the event.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Unbound,
    Starting,
    Serving,
    Holding,
    Draining,
    /// In Draining, with the gate closed and one request that had slipped in.
    Gated,
    Closing,
    Lingering,
    Terminated,
}

const STATES: [State; 9] = [
    State::Unbound,
    State::Starting,
    State::Serving,
    State::Holding,
    State::Draining,
    State::Gated,
    State::Closing,
    State::Lingering,
    State::Terminated,
];

/// An own hook begins it in sidecar mode, a signal in plain mode.
fn bench_in(state: State, mode: Mode, hook: bool) -> Bench {
    let mut bench = Bench::starting(rules(mode));
    if state == State::Unbound {
        return bench;
    }
    let _ = bench.event(Event::Bound);
    if state == State::Starting {
        return bench;
    }
    bench.upstreams[0] = UpstreamView { in_flight: 1, ..HERE };
    let _ = bench.event(Event::Tick);
    if state == State::Serving {
        return bench;
    }
    let _ = bench.event(if mode == Mode::Sidecar { Event::OwnHook } else { Event::Signal });
    if hook {
        let _ = bench.app_hook(None);
    }
    bench.pass(1000);
    match state {
        State::Draining => {
            bench.until(Phase::Draining);
        }
        State::Gated | State::Lingering | State::Terminated => {
            bench.until(Phase::Draining);
            bench.upstreams[0].in_flight = 0;
            while !bench.machine.snapshot().gate_closed {
                bench.pass(10);
            }
            bench.upstreams[0].in_flight = u64::from(state == State::Gated);
            let _ = bench.event(Event::Tick);
        }
        State::Closing => {
            bench.until(Phase::Closing);
        }
        State::Unbound | State::Starting | State::Serving | State::Holding => {}
    }
    if state == State::Terminated {
        bench.app_dies();
        bench.until(Phase::Terminated);
    }
    bench
}

fn row(table: &mut String, mode: Mode, state: State, hook: bool, app: App, event: &str) {
    let mut bench = bench_in(state, mode, hook);
    match app {
        App::Gone => {
            bench.upstreams[0] = UpstreamView { refusing_since: Some(bench.now - ms(500)), ..HERE };
        }
        App::There => {}
    }
    let before = bench.machine.snapshot();
    let actions = match event {
        "bound" => bench.event(Event::Bound),
        "own hook" => bench.event(Event::OwnHook),
        "app hook" => bench.app_hook(None),
        "signal" => bench.event(Event::Signal),
        _ => bench.event(Event::Tick),
    };
    let after = bench.machine.snapshot();
    let mut done = Vec::new();
    if after.t0 != before.t0 {
        done.push("t0".to_owned());
    }
    if after.gate_closed && !before.gate_closed {
        done.push("gate".to_owned());
    }
    if after.kill_at < before.kill_at {
        done.push(format!("close in {}", millis(after.kill_at.unwrap_or_default().since(bench.now))));
    }
    if actions.mark_in_flight {
        done.push("mark".to_owned());
    }
    if !actions.release.is_empty() {
        done.push(format!("release {}", actions.release.len()));
    }
    if actions.report {
        done.push("report".to_owned());
    }
    if let Some(outcome) = actions.exit {
        done.push(format!("exit {outcome:?}"));
    }
    let meaning = actions.meaning.map_or_else(String::new, |meaning| format!("{meaning:?}"));
    let hook = if hook { "blocked" } else { "-" };
    let line = format!(
        "{:<8}{:<11}{hook:<8}{:<6}{event:<9}-> {:<11}{meaning:<19} {}",
        format!("{mode:?}"),
        format!("{state:?}"),
        format!("{app:?}"),
        format!("{:?}", after.phase),
        done.join(", "),
    );
    let _ = writeln!(table, "{}", line.trim_end());
}

#[test]
fn every_event_in_every_phase() {
    let mut table =
        String::from("mode    state      hook    app   event       phase      meaning             what happens\n");
    for mode in [Mode::Sidecar, Mode::Plain] {
        for state in STATES {
            let is_open = matches!(state, State::Holding | State::Draining | State::Gated | State::Closing);
            for hook in [false, true].into_iter().filter(|hook| is_open || !hook) {
                for app in [App::There, App::Gone] {
                    for event in ["bound", "own hook", "app hook", "signal", "tick"] {
                        row(&mut table, mode, state, hook, app, event);
                    }
                }
            }
        }
    }
    let expected = include_str!("table.txt");
    for (number, (is, should)) in table.lines().zip(expected.lines()).enumerate() {
        assert_eq!(is, should, "line {} of this table:\n{table}", number + 1);
    }
    assert_eq!(table.lines().count(), expected.lines().count(), "rows of this table:\n{table}");
}
