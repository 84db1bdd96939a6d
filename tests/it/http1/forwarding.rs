//! Owns what a request and its response look like on the other side: headers, versions, framing, order.

use std::time::Duration;

use tokio::io::AsyncWriteExt;

use super::stage::{LONG, Script, Stage, front, plain};
use crate::harness::SOON;
use crate::harness::client::{Ending, Raw, Request};

/// The lines of a request as the app got it, without the request line.
async fn seen_by_app(stage: &Stage, request: &str) -> Vec<String> {
    let mut raw = stage.raw().await;
    raw.send(request).await.unwrap();
    let reply = raw.reply("GET", SOON).await.unwrap();
    assert_eq!(reply.status, 200, "{request}");
    let mut lines: Vec<_> = reply.text().split("\r\n").map(str::to_owned).filter(|line| !line.is_empty()).collect();
    lines[1..].iter_mut().for_each(|line| *line = line.to_lowercase());
    lines
}

/// Hop-by-hop headers stay on their hop; those that say where the client was are added.
#[tokio::test]
async fn hop_by_hop_headers_go_and_forwarded_ones_come() {
    let stage = Stage::simple().await;
    let lines = seen_by_app(
        &stage,
        "GET /headers?q=%20x HTTP/1.1\r\nHost: shop.example:81\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n\
         Proxy-Connection: keep-alive\r\nTE: trailers, deflate\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\
         X-Forwarded-For: 10.1.2.3\r\nX-Forwarded-Proto: https\r\nX-Same: a\r\nX-Same: b\r\n\r\n",
    )
    .await;
    assert_eq!(lines[0], "GET /headers?q=%20x HTTP/1.1");
    let text = lines.join("\n");
    for gone in ["x-hop", "keep-alive", "proxy-connection", "upgrade", "http2-settings", "deflate"] {
        assert!(!text.contains(gone), "{gone}: {text}");
    }
    for kept in [
        "host: shop.example:81",
        "x-forwarded-for: 10.1.2.3, 127.0.0.1",
        "x-forwarded-proto: https",
        "x-forwarded-host: shop.example:81",
        "x-same: a",
        "x-same: b",
        "te: trailers",
    ] {
        assert!(lines.iter().any(|line| line == kept), "{kept}: {text}");
    }
}

/// The target's absolute form becomes origin form, and its authority is the Host.
#[tokio::test]
async fn absolute_targets_become_origin_form() {
    let stage = Stage::simple().await;
    let lines = seen_by_app(&stage, "GET http://shop.example/headers?a=b HTTP/1.1\r\nHost: other\r\n\r\n").await;
    assert_eq!(lines[0], "GET /headers?a=b HTTP/1.1");
    assert!(lines.contains(&"host: shop.example".to_owned()), "{lines:?}");
}

/// HTTP/1.0 clients: kept alive if they ask for it and the length is known, else closed; never a chunk.
#[tokio::test]
async fn http10_clients_are_answered_in_their_own_way() {
    let stage = Stage::simple().await;
    let mut raw = stage.raw().await;
    for _ in 0..3 {
        raw.send("GET /bytes?n=1000 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await.unwrap();
        let reply = raw.reply("GET", SOON).await.unwrap();
        assert!(reply.head.start.starts_with("HTTP/1.0 200") && reply.head.keeps_alive(), "{}", reply.head.text);
        assert_eq!(reply.length, 1000);
    }
    for (connection, path) in [
        ("", "/bytes?n=1000"),
        ("", "/bytes?n=1000&chunked=1"),
        ("Connection: keep-alive\r\n", "/bytes?n=1000&chunked=1"),
        ("", "/http10"),
    ] {
        let mut raw = stage.raw().await;
        raw.send(format!("GET {path} HTTP/1.0\r\n{connection}\r\n")).await.unwrap();
        let reply = raw.reply("GET", SOON).await.unwrap();
        assert!(!reply.head.keeps_alive() && reply.head.get("transfer-encoding").is_none(), "{}", reply.head.text);
        assert_eq!(reply.length, if path == "/http10" { 10 } else { 1000 }, "{path}");
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    }
}

/// A response without length from an old app reaches an HTTP/1.1 client with an end that can be seen.
#[tokio::test]
async fn close_delimited_responses_are_chunked_for_http11_clients() {
    let stage = Stage::simple().await;
    let mut raw = stage.raw().await;
    for _ in 0..3 {
        raw.send("GET /http10 HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let reply = raw.reply("GET", SOON).await.unwrap();
        assert!(reply.head.start.starts_with("HTTP/1.1 ") && reply.head.has_token("transfer-encoding", "chunked"));
        assert_eq!((reply.text().as_str(), reply.closes()), ("old times\n", 0));
    }
}

/// Responses without a body leave the connection in step, whatever their headers say.
#[tokio::test]
async fn bodiless_responses_keep_the_connection_in_step() {
    let stage = Stage::simple().await;
    let mut raw = stage.raw().await;
    for (method, path, length) in [
        ("HEAD", "/bytes?n=1234", Some("1234")),
        ("HEAD", "/bytes?n=1234&chunked=1", None),
        ("GET", "/status?code=204", None),
        ("GET", "/status?code=304", None),
        ("HEAD", "/status?code=404", Some("9")),
        ("GET", "/bytes?n=0", Some("0")),
    ] {
        raw.send(format!("{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n")).await.unwrap();
        let reply = raw.reply(method, SOON).await.unwrap();
        assert_eq!((reply.length, reply.closes()), (0, 0), "{method} {path}");
        assert_eq!(reply.head.get("content-length"), length, "{method} {path}: {}", reply.head.text);
        raw.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nstep").await.unwrap();
        assert_eq!(raw.reply("POST", SOON).await.unwrap().body, b"step", "after {method} {path}");
    }
}

/// `Expect: 100-continue`: the 100 comes from ebbtide as soon as the app is reached, the body then passes whole.
#[tokio::test]
async fn a_client_that_expects_100_gets_it_before_its_body() {
    let stage = Stage::simple().await;
    let mut raw = stage.raw().await;
    raw.send("POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n").await.unwrap();
    let interim = raw.read_until(b"\r\n\r\n", SOON).await.expect("a 100 before any byte of the body");
    assert!(interim.starts_with(b"HTTP/1.1 100 "), "{}", String::from_utf8_lossy(&interim));
    raw.send("hello").await.unwrap();
    let reply = raw.reply("POST", SOON).await.unwrap();
    assert_eq!((reply.status, reply.body.as_slice(), reply.interim.len()), (200, b"hello".as_slice(), 0));
}

/// A client that expects 100 and is refused hears that instead, and need not send its body.
#[tokio::test]
async fn a_refused_expectation_gets_the_final_status_alone() {
    let stage = Stage::simple().await;
    let mut raw = stage.raw().await;
    raw.send("POST /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        .await
        .unwrap();
    let reply = raw.reply("POST", SOON).await.unwrap();
    assert_eq!((reply.status, reply.interim.len()), (400, 0));
    assert_eq!(raw.ending(SOON).await.1, Ending::Fin);
}

/// A client that closes its side right after the request gets the whole answer, however slow.
#[tokio::test]
async fn a_half_closed_client_gets_the_whole_answer() {
    let stage = Stage::simple().await;
    for (request, length) in [
        ("GET /slow?ms=700 HTTP/1.1\r\nHost: a\r\n\r\n", 5),
        ("GET /slow?ms=700 HTTP/1.0\r\n\r\n", 5),
        ("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", 5),
        ("GET /bytes?n=3000000&chunked=1 HTTP/1.1\r\nHost: a\r\n\r\n", 3_000_000),
        ("GET /bytes?n=3000000&chunked=1 HTTP/1.0\r\n\r\n", 3_000_000),
    ] {
        let mut raw = stage.raw().await;
        raw.send(request).await.unwrap();
        raw.half_close().await.unwrap();
        let reply = raw.reply("GET", SOON).await.unwrap_or_else(|why| panic!("{request:?}: {why:?}"));
        assert_eq!((reply.status, reply.length), (200, length), "{request:?}");
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin), "{request:?}");
    }
}

/// Pipelined requests are answered in order, each by its own response.
#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let stage = Stage::simple().await;
    let mut raw = stage.raw().await;
    let mut requests = String::new();
    for number in 0..40 {
        let slow = if number % 10 == 0 { 50 } else { 0 };
        requests.push_str(&format!("GET /slow?ms={slow} HTTP/1.1\r\nHost: a\r\nx-id: p{number}\r\n\r\n"));
        requests.push_str(&format!(
            "POST /echo HTTP/1.1\r\nHost: a\r\nx-id: e{number}\r\nContent-Length: 3\r\n\r\n{number:03}"
        ));
    }
    raw.send(requests).await.unwrap();
    for number in 0..40 {
        let reply = raw.reply("GET", SOON).await.unwrap();
        assert_eq!(reply.head.get("x-id"), Some(format!("p{number}").as_str()));
        let reply = raw.reply("POST", SOON).await.unwrap();
        assert_eq!(reply.head.get("x-id"), Some(format!("e{number}").as_str()));
        assert_eq!(reply.text(), format!("{number:03}"));
    }
}

/// 413 before the upload is read: the client gets it, whether the app then reads, or closes with bytes unread.
#[tokio::test]
async fn an_early_refusal_by_the_app_reaches_the_client() {
    let stage = Stage::simple().await;
    for path in ["/early?status=413", "/early?status=413&reads=1"] {
        for number in 0..20 {
            let request = Request { path: path.to_owned(), expect: None, ..Request::echo(2_000_000) };
            let request = if number % 2 == 0 { request } else { request.chunked() };
            let reply = stage.send(&request).await.unwrap_or_else(|why| panic!("{path}, {number}: {why:?}"));
            assert_eq!((reply.status, reply.text().as_str()), (413, "too much\n"), "{path}, {number}");
        }
    }
}

/// 1xx from the app other than 101 end at ebbtide; the final response is the client's.
#[tokio::test]
async fn interim_responses_of_the_app_do_not_confuse_the_client() {
    let script = Script::start(|_, mut wire| async move {
        while wire.head().await.is_ok() {
            let text =
                b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            let _ = wire.get_mut().write_all(text).await;
        }
    })
    .await;
    let (_px, address) = front(plain(LONG), &script.upstream()).await;
    let mut raw = Raw::connect(address).await.unwrap();
    for _ in 0..3 {
        raw.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let reply = raw.reply("GET", SOON).await.unwrap();
        assert_eq!((reply.status, reply.body.as_slice()), (200, b"ok".as_slice()));
    }
}

/// C103: small exchanges whose head and body come in two writes meet no delayed acknowledgement.
#[tokio::test]
async fn small_exchanges_have_no_forty_millisecond_mode() {
    let script = Script::start(|_, mut wire| async move {
        let _ = wire.get_mut().set_nodelay(true);
        while let Ok(head) = wire.head().await {
            if wire.body(head.request_framing(), |_| {}).await.is_err() {
                return;
            }
            let _ = wire.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n").await;
            tokio::task::yield_now().await;
            let _ = wire.get_mut().write_all(&[b'x'; 1000]).await;
        }
    })
    .await;
    let (_px, address) = front(plain(LONG), &script.upstream()).await;
    let mut raw = Raw::connect(address).await.unwrap();
    let mut slow = 0;
    for _ in 0..300 {
        let began = crate::harness::wait::Mono::now();
        raw.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n").await.unwrap();
        raw.send("body").await.unwrap();
        assert_eq!(raw.reply("POST", SOON).await.unwrap().length, 1000);
        slow += usize::from(began.elapsed() >= Duration::from_millis(35));
    }
    // With Nagle's algorithm on either side nearly all of them are.
    assert!(slow < 60, "{slow} of 300 exchanges took 35 ms or more");
}
