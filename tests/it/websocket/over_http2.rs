//! Owns WebSocket over HTTP/2 (RFC 8441): offered only when asked for, a session like any other, and one stream among
//! others.

use tokio::io::AsyncWriteExt;

use super::{CLEAN, CLOSES, MILLIS, ended, in_flight, keep, let_go, stage};
use crate::grpc::stage::Stage;
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::h2::{Frame, RawH2, code, setting};
use crate::harness::script::Script;
use crate::harness::stage::{LONG, front, plain, terminate, websocket};
use crate::harness::ws::{
    Over, Reader, Refusal, Said, Sessions, Side, WsClient, WsFrame, WsPlan, extended_connect, number_of, numbered,
    opcode,
};

fn over_http2(path: &str) -> WsPlan {
    WsPlan { over: Over::Http2, ..WsPlan::new(path) }
}

fn refused(status: u16) -> Refusal {
    Refusal::Status { status, retry_after: false, closes: false }
}

/// A session on a stream of this connection.
async fn connect(raw: &mut RawH2, plan: &WsPlan) -> u32 {
    let stream = raw.fresh_stream();
    raw.frame(extended_connect(stream, plan, &format!("stream-{stream}"))).await.unwrap();
    let accepted = |seen: &crate::harness::h2::Seen| (seen.answers.get(&stream)?.status() == 200).then_some(());
    raw.wait("a session", SOON, accepted).await.unwrap();
    stream
}

/// All that the app's side has said on this stream, read strictly.
fn said(raw: &RawH2, stream: u32) -> Vec<Said> {
    let mut reader = Reader::new(Side::Server, false);
    reader.feed(&raw.seen.answer(stream).body);
    std::iter::from_fn(|| reader.next().expect("frames")).collect()
}

async fn is_served(raw: &mut RawH2, path: &str) {
    let stream = raw.get(path).await.unwrap();
    let answer = raw.answer(stream, SOON).await.unwrap();
    assert!(answer.is_whole() && answer.status() == 200, "{answer:?}");
}

#[tokio::test]
async fn it_is_offered_only_when_asked_for() {
    let stage = Stage::start(AppOptions::default(), plain(LONG)).await;
    let missing = Refusal::Bad("SETTINGS_ENABLE_CONNECT_PROTOCOL was not sent");
    assert_eq!(WsClient::open(stage.address, &over_http2("/ws"), "one").await.unwrap_err(), missing);
    let mut raw = stage.open().await;
    assert_eq!(raw.seen.settings().unwrap().get(&setting::ENABLE_CONNECT_PROTOCOL), None);
    let stream = raw.fresh_stream();
    raw.frame(extended_connect(stream, &over_http2("/ws"), "one")).await.unwrap();
    let answer = raw.answer(stream, SOON).await.unwrap();
    assert!(answer.reset == Some(code::PROTOCOL_ERROR) || (400..600).contains(&answer.status()), "{answer:?}");
    is_served(&mut raw, "/").await;
    assert_eq!((stage.app.journal.count("ws"), stage.app.journal.count("req")), (0, 1));

    let stage = super::stage(LONG, "").await;
    let raw = stage.open().await;
    assert_eq!(raw.seen.settings().unwrap().get(&setting::ENABLE_CONNECT_PROTOCOL), Some(&1));
}

#[tokio::test]
async fn what_is_agreed_and_what_is_refused_is_the_apps_word() {
    let stage = stage(LONG, "").await;
    let offer = WsPlan {
        protocols: Some("soap, chat".to_owned()),
        extensions: Some("permessage-deflate; client_max_window_bits, other".to_owned()),
        ..over_http2("/ws")
    };
    let client = WsClient::open(stage.address, &offer, "one").await.unwrap();
    assert_eq!(client.protocol.as_deref(), Some("soap"));
    assert_eq!(client.extensions.as_deref(), Some("permessage-deflate; client_max_window_bits"));
    for status in [401, 404, 302, 200] {
        let plan = over_http2(&format!("/ws?refuse={status}"));
        let answer = WsClient::open(stage.address, &plan, "two").await;
        match status {
            // Whatever the app means by it, to the client it would be an open session.
            200 => assert!(matches!(answer, Err(Refusal::Status { status: 400..600, .. })), "{answer:?}"),
            _ => assert_eq!(answer.unwrap_err(), refused(status)),
        }
    }
    in_flight(&stage.px, 1).await;
}

#[tokio::test]
async fn an_acceptance_of_another_handshake_is_a_502() {
    let script = Script::start(|_, mut wire| async move {
        if wire.head().await.is_ok() {
            let head = "HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
            let _ = wire.get_mut().write_all(head.as_bytes()).await;
            while matches!(wire.more().await, Ok(1..)) {}
        }
    })
    .await;
    let (px, address) = front(websocket(LONG, ""), &script.upstream()).await;
    assert_eq!(WsClient::open(address, &over_http2("/"), "one").await.unwrap_err(), refused(502));
    in_flight(&px, 0).await;
}

#[tokio::test]
async fn no_other_protocol_is_served_this_way() {
    let stage = stage(LONG, "").await;
    let mut raw = stage.open().await;
    for protocol in ["connect-udp", "connect-tcp", "WEBSOCKETS", ""] {
        let stream = raw.fresh_stream();
        let fields = [
            (":method", "CONNECT"),
            (":protocol", protocol),
            (":scheme", "http"),
            (":path", "/ws"),
            (":authority", "toy"),
            ("sec-websocket-version", "13"),
        ];
        raw.frame(Frame::headers(stream, &fields)).await.unwrap();
        let answer = raw.answer(stream, SOON).await.unwrap();
        assert!(answer.reset.is_some() || (400..600).contains(&answer.status()), "{protocol:?}: {answer:?}");
    }
    is_served(&mut raw, "/").await;
    assert_eq!((stage.app.journal.count("ws"), stage.app.journal.count("req")), (0, 1));
}

/// Far more than a window both ways, on streams of one connection.
#[tokio::test]
async fn large_messages_pass_both_ways() {
    let stage = stage(LONG, "").await;
    let mut raw = stage.open().await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(connect(&mut raw, &over_http2("/ws?push_ms=1&push_n=3&size=300000")).await);
    }
    let message = WsFrame::new(opcode::TEXT, numbered('c', 0, 500_000)).masked().encode();
    for stream in &streams {
        let mut left = message.as_slice();
        while !left.is_empty() {
            let room = raw.seen.may_send(*stream).min(16_384).min(left.len());
            if room == 0 {
                raw.next(SOON).await.unwrap();
                continue;
            }
            let (piece, rest) = left.split_at(room);
            raw.data(*stream, piece, false).await.unwrap();
            left = rest;
        }
    }
    let size: usize = 500_000 + 3 * 300_000;
    for stream in &streams {
        let came = |seen: &crate::harness::h2::Seen| (seen.answers[stream].body.len() > size).then_some(());
        raw.wait("all messages", SOON, came).await.unwrap();
        let mut numbers: Vec<_> = said(&raw, *stream)
            .into_iter()
            .map(|one| match one {
                Said::Message { payload, .. } => number_of(&payload),
                other => panic!("{other:?}"),
            })
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [Some(('c', 0)), Some(('p', 0)), Some(('p', 1)), Some(('p', 2))]);
    }
}

/// Each is told for itself, while requests on the same connection are served to their end.
#[tokio::test]
async fn sessions_of_one_connection_are_closed_beside_requests() {
    let stage = stage(CLOSES, "").await;
    let kept = keep(stage.address).await;
    let mut raw = stage.open().await;
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(connect(&mut raw, &over_http2("/ws?push_ms=20")).await);
    }
    in_flight(&stage.px, 5).await;
    raw.during(terminate(&stage.px)).await;
    is_served(&mut raw, "/").await;
    let slow = raw.get("/slow?ms=1500").await.unwrap();
    for stream in &streams {
        let closed = |body: &[u8]| body.windows(4).any(|bytes| bytes[0] == 0x88 && bytes[2..] == [0x03, 0xe9]);
        let told = |seen: &crate::harness::h2::Seen| closed(&seen.answers[stream].body).then_some(());
        raw.wait("a Close", SOON, told).await.unwrap();
        raw.data(*stream, &WsFrame::close(1001, "").masked().encode(), false).await.unwrap();
    }
    for stream in &streams {
        let answer = raw.answer(*stream, SOON).await.unwrap();
        // What the client might still say is not wanted: RFC 9113 §8.1.
        assert!(answer.ended && answer.reset.is_none_or(|why| why == code::NO_ERROR), "{answer:?}");
        let last = said(&raw, *stream).pop();
        assert!(matches!(&last, Some(Said::Close(close)) if close.code == 1001), "{last:?}");
        raw.data(*stream, b"", true).await.unwrap();
    }
    let answer = raw.answer(slow, SOON).await.unwrap();
    assert!(answer.is_whole() && answer.status() == 200, "{answer:?}");
    ended(&stage.px, "closed_by_notice", 5).await;
    stage.app.journal.wait("over", 5, SOON).await;
    let_go(kept).await;
    assert_eq!(stage.px.exit(SOON).await, CLEAN);
    assert_eq!(stage.px.report(SOON).await["outcome"], "drained");
}

/// A client that takes its stream back is gone, and its place is free.
#[tokio::test]
async fn a_reset_of_the_stream_reaches_the_app_as_an_end() {
    let stage = stage(LONG, "").await;
    let mut raw = stage.open().await;
    for count in 1..=3 {
        let path = if count == 2 { "/ws?push_ms=5" } else { "/ws" };
        let stream = connect(&mut raw, &over_http2(path)).await;
        in_flight(&stage.px, 1).await;
        raw.frame(Frame::reset(stream, code::CANCEL)).await.unwrap();
        raw.during(in_flight(&stage.px, 0)).await;
        ended(&stage.px, "client_gone", count).await;
        stage.app.journal.wait("over", count, SOON).await;
    }
    is_served(&mut raw, "/").await;
}

/// The same client over and over, as browsers do.
#[tokio::test]
async fn a_drain_over_http2_is_as_any() {
    let stage = stage(CLOSES, "").await;
    let _kept = keep(stage.address).await;
    let plan = WsPlan { path: "/ws?push_ms=20".to_owned(), over: Over::Http2, ..WsPlan::talking(MILLIS(20)) };
    let sessions = Sessions::start(stage.address, &plan, 50).await;
    sessions.all_have(4, SOON).await;
    terminate(&stage.px).await;
    let summary = sessions.ended(SOON).await;
    summary.assert_closed(1001);
    summary.seen_by(&stage.app.journal).await;
    summary.assert_none_lost(&stage.app.journal);
    ended(&stage.px, "closed_by_notice", 50).await;
    let notices = stage.px.metrics().await.sum("ebbtide_notices_total", &[("kind", "websocket_close")]);
    assert_eq!(notices, 50.0);
}
