//! Owns apps that write in tiny pieces, for which h2 would end a whole connection (RUSTSEC-2026-0258 and its kin).

use std::time::Duration;

use super::script::{AppSide, Script};
use crate::grpc::stage::LONG;
use crate::harness::h2::grpc::{message, numbered};
use crate::harness::h2::{Frame, RawH2, Seen, request, setting};
use crate::harness::{SOON, heavy};

/// A client that takes nothing of any stream unless it opens a window for it.
async fn takes_nothing(address: std::net::SocketAddr) -> RawH2 {
    let mut raw = RawH2::connect(address).await.unwrap();
    raw.opens_windows = false;
    raw.greet(&[(setting::INITIAL_WINDOW_SIZE, 0)]).await.unwrap();
    raw.wait("SETTINGS", SOON, Seen::settings).await.unwrap();
    raw
}

/// A whole exchange beside everything else; the app sees its request as `number`.
async fn works(raw: &mut RawH2, app: &mut AppSide, number: u32) {
    let stream = raw.fresh_stream();
    let head = request(stream, "GET", "/works", &[]).end_stream();
    raw.frames(&[head, Frame::window_update(stream, 100_000)]).await.unwrap();
    raw.during(app.requests(&[number])).await;
    app.frame(Frame::headers(number, &[(":status", "200")])).await.unwrap();
    for _ in 0..50 {
        app.data(number, b"twenty bytes of body", false).await.unwrap();
    }
    app.data(number, b"", true).await.unwrap();
    let answer = raw.answer(stream, SOON).await.unwrap();
    assert_eq!((answer.body.len(), answer.is_whole()), (1000, true));
}

/// Facts §11: one slow reader with small frames used to end the shared connection, and everybody on it.
#[tokio::test]
async fn small_frames_that_nobody_reads_hurt_no_other_stream() {
    let _heavy = heavy().await;
    for (streams, size, frames) in [(63_u32, 20_usize, 1638_usize), (4, 1, 32_750)] {
        let script = Script::start().await;
        let (px, address) = script.front(LONG).await;
        let mut raw = takes_nothing(address).await;
        let mut stalled = Vec::new();
        for number in 0..streams {
            stalled.push(raw.get(&format!("/{number}")).await.unwrap());
        }
        let mut app = raw.during(script.accept()).await;
        let mut numbers = Vec::new();
        for number in 0..streams {
            numbers.push(raw.during(app.asked_for(&format!("/{number}"))).await);
        }
        for number in &numbers {
            let mut all = vec![Frame::headers(*number, &[(":status", "200")])];
            all.extend((0..frames).map(|_| Frame::data(*number, &vec![b'x'; size])));
            raw.during(app.frames(&all)).await.unwrap();
        }
        raw.during(app.round_trip()).await.unwrap();
        assert!(app.seen.goaways().is_empty(), "{:?}", app.seen.goaways());
        for turn in 0..3 {
            works(&mut raw, &mut app, 1 + 2 * (streams + turn)).await;
        }
        // Nothing was lost of what waits.
        for (stream, number) in stalled.iter().zip(&numbers).take(3) {
            raw.frame(Frame::window_update(*stream, 100_000)).await.unwrap();
            app.data(*number, b"end", true).await.unwrap();
            let answer = raw.answer(*stream, Duration::from_secs(30)).await.unwrap();
            assert!(answer.is_whole() && answer.body.len() == frames * size + 3, "{} bytes", answer.body.len());
        }
        assert!(app.seen.goaways().is_empty(), "{:?}", app.seen.goaways());
        assert_eq!(px.metrics().await.sum("ebbtide_requests_total", &[("outcome", "broken")]), 0.0);
    }
}

/// Empty DATA frames mean nothing, and some servers flush with them; h2 takes a hundred in a connection's life.
#[tokio::test]
async fn empty_frames_cost_nobody_a_stream() {
    let script = Script::start().await;
    let (px, address) = script.front(LONG).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let long = raw.unary("/grpc/long", b"").await.unwrap();
    let mut app = raw.during(script.accept()).await;
    raw.during(app.requests(&[1])).await;
    app.frame(Script::grpc_head(1)).await.unwrap();
    for number in 0..400 {
        app.frames(&[Frame::data(1, b""), Frame::data(1, &message(&numbered(number, 30))), Frame::data(1, b"")])
            .await
            .unwrap();
    }
    raw.during(app.round_trip()).await.unwrap();
    assert!(app.seen.goaways().is_empty(), "{:?}", app.seen.goaways());
    // The same connection serves on.
    let get = raw.get("/").await.unwrap();
    raw.during(app.requests(&[3])).await;
    app.frames(&[Frame::headers(3, &[(":status", "200")]), Frame::data(3, b""), Frame::data(3, b"").end_stream()])
        .await
        .unwrap();
    let answer = raw.answer(get, SOON).await.unwrap();
    assert!(answer.is_whole() && answer.body.is_empty(), "{answer:?}");
    app.frame(Frame::headers(1, &[("grpc-status", "0")]).end_stream()).await.unwrap();
    let answer = raw.answer(long, SOON).await.unwrap();
    let (messages, left) = answer.messages();
    assert_eq!((messages.len(), left, answer.grpc_status()), (400, 0, Some(0)));
    assert_eq!(px.metrics().await.sum("ebbtide_requests_total", &[("outcome", "broken")]), 0.0);
}

/// However the bytes are cut on their way, empty frames among others, nothing of the others is lost.
#[tokio::test]
async fn empty_frames_cut_anywhere_leave_the_others_whole() {
    let script = Script::start().await;
    let (_px, address) = script.front(LONG).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let stream = raw.get("/").await.unwrap();
    let mut app = raw.during(script.accept()).await;
    raw.during(app.requests(&[1])).await;
    let mut frames = vec![Frame::headers(1, &[(":status", "200")])];
    for number in 0..40_u8 {
        frames.extend([Frame::data(1, b""), Frame::data(1, &vec![number; usize::from(number)]), Frame::data(1, b"")]);
        frames.push(Frame::ping([number; 8]));
    }
    frames.push(Frame::data(1, b"").end_stream());
    let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
    for (number, piece) in bytes.chunks(7).enumerate() {
        app.bytes(piece).await.unwrap();
        // Each in a packet of its own as far as that can be had.
        if number % 8 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let answer = raw.answer(stream, SOON).await.unwrap();
    let expected: Vec<u8> = (0..40_u8).flat_map(|number| vec![number; usize::from(number)]).collect();
    assert!(answer.is_whole() && answer.body == expected, "{} bytes of {}", answer.body.len(), expected.len());
}
