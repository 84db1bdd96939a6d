//! Owns what becomes of a message between two versions of HTTP: heads, lengths, trailers, and answers without a body.

use super::script::Script;
use crate::grpc::stage::{LONG, Stage, front, plain};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::{Raw, Request, send};
use crate::harness::h2::{Answer, Call, Frame, H2Client, RawH2, Seen, request};
use crate::harness::http::{Sum, pattern};

/// An app of either kind, and the lines in which it tells what it got.
async fn either() -> [(Stage, &'static str); 2] {
    let http1 = Stage::start(AppOptions::default(), plain(LONG)).await;
    [(http1, "http/1.1"), (Stage::simple().await, "h2c")]
}

async fn ask(raw: &mut RawH2, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let stream = raw.fresh_stream();
    raw.frame(request(stream, method, path, headers).end_stream()).await.unwrap();
    raw.answer(stream, SOON).await.unwrap()
}

/// `:authority` and Host are one thing; crumbs become one cookie; the client's address is told.
#[tokio::test]
async fn a_head_says_the_same_to_either_kind_of_app() {
    for (stage, kind) in either().await {
        let mut raw = stage.open().await;
        let headers = [
            ("cookie", "a=1"),
            ("x-same", "one"),
            ("cookie", "b=2"),
            ("x-same", "two"),
            ("cookie", "c=3"),
            ("te", "trailers"),
            ("x-forwarded-for", "10.1.2.3"),
        ];
        let text = ask(&mut raw, "GET", "/headers?q=%20x", &headers).await.text().replace("\r\n", "\n") + "\n";
        let lower = text.to_lowercase();
        for expected in [
            // Cut apart it may stay in HTTP/2 (RFC 9113 §8.2.3).
            if kind == "h2c" { "cookie: a=1\ncookie: b=2\ncookie: c=3\n" } else { "cookie: a=1; b=2; c=3\n" },
            "x-same: one\n",
            "x-same: two\n",
            "te: trailers\n",
            "x-forwarded-for: 10.1.2.3, 127.0.0.1\n",
            "x-forwarded-proto: http\n",
            "x-forwarded-host: toy\n",
        ] {
            assert!(lower.contains(expected), "{kind}, {expected:?}: {text}");
        }
        let target = match kind {
            "h2c" => ":method: get\n:uri: http://toy/headers?q=%20x\n",
            _ => "get /headers?q=%20x http/1.1\n",
        };
        assert!(lower.contains(target), "{kind}: {text}");
        assert_eq!(lower.contains("host: toy\n") && !lower.contains("\nhost: toy\n"), kind == "h2c", "{kind}: {text}");
    }
}

/// An HTTP/1.1 client in front of an app that speaks HTTP/2 alone.
#[tokio::test]
async fn http1_clients_reach_an_http2_app() {
    let stage = Stage::simple().await;
    let mut raw = Raw::connect(stage.address).await.unwrap();
    raw.send(
        "GET /headers HTTP/1.1\r\nHost: shop.example:81\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n\
         TE: trailers, deflate\r\nCookie: a=1; b=2\r\n\r\n",
    )
    .await
    .unwrap();
    let text = raw.reply("GET", SOON).await.unwrap().text();
    for expected in [":uri: http://shop.example:81/headers\n", "te: trailers\n", "cookie: a=1; b=2\n"] {
        assert!(text.contains(expected), "{expected:?}: {text}");
    }
    for gone in ["x-hop", "keep-alive", "\nhost", "connection", "deflate"] {
        assert!(!text.contains(gone), "{gone}: {text}");
    }
    for (request, length) in [
        (Request::echo(200_000), 200_000),
        (Request::echo(200_000).chunked(), 200_000),
        (Request::bytes(900_000, false), 900_000),
    ] {
        let reply = send(stage.address, &request, SOON).await.unwrap();
        assert_eq!((reply.status, reply.length, Some(reply.sum)), (200, length, request.expect));
        assert_eq!(reply.head.get("content-length"), Some(length.to_string().as_str()));
    }
    // A length that nobody knows is framed anew.
    let reply = send(stage.address, &Request::get("/chunks?n=5"), SOON).await.unwrap();
    assert!(reply.head.has_token("transfer-encoding", "chunked"), "{}", reply.head.text);
    assert_eq!(reply.text(), "piece 0\npiece 1\npiece 2\npiece 3\npiece 4\n");
    // HTTP/1.0: the end is the close.
    let mut raw = Raw::connect(stage.address).await.unwrap();
    raw.send("GET /chunks?n=2 HTTP/1.0\r\n\r\n").await.unwrap();
    assert!(raw.reply("GET", SOON).await.unwrap().text().ends_with("piece 1\n"));
    assert!(stage.app.journal.lines("req").iter().all(|line| line.get("proto") == "h2"));
}

/// Trailers reach an HTTP/1.1 client that takes them.
#[tokio::test]
async fn trailers_of_an_http2_app_reach_http1_clients_that_ask() {
    let stage = Stage::simple().await;
    let mut raw = Raw::connect(stage.address).await.unwrap();
    raw.send("GET /trailers?n=10 HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\n\r\n").await.unwrap();
    let text = String::from_utf8(raw.read_until(b"x-end: yes", SOON).await.unwrap()).unwrap().to_lowercase();
    assert!(text.contains("trailer: x-end, x-big\r\n"), "{text}");
    let mut raw = Raw::connect(stage.address).await.unwrap();
    raw.send("GET /trailers?n=10 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let (all, _) = raw.ending(SOON).await;
    assert!(all.ends_with(b"ok\n\r\n0\r\n\r\n"), "{}", String::from_utf8_lossy(&all));
}

/// Trailers both ways between two that speak HTTP/2, with a message of any size before them.
#[tokio::test]
async fn trailers_pass_both_ways() {
    let script = Script::start().await;
    let (_px, address) = script.front(LONG).await;
    let mut raw = RawH2::open(address).await.unwrap();
    for size in [0, 1, 30_000] {
        let stream = raw.begin(&format!("/{size}"), &[("te", "trailers")]).await.unwrap();
        if size > 0 {
            raw.data(stream, &pattern(size / 2), false).await.unwrap();
            raw.data(stream, &pattern(size - size / 2), false).await.unwrap();
        }
        raw.frame(Frame::headers(stream, &[("x-client", "said"), ("x-sum", "7")]).end_stream()).await.unwrap();
    }
    let mut app = raw.during(script.accept()).await;
    raw.during(app.requests(&[1, 3, 5])).await;
    for (stream, size) in [(1, 0), (3, 1), (5, 30_000)] {
        let number = app.asked_for(&format!("/{size}")).await;
        let asked = app.seen.answer(number);
        assert_eq!(
            (asked.body.len(), asked.trailer("x-client"), asked.trailer("x-sum")),
            (size, Some("said"), Some("7"))
        );
        let mut frames = vec![Frame::headers(number, &[(":status", "200")])];
        if size > 0 {
            frames.push(Frame::data(number, &pattern(size.min(16_000))));
        }
        frames.push(Frame::headers(number, &[("x-app", "said")]).end_stream());
        app.frames(&frames).await.unwrap();
        let answer = raw.answer(stream, SOON).await.unwrap();
        assert_eq!((answer.trailer("x-app"), answer.body.len()), (Some("said"), size.min(16_000)));
    }
}

/// 1xx from the app changes nothing for the client, whoever it is.
#[tokio::test]
async fn interim_answers_of_the_app_break_nothing() {
    let script = Script::start().await;
    let (_px, address) = script.front(LONG).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let get = raw.get("/").await.unwrap();
    let call = raw.unary("/grpc/unary", b"x").await.unwrap();
    let mut app = raw.during(script.accept()).await;
    raw.during(app.requests(&[1, 3])).await;
    let (one, two) = (app.asked_for("/").await, app.asked_for("/grpc/unary").await);
    let interim = |stream, status| Frame::headers(stream, &[(":status", status), ("link", "</a>; rel=preload")]);
    app.frames(&[interim(one, "103"), interim(two, "103"), interim(one, "103"), interim(one, "100")]).await.unwrap();
    app.frames(&Script::answer(one, b"late")).await.unwrap();
    app.frame(Script::grpc_ok(two)).await.unwrap();
    let answer = raw.answer(get, SOON).await.unwrap();
    assert_eq!((answer.status(), answer.text().as_str(), answer.header("link")), (200, "late", None));
    assert_eq!(raw.answer(call, SOON).await.unwrap().grpc_status(), Some(0));
    let mut http1 = Raw::connect(address).await.unwrap();
    http1.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    app.requests(&[5]).await;
    app.frame(interim(5, "103")).await.unwrap();
    app.frames(&Script::answer(5, b"http1")).await.unwrap();
    assert_eq!(http1.reply("GET", SOON).await.unwrap().body, b"http1");
}

/// Answers without a body end with their head, and keep the length that they speak of.
#[tokio::test]
async fn answers_without_a_body_end_with_their_head() {
    for (stage, kind) in either().await {
        let mut raw = stage.open().await;
        let get = ask(&mut raw, "GET", "/bytes?n=1000", &[]).await;
        assert_eq!((get.header("content-length"), get.body.len()), (Some("1000"), 1000), "{kind}");
        for code in ["204", "304"] {
            let answer = ask(&mut raw, "GET", &format!("/status?code={code}"), &[]).await;
            if kind == "h2c" {
                // The toy app sends a body with any status there, which is a fault of its own.
                continue;
            }
            assert_eq!((answer.status().to_string().as_str(), answer.is_whole(), answer.body.len()), (code, true, 0));
        }
        let answer = ask(&mut raw, "HEAD", "/status?code=404", &[]).await;
        assert_eq!((answer.status(), answer.is_whole(), answer.body.len()), (404, true, 0), "{kind}: {answer:?}");
        let after = ask(&mut raw, "GET", "/", &[]).await;
        assert_eq!(after.text(), "ok\n", "{kind}");
    }
    let script = Script::start().await;
    let (_px, address) = script.front(LONG).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let head = raw.fresh_stream();
    raw.frame(request(head, "HEAD", "/head", &[]).end_stream()).await.unwrap();
    let (none, same) = (raw.get("/none").await.unwrap(), raw.get("/same").await.unwrap());
    let mut app = raw.during(script.accept()).await;
    raw.during(app.requests(&[1, 3, 5])).await;
    for (path, fields) in [
        ("/head", &[(":status", "200"), ("content-length", "1234")][..]),
        ("/none", &[(":status", "204")]),
        ("/same", &[(":status", "304"), ("content-length", "99"), ("etag", "\"x\"")]),
    ] {
        let number = app.asked_for(path).await;
        app.frame(Frame::headers(number, fields).end_stream()).await.unwrap();
    }
    for (stream, status, length) in [(head, 200, Some("1234")), (none, 204, None), (same, 304, Some("99"))] {
        let answer = raw.answer(stream, SOON).await.unwrap();
        assert_eq!((answer.status(), answer.header("content-length")), (status, length), "{answer:?}");
        assert!(answer.is_whole() && answer.body.is_empty(), "{answer:?}");
    }
}

/// What a body's length was said to be is said on; what nobody knows is not made up.
#[tokio::test]
async fn lengths_are_kept_and_never_made_up() {
    for (stage, kind) in either().await {
        let mut raw = stage.open().await;
        for said in [true, false] {
            let headers: &[(&str, &str)] = if said { &[("content-length", "6")] } else { &[] };
            let stream = raw.begin("/headers", headers).await.unwrap();
            raw.data(stream, b"abc", false).await.unwrap();
            raw.data(stream, b"def", true).await.unwrap();
            let text = raw.answer(stream, SOON).await.unwrap().text().to_lowercase();
            assert_eq!(text.contains("content-length: 6"), said, "{kind}: {text}");
            assert_eq!(text.contains("transfer-encoding: chunked"), !said && kind == "http/1.1", "{kind}: {text}");
        }
        let body = pattern(300_000);
        let stream = raw.begin("/echo", &[]).await.unwrap();
        raw.upload(stream, &body, SOON).await.unwrap();
        let answer = raw.answer(stream, SOON).await.unwrap();
        assert!(answer.body == body && answer.is_whole(), "{kind}: {} bytes", answer.body.len());
        assert_eq!(answer.header("x-sum"), Some(Sum::of(&body).hex().as_str()), "{kind}");
    }
}

/// Lists of headers as large as the limit allows pass, in requests, answers and trailers.
#[tokio::test]
async fn large_lists_of_headers_pass_both_ways() {
    let big = "b".repeat(60_000);
    for (stage, kind) in either().await {
        let client = H2Client::new(stage.address, 1);
        let call = Call::plain(Request::get("/headers").header("x-big", &big));
        assert_eq!(client.call(&call, SOON).await.result, Ok(200), "{kind}");
        if kind == "h2c" {
            let mut raw = stage.open().await;
            let answer = ask(&mut raw, "GET", "/trailers?n=60000", &[]).await;
            assert_eq!(answer.trailer("x-big").map(str::len), Some(60_000));
            let call = raw.unary("/grpc/error?status=3&bytes=60000", b"").await.unwrap();
            let answer = raw.answer(call, SOON).await.unwrap();
            assert_eq!((answer.grpc_status(), answer.grpc_message().map(str::len)), (Some(3), Some(60_000)));
            let mut http1 = Raw::connect(stage.address).await.unwrap();
            http1.send(format!("GET /headers HTTP/1.1\r\nHost: a\r\nx-big: {big}\r\n\r\n")).await.unwrap();
            assert!(http1.reply("GET", SOON).await.unwrap().text().contains(&big));
        }
    }
    // An HTTP/1.1 app's large head.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Big: {big}\r\n\r\nok");
    let app = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut wire = crate::harness::http::Wire::new(stream);
            while wire.head().await.is_ok() {
                let _ = tokio::io::AsyncWriteExt::write_all(wire.get_mut(), reply.as_bytes()).await;
            }
        }
    });
    let (_px, address) = front(plain(LONG), &upstream).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let stream = raw.get("/").await.unwrap();
    let answer = raw.wait("the answer", SOON, |seen: &Seen| seen.is_over(stream).then(|| seen.answer(stream))).await;
    assert_eq!(answer.unwrap().header("x-big").map(str::len), Some(60_000));
    app.abort();
}

/// A body is a body, whatever the method: hyper's HTTP/1 client would leave one of unknown length out of a GET.
#[tokio::test]
async fn a_get_with_a_body_keeps_it() {
    for (stage, kind) in either().await {
        let mut raw = stage.open().await;
        let stream = raw.fresh_stream();
        raw.frame(request(stream, "GET", "/echo", &[])).await.unwrap();
        raw.data(stream, b"not empty", true).await.unwrap();
        let answer = raw.answer(stream, SOON).await.unwrap();
        assert_eq!((answer.status(), answer.text().as_str()), (200, "not empty"), "{kind}");
    }
    let stage = Stage::start(AppOptions::default(), plain(LONG)).await;
    let mut raw = Raw::connect(stage.address).await.unwrap();
    raw.send(b"GET /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nnot empty\r\n0\r\n\r\n")
        .await
        .unwrap();
    let reply = raw.reply("GET", SOON).await.unwrap();
    assert_eq!((reply.status, reply.text().as_str()), (200, "not empty"));
}
