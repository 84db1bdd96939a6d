//! Owns ends without time (rows 7 and 9 of the contract), and sessions that are none.

use rustix::process::Signal;
use tokio::io::AsyncWriteExt;

use super::{CLEAN, MILLIS, agree, ended, in_flight, stage};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, OnTerm};
use crate::harness::client::{Ending, Raw};
use crate::harness::pod::{Event, Pod, Who};
use crate::harness::script::Script;
use crate::harness::stage::{LONG, front, plain, terminate};
use crate::harness::ws::{Over, Sessions, WsPlan};

/// Row 7: a second signal.
#[tokio::test]
async fn a_second_signal_closes_sessions_at_once() {
    // Time to answer: it is not the end of it that closes the sessions.
    let stage = stage("grace_period: 60s, hold: 30s, close: 10s, margin: 1s", "close_timeout: 10s").await;
    let talking = Sessions::start(stage.address, &WsPlan::talking(MILLIS(20)), 20).await;
    let over_http2 = WsPlan { over: Over::Http2, ..WsPlan::new("/ws") };
    let silent = Sessions::start(stage.address, &over_http2, 20).await;
    talking.all_have(2, SOON).await;
    in_flight(&stage.px, 40).await;
    terminate(&stage.px).await;
    stage.px.signal(Signal::TERM);
    for sessions in [talking, silent] {
        let summary = sessions.ended(SOON).await;
        summary.assert_closed(1001);
        summary.seen_by(&stage.app.journal).await;
        summary.assert_none_lost(&stage.app.journal);
    }
    assert_eq!(stage.px.exit(SOON).await, CLEAN);
    let report = stage.px.report(SOON).await;
    assert_eq!(report["forced"], serde_json::json!({}), "{report}");
}

/// Row 9: a signal while the app's hook is still blocked says that SIGKILL is near.
#[tokio::test]
async fn a_signal_before_the_hook_is_released_closes_sessions_at_once() {
    // Otherwise its end would race with ours: the kubelet gives up its hook at the same moment.
    let app = AppOptions { on_term: OnTerm::Ignore, ..AppOptions::default() };
    let pod = Pod::builder().app(app).start().await;
    pod.ready().await;
    let sessions = Sessions::start(pod.address(), &WsPlan::talking(MILLIS(20)), 20).await;
    sessions.all_have(2, SOON).await;
    let deletion = pod.delete(2);
    let summary = sessions.ended(SOON).await;
    deletion.finished().await;
    summary.assert_closed(1001);
    summary.assert_none_lost(&pod.journal(0));
    assert_eq!(pod.exit(Who::Ebbtide, SOON).await, CLEAN);
    let killed = |event| event == Event::Signalled(Who::Ebbtide, Signal::KILL);
    pod.timeline().assert_never("SIGKILL of ebbtide", killed);
}

/// What calls itself a WebSocket and sends no frames is relayed as it is; at the deadline it ends like any tunnel.
#[tokio::test]
async fn bytes_that_are_no_frames_pass_and_end_like_a_tunnel() {
    const REPLY: &[u8] = b"\x83\x05 these are no frames \xff\xff\xff";
    let script = Script::start(|_, mut wire| async move {
        let Ok(head) = wire.head().await else { return };
        let _ = wire.get_mut().write_all(agree(&head).as_bytes()).await;
        while matches!(wire.more().await, Ok(1..)) {
            let read = wire.unread().len();
            let bytes = wire.take(read);
            let _ = wire.get_mut().write_all(&[&bytes, REPLY].concat()).await;
        }
    })
    .await;
    let (px, address) = front(plain(LONG), &script.upstream()).await;
    let mut raw = Raw::connect(address).await.unwrap();
    let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    raw.send(head).await.unwrap();
    assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 101);
    for round in 0..3 {
        let bytes = [b"\x03\x85".as_slice(), &[round; 100]].concat();
        raw.send(&bytes).await.unwrap();
        let expected = [&bytes, REPLY].concat();
        assert_eq!(raw.read_exactly(expected.len(), SOON).await.unwrap(), expected);
    }
    terminate(&px).await;
    raw.send("more").await.unwrap();
    assert_eq!(raw.read_exactly(4 + REPLY.len(), SOON).await.unwrap(), [b"more", REPLY].concat());
    px.signal(Signal::TERM);
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    drop(raw);
    ended(&px, "cut", 1).await;
    assert_eq!(px.exit(SOON).await, CLEAN);
}
