//! Owns what is refused: malformed, ambiguous, oversized and slow heads. Nothing of it reaches the app twice or mixed.

use std::time::Duration;

use super::stage::{LONG, Stage, pause, plain};
use crate::harness::app::AppOptions;
use crate::harness::client::{Ending, Failure, Raw, Request, fresh_id};
use crate::harness::ebbtide::Config;
use crate::harness::{SOON, wait::Mono};

/// A request that would be smuggled if the first were framed otherwise.
const SECOND: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// The status of the first answer; then nothing but a close, without a reset.
async fn refused(stage: &Stage, bytes: &[u8]) -> u16 {
    let what = String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned();
    let mut raw = stage.raw().await;
    // A refusal may come before everything is written.
    let _ = raw.send(bytes).await;
    let reply = raw.reply("GET", SOON).await.unwrap_or_else(|why| panic!("{what:?}: {why:?}"));
    let (rest, ending) = raw.ending(SOON).await;
    assert_eq!((String::from_utf8_lossy(&rest).into_owned(), ending), (String::new(), Ending::Fin), "{what:?}");
    reply.status
}

/// C100: malformed heads get an answer and the end; the app sees none of them.
#[tokio::test]
async fn malformed_heads_are_refused_and_never_forwarded() {
    let stage = Stage::simple().await;
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(80_000));
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(20_000));
    let uri = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(70_000));
    let table: &[(&[u8], &[u16])] = &[
        (b"GARBAGE\r\n\r\n", &[400]),
        (b"\x00\x01\x02\x03\r\n\r\n", &[400]),
        (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", &[400]),
        (b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", &[400, 505]),
        (b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", &[400]),
        (b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", &[400]),
        (b"GET nowhere HTTP/1.1\r\nHost: a\r\n\r\n", &[400]),
        (b"GET / HTTP/1.1\r\n\r\n", &[400]),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", &[400]),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", &[400]),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", &[400]),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n folded\r\n\r\n", &[400]),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", &[400]),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", &[400]),
        (b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", &[400]),
        (b"GET / HTTP/1.1\r\nHost: a\r\n: nameless\r\n\r\n", &[400]),
        (b"G\x00T / HTTP/1.1\r\nHost: a\r\n\r\n", &[400]),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", &[400]),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello", &[400]),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\nhello", &[400]),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 6\r\n\r\nhello", &[400]),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n", &[400]),
        (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", &[405]),
        (long.as_bytes(), &[431]),
        (many.as_bytes(), &[431]),
        (uri.as_bytes(), &[414, 431]),
    ];
    for (bytes, expected) in table {
        let status = refused(&stage, bytes).await;
        let what = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
        assert!(expected.contains(&status), "{what:?}: {status}");
    }
    assert_eq!(stage.seen(), 0, "{}", stage.app.journal.text());
    assert_eq!(stage.send(&Request::get("/")).await.unwrap().status, 200);
    stage.assert_no_panic();
}

/// C100: framing that could be read in two ways is refused, or made unambiguous and the connection ended.
#[tokio::test]
async fn ambiguous_framing_never_lets_a_second_request_through() {
    let stage = Stage::simple().await;
    // On a shared upstream connection, whose next response must still be the next client's.
    let mut honest = stage.used().await;
    let te = "Transfer-Encoding: chunked\r\n";
    let cl = "Content-Length: 4\r\n";
    let chunked = format!("0\r\n\r\n{SECOND}");
    let heads = [
        format!("{cl}{te}"),
        format!("{te}{cl}"),
        format!("{cl}{cl}{te}"),
        format!("{cl}X: y\r\n{te}{cl}"),
        "content-length: 4\r\nTRANSFER-ENCODING: CHUNKED\r\n".to_owned(),
        format!("{cl}Content-Length: 5\r\n"),
        "Content-Length: 4, 4\r\n".to_owned(),
        "Transfer-Encoding: chunked, identity\r\n".to_owned(),
        "Transfer-Encoding: identity\r\n".to_owned(),
        "Transfer-Encoding: gzip, chunked\r\n".to_owned(),
        "Transfer-Encoding: chunked, chunked\r\n".to_owned(),
        format!("{te}{te}"),
        format!("{te}Transfer-Encoding: identity\r\n"),
        "Transfer-Encoding: xchunked\r\n".to_owned(),
        "Transfer-Encoding : chunked\r\n".to_owned(),
        "Transfer-Encoding:\x0bchunked\r\n".to_owned(),
        "Transfer-Encoding: \"chunked\"\r\n".to_owned(),
        "Transfer-Encoding:\r\n chunked\r\n".to_owned(),
        "X: y\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n".to_owned(),
    ];
    for prefix in ["", "\r\n", "\r\n\r\n", "\n"] {
        for head in &heads {
            let before = stage.seen();
            let request = format!("{prefix}POST /first HTTP/1.1\r\nHost: a\r\n{head}\r\n{chunked}");
            let mut raw = stage.raw().await;
            raw.send(&request).await.unwrap();
            let what = format!("{prefix:?} {head:?}");
            let reply = raw.reply("POST", SOON).await.unwrap_or_else(|why| panic!("{what}: {why:?}"));
            assert!(matches!(reply.status, 200 | 400 | 501), "{what}: {}", reply.status);
            assert_eq!(reply.closes(), 1, "{what}: the connection is not used again");
            assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin), "{what}");
            let forwarded = stage.app.journal.lines("req").split_off(before);
            assert!(forwarded.iter().all(|line| line.get("path") == "/first"), "{what}: {forwarded:?}");
            assert!(forwarded.len() <= 1, "{what}: {forwarded:?}");
            let reply = honest.exchange(&Request::echo(30), &fresh_id(), SOON).await.unwrap();
            assert_eq!((reply.status, reply.intact), (200, true), "{what}: another client's response was mixed up");
        }
    }
    stage.assert_no_panic();
}

/// C100: the same when the head comes in pieces, where the two headers are never seen together.
#[tokio::test]
async fn ambiguous_framing_in_pieces_ends_the_connection() {
    let stage = Stage::simple().await;
    for head in
        ["Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"]
    {
        for size in [1, 7, 40] {
            let mut raw = stage.raw().await;
            let request = format!("POST /first HTTP/1.1\r\nHost: a\r\n{head}\r\n0\r\n\r\n{SECOND}");
            let _ = raw.drip(&request, size, Duration::from_millis(1)).await;
            let reply = raw.reply("POST", SOON).await.unwrap();
            assert!(matches!(reply.status, 200 | 400) && reply.closes() == 1, "{size}: {}", reply.head.text);
            assert_eq!(raw.ending(SOON).await.0, b"", "{size}");
        }
    }
    let smuggled = stage.app.journal.lines("req").iter().filter(|line| line.get("path") == "/smuggled").count();
    assert_eq!(smuggled, 0);
}

/// Chunk sizes that overflow, signs, endless extensions: the upload breaks off, and no other client notices.
#[tokio::test]
async fn absurd_chunks_break_the_upload_and_nothing_else() {
    let stage = Stage::simple().await;
    let mut honest = stage.used().await;
    let extension = format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(200_000));
    for body in [
        "ffffffffffffffffff\r\nx",
        "fffffffffffffff\r\n",
        "-1\r\nx\r\n0\r\n\r\n",
        "+1\r\nx\r\n0\r\n\r\n",
        "0x1\r\nx\r\n0\r\n\r\n",
        "1\rx\r\n0\r\n\r\n",
        "1\r\nxyz\r\n0\r\n\r\n",
        "g\r\n",
        "\r\n\r\n",
        "1\nx\n0\n\n",
        &extension,
    ] {
        let mut raw = stage.raw().await;
        let request = format!("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
        let _ = raw.send(&request).await;
        let _ = raw.half_close().await;
        let what = &body[..body.len().min(30)];
        match raw.reply("POST", SOON).await {
            Ok(reply) => assert!(reply.status == 400 || reply.status == 502, "{what:?}: {}", reply.status),
            Err(Failure::Eof | Failure::Reset) => {}
            Err(other) => panic!("{what:?}: {other:?}"),
        }
        let reply = honest.exchange(&Request::echo(30), &fresh_id(), SOON).await.unwrap();
        assert_eq!((reply.status, reply.intact), (200, true), "{what:?}");
    }
    // The last line may be written after its response has been read.
    let echoed = stage.app.journal.wait("done", 12, SOON).await.len();
    assert_eq!(echoed, 12, "only the honest client's requests were whole");
    stage.assert_no_panic();
}

/// A head that does not come to its end is answered 408 after `header_timeout`; idle connections are left alone.
#[tokio::test]
async fn slow_heads_time_out_and_idle_connections_do_not() {
    let yaml = format!("drain: {{{LONG}}}\nlimits: {{header_timeout: 700ms}}");
    let stage = Stage::start(AppOptions::default(), Config::new().yaml(&yaml)).await;
    let mut idle = stage.used().await;
    let silent = stage.raw().await;
    let mut slow = Vec::new();
    for already in ["", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"] {
        let mut raw = stage.raw().await;
        if !already.is_empty() {
            raw.send(already).await.unwrap();
            assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 200);
        }
        slow.push(tokio::spawn(async move {
            let began = Mono::now();
            // One byte at a time: progress does not win more time.
            let _ = raw.drip("GET / HTTP/1.1\r\nHost: slow\r\nX: y\r\n", 1, Duration::from_millis(60)).await;
            let reply = raw.reply("GET", SOON).await.expect("an answer");
            assert_eq!((reply.status, reply.closes()), (408, 1));
            assert!(began.elapsed() >= Duration::from_millis(700));
        }));
    }
    for slow in slow {
        slow.await.unwrap();
    }
    pause(500).await;
    assert_eq!(idle.exchange(&Request::get("/"), &fresh_id(), SOON).await.unwrap().status, 200);
    let mut silent = silent;
    silent.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert_eq!(silent.reply("GET", SOON).await.unwrap().status, 200);
    assert_eq!(
        stage.px.metrics().await.sum("ebbtide_connections_rejected_total", &[("reason", "header_timeout")]),
        2.0
    );
}

/// A large head within the limit passes, in one piece and in many.
#[tokio::test]
async fn large_heads_within_the_limit_pass() {
    let stage = Stage::start(AppOptions::default(), plain(LONG)).await;
    let value = "v".repeat(50_000);
    let request = format!("GET /headers HTTP/1.1\r\nHost: a\r\nX-Large: {value}\r\n\r\n");
    for size in [request.len(), 1000] {
        let mut raw: Raw = stage.raw().await;
        raw.drip(&request, size, Duration::from_millis(1)).await.unwrap();
        let reply = raw.reply("GET", SOON).await.unwrap();
        assert_eq!(reply.status, 200);
        assert!(reply.text().contains(&value));
    }
}

/// C100: a client's own fault in its body is its own 400, not the app's 502.
#[tokio::test]
async fn a_malformed_body_is_the_clients_fault() {
    let stage = Stage::simple().await;
    let head = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
    let mut raw = stage.raw().await;
    raw.send(head).await.unwrap();
    pause(100).await;
    raw.send("nonsense\r\n").await.unwrap();
    let reply = raw.reply("POST", SOON).await.unwrap();
    assert_eq!((reply.status, reply.closes()), (400, 1));
    let metrics = stage.px.metrics().await;
    assert_eq!(metrics.sum("ebbtide_requests_total", &[("outcome", "bad_gateway")]), 0.0);
    assert_eq!(metrics.sum("ebbtide_requests_total", &[("outcome", "rejected")]), 1.0);
    let mut raw = stage.raw().await;
    raw.send(head).await.unwrap();
    pause(100).await;
    drop(raw);
    stage.px.metric_becomes("ebbtide_requests_total", &[("outcome", "abandoned")], SOON, |count| count == 1.0).await;
    assert_eq!(stage.px.metrics().await.sum("ebbtide_requests_total", &[("outcome", "bad_gateway")]), 0.0);
}

/// C100: both framing headers are refused also if the head comes in pieces.
#[tokio::test]
async fn ambiguous_framing_in_pieces_is_refused() {
    let stage = Stage::simple().await;
    let mut raw = stage.raw().await;
    raw.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n").await.unwrap();
    pause(100).await;
    raw.send("Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n").await.unwrap();
    let reply = raw.reply("POST", SOON).await.unwrap();
    assert_eq!((reply.status, reply.closes()), (400, 1));
    assert_eq!(stage.seen(), 0);
}
