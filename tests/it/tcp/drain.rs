//! Owns what the termination does to TCP connections: old and new ones are served, who waits for an answer gets it while
//! there is time, and behind the drain a connection ends with a FIN and not a byte.

use serde_json::json;

use super::{Stage, echo, from_clients};
use crate::harness::SOON;
use crate::harness::app::{App, AppOptions, Flow, OnTerm};
use crate::harness::client::{Ending, Raw};
use crate::harness::pod::{Event, Hook, HookEnd, Pod, Who};
use crate::harness::process::Exit;
use crate::harness::script::{Asked, ByHand};
use crate::harness::stage::{DRAINS, alone, listener, listeners, serving, tcp, terminate};
use crate::harness::wait::eventually;

/// The closes begin at 2.2 s, the deadline comes at 8.2 s.
const WIDE: &str = "grace_period: 9s, hold: 200ms, close: 300ms, close_spread: 6s, quiet: 200ms, margin: 500ms";

const COUNT: usize = 16;

/// Connections whose client has asked something.
async fn ask(app: &mut ByHand, address: std::net::SocketAddr) -> Vec<(Raw, Asked)> {
    let mut all = Vec::new();
    for _ in 0..COUNT {
        let mut raw = Raw::connect(address).await.unwrap();
        raw.send("a question").await.unwrap();
        all.push((raw, app.next().await));
    }
    all
}

/// How long a query takes is not known to anybody here: the first silence is no quiet moment for a client that waits.
#[tokio::test]
async fn who_has_asked_gets_the_answer_if_it_comes_in_time() {
    let mut app = ByHand::connections().await;
    let (px, address) = serving(tcp(WIDE, &format!("tcp://{}", app.address()))).await;
    let mut answered = ask(&mut app, address).await;
    for (raw, asked) in &mut answered {
        asked.write("answer").await;
        raw.read_until(b"answer", SOON).await.unwrap();
    }
    let mut waiting = ask(&mut app, address).await;
    // The app goes from all of these but one.
    let forgotten = ask(&mut app, address).await.swap_remove(0);
    terminate(&px).await;
    // When a quarter of those that wait for nothing have been closed, the moments of others have come as well; half of
    // the time that is left behind such a moment is theirs.
    let mut closed = tokio::task::JoinSet::new();
    for (mut raw, asked) in answered {
        closed.spawn(async move {
            let ending = raw.ending(SOON).await;
            // The app goes only then.
            drop(asked);
            ending
        });
    }
    for _ in 0..COUNT / 4 {
        assert_eq!(closed.join_next().await.unwrap().unwrap(), (Vec::new(), Ending::Fin));
    }
    for (_, asked) in &mut waiting {
        asked.write("at last").await;
    }
    for (raw, asked) in &mut waiting {
        assert_eq!(raw.ending(SOON).await, (b"at last".to_vec(), Ending::Fin));
        assert_eq!(asked.wire.more().await.unwrap_or(0), 0, "the app sees the end as well");
    }
    let (mut raw, mut asked) = forgotten;
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin), "no answer, and the deadline");
    assert_eq!(asked.wire.more().await.unwrap_or(0), 0);
    let report = px.report_at_exit(SOON).await;
    assert_eq!((&report["outcome"], &report["forced"]), (&json!("forced"), &json!({"tunnel": 1})), "{report}");
    assert_eq!(report["notices"]["tunnel_close"], 2 * COUNT, "{report}");
}

async fn served(address: std::net::SocketAddr) {
    let mut raw = Raw::connect(address).await.expect("it is taken");
    echo(&mut raw, b"served").await;
    raw.half_close().await.unwrap();
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
}

async fn closed_unserved(address: std::net::SocketAddr, says: &str) {
    let mut raw = Raw::connect(address).await.expect("it is taken, not refused");
    raw.send(says).await.unwrap();
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin), "after {says:?}");
}

#[tokio::test]
async fn new_connections_are_served_until_the_drain_is_over_and_then_see_a_fin() {
    let (app, options, _dir): (App, _, _) = alone(AppOptions::default().tcp(Flow::Echo)).await;
    let drain = "grace_period: 20s, hold: 3s, close: 1s, close_spread: 500ms, quiet: 200ms, margin: 500ms";
    let to = options.upstream();
    // With the app's network, which outlives the drain.
    let lines = [listener("db", &to, ""), listener("out", &to, ", direction: outbound")].concat();
    let (px, address) = serving(listeners(drain, &lines)).await;
    let outbound = px.address("out").await;
    let mut keeper = Raw::connect(address).await.unwrap();
    echo(&mut keeper, b"from before").await;
    terminate(&px).await;
    served(address).await;
    px.phase_becomes("draining", SOON).await;
    for _ in 0..2 {
        served(address).await;
    }
    echo(&mut keeper, b"still").await;
    let metrics = px.metrics().await;
    assert_eq!(metrics.sum("ebbtide_requests_after_termination_total", &[]), 3.0);
    assert_eq!(metrics.sum("ebbtide_late_arrivals_total", &[]), 2.0);
    assert!(
        metrics.sum("ebbtide_last_arrival_after_termination_seconds", &[]) >= 3.0,
        "the hold was too short by that"
    );
    keeper.half_close().await.unwrap();
    assert_eq!(keeper.ending(SOON).await, (Vec::new(), Ending::Fin));
    px.phase_becomes("lingering", SOON).await;
    let spoken = || from_clients(&app.journal).len();
    let before = spoken();
    for says in ["", "hello"] {
        closed_unserved(address, says).await;
    }
    served(outbound).await;
    let reached = eventually("one more", SOON, || if spoken() > before { Ok(spoken()) } else { Err(spoken()) }).await;
    assert_eq!(reached, before + 1, "nothing else reached the app");
    let metrics = px.metrics().await;
    assert_eq!(metrics.sum("ebbtide_late_refusals_total", &[]), 2.0);
    assert_eq!(metrics.sum("ebbtide_late_arrivals_total", &[]), 2.0);
    assert_eq!(metrics.sum("ebbtide_forced_endings_total", &[]), 0.0);
}

/// The app refuses, and one old connection is still served: new ones are told at once, by a FIN.
#[tokio::test]
async fn where_the_app_has_closed_its_listener_new_connections_see_a_fin() {
    let mut app = ByHand::connections().await;
    let (px, address) = serving(tcp(DRAINS, &format!("tcp://{}", app.address()))).await;
    let mut old = Raw::connect(address).await.unwrap();
    old.send("a question").await.unwrap();
    let mut asked = app.next().await;
    terminate(&px).await;
    drop(app);
    px.metric_becomes("ebbtide_upstream_up", &[], SOON, |up| up == 0.0).await;
    closed_unserved(address, "hello").await;
    asked.write("an answer").await;
    drop(asked);
    assert_eq!(old.ending(SOON).await, (b"an answer".to_vec(), Ending::Fin));
    drop(old);
    assert_eq!(px.report_at_exit(SOON).await["outcome"], "drained");
}

/// In a pod: the app's SIGTERM waits until its last connection has been closed, between two answers.
#[tokio::test]
async fn the_apps_sigterm_waits_for_its_connections() {
    let pod = Pod::builder().grace(6).hold("500ms").app_stop("1s");
    let ip = pod.ip();
    let app = AppOptions { on_term: OnTerm::FinishInFlight, ..AppOptions::default().tcp(Flow::Echo) };
    let yaml = format!(
        "drain: {{close_spread: 500ms, close: 500ms, margin: 500ms}}\nlisteners:\n{}",
        crate::harness::stage::tcp_listener(&format!("{ip}:14080"), &format!("tcp://{ip}:8080"))
    );
    let pod = pod.app(app).app_hook(Hook::get("/app-stop?listener=db")).yaml(&yaml).start().await;
    pod.ready().await;
    let mut raws = Vec::new();
    for _ in 0..10 {
        let mut raw = Raw::connect(pod.address()).await.unwrap();
        echo(&mut raw, b"hello").await;
        raws.push(raw);
    }
    let deletion = pod.delete(6);
    pod.ebbtide().phase_becomes("draining", SOON).await;
    for raw in &mut raws {
        echo(raw, b"still here").await;
    }
    for raw in &mut raws {
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    }
    deletion.finished().await;
    pod.timeline().assert_order(&[
        Event::HookReturned(Who::App(0), HookEnd::Ok),
        Event::Exited(Who::App(0), Exit::Code(0)),
        Event::Exited(Who::Ebbtide, Exit::Code(0)),
    ]);
    let last = from_clients(&pod.journal(0)).iter().map(|line| line.at).max().unwrap();
    assert!(pod.journal(0).term_at().unwrap() >= last, "the last connection was still open");
    let report = pod.ebbtide().termination_text();
    assert!(report.contains("\"drained\""), "{report}");
}

/// What ends by itself in the drain is waited for, and the drain ends with it.
#[tokio::test]
async fn the_drain_ends_with_the_last_connection() {
    let drain = "grace_period: 30s, hold: 300ms, close: 1s, close_spread: 500ms, quiet: 200ms, margin: 500ms";
    let stage = Stage::start(Flow::Echo, drain).await;
    let mut raw = stage.raw().await;
    echo(&mut raw, b"hello").await;
    terminate(&stage.px).await;
    stage.px.phase_becomes("draining", SOON).await;
    echo(&mut raw, b"hello").await;
    raw.half_close().await.unwrap();
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    let report = stage.px.report_at_exit(SOON).await;
    assert!(report["drain_seconds"].as_f64().unwrap() < 15.0, "{report}");
    assert_eq!((&report["outcome"], &report["notices"]), (&json!("drained"), &json!({})), "{report}");
    let sums = stage.received(1).await;
    eventually("nothing else", SOON, || if sums.len() == 1 { Ok(()) } else { Err(sums.len()) }).await;
}
