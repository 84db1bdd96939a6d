//! Owns streams that begin when it is late: in the drain each has one event or a moment, and behind it the client is told
//! to come back, since a 503 would end an `EventSource` for good.

use serde_json::json;

use super::{AT_ONCE, MILLIS, listen, listen_h2, moments_have_come, one_worker};
use crate::harness::SOON;
use crate::harness::client::{Ending, Raw, Request, send};
use crate::harness::events::{EventSource, StreamEnd};
use crate::harness::h2::RawH2;
use crate::harness::script::ByHand;
use crate::harness::stage::{LONG, front, listener, listeners, plain, terminate};

const TWO_EVENTS: &str = "id: 1\ndata: 1\n\nid: 2\ndata: 2\n\n";
const ONE_EVENT: &str = "id: 1\ndata: 1\n\n";

#[tokio::test]
async fn a_stream_begun_in_the_drain_has_one_event_or_a_moment() {
    let mut app = ByHand::requests().await;
    let (px, address) = front(one_worker(AT_ONCE), &app.upstream()).await;
    // Keeps the drain going.
    let mut slow = Raw::connect(address).await.unwrap();
    slow.send(Request::get("/slow").encode("toy", "slow")).await.unwrap();
    let mut answering = app.next().await;
    moments_have_come(&mut app, &px, address).await;

    for (events, passed) in [(TWO_EVENTS, ONE_EVENT), ("", ""), (": only a comment\n\n", ": only a comment\n\n")] {
        let mut http1 = listen(address).await;
        let mut first = app.next().await;
        let mut http2 = RawH2::open(address).await.unwrap();
        let stream = listen_h2(&mut http2).await;
        let mut second = http2.during(app.next()).await;
        for asked in [&mut first, &mut second] {
            asked.begin("text/event-stream", "").await;
            if !events.is_empty() {
                asked.chunk(events).await;
            }
        }
        let reply = http2.during(http1.reply("GET", SOON)).await.expect("a whole answer");
        assert_eq!((reply.status, String::from_utf8_lossy(&reply.body).as_ref()), (200, passed));
        let answer = http2.answer(stream, SOON).await.unwrap();
        assert_eq!((answer.status(), answer.is_whole(), answer.text().as_str()), (200, true, passed));
    }
    let metrics = px.metrics().await;
    for (protocol, count) in [("http1", 4.0), ("http2", 3.0)] {
        let ended = [("protocol", protocol), ("outcome", "ended")];
        assert_eq!(metrics.sum("ebbtide_requests_total", &ended), count, "{protocol}");
    }
    assert_eq!(metrics.sum("ebbtide_notices_total", &[("kind", "events_end")]), 7.0);
    answering.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    assert_eq!(slow.reply("GET", SOON).await.unwrap().status, 200);
    let report = px.report_at_exit(SOON).await;
    assert_eq!((&report["outcome"], &report["forced"]), (&json!("drained"), &json!({})), "{report}");
    assert_eq!(report["notices"]["events_end"], 7, "{report}");
    assert_eq!(report["requests"], json!({"app_2xx": 1, "ended": 7}), "{report}");
}

/// Over HTTP/1 and HTTP/2: a client that asks for events is told to come back, everybody else that there is nothing here.
async fn assert_told_to_come_back(address: std::net::SocketAddr) {
    let mut client = listen(address).await;
    let reply = client.reply("GET", SOON).await.unwrap();
    assert_eq!((reply.status, &reply.body[..], reply.closes()), (200, &b"retry: 1000\n\n"[..], 1));
    assert_eq!(reply.head.get("content-type"), Some("text/event-stream"));
    assert_eq!(client.ending(SOON).await, (Vec::new(), Ending::Fin));
    let mut http2 = RawH2::open(address).await.unwrap();
    let stream = listen_h2(&mut http2).await;
    let answer = http2.answer(stream, SOON).await.unwrap();
    assert_eq!((answer.status(), answer.is_whole()), (200, true));
    assert_eq!((answer.text().as_str(), answer.header("content-type")), ("retry: 1000\n\n", Some("text/event-stream")));
    // The connection above has been told to go.
    let mut http2 = RawH2::open(address).await.unwrap();
    let other = http2.get("/").await.unwrap();
    assert_eq!(http2.answer(other, SOON).await.unwrap().status(), 503);
    assert_eq!(send(address, &Request::get("/"), SOON).await.unwrap().status, 503);
    let source = EventSource::start(address, "/events", MILLIS(1));
    let heard = source.has("a first end", SOON, |heard| !heard.ends().is_empty()).await;
    assert_eq!((heard.ends(), source.is_over()), (vec![StreamEnd::Clean], false));
}

#[tokio::test]
async fn behind_the_drain_clients_are_told_to_come_back() {
    let app = ByHand::requests().await;
    let out = listener("db", &format!("tcp://{}", app.address()), ", direction: outbound");
    // The network of the app stays, and with it the process.
    let px = listeners(AT_ONCE, &[listener("web", &app.upstream(), ""), out].concat()).start().await;
    let address = px.address("web").await;
    px.phase_becomes("serving", SOON).await;
    terminate(&px).await;
    px.phase_becomes("lingering", SOON).await;
    assert_told_to_come_back(address).await;
}

#[tokio::test]
async fn where_the_app_is_gone_clients_are_told_to_come_back() {
    let mut app = ByHand::requests().await;
    let (px, address) = front(plain(LONG), &app.upstream()).await;
    let mut waits = listen(address).await;
    // Keeps the pod from being over: the app has closed its listener and may still answer.
    let asked = app.next().await;
    terminate(&px).await;
    drop(app);
    px.metric_becomes("ebbtide_upstream_up", &[], SOON, |up| up == 0.0).await;
    assert_told_to_come_back(address).await;
    drop(asked);
    // Its answer broke before it began: 502 says so, since the app may have acted.
    assert_eq!(waits.reply("GET", SOON).await.unwrap().status, 502);
}
