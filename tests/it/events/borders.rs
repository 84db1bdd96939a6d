//! Owns where streams end: behind a whole event, whatever ends its lines, and in good order; what is no stream of events
//! breaks where its client sees it.

use super::{AT_ONCE, ONCE, draining, listen, listen_h2, moments_have_come, one_worker};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::{Ending, Failure, Request, send};
use crate::harness::events::{EventSource, StreamEnd};
use crate::harness::h2::{RawH2, code};
use crate::harness::http::chunk;
use crate::harness::script::ByHand;
use crate::harness::stage::{LONG, app, front, plain, terminate};

/// The drain deadline comes soon, and what is long is asked to end before it.
const SHORT: &str = "grace_period: 3s, hold: 200ms, close: 300ms, close_spread: 200ms, quiet: 200ms, margin: 500ms";

/// What the app has begun when the time is up; the last one is a stream of events.
const ANSWERS: [&str; 4] = [
    "Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    "Content-Type: application/octet-stream\r\nContent-Length: 8\r\n\r\nhalf",
    // Where its events end can't be seen.
    "Content-Type: text/event-stream\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n11\r\nid: 1\ndata: 1\n\n:\n\r\n",
];

/// C73: only a stream of events may end as if it were whole.
#[tokio::test]
async fn event_streams_end_cleanly_and_everything_else_breaks_visibly() {
    let mut app = ByHand::requests().await;
    let (px, address) = front(plain(SHORT), &app.upstream()).await;
    let mut http2 = RawH2::open(address).await.unwrap();
    let (mut http1, mut streams, mut open) = (Vec::new(), Vec::new(), Vec::new());
    for answer in ANSWERS {
        let answer = format!("HTTP/1.1 200 OK\r\n{answer}");
        let raw = listen(address).await;
        let mut asked = app.next().await;
        asked.write(&answer).await;
        open.push(asked);
        let stream = listen_h2(&mut http2).await;
        let mut asked = http2.during(app.next()).await;
        asked.write(&answer).await;
        open.push(asked);
        http2.wait("a byte", SOON, |seen| (!seen.answer(stream).body.is_empty()).then_some(())).await.unwrap();
        http1.push(raw);
        streams.push(stream);
    }
    terminate(&px).await;
    let events = "id: 1\ndata: 1\n\n:\n";
    for (number, raw) in http1.iter_mut().enumerate() {
        let reply = http2.during(raw.reply("GET", SOON)).await;
        if number == 3 {
            let reply = reply.expect("a whole answer");
            assert_eq!(String::from_utf8_lossy(&reply.body), events);
        } else {
            assert_eq!(reply.err(), Some(Failure::Truncated), "{:?}", ANSWERS[number]);
        }
    }
    for (number, stream) in streams.into_iter().enumerate() {
        let answer = http2.answer(stream, SOON).await.unwrap();
        let expected = if number == 3 { (true, None, events) } else { (false, Some(code::INTERNAL_ERROR), "half") };
        let text = answer.text();
        assert_eq!((answer.ended, answer.reset, text.as_str()), expected, "{:?}", ANSWERS[number]);
    }
    let report = http2.during(px.report_at_exit(SOON)).await;
    assert_eq!(report["forced"], serde_json::json!({"response": 6}), "{report}");
    assert_eq!(report["notices"]["events_end"], 2, "{report}");
    assert_eq!(report["requests"], serde_json::json!({"cut": 6, "ended": 2}), "{report}");
}

/// An event of which a part has passed when its stream is asked to end passes whole; the next one does not begin.
#[tokio::test]
async fn an_event_in_pieces_is_passed_whole_before_the_end() {
    for end in ["\n", "\r\n", "\r"] {
        let mut app = ByHand::requests().await;
        let (px, address) = front(one_worker(AT_ONCE), &app.upstream()).await;
        let event = |number: u32| format!("id: {number}{end}data: {number}{end}{end}");
        let mut client = listen(address).await;
        let mut asked = app.next().await;
        asked.begin("text/event-stream", "").await;
        let second = event(2);
        let (first_half, second_half) = second.split_at(9);
        asked.chunk(event(1) + first_half).await;
        client.read_until(first_half.as_bytes(), SOON).await.expect("the first half");
        moments_have_come(&mut app, &px, address).await;
        asked.write([chunk(second_half), chunk(event(3))].concat()).await;
        let (rest, ending) = client.ending(SOON).await;
        let rest = String::from_utf8(rest).unwrap();
        let expected = format!("\r\n{}0\r\n\r\n", String::from_utf8(chunk(second_half)).unwrap());
        assert_eq!((rest, ending), (expected, Ending::Fin), "{end:?}");
        let report = px.report_at_exit(SOON).await;
        assert_eq!((&report["outcome"], &report["notices"]["events_end"]), (&"drained".into(), &2.into()), "{report}");
    }
}

/// A coding hides where events end: such a stream goes on until it must break.
#[tokio::test]
async fn a_coded_stream_is_never_ended_as_if_it_were_whole() {
    let (_app, upstream, _dir) = app(AppOptions::default()).await;
    let (px, address) = front(one_worker(SHORT), &format!("http://{upstream}")).await;
    let coded = EventSource::start(address, "/events?encoding=gzip&every_ms=10", ONCE);
    coded.has("opaque bytes", SOON, |heard| heard.opaque > 0).await;
    terminate(&px).await;
    draining(&px).await;
    let heard = coded.has("its end", SOON, |heard| !heard.ends().is_empty()).await;
    assert_eq!(heard.ends(), [StreamEnd::Broken(Failure::Truncated)]);
    let report = px.report_at_exit(SOON).await;
    assert_eq!(report["forced"], serde_json::json!({"response": 1}), "{report}");
    assert!(report["notices"]["events_end"].is_null(), "{report}");
}

/// A stream that says its length has an end of its own, and a request that fails has nothing to end.
#[tokio::test]
async fn the_apps_own_ends_pass_as_they_are() {
    let (_app, upstream, _dir) = app(AppOptions::default()).await;
    let (px, address) = front(plain(LONG), &format!("http://{upstream}")).await;
    for (query, whole) in [("n=3&end=clean", true), ("n=3&end=half", true), ("n=3&end=cut", false)] {
        let request = Request::get(&format!("/events?every_ms=1&{query}"));
        let reply = send(address, &request, SOON).await;
        assert_eq!(reply.as_ref().map(|reply| reply.status), if whole { Ok(200) } else { Err(&Failure::Truncated) });
    }
    assert_eq!(px.metrics().await.sum("ebbtide_notices_total", &[("kind", "events_end")]), 0.0);
}
