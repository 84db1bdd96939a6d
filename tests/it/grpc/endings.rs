//! Owns the endings of the contract's §6: what becomes of each kind of stream when the time is up.

use std::time::Duration;

use rustix::process::Signal;

use super::stage::{LONG, Stage, own_refusal, scraped};
use crate::h2_upstream::script::Script;
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::h2::grpc::{message, number_of, numbered};
use crate::harness::h2::{Answer, Frame, RawH2, Seen, code};
use crate::harness::process::Exit;

/// Whole messages without a gap from 0 on; how many, and what follows of one more.
fn contiguous(answer: &Answer) -> (u64, usize) {
    let (messages, left) = answer.messages();
    let count = messages.len() as u64;
    assert!(messages.iter().map(|one| number_of(one)).eq((0..count).map(Some)), "a gap: {answer:?}");
    (count, left)
}

/// So many whole messages, and so many bytes of another one.
async fn has(raw: &mut RawH2, stream: u32, messages: usize, left: usize) {
    let enough = |seen: &Seen| {
        let (whole, rest) = seen.answer(stream).messages();
        (whole.len() >= messages && rest >= left).then_some(())
    };
    raw.wait(&format!("{messages} messages on {stream}"), SOON, enough).await.unwrap();
}

/// A bidi call that has had so many answers, and may go on.
async fn talking(raw: &mut RawH2, messages: u64) -> u32 {
    let stream = raw.begin_grpc("/grpc/bidi").await.unwrap();
    for number in 0..messages {
        raw.data(stream, &message(&numbered(number, 100)), false).await.unwrap();
    }
    has(raw, stream, messages as usize, 0).await;
    stream
}

/// Status 14 in trailers of its own, behind a head and whole messages.
fn assert_ended_between_messages(answer: &Answer) {
    assert!(answer.ended && !answer.is_trailers_only(), "{answer:?}");
    assert_eq!((answer.status(), answer.trailer("grpc-status")), (200, Some("14")));
    assert!(answer.trailer("grpc-message").is_some_and(|why| why.starts_with("ebbtide: ")), "{answer:?}");
}

/// §6, row 7: every kind of stream on one connection, each with its own ending, all counted, and the app hears of it.
#[tokio::test]
async fn each_kind_of_stream_has_its_ending_and_is_counted() {
    let stage = Stage::start(AppOptions::default().h2c(), scraped(LONG)).await;
    let mut raw = stage.open().await;
    let unanswered = raw.unary("/grpc/hang", b"x").await.unwrap();
    let uploading = raw.begin_grpc("/grpc/collect").await.unwrap();
    raw.data(uploading, &message(b"one"), false).await.unwrap();
    let bidi = talking(&mut raw, 3).await;
    let stream = raw.unary("/grpc/stream?every_ms=5&size=5000", b"").await.unwrap();
    has(&mut raw, stream, 3, 0).await;
    let half = raw.unary("/grpc/half?before=2&size=1000&sent=300", b"").await.unwrap();
    has(&mut raw, half, 2, 300).await;
    let plain = raw.get("/chunks?n=100000&every_ms=20").await.unwrap();
    raw.wait("pieces", SOON, |seen| (seen.answer(plain).body.len() > 20).then_some(())).await.unwrap();
    let hanging = raw.get("/hang").await.unwrap();
    let posted = raw.begin("/upload", &[]).await.unwrap();
    raw.data(posted, b"half of it", false).await.unwrap();
    stage.app.journal.wait("req", 8, SOON).await;
    raw.during(stage.terminate()).await;
    stage.px.signal(Signal::TERM);

    for call in [unanswered, uploading] {
        let answer = raw.answer(call, SOON).await.unwrap();
        let (status, why) = own_refusal(&answer);
        assert_eq!(status, 14);
        assert!(why.contains("out of time"), "{why}");
    }
    for call in [bidi, stream] {
        let answer = raw.answer(call, SOON).await.unwrap();
        assert_ended_between_messages(&answer);
        let (messages, left) = contiguous(&answer);
        assert!(messages >= 3 && left == 0, "{messages} messages and {left} bytes");
    }
    let answer = raw.answer(half, SOON).await.unwrap();
    assert_eq!((answer.ended, answer.reset, contiguous(&answer)), (false, Some(code::INTERNAL_ERROR), (2, 300)));
    let answer = raw.answer(plain, SOON).await.unwrap();
    assert!(!answer.ended && answer.reset.is_some(), "{answer:?}");
    for request in [hanging, posted] {
        let answer = raw.answer(request, SOON).await.unwrap();
        assert_eq!((answer.status(), answer.header("retry-after")), (504, None), "{answer:?}");
        assert_eq!((answer.header("connection"), answer.is_whole()), (None, true));
    }
    // Behind the end of an answer the rest of the request is wanted no more, and that is no fault of the client's.
    for unfinished in [bidi, uploading, posted] {
        let reset = |seen: &Seen| seen.answer(unfinished).reset;
        assert_eq!(raw.wait("RST_STREAM", SOON, reset).await.unwrap(), code::NO_ERROR, "stream {unfinished}");
    }
    let cancels = stage.app.journal.wait("cancel", 8, SOON).await;
    assert!(cancels.iter().all(|one| one.get("code") == code::CANCEL.to_string()), "{cancels:?}");

    let expected = [("grpc_stream", 2.0), ("grpc_message", 1.0), ("response", 1.0), ("request_unanswered", 4.0)];
    stage.px.phase_becomes("lingering", SOON).await;
    let metrics = stage.px.metrics().await;
    for (kind, count) in expected {
        assert_eq!(metrics.sum("ebbtide_forced_endings_total", &[("kind", kind)]), count, "{kind}");
    }
    let cut = |spoken| metrics.sum("ebbtide_requests_total", &[("protocol", spoken), ("outcome", "cut")]);
    assert_eq!((cut("grpc"), cut("http2")), (3.0, 1.0));
    assert_eq!(metrics.sum("ebbtide_grpc_calls_total", &[("code", "UNAVAILABLE")]), 4.0);
    assert_eq!(metrics.sum("ebbtide_in_flight", &[]), 0.0);
    raw.ending(SOON).await;
    assert_eq!(stage.px.exit(SOON).await, Exit::Code(0));
    let report = stage.px.report(SOON).await;
    assert_eq!(report["outcome"], "forced", "{report}");
    for (kind, count) in expected {
        assert_eq!(report["forced"][kind], count, "{kind}: {report}");
    }
}

/// §6: a message that is under way when its call is asked to end comes to its end, and nothing behind it does.
#[tokio::test]
async fn a_message_under_way_comes_to_its_end_and_nothing_behind_it() {
    let script = Script::start().await;
    let (px, address) = script.front(LONG).await;
    let mut raw = RawH2::open(address).await.unwrap();
    // The first one ends between messages and so tells when the calls are asked.
    let whole = raw.unary("/grpc/a", b"").await.unwrap();
    let half = raw.unary("/grpc/b", b"").await.unwrap();
    let mut app = raw.during(script.accept()).await;
    let upper = raw.during(app.asked_for("/grpc/a")).await;
    let lower = raw.during(app.asked_for("/grpc/b")).await;
    let bytes = [message(&numbered(0, 50)), message(&numbered(1, 3000))].concat();
    let (front, back) = bytes.split_at(500);
    app.frames(&[
        Script::grpc_head(upper),
        Frame::data(upper, &message(&numbered(0, 50))),
        Script::grpc_head(lower),
        Frame::data(lower, front),
    ])
    .await
    .unwrap();
    has(&mut raw, half, 1, 400).await;
    has(&mut raw, whole, 1, 0).await;
    raw.during(super::stage::terminate(&px)).await;
    px.signal(Signal::TERM);
    assert_ended_between_messages(&raw.answer(whole, SOON).await.unwrap());
    // Well within the half second that a message has, and well beyond the next looks of the sweep.
    raw.ending(Duration::from_millis(150)).await;
    assert!(!raw.seen.is_over(half));
    let more = [back, &message(&numbered(2, 40))].concat();
    app.frames(&[Frame::data(lower, &more), Frame::headers(lower, &[("grpc-status", "0")]).end_stream()])
        .await
        .unwrap();
    let answer = raw.answer(half, SOON).await.unwrap();
    assert_ended_between_messages(&answer);
    assert_eq!(contiguous(&answer), (2, 0));
    raw.ending(SOON).await;
    assert_eq!(px.exit(SOON).await, Exit::Code(0));
    assert_eq!(px.report(SOON).await["forced"], serde_json::json!({"grpc_stream": 2}));
}

/// §6: a gRPC answer of a length that was announced can't be cut short by a status; it is reset.
#[tokio::test]
async fn a_call_whose_length_was_announced_is_reset() {
    let script = Script::start().await;
    let (px, address) = script.front(LONG).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let call = raw.unary("/grpc/a", b"").await.unwrap();
    let mut app = raw.during(script.accept()).await;
    raw.during(app.requests(&[1])).await;
    let head = [(":status", "200"), ("content-type", "application/grpc"), ("content-length", "1000")];
    app.frames(&[Frame::headers(1, &head), Frame::data(1, &message(&numbered(0, 50)))]).await.unwrap();
    has(&mut raw, call, 1, 0).await;
    raw.during(super::stage::terminate(&px)).await;
    px.signal(Signal::TERM);
    let answer = raw.answer(call, SOON).await.unwrap();
    assert_eq!((answer.ended, answer.reset), (false, Some(code::INTERNAL_ERROR)));
    raw.ending(SOON).await;
    assert_eq!(px.exit(SOON).await, Exit::Code(0));
}

/// §6: streams of an app that speaks HTTP/1.1 end in the same way, and its connections with them.
#[tokio::test]
async fn streams_in_front_of_an_http1_app_end_alike() {
    let stage = Stage::start(AppOptions::default(), super::stage::plain(LONG)).await;
    let mut raw = stage.open().await;
    let plain = raw.get("/chunks?n=100000&every_ms=20").await.unwrap();
    raw.wait("pieces", SOON, |seen| (seen.answer(plain).body.len() > 20).then_some(())).await.unwrap();
    let hanging = raw.get("/hang").await.unwrap();
    let posted = raw.begin("/echo", &[("content-length", "100")]).await.unwrap();
    raw.data(posted, b"half of it", false).await.unwrap();
    stage.app.journal.wait("req", 3, SOON).await;
    raw.during(stage.terminate()).await;
    stage.px.signal(Signal::TERM);
    let answer = raw.answer(plain, SOON).await.unwrap();
    assert!(!answer.ended && answer.reset.is_some(), "{answer:?}");
    for request in [hanging, posted] {
        assert_eq!(raw.answer(request, SOON).await.unwrap().status(), 504);
    }
    raw.ending(SOON).await;
    assert_eq!(stage.px.exit(SOON).await, Exit::Code(0));
    let report = stage.px.report(SOON).await;
    assert_eq!(report["forced"], serde_json::json!({"response": 1, "request_unanswered": 2}), "{report}");
}
