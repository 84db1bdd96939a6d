//! Owns clients that read nothing, at the drain deadline.

use std::time::Duration;

use rustix::process::Signal;

use super::stage::{ENDS, LONG, Stage, plain};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::Ending;
use crate::harness::h2::{RawH2, Seen, setting};
use crate::harness::process::Exit;

/// A client whose streams may bring so many bytes each, and no more for ever.
async fn reads_only(stage: &Stage, window: u32) -> RawH2 {
    let mut raw = RawH2::connect(stage.address).await.unwrap();
    raw.opens_windows = false;
    raw.greet(&[(setting::INITIAL_WINDOW_SIZE, window)]).await.unwrap();
    raw.wait("SETTINGS", SOON, Seen::settings).await.unwrap();
    raw
}

/// §6, C105: a client that takes nothing can't be told how its streams end; it is dropped, and counted as what it is.
#[tokio::test]
async fn a_stalled_reader_is_dropped_and_counted() {
    let stage = Stage::start(AppOptions::default().h2c(), plain(LONG)).await;
    let mut stalled = reads_only(&stage, 1000).await;
    // The window ends inside the first message: between two of them the stream could be ended in good order, if the next
    // one had not come yet.
    let call = stalled.unary("/grpc/stream?every_ms=1&size=100000", b"").await.unwrap();
    let download = stalled.get("/bytes?n=5000000").await.unwrap();
    let full = |stream| move |seen: &Seen| (seen.answer(stream).body.len() == 1000).then_some(());
    stalled.wait("a full window", SOON, full(call)).await.unwrap();
    stalled.wait("a full window", SOON, full(download)).await.unwrap();
    // Beside it one that reads, and one whose window is full on one stream only.
    let mut reading = stage.open().await;
    let healthy = reading.unary("/grpc/stream?every_ms=5&size=20", b"").await.unwrap();
    reading.wait("a message", SOON, |seen| (!seen.answer(healthy).body.is_empty()).then_some(())).await.unwrap();
    reading.during(stage.terminate()).await;
    stage.px.signal(Signal::TERM);

    assert_eq!(reading.answer(healthy, SOON).await.unwrap().trailer("grpc-status"), Some("14"));
    assert_ne!(stalled.ending(SOON).await, Ending::StillOpen);
    for stream in [call, download] {
        let answer = stalled.seen.answer(stream);
        assert!(!answer.ended && answer.body.len() == 1000, "a clean end: {answer:?}");
    }
    stage.app.journal.wait("cancel", 3, SOON).await;
    let report = stage.px.report_at_exit(SOON).await;
    assert_eq!(report["forced"], serde_json::json!({"stalled": 2, "grpc_stream": 1}), "{report}");
}

/// §6: a stalled reader costs nobody his time: the drain ends by its deadline, without any further signal.
#[tokio::test]
async fn a_stalled_reader_does_not_outlast_the_drain() {
    let stage = Stage::start(AppOptions::default().h2c(), plain(ENDS)).await;
    let mut stalled = reads_only(&stage, 100).await;
    let call = stalled.unary("/grpc/stream?every_ms=1&size=400", b"").await.unwrap();
    stalled.wait("a full window", SOON, |seen| (seen.answer(call).body.len() == 100).then_some(())).await.unwrap();
    stalled.during(stage.terminate()).await;
    let exit = stalled.during(stage.px.exit(Duration::from_secs(12))).await;
    assert_eq!(exit, Exit::Code(0));
    assert!(!stalled.seen.answer(call).ended);
    assert_eq!(stage.px.report(SOON).await["forced"], serde_json::json!({"stalled": 1}));
}
