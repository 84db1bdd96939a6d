//! Owns ends that are slow: a client that does not read holds up neither the app nor the memory, and what waits for an app
//! that does not read is not lost.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{AT_ONCE, CLEAN, CLOSES, MILLIS, SECONDS, SHORT, agree, ended, in_flight, keep, let_go, open, stage};
use crate::harness::app::AppOptions;
use crate::harness::script::Script;
use crate::harness::stage::{
    alone, front, listener, listeners, most_resident, resident, serving, terminate, websocket,
};
use crate::harness::wait::eventually;
use crate::harness::ws::{
    Answer, Reader, Said, Sessions, Side, WsClient, WsFrame, WsPlan, number_of, numbered, opcode,
};
use crate::harness::{SOON, fresh_seed, heavy};

/// Behind our Close the app's data is read and dropped: it can go on, and comes to see the client's Close.
#[tokio::test]
async fn what_the_app_sends_behind_our_close_is_dropped_and_blocks_nobody() {
    // For megabytes that stand before the Close.
    let stage = stage(CLOSES, "close_timeout: 10s").await;
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

/// Sessions in which nobody speaks keep no buffer, neither of the handshake with the client nor of that with the app.
#[tokio::test(flavor = "multi_thread")]
async fn silent_sessions_cost_little_memory() {
    const COUNT: usize = 1000;
    let _heavy = heavy().await;
    let stage = stage(SHORT, "").await;
    let mut clients = Vec::new();
    // The first ones pay for what they all share.
    for _ in 0..100 {
        clients.push(open(stage.address, "/ws").await);
    }
    let before = resident(&stage.px);
    for _ in 0..COUNT {
        clients.push(open(stage.address, "/ws").await);
    }
    in_flight(&stage.px, clients.len()).await;
    let each = resident(&stage.px).saturating_sub(before) as f64 / COUNT as f64;
    eprintln!("{COUNT} silent sessions: {each:.2} KiB resident each");
    // One buffer would be 8 KiB.
    assert!(each < 8.0, "{each:.2} KiB for a silent session");
}

/// That the app can go on is no progress of a client that takes nothing: its time runs, long before the drain's is over.
#[tokio::test]
async fn small_messages_behind_our_close_do_not_prolong_the_wait_for_its_reader() {
    const COUNT: usize = 5;
    let stuck = Arc::new(AtomicUsize::new(0));
    let count = stuck.clone();
    let script = Script::start(move |_, mut wire| {
        let stuck = count.clone();
        async move {
            let Ok(head) = wire.head().await else { return };
            let _ = wire.get_mut().write_all(agree(&head).as_bytes()).await;
            let (mut input, mut output) = wire.into_parts().0.into_split();
            let frame = WsFrame::new(opcode::TEXT, numbered('p', 0, 200)).encode();
            let pushing = async {
                let mut pause = MILLIS(0);
                loop {
                    let mut write = pin!(output.write_all(&frame));
                    let written = match timeout(MILLIS(300), &mut write).await {
                        Ok(written) => written,
                        Err(_) => {
                            if pause.is_zero() {
                                stuck.fetch_add(1, Ordering::SeqCst);
                            }
                            pause = MILLIS(1);
                            write.await
                        }
                    };
                    if written.is_err() {
                        return;
                    }
                    if !pause.is_zero() {
                        sleep(pause).await;
                    }
                }
            };
            // To the Close that we send in the client's place.
            let mut byte = [0];
            tokio::select! {
                () = pushing => {}
                _ = input.read(&mut byte) => {}
            }
        }
    })
    .await;
    let (_app, options, _dir) = alone(AppOptions::default()).await;
    let lines = listener("web", &options.upstream(), "") + &listener("ws", &script.upstream(), "");
    let (px, web) = serving(listeners(CLOSES, &(lines + "websocket: {close_timeout: 1s}\n"))).await;
    let kept = keep(web).await;
    let address = px.address("ws").await;
    let plan = WsPlan { reads: Some((4096, SECONDS(3600))), ..WsPlan::new("/") };
    let mut clients = Vec::new();
    for number in 0..COUNT {
        clients.push(WsClient::open(address, &plan, &number.to_string()).await.expect("a session"));
    }
    eventually("apps that can't write", SOON * 2, || match stuck.load(Ordering::SeqCst) {
        COUNT => Ok(()),
        count => Err(count),
    })
    .await;
    terminate(&px).await;
    ended(&px, "cut", COUNT).await;
    px.phase_becomes("draining", SOON).await;
    let_go(kept).await;
    let report = px.report_at_exit(SOON).await;
    assert_eq!(
        (&report["outcome"], &report["forced"]),
        (&"forced".into(), &serde_json::json!({"session": COUNT})),
        "{report}"
    );
    drop(clients);
}

/// A client that has answered has done its part: what it said waits for the app, and its Close behind it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_says_behind_our_close_waits_for_an_app_that_does_not_read() {
    let (read, reads) = watch::channel(false);
    let got: Arc<Mutex<HashMap<String, u64>>> = Arc::default();
    let kept = got.clone();
    let script = Script::start(move |_, mut wire| {
        let (mut reads, kept) = (reads.clone(), kept.clone());
        async move {
            let Ok(head) = wire.head().await else { return };
            let _ = wire.get_mut().write_all(agree(&head).as_bytes()).await;
            let _ = reads.wait_for(|reads| *reads).await;
            let mut reader = Reader::new(Side::Client, false);
            let mut count = 0;
            loop {
                match reader.next() {
                    Ok(Some(Said::Message { payload, .. })) if number_of(&payload) == Some(('c', count)) => count += 1,
                    Ok(None) if matches!(wire.more().await, Ok(1..)) => reader.feed(&wire.take(wire.unread().len())),
                    _ => break,
                }
            }
            kept.lock().unwrap().insert(head.get("x-id").unwrap_or_default().to_owned(), count);
        }
    })
    .await;
    let _heavy = heavy().await;
    // The clients need some of it for their own part.
    let config = websocket(AT_ONCE, "close_timeout: 3s").env("EBBTIDE_WORKERS", "1");
    let (px, address) = front(config, &script.upstream()).await;
    let seed = fresh_seed();
    let mut random = Rng::with_seed(seed);
    let mut sessions = JoinSet::new();
    // From what sockets hold to far more.
    for number in 0..12 {
        let count = if number == 0 { 500 } else { random.u64(1..200) };
        let plan = WsPlan { answer: Answer::After(count), size: 20_000, ..WsPlan::new("/") };
        sessions.spawn(Sessions::start(address, &plan, 1).await.ended(SECONDS(18)));
    }
    let silent = WsPlan { answer: Answer::Never, ..WsPlan::new("/") };
    let _witness = Sessions::start(address, &silent, 1).await;
    terminate(&px).await;
    // Told in the same moment: the time in which a Close must come is over.
    ended(&px, "unanswered", 1).await;
    read.send_replace(true);
    for summary in sessions.join_all().await {
        eprintln!("seed {seed}");
        summary.assert_closed(1001);
        let record = &summary.records[0];
        let reached =
            eventually("the end at the app", SOON, || got.lock().unwrap().get(&record.id).copied().ok_or(())).await;
        assert_eq!(reached, record.sent, "{record:?}");
    }
}
