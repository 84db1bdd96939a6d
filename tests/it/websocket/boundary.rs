//! Owns where our Close stands (C69): between two frames, uncompressed, the last thing that a client is told.

use fastrand::Rng;
use tokio::task::JoinSet;

use super::{CLOSES, MILLIS, SECONDS, SHORT, ended, keep, stage};
use crate::harness::stage::terminate;
use crate::harness::ws::{Over, Sessions, WsPlan};
use crate::harness::{SOON, fresh_seed, heavy};

const PIECES: u64 = 150;

/// A message that comes piece by piece for some 3 s: every session is told at another place in it.
fn dribbling(random: &mut Rng, fragmented: bool) -> WsPlan {
    let piece = random.u64(1..4000);
    let (pieces, flag) = if fragmented { (10 * PIECES, 1) } else { (PIECES, 0) };
    let size = pieces * piece + random.u64(..piece);
    let path = format!("/ws?push_ms=0&push_n=1&size={size}&piece={piece}&pause_ms=20&fragmented={flag}");
    let over = if random.u8(..4) == 0 { Over::Http2 } else { Over::Http1 };
    WsPlan { over, ..WsPlan::new(&path) }
}

/// The app pushes without a pause, and the client is behind with reading.
fn slow(random: &mut Rng) -> WsPlan {
    let size = random.u32(20_000..300_000);
    let flag = random.u8(..2);
    let path = format!("/ws?push_ms=0&size={size}&piece=16384&fragmented={flag}");
    WsPlan { reads: Some((random.usize(32_768..131_072), MILLIS(random.u64(10..30)))), ..WsPlan::new(&path) }
}

/// Two hundred cuts: inside a frame, and between the fragments of a message.
#[tokio::test(flavor = "multi_thread")]
async fn our_close_stands_between_two_frames() {
    let _heavy = heavy().await;
    let seed = fresh_seed();
    let mut random = Rng::with_seed(seed);
    let stage = stage(CLOSES, "").await;
    let _kept = keep(stage.address).await;
    let address = stage.address;
    let mut started = JoinSet::new();
    for number in 0..20 {
        let (kind, plan) = match number % 2 {
            0 => ("frame", dribbling(&mut random, false)),
            _ => ("fragments", dribbling(&mut random, true)),
        };
        started.spawn(async move { (kind, Sessions::start(address, &plan, 10).await) });
    }
    let started = started.join_all().await;
    terminate(&stage.px).await;
    let mut ends = JoinSet::new();
    for (kind, sessions) in started {
        ends.spawn(async move { (kind, sessions.ended(SECONDS(15)).await) });
    }
    for (kind, summary) in ends.join_all().await {
        summary.assert_closed(1001);
        let pushed = summary.records.iter().map(|one| one.pushed);
        // A frame comes to its end before the Close, a message of many frames need not.
        match kind {
            "frame" => {
                let whole = pushed.filter(|count| *count == 1).count();
                assert!(2 * whole > summary.records.len(), "seed {seed}: {:?}", summary.records);
            }
            "fragments" => assert!(pushed.max() == Some(0), "seed {seed}: {:?}", summary.records),
            _ => unreachable!("there are two kinds"),
        }
    }
    ended(&stage.px, "closed_by_notice", 200).await;
}

/// With a half-written frame in the way, and more behind it in the app.
#[tokio::test]
async fn our_close_stands_behind_what_a_slow_client_has_not_read() {
    let seed = fresh_seed();
    let mut random = Rng::with_seed(seed);
    let stage = stage(CLOSES, "").await;
    let mut sessions = JoinSet::new();
    for _ in 0..20 {
        sessions.spawn(Sessions::start(stage.address, &slow(&mut random), 1).await.ended(SECONDS(18)));
    }
    terminate(&stage.px).await;
    for summary in sessions.join_all().await {
        eprintln!("seed {seed}");
        summary.assert_closed(1001);
    }
}

/// Ten megabytes at a pace at which the frame is half written when its end is asked for.
#[tokio::test]
async fn a_long_message_in_the_way_is_no_fault() {
    let stage = stage(CLOSES, "").await;
    let address = stage.address;
    let mut sessions = JoinSet::new();
    for flag in [0, 1] {
        let path = format!("/ws?push_ms=0&push_n=1&size=10000000&piece=65536&pause_ms=15&fragmented={flag}");
        let plan = WsPlan { reads: Some((65_536, MILLIS(1))), ..WsPlan::new(&path) };
        let started = Sessions::start(address, &plan, 1).await;
        sessions.spawn(async move { (1 - flag, started.ended(SECONDS(15)).await) });
    }
    terminate(&stage.px).await;
    for (whole, summary) in sessions.join_all().await {
        summary.assert_closed(1001);
        assert_eq!(summary.records[0].pushed, whole);
    }
}

/// With permessage-deflate the messages are compressed, and the Close is not.
#[tokio::test]
async fn our_close_is_not_compressed() {
    let stage = stage(CLOSES, "close_code: 1012").await;
    let mut sessions = JoinSet::new();
    for over in [Over::Http1, Over::Http2] {
        let extensions = Some("permessage-deflate; client_max_window_bits".to_owned());
        let plan = WsPlan { over, extensions, compressed: true, ..WsPlan::talking(MILLIS(20)) };
        let started = Sessions::start(stage.address, &plan, 5).await;
        started.all_have(3, SOON).await;
        sessions.spawn(started.ended(SOON));
    }
    terminate(&stage.px).await;
    for summary in sessions.join_all().await {
        summary.assert_closed(1012);
        summary.seen_by(&stage.app.journal).await;
        summary.assert_none_lost(&stage.app.journal);
    }
    assert_eq!(stage.app.journal.count("violation"), 0);
}

/// A client that reads nothing more can't be told: only its own bound ends the wait, and it is counted.
#[tokio::test]
async fn only_a_client_that_stops_reading_gets_no_close() {
    let stage = stage(SHORT, "close_timeout: 500ms").await;
    let silent = WsPlan { reads: Some((4096, SECONDS(3600))), ..WsPlan::new("/ws?push_ms=0&size=65536") };
    let stuck = Sessions::start(stage.address, &silent, 3).await;
    let reading = Sessions::start(stage.address, &WsPlan::new("/ws?push_ms=5&size=5000"), 3).await;
    terminate(&stage.px).await;
    reading.ended(SOON).await.assert_closed(1001);
    stage.px.exit(SOON).await;
    let report = stage.px.report(SOON).await;
    assert_eq!((&report["outcome"], &report["forced"]["session"]), (&"forced".into(), &3.into()), "{report}");
    assert_eq!(stuck.open(), 3, "nothing can be told to who does not read");
}
