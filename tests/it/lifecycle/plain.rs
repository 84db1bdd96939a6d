//! Owns tests of plain mode: signals are all there is, or hooks without any order.

use std::net::SocketAddr;

use rustix::process::Signal;
use tokio::task::JoinSet;

use super::{
    APP, Callers, EBBTIDE, MILLIS, OK, SECONDS, assert_app_was_idle_at_its_end, assert_nobody_is_killed, call,
    in_flight, remarks, report, slow, slow_post, status, yaml,
};
use crate::harness::app::{AppOptions, OnTerm};
use crate::harness::broker::Broker;
use crate::harness::client::{Connection, Failure, Load, Plan, Raw, Request, send};
use crate::harness::ebbtide::Config;
use crate::harness::pod::{Event, Mode, Pod, PodBuilder};
use crate::harness::wait::{Mono, eventually, eventually_async};
use crate::harness::{SOON, fresh_ip};

/// Hold 1 s, drain 5 s, close 2 s, margin 2 s.
fn pod() -> PodBuilder {
    Pod::builder().mode(Mode::Plain).grace(10).hold("1s").app(AppOptions::default())
}

/// C17: the signal comes to ebbtide first; the app outlives the drain, and nobody notices.
#[tokio::test]
async fn an_app_that_outlives_the_drain_fails_no_request() {
    let pod = pod().start().await;
    pod.ready().await;
    let load = Load::start(Plan::mixed(pod.address(), 100.0));
    let long = Callers::start(pod.address(), 10, &slow(3000));
    in_flight(&pod.ebbtide(), 10).await;
    let stop = pod.stop_plain(&[EBBTIDE], 10);
    pod.ebbtide().phase_becomes("draining", SOON).await;
    let (load, long) = tokio::join!(load.stop(), long.stop());
    stop.finished().await;
    load.assert_clean();
    long.assert_clean();
    load.assert_at_most_once(&pod.journal(0));
    assert_eq!(pod.exit_of(EBBTIDE), Some(OK));
    assert_nobody_is_killed(&pod);
    assert_eq!(pod.journal(0).count("req"), pod.journal(0).count("done"));
    let report = report(&pod);
    assert_eq!(report["outcome"], "drained", "{report}");
    assert!(!remarks(&report).contains("missing"), "plain mode misses no hook: {report}");
}

/// Both are told at once, and the app goes: what it had is broken visibly, all else is refused politely.
#[tokio::test]
async fn an_app_that_dies_at_once_costs_what_it_had_and_nothing_hangs() {
    let pod = pod().start().await;
    pod.ready().await;
    let address = pod.address();
    let doomed: Vec<_> = (0..10).map(|_| call(address, slow_post(30_000))).collect();
    let mut download = Raw::connect(address).await.unwrap();
    download.send("GET /chunks?n=1000&every_ms=20 HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    download.read_until(b"piece 1\n", SOON).await.unwrap();
    in_flight(&pod.ebbtide(), 11).await;
    let load = Load::start(Plan::mixed(address, 100.0));
    load.has_done(50, SOON).await;
    let stop = pod.stop_plain(&[EBBTIDE, APP], 10);
    let exited = pod.timeline().wait_for(Event::Exited(APP, OK), SOON).await;
    for request in doomed {
        assert_eq!(status(&request.await.unwrap()), Ok(502));
    }
    let (rest, _) = download.ending(SOON).await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "a broken response must not look whole");
    let reply = send(address, &Request::echo(10), SOON).await.expect("an answer");
    assert_eq!((reply.status, reply.closes()), (503, 1));
    let seen = load.so_far().total();
    eventually("refusals", SOON, || if load.so_far().total() > seen + 20 { Ok(()) } else { Err(()) }).await;
    let load = load.stop().await;
    stop.finished().await;

    for record in &load.records {
        let fits = match record.result {
            Ok(_) => record.began <= exited,
            Err(Failure::Status(502)) => record.began <= exited,
            Err(Failure::Status(503)) => true,
            Err(_) => false,
        };
        assert!(fits, "{:?} after the app: {record:?}", record.began.since(exited));
    }
    assert_eq!(load.resets(), 0);
    assert_eq!(pod.exit_of(EBBTIDE), Some(OK));
    let took = pod.timeline().between(Event::Exited(APP, OK), Event::Exited(EBBTIDE, OK));
    assert!(took < SECONDS(5), "{took:?}\n{}", pod.timeline().table());
}

/// The app closes its listener first and finishes what it has: those answers still go to the clients.
#[tokio::test]
async fn an_app_that_closes_its_listener_first_may_finish_its_work() {
    let app = AppOptions { on_term: OnTerm::CloseListener, ..AppOptions::default() };
    let pod = Pod::builder().mode(Mode::Plain).grace(10).hold("1s").app(app).start().await;
    pod.ready().await;
    let long: Vec<_> = (0..10).map(|_| call(pod.address(), slow_post(3000))).collect();
    // What waits in the queue of a socket that is being closed is reset, and may not be sent twice.
    eventually("all at the app", SOON, || if pod.journal(0).count("req") == 10 { Ok(()) } else { Err(()) }).await;
    let stop = pod.stop_plain(&[APP, EBBTIDE], 10);
    for request in long {
        assert_eq!(status(&request.await.unwrap()), Ok(200));
    }
    stop.finished().await;
    assert_eq!(pod.exit_of(EBBTIDE), Some(OK));
    assert_eq!(report(&pod)["outcome"], "drained");
}

/// Row 7: the second signal shortens, the third changes nothing.
#[tokio::test]
async fn a_second_signal_ends_the_drain_early() {
    let pod = Pod::builder().mode(Mode::Plain).grace(60).hold("20s").app(AppOptions::default()).start().await;
    pod.ready().await;
    let long = call(pod.address(), slow_post(50_000));
    in_flight(&pod.ebbtide(), 1).await;
    pod.signal(EBBTIDE, Signal::TERM);
    pod.ebbtide().phase_becomes("holding", SOON).await;
    assert_eq!(status(&send(pod.address(), &Request::get("/"), SOON).await), Ok(200));
    let second = Mono::now();
    pod.signal(EBBTIDE, Signal::TERM);
    pod.ebbtide().phase_becomes("closing", SOON).await;
    pod.signal(EBBTIDE, Signal::TERM);
    let refused = send(pod.address(), &Request::get("/"), SOON).await.expect("an answer");
    assert_eq!((refused.status, refused.closes()), (503, 1));
    let reply = long.await.unwrap().expect("an answer");
    assert_eq!((reply.status, reply.closes()), (504, 1));
    assert_eq!(pod.exit(EBBTIDE, SOON).await, OK);
    // The close of 2 s, from the second signal on.
    assert!(second.elapsed() < SECONDS(4), "{:?}", second.elapsed());
    assert_eq!(report(&pod)["forced"], serde_json::json!({"request_unanswered": 1}));
}

/// An image's STOPSIGNAL may be any of them, and a terminal sends SIGINT.
#[tokio::test]
async fn every_stop_signal_drains() {
    let mut runs = JoinSet::new();
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
        runs.spawn(async move {
            let pod = pod().stop_signal(EBBTIDE, signal).start().await;
            pod.ready().await;
            let long = call(pod.address(), slow(2000));
            in_flight(&pod.ebbtide(), 1).await;
            let stop = pod.stop_plain(&[EBBTIDE], 10);
            assert_eq!(status(&long.await.unwrap()), Ok(200), "{signal:?}");
            stop.finished().await;
            assert_eq!(pod.exit_of(EBBTIDE), Some(OK), "{signal:?}");
        });
    }
    while let Some(run) = runs.join_next().await {
        run.expect("a run");
    }
}

/// C17, row 13: hooks beside signals without an order; the signal after the own hook is the first, not the second.
#[tokio::test]
async fn a_signal_right_after_the_hook_keeps_the_schedule() {
    let pod = Pod::builder().mode(Mode::Ordinary).grace(12).hold("2s").app(AppOptions::default()).start().await;
    pod.ready().await;
    let load = Load::start(Plan::mixed(pod.address(), 100.0));
    let long = Callers::start(pod.address(), 5, &slow(2500));
    in_flight(&pod.ebbtide(), 5).await;
    let deletion = pod.delete(12);
    pod.timeline().wait_for(Event::Signalled(EBBTIDE, Signal::TERM), SOON).await;
    pod.ebbtide().phase_becomes("draining", SOON).await;
    let (load, long) = tokio::join!(load.stop(), long.stop());
    deletion.finished().await;
    load.assert_clean();
    long.assert_clean();
    assert_eq!(pod.exit_of(EBBTIDE), Some(OK));
    assert_nobody_is_killed(&pod);
    assert_app_was_idle_at_its_end(&pod);
    let hold = report(&pod)["hold_seconds"].as_f64();
    assert!(hold >= Some(1.9), "the hold was cut to {hold:?}");
}

fn outbound_only(ip: SocketAddr, to: SocketAddr) -> Config {
    let text = format!(
        "mode: plain\nlisteners:\n  - {{name: db, direction: outbound, bind: \"{ip}\", upstream: \"tcp://{to}\"}}\n\
         drain: {{grace_period: 6s}}\n"
    );
    Config::new().without("EBBTIDE_LISTEN").yaml(&text)
}

/// Row 14: nothing to hold; it stays as long as somebody uses the network through it.
#[tokio::test]
async fn without_inbound_listeners_it_waits_for_its_outbound_connections() {
    let broker = Broker::start().await;
    let at = SocketAddr::new(fresh_ip(), 15432);
    let ebbtide = outbound_only(at, broker.address).start().await;
    let mut flow = Raw::connect(at).await.unwrap();
    flow.send("before\n").await.unwrap();
    flow.read_exactly(7, SOON).await.unwrap();
    ebbtide.signal(Signal::TERM);
    ebbtide.phase_becomes("lingering", SOON).await;
    // A farewell on a new connection, and an acknowledgement on the old one, long after the signal.
    let mut farewell = Raw::connect(at).await.expect("outbound stays open");
    farewell.send("bye\n").await.unwrap();
    assert_eq!(farewell.read_exactly(4, SOON).await.unwrap(), b"bye\n");
    drop(farewell);
    tokio::time::sleep(MILLIS(1500)).await;
    assert!(ebbtide.process.is_running(), "an idle outbound connection was given up");
    flow.send("after\n").await.unwrap();
    assert_eq!(flow.read_exactly(6, SOON).await.unwrap(), b"after\n");
    drop(flow);
    tokio::time::sleep(MILLIS(300)).await;
    let mut again = Raw::connect(at).await.expect("an app may reconnect");
    again.send("again\n").await.unwrap();
    assert_eq!(again.read_exactly(6, SOON).await.unwrap(), b"again\n");
    drop(again);
    assert_eq!(ebbtide.exit(SECONDS(4)).await, OK);

    // At the latest grace minus margin: 6 s - 1.2 s.
    let ebbtide = outbound_only(at, broker.address).start().await;
    let mut flow = Raw::connect(at).await.unwrap();
    flow.send("open\n").await.unwrap();
    flow.read_exactly(5, SOON).await.unwrap();
    let began = Mono::now();
    ebbtide.signal(Signal::TERM);
    assert_eq!(ebbtide.exit(SOON).await, OK);
    assert!((MILLIS(4000)..SECONDS(6)).contains(&began.elapsed()), "{:?}", began.elapsed());
    drop(flow);
}

/// Row 10: the app is gone already; quick, whatever the hold says.
#[tokio::test]
async fn a_signal_after_the_app_has_gone_finishes() {
    let pod = Pod::builder().mode(Mode::Plain).grace(60).hold("20s").app(AppOptions::default()).start().await;
    pod.ready().await;
    let mut idle = Connection::open(pod.address(), SOON).await.unwrap();
    assert!(idle.exchange(&Request::get("/"), "x", SOON).await.is_ok());
    pod.signal(APP, Signal::TERM);
    pod.exit(APP, SOON).await;
    let began = Mono::now();
    pod.signal(EBBTIDE, Signal::TERM);
    assert_eq!(pod.exit(EBBTIDE, SOON).await, OK);
    assert!(began.elapsed() < SECONDS(4), "{:?}", began.elapsed());
    assert_eq!(idle.ending(SOON).await, crate::harness::client::Ending::Fin);
}

/// Plain mode with an outbound listener beside the inbound one: the app's farewell call goes through.
#[tokio::test]
async fn the_apps_farewell_goes_through_after_the_drain() {
    let broker = Broker::start().await;
    let mut pod = Pod::builder().mode(Mode::Plain).grace(10).hold("500ms");
    let (line, outbound) = super::outbound(&pod, broker.address);
    let call = OnTerm::Call { after: SECONDS(1), http: None, tcp: Some(outbound) };
    pod = pod.app(AppOptions { on_term: call, ..AppOptions::default() });
    let text = yaml(&pod, &line, "");
    let pod = pod.yaml(&text).start().await;
    pod.ready().await;
    pod.signal(EBBTIDE, Signal::TERM);
    pod.ebbtide().phase_becomes("lingering", SOON).await;
    pod.signal(APP, Signal::TERM);
    let calls = pod.journal(0).wait("call", 1, SOON).await;
    assert_eq!(calls[0].get("ok"), "true", "{}", pod.journal(0).tail(5));
    assert_eq!(pod.exit(EBBTIDE, SOON).await, OK);
    pod.timeline().assert_order(&[Event::Exited(APP, OK), Event::Exited(EBBTIDE, OK)]);
}

/// The last numbers are scraped before the end, if somebody asked for that and somebody comes.
#[tokio::test]
async fn a_final_scrape_is_waited_for() {
    let pod = pod();
    let text = yaml(&pod, "", "metrics: {final_scrape: 5s}\n");
    let pod = pod.yaml(&text).start().await;
    pod.ready().await;
    pod.signal(EBBTIDE, Signal::TERM);
    // Looked at on the socket: a look at the metrics would be a scrape.
    eventually_async("the end of the drain", SOON, || async {
        let text = String::from_utf8(pod.ebbtide().run(&["status"]).await.stdout).unwrap();
        if text.contains("lingering") { Ok(()) } else { Err(text) }
    })
    .await;
    tokio::time::sleep(MILLIS(1200)).await;
    assert!(pod.is_running(EBBTIDE), "nobody has scraped yet");
    let scraped = Mono::now();
    assert_eq!(pod.ebbtide().metrics().await.value("ebbtide_phase", &[("phase", "lingering")]), Some(1.0));
    assert_eq!(pod.exit(EBBTIDE, SOON).await, OK);
    assert!(scraped.elapsed() < SECONDS(2), "{:?}", scraped.elapsed());
}
