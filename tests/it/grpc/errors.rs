//! Owns the errors that ebbtide makes itself, as gRPC and other HTTP/2 clients see them.

use std::net::SocketAddr;

use super::stage::{LONG, Stage, own_refusal, plain};
use crate::harness::app::{AppOptions, Scheme, Speaks};
use crate::harness::ebbtide::{Config, Ebbtide};
use crate::harness::h2::grpc::message;
use crate::harness::h2::{Answer, Frame, RawH2, request};
use crate::harness::process::Exit;
use crate::harness::{SOON, fresh_ip};

/// In front of an address where nobody listens: requests are parked for `wait`, at most `places` of them.
async fn in_front_of_nobody(wait: &str, places: u32) -> (Ebbtide, SocketAddr) {
    let parking = format!("parking: {{wait_timeout: {wait}, max_requests: {places}}}");
    let nobody = SocketAddr::new(fresh_ip(), 8080);
    let px = Config::new().yaml(&parking).upstream(&format!("h2c://{nobody}")).start().await;
    let address = px.inbound().await;
    (px, address)
}

/// A call in this content type.
async fn call_as(raw: &mut RawH2, path: &str, kind: &str) -> u32 {
    let stream = raw.fresh_stream();
    let head = request(stream, "POST", path, &[("content-type", kind), ("te", "trailers")]);
    raw.frames(&[head, Frame::data(stream, &message(b"hello")).end_stream()]).await.unwrap();
    stream
}

/// What a client gets that is no gRPC client: a status, words, and no header that HTTP/2 forbids.
fn assert_plain(answer: &Answer, status: u16, retry: Option<&str>) {
    assert_eq!((answer.status(), answer.header("retry-after")), (status, retry), "{answer:?}");
    assert!(answer.is_whole() && answer.text().starts_with("ebbtide: "), "{answer:?}");
    assert_eq!(answer.grpc_status(), None, "{answer:?}");
    for forbidden in ["connection", "keep-alive", "transfer-encoding", "upgrade"] {
        assert_eq!(answer.header(forbidden), None, "{answer:?}");
    }
}

/// C59: an app that does not accept: 200, the content type that was asked in, 14, and why; others get a 503.
#[tokio::test]
async fn a_refusing_app_is_told_of_in_the_clients_own_protocol() {
    let (px, address) = in_front_of_nobody("300ms", 100).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let kinds = ["application/grpc", "application/grpc+proto", "application/grpc+json", "application/grpc;a=b"];
    let mut calls = Vec::new();
    for kind in kinds {
        calls.push((kind, call_as(&mut raw, "/grpc/unary", kind).await));
    }
    let mut others = vec![raw.get("/").await.unwrap(), raw.begin("/upload", &[]).await.unwrap()];
    for kind in ["application/grpc-web", "application/grpc-web+proto", "application/grpc-web-text", "text/plain"] {
        others.push(call_as(&mut raw, "/grpc/unary", kind).await);
    }
    // Not what gRPC is: it has a content type, and POST.
    let get = raw.fresh_stream();
    raw.frame(request(get, "GET", "/", &[("content-type", "application/grpc")]).end_stream()).await.unwrap();
    others.push(get);
    for (kind, call) in calls {
        let answer = raw.answer(call, SOON).await.unwrap();
        let (status, why) = own_refusal(&answer);
        assert_eq!((status, answer.header("content-type")), (14, Some(kind)), "{answer:?}");
        assert!(why.contains("did not accept"), "{why}");
    }
    for other in others {
        assert_plain(&raw.answer(other, SOON).await.unwrap(), 503, Some("1"));
    }
    let metrics = px.metrics().await;
    assert_eq!(metrics.sum("ebbtide_grpc_calls_total", &[("code", "UNAVAILABLE")]), 4.0);
    let refused = |spoken| metrics.sum("ebbtide_requests_total", &[("protocol", spoken), ("outcome", "unavailable")]);
    assert_eq!((refused("grpc"), refused("http2")), (4.0, 7.0));
    assert_eq!(metrics.sum("ebbtide_parked_requests_total", &[("outcome", "timed_out")]), 11.0);
}

/// §8, C59: no place left to wait in.
#[tokio::test]
async fn a_full_waiting_room_is_an_answer_at_once() {
    let (px, address) = in_front_of_nobody("60s", 2).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let waiting = [raw.unary("/grpc/unary", b"a").await.unwrap(), raw.get("/").await.unwrap()];
    px.metric_becomes("ebbtide_parked_requests", &[], SOON, |parked| parked == 2.0).await;
    let call = raw.unary("/grpc/unary", b"b").await.unwrap();
    let other = raw.get("/").await.unwrap();
    let answer = raw.answer(call, SOON).await.unwrap();
    let (status, why) = own_refusal(&answer);
    assert!(status == 14 && why.contains("too many"), "{answer:?}");
    assert_plain(&raw.answer(other, SOON).await.unwrap(), 503, Some("1"));
    assert!(waiting.iter().all(|stream| !raw.seen.is_over(*stream)));
    // §4: nobody is parked beyond t0.
    super::stage::terminate(&px).await;
    let (status, why) = (raw.answer(waiting[0], SOON).await.unwrap(), "parked at t0");
    assert_eq!(own_refusal(&status).0, 14, "{why}");
    assert_plain(&raw.answer(waiting[1], SOON).await.unwrap(), 503, Some("1"));
}

/// §2: the app is gone after t0, and a pod whose drain is over.
#[tokio::test]
async fn an_app_that_is_gone_after_t0_is_answered_for() {
    let stage = Stage::simple().await;
    let mut raw = stage.open().await;
    let served = raw.unary("/grpc/unary", b"x").await.unwrap();
    assert_eq!(raw.answer(served, SOON).await.unwrap().grpc_status(), Some(0));
    stage.terminate().await;
    stage.kill_app().await;
    let call = call_as(&mut raw, "/grpc/unary", "application/grpc+proto").await;
    let other = raw.get("/").await.unwrap();
    let answer = raw.answer(call, SOON).await.unwrap();
    assert_eq!((own_refusal(&answer).0, answer.header("content-type")), (14, Some("application/grpc+proto")));
    assert_plain(&raw.answer(other, SOON).await.unwrap(), 503, Some("1"));
    raw.ending(SOON).await;
    assert_eq!(stage.px.exit(SOON).await, Exit::Code(0));
}

/// §7: the connection dies under the calls: 14 or 502 before a head, a visible break behind one; never sent again.
#[tokio::test]
async fn a_connection_that_dies_under_a_call_is_unavailable() {
    let stage = Stage::simple().await;
    let mut raw = stage.open().await;
    let call = raw.unary("/grpc/hang", b"x").await.unwrap();
    let streaming = raw.unary("/grpc/stream?every_ms=5&size=50", b"").await.unwrap();
    raw.wait("a message", SOON, |seen| (!seen.answer(streaming).body.is_empty()).then_some(())).await.unwrap();
    let posted = raw.begin("/upload", &[]).await.unwrap();
    raw.data(posted, b"some", false).await.unwrap();
    stage.app.journal.wait("req", 3, SOON).await;
    let last = raw.get("/die").await.unwrap();
    let answer = raw.answer(call, SOON).await.unwrap();
    let (status, why) = own_refusal(&answer);
    assert!(status == 14 && why.contains("without an answer"), "{answer:?}");
    let answer = raw.answer(streaming, SOON).await.unwrap();
    assert!(!answer.ended && answer.reset.is_some(), "{answer:?}");
    for other in [posted, last] {
        assert_plain(&raw.answer(other, SOON).await.unwrap(), 502, None);
    }
    let seen = stage.app.journal.lines("req");
    let times = |path: &str| seen.iter().filter(|line| line.get("path") == path).count();
    assert_eq!((times("/grpc/hang"), times("/upload")), (1, 1));
    let again = raw.unary("/grpc/unary", b"x").await.unwrap();
    assert_eq!(raw.answer(again, SOON).await.unwrap().grpc_status(), Some(0), "the next one has a new connection");
    let metrics = stage.px.metrics().await;
    assert_eq!(metrics.sum("ebbtide_requests_total", &[("protocol", "grpc"), ("outcome", "broken")]), 1.0);
    assert_eq!(metrics.sum("ebbtide_grpc_calls_total", &[("code", "none")]), 1.0);
}

/// §7: gRPC needs HTTP/2 on the app's side; who has not got it reads what to change.
#[tokio::test]
async fn an_app_that_speaks_only_http1_is_explained() {
    for (scheme, speaks, plain_status) in [
        (Scheme::Http, Speaks::Both, 200),
        (Scheme::Http, Speaks::Http1, 200),
        (Scheme::Auto, Speaks::Http1, 200),
        (Scheme::Auto, Speaks::Http1Refusing(400), 200),
        (Scheme::H2c, Speaks::Http1Refusing(505), 502),
        (Scheme::H2c, Speaks::Http1Refusing(400), 502),
    ] {
        let what = format!("{scheme:?} {speaks:?}");
        let stage = Stage::start(AppOptions { speaks, scheme, ..AppOptions::default() }, plain(LONG)).await;
        let mut raw = stage.open().await;
        for kind in ["application/grpc", "application/grpc+json"] {
            let call = call_as(&mut raw, "/grpc/unary", kind).await;
            let answer = raw.answer(call, SOON).await.unwrap();
            let (status, why) = own_refusal(&answer);
            assert_eq!((status, answer.header("content-type")), (12, Some(kind)), "{what}");
            assert!(why.contains("does not speak HTTP/2") && why.contains("h2c://"), "{what}: {why}");
        }
        let other = raw.get("/").await.unwrap();
        let answer = raw.answer(other, SOON).await.unwrap();
        assert_eq!(answer.status(), plain_status, "{what}: {answer:?}");
        if plain_status == 502 {
            assert_plain(&answer, 502, None);
        }
        let metrics = stage.px.metrics().await;
        assert_eq!(metrics.sum("ebbtide_grpc_calls_total", &[("code", "UNIMPLEMENTED")]), 2.0, "{what}");
        assert!(stage.app.journal.lines("req").iter().all(|line| line.get("path") == "/"), "{what}");
    }
}

/// C59: a health check over gRPC and everything else that an app says of itself passes untouched.
#[tokio::test]
async fn what_the_app_says_of_itself_passes_untouched() {
    let stage = Stage::simple().await;
    let mut raw = stage.open().await;
    // Trailers-only, whatever the method; a health check is a call like others.
    let health = raw.unary("/grpc.health.v1.Health/Check", b"").await.unwrap();
    assert_eq!(raw.answer(health, SOON).await.unwrap().text(), "ok\n", "the path is the app's business");
    for (path, status, length) in [
        ("/grpc/error?status=5&bytes=12288", 5, 12_288),
        ("/grpc/error?status=14&bytes=50000", 14, 50_000),
        ("/grpc/error?status=16", 16, 10),
    ] {
        for head in [false, true] {
            let path = if head { format!("{path}&head=1") } else { path.to_owned() };
            let call = raw.unary(&path, b"x").await.unwrap();
            let answer = raw.answer(call, SOON).await.unwrap();
            assert_eq!((answer.status(), answer.grpc_status()), (200, Some(status)), "{path}");
            assert_eq!(answer.grpc_message().map(str::len), Some(length), "{path}");
            assert_eq!(answer.is_trailers_only(), !head, "{path}: {answer:?}");
        }
    }
    let unknown = raw.unary("/grpc/nothing", b"x").await.unwrap();
    assert_eq!(raw.answer(unknown, SOON).await.unwrap().grpc_status(), Some(12));
    // A gateway behind ebbtide may answer in plain HTTP.
    for code in [401, 404, 429, 503] {
        let call = raw.unary(&format!("/status?code={code}"), b"x").await.unwrap();
        let answer = raw.answer(call, SOON).await.unwrap();
        assert_eq!((answer.status(), answer.text().as_str(), answer.grpc_status()), (code, "as asked\n", None));
    }
}

/// RFC 9110 §9.3.2: an answer of ebbtide's own to HEAD says how long it would be, and has no body.
#[tokio::test]
async fn refusals_of_head_have_no_body() {
    let (_px, address) = in_front_of_nobody("100ms", 100).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let head = raw.fresh_stream();
    raw.frame(request(head, "HEAD", "/", &[]).end_stream()).await.unwrap();
    let answer = raw.answer(head, SOON).await.unwrap();
    assert_eq!((answer.status(), answer.header("retry-after")), (503, Some("1")));
    assert!(answer.is_whole() && answer.body.is_empty(), "{answer:?}");
    assert!(answer.header("content-length").is_some_and(|length| length != "0"), "{answer:?}");
}
