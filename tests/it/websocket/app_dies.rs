//! Owns apps that end without a word: their clients get one from us, where a frame can still be put.

use tokio::io::AsyncWriteExt;

use super::{MILLIS, agree, ended, in_flight, open, stage};
use crate::harness::SOON;
use crate::harness::client::Ending;
use crate::harness::process::Exit;
use crate::harness::script::Script;
use crate::harness::stage::{LONG, front, plain};
use crate::harness::ws::{Answer, Over, Sessions, WsFault, WsFrame, WsPlan, opcode};

/// A dropped connection, and the death of the whole app.
#[tokio::test]
async fn clients_of_an_app_that_dies_are_told_to_come_back() {
    let stage = stage(LONG, "").await;
    let mut count = 0;
    for (over, then) in [(Over::Http1, "drop"), (Over::Http2, "drop"), (Over::Http1, "exit")] {
        let path = format!("/ws?after=5&then={then}");
        let plan = WsPlan { over, path, answer: Answer::After(2), ..WsPlan::talking(MILLIS(10)) };
        Sessions::start(stage.address, &plan, 10).await.ended(SOON).await.assert_closed(1012);
        count += 10;
        ended(&stage.px, "app_died", count).await;
        in_flight(&stage.px, 0).await;
    }
    assert_eq!(stage.app.process.exit(SOON).await, Exit::Code(1));
    let metrics = stage.px.metrics().await;
    assert_eq!(metrics.sum("ebbtide_forced_endings_total", &[]), 0.0);
    assert_eq!(metrics.sum("ebbtide_notices_total", &[("kind", "websocket_close")]), 0.0);
}

/// Who does not answer that does not keep the session.
#[tokio::test]
async fn an_answer_to_the_death_of_the_app_is_not_awaited_for_long() {
    let stage = stage(LONG, "close_timeout: 300ms").await;
    let plan = WsPlan { answer: Answer::Never, ..WsPlan::new("/ws?after_ms=50&then=drop") };
    let summary = Sessions::start(stage.address, &plan, 5).await.ended(SOON).await;
    assert_eq!((summary.codes(), summary.endings()), ([(1012, 5)].into(), [(Ending::Fin, 5)].into()));
    ended(&stage.px, "app_died", 5).await;
    in_flight(&stage.px, 0).await;
}

/// Half a frame can't be taken back, and nothing may stand behind it.
#[tokio::test]
async fn a_session_whose_app_dies_inside_a_frame_ends_inside_of_it() {
    let script = Script::start(|_, mut wire| async move {
        let Ok(head) = wire.head().await else { return };
        let half = WsFrame::new(opcode::BINARY, vec![7; 1000]).encode();
        let _ = wire.get_mut().write_all(&[agree(&head).as_bytes(), &half[..500]].concat()).await;
    })
    .await;
    let (px, address) = front(plain(LONG), &script.upstream()).await;
    for count in 1..=3 {
        let mut client = open(address, "/").await;
        assert_eq!(client.ended(SOON).await, WsFault::Torn(Ending::Fin));
        ended(&px, "app_died", count).await;
        in_flight(&px, 0).await;
    }
}
