//! Owns what is counted and logged of calls over HTTP/2.

use super::stage::{LONG, Stage};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::{Request, send};
use crate::harness::ebbtide::Config;
use crate::harness::ebbtide::surface::field;
use crate::harness::h2::grpc::{message, numbered};
use crate::harness::h2::{Frame, Seen, code};

/// Each call by its status, each request by what its client speaks.
#[tokio::test]
async fn calls_are_counted_by_code_and_requests_by_protocol() {
    let stage = Stage::simple().await;
    let mut raw = stage.open().await;
    for path in [
        "/grpc/unary",
        "/grpc/unary",
        "/grpc/stream?n=3",
        "/grpc/error?status=5",
        "/grpc/error?status=14&head=1",
        "/grpc/error?status=99",
        "/grpc/nothing",
        "/status?code=404",
        "/grpc/reset?n=1&code=2",
    ] {
        let call = raw.unary(path, b"x").await.unwrap();
        raw.answer(call, SOON).await.unwrap();
    }
    for path in ["/", "/status?code=404", "/status?code=500", "/reset?code=8"] {
        let request = raw.get(path).await.unwrap();
        raw.answer(request, SOON).await.unwrap();
    }
    assert_eq!(send(stage.address, &Request::get("/"), SOON).await.unwrap().status, 200);
    for (code, count) in
        [("OK", 3.0), ("NOT_FOUND", 1.0), ("UNAVAILABLE", 1.0), ("UNKNOWN", 1.0), ("UNIMPLEMENTED", 1.0), ("none", 2.0)]
    {
        stage.px.metric_becomes("ebbtide_grpc_calls_total", &[("code", code)], SOON, |seen| seen == count).await;
    }
    let metrics = stage.px.metrics().await;
    assert_eq!(metrics.sum("ebbtide_grpc_calls_total", &[]), 9.0);
    for (protocol, outcome, count) in [
        ("grpc", "app_2xx", 7.0),
        ("grpc", "app_4xx", 1.0),
        ("grpc", "broken", 1.0),
        ("http2", "app_2xx", 1.0),
        ("http2", "app_4xx", 1.0),
        ("http2", "app_5xx", 1.0),
        ("http2", "broken", 1.0),
        ("http1", "app_2xx", 1.0),
    ] {
        let labels = [("protocol", protocol), ("outcome", outcome)];
        assert_eq!(metrics.sum("ebbtide_requests_total", &labels), count, "{protocol} {outcome}");
    }
    assert_eq!(metrics.sum("ebbtide_requests_total", &[]), 14.0);
}

/// A stream is in flight from its head to its last byte, and no longer, whatever ends it.
#[tokio::test]
async fn streams_in_flight_are_counted_as_long_as_they_last() {
    let stage = Stage::simple().await;
    let mut raw = stage.open().await;
    let kind = [("kind", "stream")];
    let bidi = raw.begin_grpc("/grpc/bidi").await.unwrap();
    raw.data(bidi, &message(&numbered(0, 20)), false).await.unwrap();
    let hanging = raw.get("/hang").await.unwrap();
    let stream = raw.unary("/grpc/stream?every_ms=5", b"").await.unwrap();
    stage.px.metric_becomes("ebbtide_in_flight", &kind, SOON, |open| open == 3.0).await;
    assert_eq!(stage.px.metrics().await.sum("ebbtide_in_flight", &[("kind", "request")]), 0.0);
    raw.frame(Frame::data(bidi, b"").end_stream()).await.unwrap();
    assert_eq!(raw.answer(bidi, SOON).await.unwrap().grpc_status(), Some(0));
    raw.during(stage.px.metric_becomes("ebbtide_in_flight", &kind, SOON, |open| open == 2.0)).await;
    raw.frame(Frame::reset(stream, code::CANCEL)).await.unwrap();
    raw.during(stage.px.metric_becomes("ebbtide_in_flight", &kind, SOON, |open| open == 1.0)).await;
    raw.frame(Frame::reset(hanging, code::CANCEL)).await.unwrap();
    raw.during(stage.px.metric_becomes("ebbtide_in_flight", &kind, SOON, |open| open == 0.0)).await;
    stage.app.journal.wait("cancel", 2, SOON).await;
    let abandoned = [("protocol", "grpc"), ("outcome", "abandoned")];
    stage.px.metric_becomes("ebbtide_requests_total", &abandoned, SOON, |count| count == 1.0).await;

    // A client that goes without a word takes all its streams with it.
    let mut raw = stage.open().await;
    for _ in 0..5 {
        raw.get("/hang").await.unwrap();
    }
    stage.px.metric_becomes("ebbtide_in_flight", &kind, SOON, |open| open == 5.0).await;
    raw.reset();
    stage.px.metric_becomes("ebbtide_in_flight", &kind, SOON, |open| open == 0.0).await;
    stage.app.journal.wait("cancel", 7, SOON).await;
}

/// The access log has a line for each request over HTTP/2 as for others.
#[tokio::test]
async fn the_access_log_has_a_line_for_each_stream() {
    let config = Config::new().yaml(&format!("drain: {{{LONG}}}\nlog: {{access: on}}"));
    let stage = Stage::start(AppOptions::default(), config).await;
    let mut raw = stage.open().await;
    let get = raw.get("/status?code=404").await.unwrap();
    raw.answer(get, SOON).await.unwrap();
    // The app is spoken to in HTTP/1.1, so this is an answer of ebbtide's own.
    let call = raw.unary("/grpc/unary?secret=1", b"x").await.unwrap();
    raw.wait("the answers", SOON, |seen: &Seen| (seen.is_over(get) && seen.is_over(call)).then_some(())).await.unwrap();
    let lines = crate::harness::wait::eventually("two lines", SOON, || {
        let lines = stage.px.log_events("request");
        if lines.len() == 2 { Ok(lines) } else { Err(lines.len()) }
    })
    .await;
    for (line, expected) in
        lines.iter().zip([("GET", "/status", "404", "app"), ("POST", "/grpc/unary", "200", "ebbtide")])
    {
        let text = |key: &str| field(line, key).map(ToString::to_string).unwrap_or_default().replace('"', "");
        let (method, path, status, by) = expected;
        assert_eq!([text("method"), text("path"), text("status"), text("by")], [method, path, status, by], "{line}");
        assert_eq!(text("phase"), "serving", "{line}");
    }
}
