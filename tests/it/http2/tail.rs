//! Owns what a client has not taken yet when everything else about its connection is over.

use super::{SECONDS, Stage, TOLD, assert_two_phases};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::Ending;
use crate::harness::ebbtide::Config;
use crate::harness::h2::{Frame, RawH2, code, setting};

/// The end of an answer waits inside h2 until the client opens its window. No stream is open by then as far as ebbtide
/// is concerned, and the client has been told long ago: the connection must not be closed under it.
#[tokio::test]
async fn the_end_of_an_answer_waits_for_a_slow_client() {
    const LENGTH: usize = 10_000;
    let stage = Stage::start(TOLD).await;
    let mut raw = RawH2::connect(stage.address).await.unwrap();
    raw.opens_windows = false;
    raw.greet(&[(setting::INITIAL_WINDOW_SIZE, 1000)]).await.unwrap();
    let stream = raw.get(&format!("/bytes?n={LENGTH}")).await.unwrap();
    let first = |seen: &crate::harness::h2::Seen| (seen.answer(stream).body.len() == 1000).then_some(());
    raw.wait("what the window takes", SOON, first).await.unwrap();
    stage.px.metric_becomes("ebbtide_in_flight", &[], SOON, |count| count == 0.0).await;
    stage.terminate().await;
    raw.goaways(2, SOON).await.unwrap();
    // Longer than any acknowledgement is waited for; nothing else tells that the connection is left alone.
    (raw.seen.goaway_at(1).unwrap() + SECONDS(3)).reached().await;
    raw.round_trip().await.expect("still connected");
    raw.frame(Frame::window_update(stream, LENGTH as u32)).await.unwrap();
    let answer = raw.answer(stream, SOON).await.unwrap();
    assert!(answer.is_whole() && answer.body.len() == LENGTH, "{answer:?}");
    assert_eq!(raw.ending(SOON).await, Ending::Fin);
    assert_eq!(assert_two_phases(&raw), stream);
}

/// What a stream holds weighs no less than a connection: both count towards the limit, and beyond it is an answer.
#[tokio::test]
async fn streams_count_towards_the_connection_limit() {
    let config = Config::new().yaml(&format!("drain: {{{TOLD}}}\nlimits: {{max_connections: 3}}"));
    let stage = Stage::with(AppOptions::default().h2c(), config).await;
    let mut raw = stage.open().await;
    let mut held = Vec::new();
    for count in 1..=2 {
        held.push(raw.get("/hang").await.unwrap());
        stage.has_seen(count).await;
    }
    let beyond = raw.get("/").await.unwrap();
    let answer = raw.answer(beyond, SOON).await.unwrap();
    assert_eq!((answer.status(), answer.header("retry-after")), (503, Some("1")));
    let call = raw.unary("/grpc/unary", b"one more").await.unwrap();
    assert_eq!(raw.answer(call, SOON).await.unwrap().grpc_status(), Some(14));
    raw.frame(Frame::reset(held[0], code::CANCEL)).await.unwrap();
    stage.px.metric_becomes("ebbtide_in_flight", &[("kind", "stream")], SOON, |count| count == 1.0).await;
    let again = raw.get("/").await.unwrap();
    assert_eq!(raw.answer(again, SOON).await.unwrap().status(), 200);
    assert_eq!(stage.px.logged("too many connections and streams are open", 1).await.len(), 1);
}
