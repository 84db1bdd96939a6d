//! Owns opaque upgrades: raw bytes only after a real 101, both ways, half-closed, refused, and at the end of the pod.

use std::time::Duration;

use rustix::process::Signal;
use tokio::io::AsyncWriteExt;

use super::stage::{DRAINS, LONG, Script, Stage, TOLD, front, pause, plain, terminate};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::{Ending, Raw};
use crate::harness::process::Exit;
use crate::harness::wait::Mono;

fn upgrade(path: &str, protocol: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: {protocol}\r\n\r\n")
}

/// An open tunnel to the toy's echo.
async fn tunnel(stage: &Stage) -> Raw {
    let mut raw = stage.raw().await;
    raw.send(upgrade("/upgrade", "toy")).await.unwrap();
    assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 101);
    raw.send("open").await.unwrap();
    assert_eq!(raw.read_exactly(4, SOON).await.unwrap(), b"open");
    raw
}

/// C100: bytes right behind the request and right behind the 101 pass, in order, for any protocol.
#[tokio::test]
async fn early_bytes_pass_in_both_directions() {
    let stage = Stage::simple().await;
    for protocol in ["toy", "websocket", "TLS/1.0, IRC/6.9"] {
        let mut raw = stage.raw().await;
        raw.send([&upgrade("/upgrade", protocol), "early"].concat()).await.unwrap();
        let reply = raw.reply("GET", SOON).await.unwrap();
        assert_eq!((reply.status, reply.head.get("upgrade")), (101, Some(protocol)), "{}", reply.head.text);
        assert!(reply.head.has_token("connection", "upgrade") && reply.closes() == 0);
        raw.send("late").await.unwrap();
        assert_eq!(raw.read_exactly(9, SOON).await.unwrap(), b"earlylate");
        let large = vec![b'z'; 300_000];
        raw.send(&large).await.unwrap();
        assert_eq!(raw.read_exactly(large.len(), SOON).await.unwrap(), large);
        raw.half_close().await.unwrap();
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    }
    let script = Script::start(|_, mut wire| async move {
        if wire.head().await.is_ok() {
            let text = b"HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: toy\r\n\r\nserver speaks first";
            let _ = wire.get_mut().write_all(text).await;
            while matches!(wire.more().await, Ok(n) if n > 0) {}
        }
    })
    .await;
    let (_px, address) = front(plain(LONG), &script.upstream()).await;
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send(upgrade("/", "toy")).await.unwrap();
    assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 101);
    assert_eq!(raw.read_exactly(19, SOON).await.unwrap(), b"server speaks first");
}

/// Each direction ends with its own FIN; the other one goes on.
#[tokio::test]
async fn each_direction_ends_by_itself() {
    let script = Script::start(|_, mut wire| async move {
        let Ok(head) = wire.head().await else { return };
        let text = b"HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: toy\r\n\r\n";
        let _ = wire.get_mut().write_all(text).await;
        if head.start.contains("app-first") {
            let _ = wire.get_mut().shutdown().await;
        }
        // To the client's end, then the sum of it.
        while matches!(wire.more().await, Ok(n) if n > 0) {}
        let got = String::from_utf8_lossy(wire.unread()).into_owned();
        if !head.start.contains("app-first") {
            pause(200).await;
            let _ = wire.get_mut().write_all(format!("got {got}").as_bytes()).await;
        } else if got != "after your end" {
            // A reset tells the client that something was lost.
            let _ = wire.get_mut().set_zero_linger();
        }
    })
    .await;
    let (px, address) = front(plain(LONG), &script.upstream()).await;
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send(upgrade("/client-first", "toy")).await.unwrap();
    assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 101);
    raw.send("all").await.unwrap();
    raw.half_close().await.unwrap();
    assert_eq!(raw.ending(SOON).await, (b"got all".to_vec(), Ending::Fin));

    let mut raw = Raw::connect(address).await.unwrap();
    raw.send(upgrade("/app-first", "toy")).await.unwrap();
    assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 101);
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin), "the app's end is passed on");
    raw.send("after your end").await.unwrap();
    raw.half_close().await.unwrap();
    px.metric_becomes("ebbtide_in_flight", &[], SOON, |count| count == 0.0).await;
    assert_eq!(raw.ending(SOON).await.1, Ending::Fin);
}

/// C100: a refusal passes like any response; what follows is HTTP again, never raw.
#[tokio::test]
async fn a_refused_upgrade_leaves_http_behind() {
    let stage = Stage::simple().await;
    let mut raw = stage.raw().await;
    for _ in 0..3 {
        let second = "POST /echo HTTP/1.1\r\nHost: a\r\nx-id: second\r\nContent-Length: 2\r\n\r\nhi";
        raw.send([&upgrade("/upgrade?refuse=1", "toy"), second].concat()).await.unwrap();
        let reply = raw.reply("GET", SOON).await.unwrap();
        assert_eq!((reply.status, reply.text().as_str(), reply.closes()), (403, "no\n", 0));
        let reply = raw.reply("POST", SOON).await.unwrap();
        assert_eq!((reply.status, reply.body.as_slice()), (200, b"hi".as_slice()));
    }
    assert_eq!(stage.seen(), 6);
    stage.px.metric_becomes("ebbtide_in_flight", &[], SOON, |count| count == 0.0).await;
}

/// C100: no tunnel by CONNECT, by h2c, in HTTP/1.0, or by an `Upgrade` that `Connection` does not name.
#[tokio::test]
async fn nothing_else_opens_a_tunnel() {
    let stage = Stage::simple().await;
    let mut raw = stage.raw().await;
    raw.send("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let reply = raw.reply("GET", SOON).await.unwrap();
    assert_eq!((reply.status, reply.closes()), (405, 1));
    assert!(reply.head.get("allow").is_some());
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    for head in [
        "GET /headers HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
        "GET /headers HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: H2C\r\n\r\n",
        "GET /headers HTTP/1.1\r\nHost: a\r\nUpgrade: toy\r\n\r\n",
        "GET /headers HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: toy\r\n\r\n",
    ] {
        let mut raw = stage.raw().await;
        raw.send(head).await.unwrap();
        let reply = raw.reply("GET", SOON).await.unwrap();
        let seen = reply.text().to_lowercase();
        assert_eq!(reply.status, 200, "{head:?}");
        assert!(!seen.contains("upgrade") && !seen.contains("http2-settings"), "{head:?}: {seen}");
    }
    assert!(!stage.app.journal.text().contains("smuggled"));
}

/// C68, C67: a 101 that comes after t0 is untouched, and a new upgrade during the hold is served.
#[tokio::test]
async fn an_upgrade_across_t0_is_untouched() {
    let stage = Stage::start(AppOptions::default(), plain(TOLD)).await;
    let mut raw = stage.raw().await;
    raw.send(upgrade("/upgrade?ms=1500", "websocket")).await.unwrap();
    stage.app.journal.wait("req", 1, SOON).await;
    stage.terminate().await;
    pause(400).await;
    let mut during = tunnel(&stage).await;
    let reply = raw.reply("GET", SOON).await.unwrap();
    assert_eq!((reply.status, reply.closes()), (101, 0), "{}", reply.head.text);
    assert!(reply.head.has_token("connection", "upgrade"));
    for raw in [&mut raw, &mut during] {
        raw.send("echo").await.unwrap();
        assert_eq!(raw.read_exactly(4, SOON).await.unwrap(), b"echo");
    }
}

/// C67, §4: while Draining new upgrades get 503; tunnels hold the drain until shortly before its deadline, then FIN.
#[tokio::test]
async fn tunnels_hold_the_drain_until_its_deadline_and_end_with_fin() {
    let drain = "grace_period: 8s, hold: 300ms, close: 500ms, close_spread: 1s, quiet: 300ms, margin: 500ms";
    let stage = Stage::start(AppOptions::default(), plain(drain)).await;
    let mut tunnels = Vec::new();
    for _ in 0..10 {
        tunnels.push(tunnel(&stage).await);
    }
    assert_eq!(stage.px.metrics().await.sum("ebbtide_in_flight", &[("kind", "tunnel")]), 10.0);
    stage.terminate().await;
    let t0 = Mono::now();
    stage.px.phase_becomes("draining", SOON).await;
    let mut raw = stage.raw().await;
    raw.send(upgrade("/upgrade", "toy")).await.unwrap();
    let reply = raw.reply("GET", SOON).await.unwrap();
    assert_eq!((reply.status, reply.closes(), reply.head.get("retry-after").is_some()), (503, 1, true));
    assert_eq!(raw.ending(SOON).await.1, Ending::Fin);
    for raw in &mut tunnels {
        raw.send("still").await.unwrap();
        assert_eq!(raw.read_exactly(5, SOON).await.unwrap(), b"still");
    }
    let mut ends = Vec::new();
    for mut raw in tunnels {
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
        ends.push(t0.elapsed());
    }
    // The deadline is at 7.0 s, the last close_spread begins at 6.0 s.
    assert!(ends[0] > Duration::from_secs(5), "{ends:?}");
    assert_eq!(stage.px.exit(Duration::from_secs(4)).await, Exit::Code(0));
    let report = stage.px.report(SOON).await;
    assert_eq!(report["notices"]["tunnel_close"], 10, "{report}");
    assert_eq!(report["outcome"], "drained", "{report}");
}

/// §4: a tunnel in which bytes move all the time is not closed between two of them.
#[tokio::test]
async fn a_busy_tunnel_is_closed_at_a_quiet_moment() {
    let drain = "grace_period: 9s, hold: 200ms, close: 1s, close_spread: 2s, quiet: 300ms, margin: 500ms";
    let stage = Stage::start(AppOptions::default(), plain(drain)).await;
    let mut tunnels = Vec::new();
    for _ in 0..6 {
        tunnels.push((tunnel(&stage).await, Mono::now()));
    }
    stage.terminate().await;
    let t0 = Mono::now();
    // Round trips without a pause until 6.5 s, in the middle of the window; then silence.
    while t0.elapsed() < Duration::from_millis(6500) {
        let mut open = Vec::new();
        for (mut raw, last) in tunnels {
            let beat =
                raw.send("beat").await.is_ok() && raw.read_exactly(4, SOON).await.is_ok_and(|got| got == b"beat");
            // A busy machine can make a pause of its own; that is a quiet moment like any other.
            let pause = last.elapsed();
            assert!(beat || pause >= Duration::from_millis(50), "closed {pause:?} after its last byte");
            if beat {
                open.push((raw, Mono::now()));
            }
        }
        tunnels = open;
        pause(5).await;
    }
    for (mut raw, _) in tunnels {
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    }
    assert_eq!(stage.px.exit(SOON).await, Exit::Code(0));
}

/// §2 row 7: a second signal ends tunnels at once, with FIN.
#[tokio::test]
async fn a_second_signal_ends_tunnels() {
    let stage = Stage::start(AppOptions::default(), plain(LONG)).await;
    let mut raw = tunnel(&stage).await;
    stage.terminate().await;
    stage.px.signal(Signal::TERM);
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    assert_eq!(stage.px.exit(SOON).await, Exit::Code(0));
}

/// A tunnel that ends by itself lets the drain end early.
#[tokio::test]
async fn the_last_tunnels_end_is_the_drains_end() {
    let stage = Stage::start(AppOptions::default(), plain(DRAINS)).await;
    let mut raw = tunnel(&stage).await;
    terminate(&stage.px).await;
    stage.px.phase_becomes("draining", SOON).await;
    pause(1000).await;
    assert!(stage.px.process.is_running(), "a tunnel is in flight");
    raw.half_close().await.unwrap();
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    assert_eq!(stage.px.exit(Duration::from_secs(5)).await, Exit::Code(0));
}
