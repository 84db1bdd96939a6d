//! Owns what a client has not taken yet when everything else about its connection is over.

use super::{SECONDS, Stage, TOLD, assert_two_phases};
use crate::harness::SOON;
use crate::harness::client::Ending;
use crate::harness::h2::{Frame, RawH2, setting};

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
