//! Owns what is cut inside TLS: where a `close_notify` would make it look whole, none comes, and a client that reads nothing
//! keeps nobody.

use std::net::Ipv4Addr;
use std::time::Duration;

use rustix::process::Signal;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::closing::{Hand, SHORT, assert_ends_well};
use super::upstream::AppCa;
use super::{BOTH, CLEAN, MILLIS, Site, Stage};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, Flow};
use crate::harness::client::{Ending, Raw};
use crate::harness::stage::{self, DRAINS, LONG, alone, front, listener, listeners, serving, terminate, tls};
use crate::harness::tls::{TlsEnd, alpn};

/// Connections that were cut in the middle of an answer.
const CUT: [Ending; 2] = [Ending::Reset, Ending::Bare];

/// Where the length or the framing shows that an answer is cut, its end is announced all the same.
#[tokio::test]
async fn forced_ends_of_framed_answers_have_a_close_notify() {
    let mut hand = Hand::http(SHORT).await;
    let mut all = Vec::new();
    for versions in BOTH {
        for (begin, what) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf", "a length"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", "chunks"),
        ] {
            let (mut raw, mut asked) = hand.ask(versions, "1.1").await;
            asked.write(begin).await;
            raw.read_until(b"half", SOON).await.unwrap();
            all.push((raw, asked, what));
        }
        let (raw, asked) = hand.ask(versions, "1.1").await;
        all.push((raw, asked, "no answer"));
    }
    terminate(&hand.px).await;
    for (mut raw, asked, what) in all {
        if what == "no answer" {
            let reply = raw.reply("GET", SOON).await.unwrap();
            assert_eq!((reply.status, reply.closes()), (504, 1));
        }
        let (rest, ending) = raw.ending(SOON).await;
        assert_eq!((rest.ends_with(b"0\r\n\r\n"), ending), (false, Ending::Fin), "{what}");
        drop(asked);
    }
    let report = hand.px.report_at_exit(SOON).await;
    assert_eq!(report["forced"], serde_json::json!({"response": 4, "request_unanswered": 2}), "{report}");
}

/// An answer that ends with its connection: the `close_notify` is what tells whole from cut.
#[tokio::test]
async fn only_a_whole_answer_without_a_length_ends_with_a_close_notify() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n";
    let mut hand = Hand::http(LONG).await;
    for versions in BOTH {
        for (whole, rest) in [(true, "0\r\n\r\n"), (false, ""), (false, "4\r\nha")] {
            let (mut raw, mut asked) = hand.ask(versions, "1.0").await;
            asked.write(HEAD).await;
            let head = raw.read_until(b"\r\n\r\n", SOON).await.unwrap();
            let head = String::from_utf8(head).unwrap().to_lowercase();
            assert!(!head.contains("content-length") && !head.contains("chunked"), "{head}");
            raw.read_until(b"half", SOON).await.unwrap();
            asked.write(rest).await;
            drop(asked);
            let (_, ending) = raw.ending(SOON).await;
            if whole {
                assert_eq!(ending, Ending::Fin);
                assert_eq!(raw.socket().tls_ended(SOON).await, TlsEnd::good());
            } else {
                assert!(CUT.contains(&ending) && !raw.socket().tls_ended(SOON).await.close_notify, "{ending:?}");
            }
        }
        // What the app itself ends so is whole.
        let (mut raw, mut asked) = hand.ask(versions, "1.0").await;
        asked.write("HTTP/1.0 200 OK\r\n\r\nold times").await;
        drop(asked);
        raw.read_until(b"old times", SOON).await.unwrap();
        assert_ends_well(&mut raw, "HTTP/1.0 on both sides").await;
    }
    let mut cut = Vec::new();
    for versions in BOTH {
        let (mut raw, mut asked) = hand.ask(versions, "1.0").await;
        asked.write(HEAD).await;
        raw.read_until(b"half", SOON).await.unwrap();
        cut.push((raw, asked));
    }
    hand.hurry().await;
    for (raw, _) in &mut cut {
        let (_, ending) = raw.ending(SOON).await;
        assert!(CUT.contains(&ending) && !raw.socket().tls_ended(SOON).await.close_notify, "{ending:?}");
    }
    assert_eq!(hand.px.report_at_exit(SOON).await["forced"]["response"], 2);
}

/// A client that reads nothing gets no `close_notify` into its full window, and keeps nobody.
#[tokio::test]
async fn a_full_window_keeps_no_process_and_makes_no_cut_answer_look_whole() {
    const BYTES: usize = 50_000_000;
    let stage = Stage::start(AppOptions::default(), LONG).await;
    let mut stalled = Vec::new();
    for versions in BOTH {
        for (request, what) in [
            ("GET /bytes?n=50000000 HTTP/1.1\r\nHost: a\r\n\r\n", "a length"),
            ("GET /bytes?n=50000000&chunked=1 HTTP/1.1\r\nHost: a\r\n\r\n", "chunks"),
            ("GET /bytes?n=50000000&chunked=1 HTTP/1.0\r\n\r\n", "no length"),
        ] {
            let mut raw = Raw::connect(stage.target(versions)).await.unwrap();
            raw.send(request).await.unwrap();
            raw.read_until(b"\r\n\r\n", SOON).await.unwrap();
            stalled.push((raw, what));
        }
    }
    terminate(&stage.px).await;
    stage.px.signal(Signal::TERM);
    let report = stage.px.report_at_exit(SOON).await;
    for (mut raw, what) in stalled {
        let (rest, ending) = raw.ending(SOON).await;
        assert!(rest.len() < BYTES && !rest.ends_with(b"0\r\n\r\n"), "{what}: all of it came");
        assert_ne!(ending, Ending::StillOpen, "{what}");
        if what == "no length" {
            assert!(!raw.socket().tls_ended(SOON).await.close_notify, "{what}: it looks whole");
        }
    }
    let count = |kind: &str| report["forced"][kind].as_u64().unwrap_or(0);
    assert_eq!(count("stalled") + count("response"), 6, "{report}");
}

/// The same in a tunnel, whose end waits behind bytes that nobody takes.
#[tokio::test]
async fn a_full_window_of_a_tcp_connection_keeps_no_process() {
    let stage = Stage::start(AppOptions::default().tcp(Flow::EndFirst { bytes: 30_000_000 }), SHORT).await;
    let mut stalled = Vec::new();
    for versions in BOTH {
        let mut raw = Raw::speaking(stage.target(versions), alpn::NONE).await.unwrap();
        raw.read_exactly(10, SOON).await.unwrap();
        stalled.push(raw);
    }
    terminate(&stage.px).await;
    assert_eq!(stage.px.exit(SOON).await, CLEAN);
    for mut raw in stalled {
        let (rest, ending) = raw.ending(SOON).await;
        assert!(rest.len() < 30_000_000 && ending != Ending::StillOpen);
        assert!(!raw.socket().tls_ended(SOON).await.close_notify, "bytes are missing, and it looks whole");
    }
    assert_eq!(stage.px.report(SOON).await["forced"]["tunnel"], 2);
}

/// Nobody who can tell may take for the whole what the last moment has cut, however well he reads.
#[tokio::test]
async fn a_stream_of_bytes_that_is_cut_looks_whole_to_nobody() {
    let endless = Flow::Bursts { bytes: 64 * 1024, every: Duration::ZERO };
    let stage = Stage::start(AppOptions::default().tcp(endless), SHORT).await;
    let mut reading = JoinSet::new();
    for versions in BOTH {
        let mut raw = Raw::speaking(stage.target(versions), alpn::NONE).await.unwrap();
        raw.read_exactly(10, SOON).await.unwrap();
        reading.spawn(async move { raw.socket().tls_ended(SOON).await });
    }
    terminate(&stage.px).await;
    for end in reading.join_all().await {
        assert_eq!(end, TlsEnd { close_notify: false, ..TlsEnd::good() });
    }
    assert_eq!(stage.px.report_at_exit(SOON).await["forced"], serde_json::json!({"tunnel": 2}));
}

/// The same upwards.
#[tokio::test]
async fn an_upload_that_is_cut_looks_whole_to_no_app() {
    let (site, ca) = (Site::new(), AppCa::new());
    let reads = Flow::ReplyAfterEnd { after: Duration::ZERO, bytes: 10 };
    let (app, options, _dir) = alone(AppOptions::default().tcp(reads).tls(ca.server())).await;
    let to = options.upstream();
    let lines = listener("db", &to, &ca.named()) + &listener("safe", &to, &(tls(&site.secret, "") + &ca.named()));
    let (px, address) = serving(listeners(SHORT, &lines)).await;
    let safe = px.address("safe").await;
    let mut writing = JoinSet::new();
    for target in [address.into(), site.target(BOTH[0], safe), site.target(BOTH[1], safe)] {
        let mut raw = Raw::speaking(target, alpn::NONE).await.unwrap();
        raw.send("begun").await.unwrap();
        writing.spawn(async move {
            while raw.send([b'x'; 64 * 1024]).await.is_ok() {
                tokio::task::yield_now().await;
            }
        });
    }
    app.journal.wait("tls", 3, SOON).await;
    terminate(&px).await;
    let ends = app.journal.wait("tls_end", 3, SOON).await;
    assert!(ends.iter().all(|one| one.get("notify") == "false"), "{ends:?}");
    let received = app.journal.lines("received");
    assert!(received.iter().all(|one| one.get("how") != "fin"), "{received:?}");
    assert_eq!(px.report_at_exit(SOON).await["forced"], serde_json::json!({"tunnel": 3}));
    writing.join_all().await;
}

/// How much the kernel keeps for a reader that stands still.
async fn kernel_room() -> usize {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (_reader, writer) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let writer = writer.unwrap().0;
    let mut room = 0;
    while let Ok(Ok(())) = tokio::time::timeout(MILLIS(100), writer.writable()).await {
        room += writer.try_write(&[0; 16 * 1024]).unwrap_or(0);
    }
    room
}

/// What has been written of an answer and still waits inside ebbtide, before the encryption or behind it, is not forgotten
/// when the drain is over: these answers end on both sides of what the kernel keeps.
#[tokio::test]
async fn the_last_bytes_of_an_answer_are_waited_for() {
    const STEP: usize = 32 * 1024;
    let stage = Stage::start(AppOptions::default(), DRAINS).await;
    let (_app, options, _dir) = alone(AppOptions::default()).await;
    let (plain, address) = front(stage::plain(DRAINS), &options.upstream()).await;
    let room = kernel_room().await;
    let mut raws = Vec::new();
    for step in 0..16 {
        let size = room.saturating_sub(8 * STEP) + step * STEP;
        for target in [stage.target(BOTH[step % 2]), address.into()] {
            let mut raw = Raw::connect(target).await.unwrap();
            raw.send(format!("GET /bytes?n={size} HTTP/1.1\r\nHost: a\r\n\r\n")).await.unwrap();
            raw.read_until(b"\r\n\r\n", SOON).await.unwrap();
            raws.push((raw, size));
        }
    }
    for px in [&stage.px, &plain] {
        terminate(px).await;
        px.phase_becomes("draining", SOON).await;
    }
    // Whoever has the most to come reads first. An ebbtide that forgot the others would be gone soon after.
    let few = raws.split_off(raws.len() - 8);
    let mut short = Vec::new();
    for portion in [few, raws] {
        let mut reading = JoinSet::new();
        for (mut raw, size) in portion {
            reading.spawn(async move {
                let (body, ending) = raw.ending(SOON).await;
                (raw.socket().is_tls(), size, body.len(), ending)
            });
        }
        short.extend(
            reading.join_all().await.into_iter().filter(|(_, size, came, end)| (came, end) != (size, &Ending::Fin)),
        );
        tokio::time::sleep(MILLIS(1500)).await;
    }
    assert!(short.is_empty(), "room for {room}: {short:?}");
    for px in [&stage.px, &plain] {
        let report = px.report_at_exit(SOON).await;
        assert_eq!(report["outcome"], "drained", "{report}");
    }
}
