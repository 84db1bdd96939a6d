//! Owns clients that are slow: they hold up neither the app nor the memory.

use super::{CLEAN, CLOSES, MILLIS, SECONDS, SHORT, ended, in_flight, keep, stage};
use crate::harness::stage::{most_resident, resident, terminate};
use crate::harness::ws::{Answer, Sessions, WsClient, WsPlan};
use crate::harness::{SOON, heavy};

/// Behind our Close the app's data is read and dropped: it can go on, and comes to see the client's Close.
#[tokio::test]
async fn what_the_app_sends_behind_our_close_is_dropped_and_blocks_nobody() {
    let stage = stage(CLOSES, "").await;
    let _kept = keep(stage.address).await;
    let plan = WsPlan {
        reads: Some((65_536, MILLIS(20))),
        answer: Answer::After(20),
        size: 1000,
        ..WsPlan::new("/ws?push_ms=0&size=65536")
    };
    let sessions = Sessions::start(stage.address, &plan, 10).await;
    terminate(&stage.px).await;
    let summary = sessions.ended(SECONDS(15)).await;
    summary.assert_closed(1001);
    summary.seen_by(&stage.app.journal).await;
    summary.assert_none_lost(&stage.app.journal);
    let over = stage.app.journal.wait("over", 10, SOON).await;
    assert!(over.iter().all(|one| one.get("how") == "fin"), "{over:?}");
    ended(&stage.px, "closed_by_notice", 10).await;
}

/// What an app pushes at clients that read nothing stays in the app, also when they are to be told.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_read_cost_little_memory() {
    let _heavy = heavy().await;
    let stage = stage(SHORT, "close_timeout: 500ms").await;
    let _kept = keep(stage.address).await;
    let before = resident(&stage.px);
    let plan = WsPlan { reads: Some((4096, SECONDS(3600))), ..WsPlan::new("/ws?push_ms=0&size=65536") };
    let mut clients = Vec::new();
    for number in 0..500 {
        clients.push(WsClient::open(stage.address, &plan, &number.to_string()).await.expect("a session"));
    }
    in_flight(&stage.px, 500).await;
    terminate(&stage.px).await;
    stage.px.phase_becomes("closing", SOON).await;
    let grown = most_resident(&stage.px).saturating_sub(before);
    assert!(grown < 80 * 1024, "{grown} KiB for 500 sessions");
    assert_eq!(stage.px.exit(SOON).await, CLEAN);
    let report = stage.px.report(SOON).await;
    assert_eq!((&report["outcome"], &report["forced"]["session"]), (&"forced".into(), &500.into()), "{report}");
    drop(clients);
}
