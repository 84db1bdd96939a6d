//! Owns how events pass: nothing is held back. Each is written only when its client has read the one before, so that no
//! clock is needed to tell.

use super::{draining, listen, listen_h2};
use crate::harness::SOON;
use crate::harness::h2::RawH2;
use crate::harness::script::ByHand;
use crate::harness::stage::{front, plain, terminate};

/// The streams outlive the hold.
const LATE: &str = "grace_period: 40s, hold: 300ms, sse_after: 30s, close: 1s, quiet: 300ms, margin: 1s";

fn event(number: usize) -> String {
    format!("id: {number}\ndata: {number} of forty bytes\n\n")
}

/// C74, over HTTP/1: head, then event by event, before and during the drain.
#[tokio::test]
async fn head_and_events_pass_at_once_over_http1() {
    let mut app = ByHand::requests().await;
    let (px, address) = front(plain(LATE), &app.upstream()).await;
    let mut client = listen(address).await;
    let mut asked = app.next().await;
    asked.begin("text/event-stream", "Cache-Control: no-store\r\n").await;
    let head = client.read_until(b"\r\n\r\n", SOON).await.expect("the head, before any event");
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200") && head.contains("cache-control: no-store"), "{head}");
    assert!(!head.contains("content-encoding") && head.contains("transfer-encoding: chunked"), "{head}");
    for number in 0..40 {
        if number == 20 {
            terminate(&px).await;
            draining(&px).await;
        }
        asked.chunk(event(number)).await;
        let passed = client.read_until(b"\n\n\r\n", SOON).await.expect("the event");
        assert!(String::from_utf8_lossy(&passed).contains(&event(number)), "{passed:?}");
    }
}

/// C74, over HTTP/2.
#[tokio::test]
async fn head_and_events_pass_at_once_over_http2() {
    let mut app = ByHand::requests().await;
    let (px, address) = front(plain(LATE), &app.upstream()).await;
    let mut client = RawH2::open(address).await.unwrap();
    let stream = listen_h2(&mut client).await;
    let mut asked = client.during(app.next()).await;
    asked.begin("text/event-stream", "").await;
    client.wait("the head", SOON, |seen| (!seen.answer(stream).head.is_empty()).then_some(())).await.unwrap();
    let mut expected = String::new();
    for number in 0..40 {
        if number == 20 {
            client.during(terminate(&px)).await;
            client.during(draining(&px)).await;
        }
        expected.push_str(&event(number));
        asked.chunk(event(number)).await;
        client
            .wait("the event", SOON, |seen| (seen.answer(stream).text() == expected).then_some(()))
            .await
            .expect("the connection stays");
    }
    assert_eq!(client.seen.answer(stream).header("content-encoding"), None);
}

/// C74: what is no event stream is not held back either, e.g. the answer to a long poll.
#[tokio::test]
async fn any_answer_passes_piece_by_piece() {
    let mut app = ByHand::requests().await;
    let (_px, address) = front(plain(LATE), &app.upstream()).await;
    let mut client = listen(address).await;
    let mut asked = app.next().await;
    asked.begin("application/json", "").await;
    client.read_until(b"\r\n\r\n", SOON).await.expect("the head, before any byte");
    for number in 0..10 {
        asked.chunk(format!("[{number}]")).await;
        client.read_until(format!("[{number}]\r\n").as_bytes(), SOON).await.expect("the piece");
    }
}
