//! Owns where our Close stands (C69): between two frames, uncompressed, the last thing that a client is told.

use fastrand::Rng;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{AT_ONCE, CLOSES, MILLIS, SECONDS, SHORT, agree, ended, keep, open, stage};
use crate::harness::script::Script;
use crate::harness::stage::{front, terminate, websocket};
use crate::harness::wait::within;
use crate::harness::ws::{Over, Said, Sessions, WsFrame, WsPlan, numbered, opcode};
use crate::harness::{SOON, fresh_seed, heavy};

const PIECES: u64 = 1500;

/// One of four is over HTTP/2.
fn either(random: &mut Rng) -> Over {
    if random.u8(..4) == 0 { Over::Http2 } else { Over::Http1 }
}

/// A message whose fragments come for some 30 s: every session is told at another place in it.
fn dribbling(random: &mut Rng) -> WsPlan {
    let piece = random.u64(1..4000);
    let size = PIECES * piece + random.u64(..piece);
    let path = format!("/ws?push_ms=0&push_n=1&size={size}&piece={piece}&pause_ms=20&fragmented=1");
    WsPlan { over: either(random), ..WsPlan::new(&path) }
}

/// The app pushes without a pause, and the client is behind with reading.
fn slow(random: &mut Rng) -> WsPlan {
    let size = random.u32(20_000..300_000);
    let flag = random.u8(..2);
    let path = format!("/ws?push_ms=0&size={size}&piece=16384&fragmented={flag}");
    WsPlan { reads: Some((random.usize(32_768..131_072), MILLIS(random.u64(10..30)))), ..WsPlan::new(&path) }
}

/// A hundred cuts between the fragments of a message, which need not come to its end.
#[tokio::test(flavor = "multi_thread")]
async fn our_close_stands_between_two_fragments() {
    let _heavy = heavy().await;
    let seed = fresh_seed();
    let mut random = Rng::with_seed(seed);
    let stage = stage(CLOSES, "").await;
    let _kept = keep(stage.address).await;
    let address = stage.address;
    let mut started = JoinSet::new();
    for _ in 0..10 {
        let plan = dribbling(&mut random);
        started.spawn(async move { Sessions::start(address, &plan, 10).await });
    }
    let started = started.join_all().await;
    terminate(&stage.px).await;
    for sessions in started {
        let summary = sessions.ended(SECONDS(15)).await;
        eprintln!("seed {seed}");
        summary.assert_closed(1001);
        assert!(summary.records.iter().all(|one| one.pushed == 0), "{:?}", summary.records);
    }
    ended(&stage.px, "closed_by_notice", 100).await;
}

/// A hundred cuts inside a frame: the app holds it open until a session without one has got its Close.
#[tokio::test(flavor = "multi_thread")]
async fn our_close_stands_behind_a_frame_that_is_open() {
    let _heavy = heavy().await;
    let seed = fresh_seed();
    let (finish, finished) = watch::channel(false);
    let script = Script::start(move |number, mut wire| {
        let mut finished = finished.clone();
        async move {
            let mut random = Rng::with_seed(seed.wrapping_add(number as u64));
            let Ok(head) = wire.head().await else { return };
            let frame = WsFrame::new(opcode::TEXT, numbered('p', 0, random.usize(..200_000))).encode();
            let (first, rest) = match head.request() {
                Ok((_, "/none")) => (&[][..], &[][..]),
                _ => frame.split_at(random.usize(1..frame.len())),
            };
            let _ = wire.get_mut().write_all(&[agree(&head).as_bytes(), first].concat()).await;
            if !rest.is_empty() {
                let _ = finished.wait_for(|finished| *finished).await;
                let _ = wire.get_mut().write_all(rest).await;
            }
            // To the Close, which is all that its client says.
            let _ = wire.more().await;
        }
    })
    .await;
    let config = websocket(AT_ONCE, "close_timeout: 9s").env("EBBTIDE_WORKERS", "1");
    let (px, address) = front(config, &script.upstream()).await;
    let mut random = Rng::with_seed(seed);
    let mut started = Vec::new();
    for _ in 0..10 {
        let plan = WsPlan { over: either(&mut random), ..WsPlan::new("/") };
        started.push(Sessions::start(address, &plan, 10).await);
    }
    let mut witness = open(address, "/none").await;
    terminate(&px).await;
    let told = within("the Close of the witness", SOON, witness.next()).await;
    assert!(matches!(&told, Ok(Said::Close(close)) if close.code == 1001), "{told:?}");
    assert!(started.iter().all(|sessions| sessions.open() == 10), "nobody ends inside a frame");
    finish.send_replace(true);
    for sessions in started {
        let summary = sessions.ended(SOON).await;
        eprintln!("seed {seed}");
        summary.assert_closed(1001);
        assert!(summary.records.iter().all(|one| one.pushed == 1), "{:?}", summary.records);
    }
    witness.send(WsFrame::close(1001, "")).await.unwrap();
    let report = px.report_at_exit(SOON).await;
    assert_eq!(
        (&report["outcome"], &report["notices"]["websocket_close"]),
        (&"drained".into(), &101.into()),
        "{report}"
    );
}

/// With a half-written frame in the way, and more behind it in the app.
#[tokio::test]
async fn our_close_stands_behind_what_a_slow_client_has_not_read() {
    let seed = fresh_seed();
    let mut random = Rng::with_seed(seed);
    // For megabytes that stand before the Close.
    let stage = stage(CLOSES, "close_timeout: 10s").await;
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
