//! Owns HTTP/2 clients that mean harm, before t0 and in the drain: honest clients beside them lose nothing, memory stays
//! flat, and the end comes on time.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;

use super::floods::{self, EMPTY, Flood, HEADS, RESETS};
use super::{LONG, MILLIS, SECONDS, Stage, resident};
use crate::harness::app::AppOptions;
use crate::harness::client::{Ending, Failure};
use crate::harness::ebbtide::Config;
use crate::harness::h2::frame::header_block;
use crate::harness::h2::{Frame, H2Load, H2Plan, Kind, NO_LAST, code, request};
use crate::harness::wait::Mono;
use crate::harness::{SOON, heavy};

/// Long enough for a drain that ends by itself to be told from one that is cut off after 8.5 s.
const DRAIN: &str = "grace_period: 10s, hold: 1s, close: 500ms, close_spread: 500ms, quiet: 300ms, margin: 1s";
const CUT: Duration = Duration::from_millis(8500);
const SERVING: Duration = Duration::from_millis(2500);
const MOST_GROWTH: u64 = 20 * 1024;
/// 150 answers that nobody takes: each has a window's worth on its way in and as much on its way out.
const STALLED: u64 = 150 * 320;

type Attack = Pin<Box<dyn Future<Output = Infallible> + Send>>;

/// What a stage looked like when its attackers had had their time.
struct Aftermath {
    stage: Stage,
    report: Value,
    /// From t0 to the exit.
    end: Duration,
}

/// Attacks an ebbtide that serves honest clients, deletes it, and checks that only the attackers have noticed.
async fn besiege(most_growth: u64, attacks: impl FnOnce(SocketAddr) -> Vec<Attack>) -> Aftermath {
    let yaml = format!("drain: {{{DRAIN}}}\nlimits: {{header_timeout: 1s}}");
    let stage = Stage::with(AppOptions::default().h2c(), Config::new().yaml(&yaml)).await;
    let honest = H2Load::start(H2Plan::mixed(stage.address, 60.0));
    honest.has_done(120, SOON).await;
    let before = resident(&stage.px);
    let mut attackers = JoinSet::new();
    for attack in attacks(stage.address) {
        attackers.spawn(attack);
    }
    let mut peak = before;
    let began = Mono::now();
    while began.elapsed() < SERVING {
        tokio::time::sleep(MILLIS(20)).await;
        peak = peak.max(resident(&stage.px));
    }
    let before_t0 = stage.terminate().await;
    while before_t0.elapsed() < SECONDS(1) {
        tokio::time::sleep(MILLIS(20)).await;
        peak = peak.max(resident(&stage.px));
    }
    let honest = honest.stop().await;
    eprintln!("{} honest calls, resident {before} KiB, at most {peak}", honest.total());
    honest.assert_clean();
    honest.assert_at_most_once(&stage.app.journal);
    let report = stage.report_at_exit(SECONDS(15)).await;
    let end = stage.px.exited_at().expect("it has ended").since(before_t0);
    attackers.shutdown().await;
    eprintln!("gone {end:?} after t0; {}", report["forced"]);
    assert!(peak - before < most_growth, "resident memory grew from {before} to {peak} KiB");
    assert!(end < SECONDS(11), "gone {end:?} after t0, later than the grace period");
    Aftermath { stage, report, end }
}

const fn is_end<T>(read: &Result<T, Failure>) -> bool {
    !matches!(read, Ok(_) | Err(Failure::Timeout))
}

fn each(floods: &[Flood], address: SocketAddr) -> Vec<Attack> {
    let attack = |flood: &Flood| -> Attack {
        eprintln!("attacks with {}", flood.name);
        Box::pin(flood.run(address))
    };
    floods.iter().map(attack).collect()
}

/// C101: streams begun and taken back at once, in every way there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_resets_hurt_nobody_else() {
    let _heavy = heavy().await;
    let after = besiege(MOST_GROWTH, |address| each(&RESETS, address)).await;
    // What goes on coming prolongs the drain, whoever sends it, but nothing has to be cut.
    assert_eq!(after.report["outcome"], "drained", "{:?}: {}", after.end, after.report);
    // Each took a part of what was taken back, so that the app had no reason to end one.
    eprintln!("{} connections to the app", after.stage.app.journal.count("preface"));
    let lost = after.stage.app.journal.lines("lost");
    assert!(!lost.iter().any(|line| line.get("id").starts_with("h2load")), "{lost:?}");
}

/// C101: resets one by one pass h2's own limit, which is about streams that were never begun; there is one of ours.
#[tokio::test]
async fn more_resets_than_a_client_has_reason_to_end_its_connection() {
    let _heavy = heavy().await;
    let stage = Stage::start(LONG).await;
    let mut honest = stage.used().await;
    let mut raw = stage.open().await;
    let began = Mono::now();
    let mut resets = 0;
    let ended = loop {
        assert!(began.elapsed() < SOON, "{resets} resets were taken");
        let streams: Vec<u32> = (0..100).map(|_| raw.fresh_stream()).collect();
        let heads: Vec<Frame> = streams.iter().map(|one| request(*one, "GET", "/hang", &[]).end_stream()).collect();
        let taken_back: Vec<Frame> = streams.iter().map(|one| Frame::reset(*one, code::CANCEL)).collect();
        let round = async {
            raw.frames(&heads).await?;
            raw.round_trip().await?;
            raw.frames(&taken_back).await?;
            raw.round_trip().await
        };
        if round.await.is_err() {
            break raw.ending(SOON).await;
        }
        resets += 100;
    };
    assert_ne!(ended, Ending::StillOpen);
    assert_eq!(raw.seen.goaways(), [(NO_LAST, code::ENHANCE_YOUR_CALM)]);
    assert!(resets >= 900, "ended after {resets} resets");
    let reason = [("reason", "stream_resets")];
    assert_eq!(stage.metric("ebbtide_connections_rejected_total", &reason).await, 1.0, "{:?}", raw.seen.goaways());
    honest.round_trip().await.unwrap();
    let stream = honest.get("/").await.unwrap();
    assert_eq!(honest.answer(stream, SOON).await.unwrap().status(), 200);
    // What was taken back is in flight no more.
    stage.px.metric_becomes("ebbtide_in_flight", &[("kind", "stream")], SOON, |streams| streams == 0.0).await;
}

/// Floods that cost nothing to send and, unless they are bounded, something to take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_empty_frames_hurt_nobody_else() {
    let _heavy = heavy().await;
    let after = besiege(MOST_GROWTH, |address| each(&EMPTY, address)).await;
    assert!(after.end < CUT, "{:?}: {}", after.end, after.report);
}

/// Heads without an end occupy a connection, never more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_header_blocks_hurt_nobody_else() {
    let _heavy = heavy().await;
    let after = besiege(MOST_GROWTH, |address| each(&HEADS, address)).await;
    assert!(after.end < CUT, "{:?}: {}", after.end, after.report);
}

/// Clients that hold on to what they have: they have until the drain deadline, and no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_hold_on_are_let_go_at_the_deadline() {
    let _heavy = heavy().await;
    let attacks = |address| -> Vec<Attack> {
        let mut attacks: Vec<Attack> = Vec::new();
        for _ in 0..3 {
            attacks.push(Box::pin(floods::never_reads(address)));
            attacks.push(Box::pin(floods::begins_and_stops(address)));
            attacks.push(Box::pin(floods::never_leaves(address)));
        }
        attacks
    };
    let after = besiege(STALLED, attacks).await;
    assert_eq!(after.report["outcome"], "forced", "{}", after.report);
    assert!(after.report["forced"]["stalled"].as_u64() > Some(0), "{}", after.report);
    assert!(after.report["forced"]["request_unanswered"].as_u64() > Some(0), "{}", after.report);
}

/// C101: streams above the final id for ever are no reason to stay, and none of them is begun.
#[tokio::test]
async fn streams_above_the_final_id_for_ever_hold_nobody_up() {
    let stage = Stage::start(DRAIN).await;
    let mut raw = stage.used().await;
    let slow = raw.get("/slow?ms=4000").await.unwrap();
    stage.has_seen(2).await;
    let before_t0 = stage.terminate().await;
    raw.goaways(2, SOON).await.unwrap();
    let base = resident(&stage.px);
    let mut peak = base;
    while !raw.seen.is_over(slow) {
        let frames: Vec<Frame> =
            (0..200).map(|_| request(raw.fresh_stream(), "GET", "/", &[("x-id", "above")]).end_stream()).collect();
        if raw.frames(&frames).await.is_err() || is_end(&raw.next(MILLIS(5)).await) {
            break;
        }
        peak = peak.max(resident(&stage.px));
    }
    // Either it is answered, or the client has been thrown out for what it did.
    let last = raw.seen.goaways().last().copied().unwrap();
    let answer = raw.seen.answer(slow);
    assert!(answer.is_whole() || last.1 == code::ENHANCE_YOUR_CALM, "{last:?} {answer:?}");
    assert_eq!(stage.app.journal.times_seen("above"), 0);
    assert!(peak - base < MOST_GROWTH, "resident memory grew from {base} to {peak} KiB");
    drop(raw);
    assert_eq!(stage.report_at_exit(SOON).await["outcome"], "drained");
    assert!(before_t0.elapsed() < CUT, "{:?}", before_t0.elapsed());
}

/// A header block may be as long as `limits.header_bytes`; a longer one is refused without harm to other streams.
#[tokio::test]
async fn long_header_lists_are_served_up_to_the_limit_and_refused_beyond() {
    let stage = Stage::start(LONG).await;
    let mut raw = stage.open().await;
    for (bytes, served) in [(60_000, true), (64_500, true), (66_500, false), (75_000, false), (1_000, true)] {
        let beside = raw.get("/slow?ms=100").await.unwrap();
        let stream = raw.fresh_stream();
        let value = "v".repeat(950);
        let mut fields = vec![(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "toy")];
        let mut size: usize = fields.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
        while size + 1000 <= bytes {
            fields.push(("x-long-long-name-1", &value));
            size += 1000;
        }
        let block = header_block(&fields);
        let mut pieces = block.chunks(16_000).peekable();
        let mut frames = vec![Frame::new(Kind::Headers, 1, stream, pieces.next().unwrap().to_vec())];
        frames.extend(pieces.map(|piece| Frame::new(Kind::Continuation, 0, stream, piece.to_vec())));
        frames.last_mut().unwrap().flags |= 4;
        raw.frames(&frames).await.unwrap();
        let answer = raw.answer(stream, SOON).await.unwrap_or_else(|why| panic!("{bytes}: {why:?} {:?}", raw.seen));
        assert_eq!(answer.status(), if served { 200 } else { 431 }, "{bytes}: {answer:?}");
        assert_eq!(raw.answer(beside, SOON).await.unwrap().status(), 200, "{bytes}");
    }
}

/// A head must come to its end within `limits.header_timeout`, however busily it goes on.
#[tokio::test]
async fn a_header_block_without_an_end_is_given_up_after_the_timeout() {
    let yaml = format!("drain: {{{LONG}}}\nlimits: {{header_timeout: 1s}}");
    let stage = Stage::with(AppOptions::default().h2c(), Config::new().yaml(&yaml)).await;
    let mut still = stage.used().await;
    let mut trickling = stage.used().await;
    let mut idle = stage.used().await;
    let head = request(3, "GET", "/", &[("x-id", "endless")]).end_stream().open_ended();
    for raw in [&mut still, &mut trickling] {
        raw.frame(head.clone()).await.unwrap();
    }
    let began = Mono::now();
    let trickles = async {
        while began.elapsed() < SECONDS(5) {
            let more = trickling.frame(Frame::new(Kind::Continuation, 0, 3, Vec::new())).await;
            if more.is_err() || trickling.ending(MILLIS(200)).await != Ending::StillOpen {
                break;
            }
        }
        trickling.ending(SOON).await
    };
    let (still_ending, trickling_ending) = tokio::join!(still.ending(SOON), trickles);
    assert_eq!(still_ending, Ending::Fin);
    assert_ne!(trickling_ending, Ending::StillOpen);
    assert!(began.elapsed() >= MILLIS(700), "{:?}", began.elapsed());
    idle.round_trip().await.unwrap();
    assert_eq!(stage.app.journal.times_seen("endless"), 0);
    let rejected = stage.metric("ebbtide_connections_rejected_total", &[]).await;
    assert!(rejected >= 1.0, "{rejected}");
}

/// Silence is no offence before t0: a pool may keep a connection for as long as it likes.
#[tokio::test]
async fn silence_after_the_preface_is_no_offence() {
    let yaml = format!("drain: {{{LONG}}}\nlimits: {{header_timeout: 500ms}}");
    let stage = Stage::with(AppOptions::default().h2c(), Config::new().yaml(&yaml)).await;
    let mut raw = stage.open().await;
    assert_eq!(raw.ending(SECONDS(2)).await, Ending::StillOpen);
    let stream = raw.get("/").await.unwrap();
    assert_eq!(raw.answer(stream, SOON).await.unwrap().status(), 200);
}
