//! Owns closing handshakes: ours, those of the two ends, those that meet, and those that stay half.

use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use super::{CLEAN, CLOSES, MILLIS, SECONDS, agree, ended, in_flight, keep, let_go, open, stage};
use crate::harness::SOON;
use crate::harness::app::journal::Journal;
use crate::harness::client::Ending;
use crate::harness::script::Script;
use crate::harness::stage::{LONG, front, terminate, websocket};
use crate::harness::wait::eventually;
use crate::harness::ws::{Answer, Close, Over, Said, Sessions, WsFault, WsFrame, WsPlan, WsSummary, opcode};

/// Code and `first` of the Closes that the app has got, in order.
fn closes(journal: &Journal) -> Vec<(String, String)> {
    let all = journal.lines("close");
    let mut closes: Vec<_> = all.iter().map(|one| (one.get("code").to_owned(), one.get("first").to_owned())).collect();
    closes.sort_unstable();
    closes
}

fn close(code: u16, reason: &str) -> Close {
    Close { code, reason: reason.to_owned() }
}

/// What a client still says when it has been told reaches the app, and then its Close.
#[tokio::test]
async fn messages_behind_our_close_reach_the_app() {
    let stage = stage(CLOSES, "").await;
    let _kept = keep(stage.address).await;
    let mut sessions = JoinSet::new();
    for over in [Over::Http1, Over::Http2] {
        let plan = WsPlan { over, answer: Answer::After(50), size: 2000, ..WsPlan::talking(MILLIS(50)) };
        let started = Sessions::start(stage.address, &plan, 10).await;
        started.all_have(1, SOON).await;
        sessions.spawn(started.ended(SOON));
    }
    terminate(&stage.px).await;
    while let Some(summary) = sessions.join_next().await {
        let summary = summary.unwrap();
        summary.assert_closed(1001);
        summary.seen_by(&stage.app.journal).await;
        summary.assert_none_lost(&stage.app.journal);
        assert!(summary.records.iter().all(|one| one.sent > 50 && one.sent - one.echoed >= 50));
    }
    ended(&stage.px, "closed_by_notice", 20).await;
    assert_eq!(closes(&stage.app.journal), vec![("1001".to_owned(), "client".to_owned()); 20]);
    assert_eq!(stage.app.journal.count("violation"), 0);
}

/// The app gets a Close from us, masked, where the client sends none.
#[tokio::test]
async fn a_client_that_never_answers_is_left_after_the_timeout() {
    let stage = stage(CLOSES, "close_timeout: 500ms").await;
    let kept = keep(stage.address).await;
    let mut sessions = JoinSet::new();
    for over in [Over::Http1, Over::Http2] {
        let plan = WsPlan { over, answer: Answer::Never, ..WsPlan::new("/ws") };
        sessions.spawn(Sessions::start(stage.address, &plan, 5).await.ended(SOON));
    }
    terminate(&stage.px).await;
    while let Some(summary) = sessions.join_next().await {
        let summary = summary.unwrap();
        assert_eq!((summary.codes(), summary.endings()), ([(1001, 5)].into(), [(Ending::Fin, 5)].into()));
        assert_eq!(summary.faults(), [].into());
    }
    ended(&stage.px, "unanswered", 10).await;
    assert_eq!(closes(&stage.app.journal), vec![("1001".to_owned(), "client".to_owned()); 10]);
    assert_eq!(stage.app.journal.count("violation"), 0);
    let_go(kept).await;
    assert_eq!(stage.px.exit(SECONDS(20)).await, CLEAN);
    let report = stage.px.report(SOON).await;
    assert_eq!((&report["outcome"], &report["forced"]["session"]), (&"forced".into(), &10.into()), "{report}");
}

/// Whose time is up while his answer is awaited has not answered.
#[tokio::test]
async fn an_answer_that_the_budget_cuts_off_is_none() {
    let stage = stage(LONG, "close_timeout: 20s").await;
    let plan = WsPlan { answer: Answer::Never, ..WsPlan::new("/ws") };
    let sessions = Sessions::start(stage.address, &plan, 3).await;
    terminate(&stage.px).await;
    stage.px.signal(Signal::TERM);
    let summary = sessions.ended(SOON).await;
    assert_eq!((summary.codes(), summary.endings()), ([(1001, 3)].into(), [(Ending::Fin, 3)].into()));
    assert_eq!(stage.px.exit(SOON).await, CLEAN);
    let report = stage.px.report(SOON).await;
    assert_eq!((&report["outcome"], &report["forced"]["session"]), (&"forced".into(), &3.into()), "{report}");
}

#[tokio::test]
async fn a_client_that_hangs_up_instead_of_answering_is_gone() {
    let stage = stage(CLOSES, "close_timeout: 20s").await;
    let _kept = keep(stage.address).await;
    let mut clients = Vec::new();
    for path in ["/ws", "/ws", "/ws?push_ms=1"] {
        clients.push(open(stage.address, path).await);
    }
    terminate(&stage.px).await;
    for mut client in clients {
        while !matches!(client.next().await.unwrap(), Said::Close(_)) {}
    }
    ended(&stage.px, "client_gone", 3).await;
    stage.app.journal.wait("over", 3, SOON).await;
    in_flight(&stage.px, 0).await;
}

/// Nothing was asked of it: the app is not to blame for an end that it has only followed.
#[tokio::test]
async fn a_client_that_just_goes_is_gone() {
    let stage = stage(LONG, "").await;
    for count in 1..=3 {
        let client = open(stage.address, "/ws").await;
        in_flight(&stage.px, 1).await;
        drop(client);
        ended(&stage.px, "client_gone", count).await;
        in_flight(&stage.px, 0).await;
    }
    assert_eq!(stage.px.metrics().await.sum("ebbtide_websocket_sessions_total", &[]), 3.0);
}

/// The client is done at once; the app has the time of the timeout for its own end.
#[tokio::test]
async fn an_app_that_ignores_the_close_is_left_after_the_timeout() {
    let stage = stage(CLOSES, "close_timeout: 500ms").await;
    let kept = keep(stage.address).await;
    let sessions = Sessions::start(stage.address, &WsPlan::new("/ws?ignore_close=1&push_ms=20"), 10).await;
    sessions.all_have(2, SOON).await;
    terminate(&stage.px).await;
    sessions.ended(SOON).await.assert_closed(1001);
    ended(&stage.px, "closed_by_notice", 10).await;
    in_flight(&stage.px, 0).await;
    assert_eq!(closes(&stage.app.journal), vec![("1001".to_owned(), "client".to_owned()); 10]);
    let_go(kept).await;
    assert_eq!(stage.px.exit(SECONDS(20)).await, CLEAN);
    assert_eq!(stage.px.report(SOON).await["outcome"], "drained");
}

/// Whoever of the two begins, before a termination and in its hold: code and reason arrive as they are.
#[tokio::test]
async fn handshakes_of_the_two_ends_pass_unchanged() {
    let stage = stage(LONG, "").await;
    for round in 0..2 {
        let mut told = open(stage.address, "/ws?after=1&then=close&code=4001&reason=bye").await;
        told.send(WsFrame::new(opcode::TEXT, b"now".to_vec())).await.unwrap();
        assert!(matches!(told.next().await.unwrap(), Said::Message { .. }));
        assert_eq!(told.next().await.unwrap(), Said::Close(close(4001, "bye")));
        told.send(WsFrame::close(4001, "same")).await.unwrap();
        assert_eq!(told.ended(SOON).await, WsFault::Ended(Ending::Fin));
        let mut telling = open(stage.address, "/ws").await;
        telling.send(WsFrame::close(4002, "so long")).await.unwrap();
        assert_eq!(telling.next().await.unwrap(), Said::Close(close(4002, "")));
        assert_eq!(telling.ended(SOON).await, WsFault::Ended(Ending::Fin));
        ended(&stage.px, "closed", 2 * round + 2).await;
        let line = stage.app.journal.wait("close", 2 * round + 2, SOON).await.pop().unwrap();
        assert_eq!((line.get("code"), line.get("reason"), line.get("first")), ("4002", "so_long", "client"));
        if round == 0 {
            terminate(&stage.px).await;
        }
    }
    assert!(closes(&stage.app.journal).contains(&("4001".to_owned(), "app".to_owned())));
    assert_eq!(stage.px.metrics().await.sum("ebbtide_notices_total", &[("kind", "websocket_close")]), 0.0);
}

/// A handshake that the app begins at any moment of our window: its own code or ours, never both.
#[tokio::test]
async fn a_close_of_the_app_and_ours_may_meet() {
    let stage = stage(CLOSES, "").await;
    let _kept = keep(stage.address).await;
    let mut started = JoinSet::new();
    // From long before our window to long behind it, so that it lies between them on any machine.
    for after in 0..100 {
        let plan = WsPlan::new(&format!("/ws?after_ms={}&then=close&code=4001&reason=bye", 40 * after));
        let address = stage.address;
        started.spawn(async move { Sessions::start(address, &plan, 3).await });
    }
    let started = started.join_all().await;
    terminate(&stage.px).await;
    let mut summary = WsSummary { records: Vec::new() };
    for sessions in started {
        summary.records.extend(sessions.ended(SOON).await.records);
    }
    assert!(summary.records.iter().all(|one| one.is_complete()), "{:?} {:?}", summary.faults(), summary.endings());
    let (apps, ours) = (summary.codes().remove(&4001).unwrap_or(0), summary.codes().remove(&1001).unwrap_or(0));
    assert!(apps > 0 && ours > 0 && apps + ours == 300, "{:?}", summary.codes());
    let told = summary.records.iter().filter_map(|one| one.close.as_ref()).filter(|(_, one)| one.code == 4001);
    assert!(told.clone().all(|(_, one)| one.reason == "bye") && told.count() == apps);
    let journal = stage.app.journal.wait("over", 300, SOON).await;
    assert!(journal.iter().all(|one| one.get("how") == "fin"), "{journal:?}");
    ended(&stage.px, "closed", apps).await;
    ended(&stage.px, "closed_by_notice", ours).await;
    assert_eq!(stage.app.journal.count("violation"), 0);
}

/// The same with handshakes that clients begin.
#[tokio::test]
async fn a_close_of_the_client_and_ours_may_meet() {
    // Wide enough for some to be left when the first have been told, however late that is seen.
    let drain = "grace_period: 20s, hold: 300ms, close: 1s, close_spread: 4s, quiet: 300ms, margin: 500ms";
    let stage = stage(drain, "").await;
    let _kept = keep(stage.address).await;
    let sessions = Sessions::start(stage.address, &WsPlan::talking(MILLIS(100)), 100).await;
    sessions.all_have(1, SOON).await;
    terminate(&stage.px).await;
    eventually("the first Closes", SOON, || if sessions.open() < 80 { Ok(()) } else { Err(sessions.open()) }).await;
    sessions.close(3001);
    let summary = sessions.ended(SOON).await;
    assert!(summary.records.iter().all(|one| one.is_complete()), "{:?} {:?}", summary.faults(), summary.endings());
    summary.seen_by(&stage.app.journal).await;
    summary.assert_none_lost(&stage.app.journal);
    assert!(summary.codes().keys().all(|code| [1001, 3001].contains(code)), "{:?}", summary.codes());
    let began = summary.records.iter().filter(|one| one.close_sent == Some(3001)).count();
    assert!(0 < began && began < 100, "{:?}", summary.codes());
    stage.app.journal.wait("over", 100, SOON).await;
    let closes = closes(&stage.app.journal);
    assert_eq!(closes.iter().filter(|(code, _)| code == "3001").count(), began, "a code was changed: {closes:?}");
    assert_eq!((closes.len(), stage.app.journal.count("violation")), (100, 0));
}

/// Half of the app's Close is on its way when ours is due: it is the only one, unchanged.
#[tokio::test]
async fn no_close_follows_the_other_half_of_the_apps() {
    let (finish, finished) = tokio::sync::watch::channel(false);
    let script = Script::start(move |_, mut wire| {
        let mut finished = finished.clone();
        async move {
            let Ok(head) = wire.head().await else { return };
            let close = WsFrame::close(4003, "in two parts").encode();
            let first = [agree(&head).as_bytes(), &close[..7]].concat();
            if wire.get_mut().write_all(&first).await.is_err() {
                return;
            }
            let _ = finished.wait_for(|finished| *finished).await;
            let _ = wire.get_mut().write_all(&close[7..]).await;
            while matches!(wire.more().await, Ok(1..)) {}
        }
    })
    .await;
    let (px, address) = front(websocket(CLOSES, ""), &script.upstream()).await;
    let mut client = open(address, "/").await;
    terminate(&px).await;
    px.phase_becomes("draining", SOON).await;
    let window = tokio::time::timeout(SECONDS(1), client.next()).await;
    assert!(window.is_err(), "half a frame can't be told: {window:?}");
    finish.send_replace(true);
    assert_eq!(client.next().await.unwrap(), Said::Close(close(4003, "in two parts")));
    client.send(WsFrame::close(4003, "")).await.unwrap();
    assert_eq!(client.ended(SOON).await, WsFault::Ended(Ending::Fin));
    assert_eq!(px.exit(SOON).await, CLEAN);
    let report = px.report(SOON).await;
    assert_eq!((&report["outcome"], &report["notices"]), (&"drained".into(), &serde_json::json!({})), "{report}");
}
