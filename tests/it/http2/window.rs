//! Owns the moment at which each connection is told: not before the notice window, not all at once, and where it can be
//! not while a stream is open.

use std::time::Duration;

use tokio::task::JoinSet;

use super::{LONG, MILLIS, SECONDS, Stage, TOLD, assert_two_phases, plain};
use crate::harness::app::AppOptions;
use crate::harness::client::{Ending, Raw};
use crate::harness::h2::{Answer, Control, Frame, RawH2, code, request};
use crate::harness::wait::Mono;
use crate::harness::{SOON, heavy};

/// §4, C04: before the window nobody is told; those who come back by then would come back to a pod still listed.
#[tokio::test]
async fn nobody_is_told_before_the_notice_window() {
    let stage = Stage::start(LONG).await;
    let mut old = stage.used().await;
    stage.terminate().await;
    let mut new = stage.open().await;
    for raw in [&mut old, &mut new] {
        for _ in 0..10 {
            let stream = raw.get("/").await.unwrap();
            assert_eq!(raw.answer(stream, SOON).await.unwrap().status(), 200);
            raw.round_trip().await.unwrap();
        }
        assert_eq!(raw.seen.notices(), []);
    }
    assert_eq!(stage.metric("ebbtide_notices_total", &[]).await, 0.0);
}

/// §4: idle connections are told one by one over the whole window.
#[tokio::test]
async fn idle_connections_are_told_spread_over_the_window() {
    const CONNECTIONS: usize = 60;
    let drain = "grace_period: 30s, hold: 6s, close: 1s, close_spread: 500ms, margin: 500ms";
    let stage = Stage::start(drain).await;
    // Never answered, and not of HTTP/2: the drain goes on when everybody else is gone.
    let mut hanging = Raw::connect(stage.address).await.unwrap();
    hanging.send("GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    stage.has_seen(1).await;
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let mut raw = stage.used().await;
        clients.spawn(async move {
            assert_eq!(raw.ending(SECONDS(30)).await, Ending::Fin);
            assert_eq!(assert_two_phases(&raw), 1);
            raw.seen.goaway_at(0).expect("told")
        });
    }
    let before_t0 = stage.terminate().await;
    // When the first have been told, others have not.
    let goaway = [("kind", "goaway")];
    let some = stage.px.metric_becomes("ebbtide_notices_total", &goaway, SOON, |told| told > 0.0).await;
    let mut told: Vec<Mono> = clients.join_all().await;
    told.sort();
    assert!(some < CONNECTIONS as f64, "all were told at once");
    let (first, last) = (told[0].since(before_t0), told[CONNECTIONS - 1].since(before_t0));
    assert!(first >= SECONDS(3), "the first was told {first:?} after t0, before the window");
    assert!(last - first > SECONDS(1), "all were told within {:?}", last - first);
    assert_eq!(stage.metric("ebbtide_notices_total", &goaway).await, CONNECTIONS as f64);
    let ended = [("protocol", "http2")];
    stage.px.metric_becomes("ebbtide_connections_total", &ended, SOON, |count| count == CONNECTIONS as f64).await;
}

/// A GET right behind a PING, in one write: its stream, and what the PING carries.
async fn marked_request(raw: &mut RawH2, path: &str) -> (u32, [u8; 8]) {
    let stream = raw.fresh_stream();
    let mark = u64::from(stream).to_be_bytes();
    raw.frames(&[Frame::ping(mark), request(stream, "GET", path, &[]).end_stream()]).await.unwrap();
    (stream, mark)
}

/// Whether a GOAWAY went out after the marked request had come and before its answer was out. One that stands before the
/// PING's acknowledgement was sent before the request was there: they have crossed on the wire.
fn told_under(raw: &RawH2, mark: [u8; 8], answer: &Answer) -> bool {
    let control = &raw.seen.control;
    let acknowledged =
        control.iter().position(|(_, one)| *one == Control::PingAck(mark)).expect("the PING is answered");
    let told = control.iter().position(|(_, one)| matches!(one, Control::Goaway { .. }));
    told.is_some_and(|told| told > acknowledged && Some(control[told].0) < answer.over_at)
}

/// C58: a client that takes the first GOAWAY for the end of everything loses nothing if there is a gap between its
/// requests, however short.
#[tokio::test]
async fn clients_that_drop_everything_at_a_goaway_lose_nothing() {
    const CLIENTS: u64 = 20;
    let _heavy = heavy().await;
    // Beyond the window's end nobody waits for a gap; the clients are done long before.
    let drain = "grace_period: 30s, hold: 16s, notice_after: 15%, close: 1s, close_spread: 500ms, margin: 500ms";
    let stage = Stage::start(drain).await;
    let began = Mono::now();
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let mut raw = stage.open().await;
        let address = stage.address;
        clients.spawn(async move {
            // Out of step with each other.
            tokio::time::sleep(MILLIS(75 * number)).await;
            let mut answered = 0;
            // The second connection comes in the window and is told on its first answer.
            for life in ["old", "new"] {
                while began.elapsed() < SECONDS(8) {
                    let (stream, mark) = marked_request(&mut raw, "/slow?ms=1200").await;
                    let answer = raw.answer(stream, SOON).await.unwrap();
                    let under = told_under(&raw, mark, &answer);
                    assert!(!under, "{life} connection of client {number}: GOAWAY under a request: {:?}", raw.seen);
                    assert_eq!(answer.status(), 200);
                    answered += 1;
                    // The gap.
                    raw.ending(MILLIS(100)).await;
                    if !raw.seen.goaways().is_empty() {
                        break;
                    }
                }
                // Everything is dropped, without a word.
                raw = RawH2::open(address).await.unwrap();
            }
            answered
        });
    }
    let before_t0 = stage.terminate().await;
    let answered: usize = clients.join_all().await.into_iter().sum();
    // Whoever was told was told inside the window; nobody had to wait for its end.
    assert_eq!(stage.px.status().await["phase"], "holding");
    assert!(answered > 3 * CLIENTS as usize, "{answered} answers in {:?}", before_t0.elapsed());
    assert!(stage.metric("ebbtide_notices_total", &[("kind", "goaway")]).await > 0.0, "nobody was told");
    let lost = stage.metric("ebbtide_requests_total", &[("outcome", "abandoned_after_notice")]).await;
    assert_eq!(lost, 0.0);
}

/// C58: without any gap a connection is told at the window's end; what the client then tears down is counted apart,
/// whether its answer had begun or not.
#[tokio::test]
async fn a_connection_without_a_gap_is_told_at_the_end_of_the_window() {
    let drain = "grace_period: 30s, hold: 2s, close: 1s, close_spread: 500ms, margin: 500ms";
    let stage = Stage::start(drain).await;
    let mut waiting = stage.used().await;
    waiting.get("/hang").await.unwrap();
    let mut streaming = stage.used().await;
    let chunks = streaming.get("/chunks?n=1000&every_ms=20").await.unwrap();
    let mut calling = stage.used().await;
    let call = calling.unary("/grpc/stream?every_ms=20", b"").await.unwrap();
    let mut cancelling = stage.used().await;
    let cancelled = cancelling.get("/hang").await.unwrap();
    stage.has_seen(8).await;
    let labels = [("kind", "stream")];
    stage.px.metric_becomes("ebbtide_in_flight", &labels, SOON, |streams| streams == 4.0).await;
    let before_t0 = stage.terminate().await;
    for raw in [&mut waiting, &mut streaming, &mut calling, &mut cancelling] {
        raw.goaways(1, SOON).await.unwrap();
        let told = raw.seen.goaway_at(0).unwrap().since(before_t0);
        assert!(told >= SECONDS(2), "told {told:?} after t0 with a stream open");
    }
    assert!(!streaming.seen.answer(chunks).body.is_empty() && !calling.seen.answer(call).body.is_empty());
    // One resets its stream and stays, the others are gone as a whole.
    cancelling.frame(Frame::reset(cancelled, code::CANCEL)).await.unwrap();
    drop((waiting, streaming, calling));
    assert_eq!(cancelling.ending(SOON).await, Ending::Fin);
    let report = stage.report_at_exit(SOON).await;
    assert_eq!(report["outcome"], "drained", "{report}");
    assert_eq!(report["notices"]["goaway"], 4, "{report}");
    assert_eq!(report["requests"]["abandoned_after_notice"], 4, "{report}");
    assert_eq!(stage.app.journal.wait("cancel", 4, SOON).await.len(), 4);
}

/// A stream that was given up without any notice is no sign of an over-reacting client.
#[tokio::test]
async fn streams_that_are_given_up_before_the_notice_are_counted_as_such() {
    let stage = Stage::start(LONG).await;
    let mut raw = stage.used().await;
    let waiting = raw.get("/hang").await.unwrap();
    let streaming = raw.get("/chunks?n=1000&every_ms=20").await.unwrap();
    stage.has_seen(3).await;
    raw.wait("a piece", SOON, |seen| (!seen.answer(streaming).body.is_empty()).then_some(())).await.unwrap();
    for stream in [waiting, streaming] {
        raw.frame(Frame::reset(stream, code::CANCEL)).await.unwrap();
    }
    let outcome = |name| [("protocol", "http2"), ("outcome", name)];
    stage.px.metric_becomes("ebbtide_requests_total", &outcome("abandoned"), SOON, |count| count == 2.0).await;
    assert_eq!(stage.metric("ebbtide_requests_total", &outcome("abandoned_after_notice")).await, 0.0);
    assert_eq!(stage.metric("ebbtide_requests_total", &[]).await, 3.0, "each request is counted once");
}

/// §4, C04: one that came after the window opened is told on its first response, and every return is served.
#[tokio::test]
async fn a_client_that_comes_back_again_and_again_is_served_each_time() {
    let stage = Stage::start(TOLD).await;
    let old = stage.used().await;
    stage.terminate().await;
    drop(old);
    for number in 0..50 {
        let mut raw = stage.open().await;
        if number < 5 {
            // Some take their time.
            assert_eq!(raw.ending(MILLIS(150)).await, Ending::StillOpen);
        }
        raw.round_trip().await.unwrap();
        assert_eq!(raw.seen.notices(), [], "nobody is told before it has asked for anything");
        let stream = raw.get("/").await.unwrap();
        let answer = raw.answer(stream, SOON).await.unwrap();
        assert_eq!((answer.status(), answer.is_whole()), (200, true));
        assert_eq!(raw.ending(SOON).await, Ending::Fin);
        assert_eq!(assert_two_phases(&raw), stream);
        assert!(raw.seen.goaway_at(0) >= answer.over_at, "told before its first answer was out");
    }
    assert_eq!(stage.px.status().await["phase"], "holding");
}

/// C10: from t0 on an app that says GOAWAY by itself has its clients told at once, without any window; before t0 it is
/// nobody's business but ours.
#[tokio::test]
async fn an_app_that_leaves_after_t0_has_its_clients_told_at_once() {
    let config = plain(LONG).env("EBBTIDE_WORKERS", "1");
    let stage = Stage::with(AppOptions::default().h2c(), config).await;
    let mut idle = stage.used().await;
    let mut active = stage.used().await;
    let recycles = active.get("/goaway").await.unwrap();
    assert_eq!(active.answer(recycles, SOON).await.unwrap().text(), "go\n");
    stage.app.journal.wait("goaway", 1, SOON).await;
    for _ in 0..3 {
        // The app's new connection is used, and nobody hears of the old one.
        let stream = active.get("/").await.unwrap();
        assert_eq!(active.answer(stream, SOON).await.unwrap().status(), 200);
        tokio::time::sleep(Duration::from_millis(300)).await;
        idle.round_trip().await.unwrap();
    }
    let before_t0 = stage.terminate().await;
    active.round_trip().await.unwrap();
    assert!(idle.seen.notices().is_empty() && active.seen.notices().is_empty(), "told of what was over before t0");
    let leaves = active.get("/goaway").await.unwrap();
    assert_eq!(active.answer(leaves, SOON).await.unwrap().text(), "go\n");
    for raw in [&mut idle, &mut active] {
        assert_eq!(raw.ending(SOON).await, Ending::Fin);
        assert_two_phases(raw);
        let told = raw.seen.goaway_at(0).unwrap().since(before_t0);
        assert!(told < SECONDS(15), "told {told:?} after t0: that is the window, not the app");
    }
    // Who comes now is served all the same, by a new connection to the app.
    let mut late = stage.used().await;
    assert_eq!(late.ending(SOON).await, Ending::Fin);
}
