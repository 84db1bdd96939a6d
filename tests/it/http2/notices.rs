//! Owns the frames of a farewell on one connection, and the clients that don't answer as they should.

use tokio::task::JoinSet;

use super::{DRAINS, MILLIS, SECONDS, SHUTDOWN_PING, Stage, TOLD, assert_two_phases, plain};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::Ending;
use crate::harness::h2::{Frame, Kind, NO_LAST, PREFACE, RawH2, code, request};
use crate::harness::http::{Sum, pattern};
use crate::harness::wait::Mono;

/// C51: what crosses the first GOAWAY is served, what comes after the final one never reaches the app, and the
/// connection ends after its last stream.
#[tokio::test]
async fn the_farewell_is_two_goaways_around_a_ping() {
    for options in [AppOptions::default().h2c(), AppOptions::default()] {
        let told = plain(TOLD);
        let stage = Stage::with(options, told).await;
        let mut raw = stage.used().await;
        raw.acks_pings = false;
        let slow = raw.get("/slow?ms=2500").await.unwrap();
        stage.has_seen(2).await;
        stage.terminate().await;
        assert_eq!(raw.goaways(1, SOON).await.unwrap(), [(NO_LAST, code::NO_ERROR)]);
        let crossing = raw.get("/").await.unwrap();
        assert_eq!(raw.answer(crossing, SOON).await.unwrap().status(), 200, "between the two");
        assert_eq!(raw.seen.notices().len(), 2, "GOAWAY and PING, and no more before the ACK: {:?}", raw.seen);
        raw.frame(Frame::ping_ack(&SHUTDOWN_PING)).await.unwrap();
        raw.goaways(2, SOON).await.unwrap();
        assert_eq!(assert_two_phases(&raw), crossing, "the highest stream that was begun");
        assert!(!raw.seen.is_over(slow), "the final GOAWAY does not wait for streams");

        let late = request(raw.fresh_stream(), "GET", "/", &[("x-id", "above")]).end_stream();
        raw.frame(late.clone()).await.unwrap();
        let answer = raw.answer(slow, SOON).await.unwrap();
        assert_eq!((answer.status(), answer.text().as_str(), answer.is_whole()), (200, "slow\n", true));
        assert_eq!(raw.ending(SOON).await, Ending::Fin);
        let above = raw.seen.answer(late.stream);
        assert!(above.head.is_empty() && above.reset.is_none_or(|code| code == code::REFUSED_STREAM), "{above:?}");
        assert_eq!(stage.app.journal.times_seen("above"), 0);
        assert_eq!(assert_two_phases(&raw), crossing);
    }
}

/// C52 and the pinned payload: an ACK with the PING's own payload, with another one, and none at all lead to the same
/// frames; only the first does so before the timer.
#[tokio::test]
async fn a_missing_or_wrong_ack_leads_to_the_same_frames_after_the_timer() {
    let stage = Stage::start(TOLD).await;
    let mut clients = JoinSet::new();
    for ack in [Some(SHUTDOWN_PING), Some([7; 8]), None] {
        let mut raw = stage.used().await;
        raw.acks_pings = false;
        let slow = raw.get("/slow?ms=3000").await.unwrap();
        clients.spawn(async move {
            raw.goaways(1, SOON).await.unwrap();
            raw.wait("PING", SOON, |seen| (seen.notices().len() == 2).then_some(())).await.unwrap();
            if let Some(payload) = ack {
                raw.frame(Frame::ping_ack(&payload)).await.unwrap();
            }
            raw.goaways(2, SOON).await.unwrap();
            // Pings of the client are answered to the end.
            raw.round_trip().await.unwrap();
            // Too late to matter, and no reason to fail anything.
            raw.frame(Frame::ping_ack(&SHUTDOWN_PING)).await.unwrap();
            let answer = raw.answer(slow, SOON).await.unwrap();
            assert!(answer.is_whole() && answer.status() == 200, "{ack:?}: {answer:?}");
            assert_eq!(assert_two_phases(&raw), slow, "{ack:?}");
            assert!(raw.seen.goaway_at(1) < answer.over_at, "{ack:?}: the final GOAWAY waits for no stream");
            assert_eq!(raw.ending(SOON).await, Ending::Fin, "{ack:?}");
            let between = raw.seen.goaway_at(1).unwrap().since(raw.seen.goaway_at(0).unwrap());
            (ack == Some(SHUTDOWN_PING), between)
        });
    }
    stage.has_seen(6).await;
    stage.terminate().await;
    for (acked, between) in clients.join_all().await {
        // The sweep may be a little early by our clock, which starts when we have read the first frame.
        assert!(acked || between > MILLIS(800), "the final GOAWAY after {between:?} without an ACK");
    }
    assert_eq!(stage.metric("ebbtide_notices_total", &[("kind", "goaway")]).await, 3.0);
}

/// C57: what begins between the two GOAWAYs is served in full, however long its body; what begins after the final one
/// is not forwarded, not even in part.
#[tokio::test]
async fn an_upload_between_the_two_goaways_is_served_and_one_after_them_is_not_begun() {
    let stage = Stage::start(TOLD).await;
    let body = pattern(1_000_000);
    let mut raw = stage.used().await;
    raw.acks_pings = false;
    let open = raw.get("/slow?ms=2500").await.unwrap();
    stage.has_seen(2).await;
    stage.terminate().await;
    raw.goaways(1, SOON).await.unwrap();
    let upload = raw.begin("/echo", &[("x-id", "between")]).await.unwrap();
    first_part(&mut raw, upload, &body[..400_000]).await;
    raw.frame(Frame::ping_ack(&SHUTDOWN_PING)).await.unwrap();
    raw.goaways(2, SOON).await.unwrap();
    assert_eq!(assert_two_phases(&raw), upload);
    raw.upload(upload, &body[400_000..], SOON).await.unwrap();
    let answer = raw.answer(upload, SOON).await.unwrap();
    assert_eq!((answer.status(), answer.header("x-sum")), (200, Some(Sum::of(&body).hex().as_str())));
    assert!(answer.is_whole() && answer.body == body);

    let late = raw.begin("/echo", &[("x-id", "after")]).await.unwrap();
    for piece in body[..48_000].chunks(16_000) {
        raw.data(late, piece, false).await.unwrap();
    }
    assert_eq!(raw.answer(open, SOON).await.unwrap().status(), 200);
    assert_eq!(raw.ending(SOON).await, Ending::Fin);
    let late = raw.seen.answer(late);
    assert!(late.head.is_empty() && late.reset.is_none_or(|code| code == code::REFUSED_STREAM), "{late:?}");
    assert_eq!((stage.app.journal.times_seen("between"), stage.app.journal.times_seen("after")), (1, 0));
}

/// The notice finds clients in the middle of a frame; nothing can be put between its bytes, and nothing waits for ever.
#[tokio::test]
async fn half_a_frame_at_the_notice_is_waited_for_and_then_given_up() {
    let drain = "grace_period: 12s, hold: 300ms, close: 1s, close_spread: 500ms, quiet: 300ms, margin: 1s";
    let stage = Stage::start(drain).await;
    let mut idle = Vec::new();
    let whole = request(3, "GET", "/", &[]).end_stream().encode();
    // In the head of a frame, behind it, and in a header block whose CONTINUATION never comes.
    let open_ended = Frame::new(Kind::Headers, 1, 3, whole[9..29].to_vec()).encode();
    for bytes in [&whole[..4], &whole[..9], &whole[..whole.len() - 1], &open_ended] {
        let mut raw = stage.used().await;
        raw.acks_pings = false;
        raw.bytes(bytes).await.unwrap();
        idle.push(raw);
    }
    let mut late = stage.used().await;
    let cut = whole.len() / 2;
    late.bytes(&whole[..cut]).await.unwrap();
    let mut silent = stage.used().await;
    silent.acks_pings = false;
    let upload = silent.begin("/upload", &[]).await.unwrap();
    let piece = Frame::data(upload, b"only half of it").encode();
    silent.bytes(&piece[..piece.len() / 2]).await.unwrap();
    stage.has_seen(7).await;
    let before_t0 = stage.terminate().await;

    late.goaways(1, SOON).await.unwrap();
    late.bytes(&whole[cut..]).await.unwrap();
    assert_eq!(late.answer(3, SOON).await.unwrap().status(), 200, "a request that was half sent at the notice");
    assert_eq!(late.ending(SOON).await, Ending::Fin);
    assert_eq!(assert_two_phases(&late), 3);
    for (number, raw) in idle.iter_mut().enumerate() {
        // An ACK would be a part of the frame that they never ended.
        assert_eq!(raw.ending(SOON).await, Ending::Fin, "client {number}: {:?}", raw.seen);
        assert_eq!(raw.seen.goaways()[0], (NO_LAST, code::NO_ERROR), "client {number}");
        assert!(before_t0.elapsed() < SECONDS(9), "client {number} held on to until the deadline");
    }
    // A stream that may still go on has the time of the drain, and not more.
    assert_ne!(silent.ending(SECONDS(15)).await, Ending::StillOpen);
    let report = stage.report_at_exit(SOON).await;
    assert!(before_t0.elapsed() < SECONDS(14), "later than the grace period");
    assert_eq!(report["forced"]["request_unanswered"], 1, "{report}");
}

/// C54: connections that were opened for later and never spoke, or not in full, hold nobody up; one that speaks in the
/// last moment is served.
#[tokio::test]
async fn parked_connections_do_not_hold_up_the_end_and_late_speakers_are_served() {
    const EACH: usize = 20;
    let drain = "grace_period: 30s, hold: 3s, close: 1s, close_spread: 500ms, quiet: 300ms, margin: 500ms";
    let stage = Stage::start(drain).await;
    let (mut silent, mut cut, mut unacked, mut late) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..EACH {
        for (kind, bytes) in [(&mut silent, 0), (&mut cut, 10), (&mut late, 0)] {
            let mut raw = RawH2::connect(stage.address).await.unwrap();
            raw.bytes(&PREFACE[..bytes]).await.unwrap();
            kind.push(raw);
        }
        let mut raw = RawH2::connect(stage.address).await.unwrap();
        raw.acks_settings = false;
        raw.greet(&[]).await.unwrap();
        unacked.push(raw);
    }
    let before_t0 = stage.terminate().await;
    // Most of the hold has passed.
    (before_t0 + SECONDS(2)).reached().await;
    let mut speakers = JoinSet::new();
    for mut raw in late {
        let head = request(1, "GET", "/slow?ms=100", &[]).end_stream();
        let all = [&PREFACE[..], &Frame::settings(&[]).encode(), &head.encode()].concat();
        raw.bytes(all).await.unwrap();
        speakers.spawn(async move {
            let answer = raw.answer(1, SOON).await.expect("a late speaker is answered");
            assert_eq!((answer.status(), answer.is_whole()), (200, true));
            assert_eq!(raw.ending(SOON).await, Ending::Fin);
            assert_eq!(assert_two_phases(&raw), 1);
        });
    }
    let mut others = JoinSet::new();
    for (kind, raws) in [("silent", silent), ("cut", cut), ("unacked", unacked)] {
        for mut raw in raws {
            others.spawn(async move {
                let ending = raw.ending(SOON).await;
                (kind, ending, Mono::now(), raw.seen.goaways().len())
            });
        }
    }
    speakers.join_all().await;
    for (kind, ending, at, goaways) in others.join_all().await {
        assert_eq!(ending, Ending::Fin, "{kind}");
        assert_eq!(goaways, if kind == "unacked" { 2 } else { 0 }, "{kind}");
        assert!(kind == "unacked" || at.since(before_t0) >= SECONDS(3), "{kind}: closed in the hold");
    }
    let report = stage.report_at_exit(SOON).await;
    // H + 1 s + close_spread, the last answers, and a busy machine; the grace period would be 30 s.
    assert!(before_t0.elapsed() < SECONDS(10), "{:?}", before_t0.elapsed());
    assert_eq!(report["notices"]["goaway"], 2 * EACH, "{report}");
}

/// §4: the drain's own end is not held up by clients that know nothing of ACKs, and counts nothing as cut.
#[tokio::test]
async fn clients_that_answer_nothing_are_gone_by_the_end_of_the_drain() {
    let stage = Stage::start(DRAINS).await;
    let mut clients = JoinSet::new();
    for _ in 0..20 {
        let mut raw = stage.used().await;
        (raw.acks_pings, raw.acks_settings) = (false, false);
        clients.spawn(async move {
            assert_eq!(raw.ending(SOON).await, Ending::Fin);
            assert_eq!(assert_two_phases(&raw), 1);
        });
    }
    stage.terminate().await;
    clients.join_all().await;
    let report = stage.report_at_exit(SOON).await;
    assert_eq!(report["outcome"], "drained", "{report}");
    assert_eq!(report["notices"]["goaway"], 20, "{report}");
}

/// A part of a body as flow control allows; the stream stays open.
async fn first_part(raw: &mut RawH2, stream: u32, body: &[u8]) {
    let mut left = body;
    while !left.is_empty() {
        let room = raw.seen.may_send(stream).min(16_384).min(left.len());
        if room == 0 {
            raw.next(SOON).await.expect("the window opens");
            continue;
        }
        raw.data(stream, &left[..room], false).await.unwrap();
        left = &left[room..];
    }
}
