//! Owns the end of connections that ebbtide closes first: no reset, no lost answer, spread, and in time.

use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::stage::{DRAINS, GET, LONG, Stage, pause, plain, resident};
use crate::harness::app::AppOptions;
use crate::harness::client::{Ending, Failure, IdleHolder, Raw, Request, send};
use crate::harness::process::Exit;
use crate::harness::wait::{Mono, within};
use crate::harness::{SOON, heavy, raise_open_files};

/// C40: what queued up in the kernel while ebbtide could not accept gets an answer, also past the hold.
#[tokio::test]
async fn connections_that_queued_past_the_hold_are_all_answered() {
    const CONNECTIONS: usize = 100;
    let stage = Stage::start(AppOptions::default(), plain(DRAINS)).await;
    stage.terminate().await;
    let t0 = Mono::now();
    stage.px.process.stop().await;
    let mut raws = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut raw = stage.raw().await;
        raw.send(GET).await.unwrap();
        raws.push(raw);
    }
    (t0 + Duration::from_millis(800)).reached().await;
    stage.px.signal(Signal::CONT);
    for mut raw in raws {
        let reply = raw.reply("GET", SOON).await.expect("an HTTP answer");
        assert!(matches!(reply.status, 200 | 503) && reply.closes() == 1, "{}", reply.head.text);
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    }
}

/// C40: up to the very end a connection is either refused or answered.
#[tokio::test]
async fn until_the_process_ends_no_accepted_request_is_reset() {
    let stage = Stage::start(AppOptions::default(), plain("grace_period: 4s, hold: 300ms, quiet: 100ms")).await;
    stage.terminate().await;
    let mut requests = JoinSet::new();
    let t0 = Mono::now();
    // Arrivals go on, so the drain lasts to its deadline: the last ones meet Draining, Closing and the exit.
    while t0.elapsed() < SOON {
        match Raw::connect(stage.address).await {
            Ok(mut raw) => requests.spawn(async move {
                // A socket that is accepted here may belong to a process that is just leaving: no write, no read fails.
                let sent = raw.send(GET).await;
                let reply = raw.reply("GET", SOON).await.map(|reply| (reply.status, reply.closes()));
                (sent, reply)
            }),
            Err(Failure::Refused) => break,
            Err(other) => panic!("{other:?}"),
        };
        pause(3).await;
    }
    assert_eq!(stage.px.exit(SOON).await, Exit::Code(0));
    let results = requests.join_all().await;
    let (mut served, mut refused) = (0, 0);
    let count = results.len();
    for (number, result) in results.into_iter().enumerate() {
        match result {
            (Ok(()), Ok((200, closes))) if closes <= 1 => served += 1,
            (Ok(()), Ok((503, 1))) => refused += 1,
            other => panic!("{number} of {count}: {other:?}"),
        }
    }
    assert!(served > 0, "{served} served, {refused} refused");
}

/// C42: silent connections stay usable during the hold; half-sent heads get a 408 when the spread is over.
#[tokio::test]
async fn silent_and_half_spoken_connections_do_not_hold_the_drain() {
    let drain = "grace_period: 20s, hold: 3s, close: 1s, close_spread: 1s, quiet: 300ms, margin: 500ms";
    let stage = Stage::start(AppOptions::default(), plain(drain)).await;
    let silent = IdleHolder::open(stage.address, 20, None).await;
    let mut speakers = Vec::new();
    let mut stalled = Vec::new();
    for text in ["G", "GET / HT", "P", "PRI * HTTP/2.0\r\n\r\nSM", "GET / HTTP/1.1\r\nHost: a\r\n"] {
        speakers.push(stage.raw().await);
        let mut raw = stage.raw().await;
        raw.send(text).await.unwrap();
        stalled.push((raw, text));
        if text.starts_with("PRI") {
            // Not a head of HTTP/1, so only at a connection's beginning worth waiting for.
            continue;
        }
        // A second head, on a connection that has already served one.
        let mut raw = stage.raw().await;
        raw.send([GET, text].concat()).await.unwrap();
        assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 200);
        stalled.push((raw, text));
    }
    stage.terminate().await;
    let t0 = Mono::now();
    (t0 + Duration::from_secs(2)).reached().await;
    for mut raw in speakers {
        raw.send(GET).await.unwrap();
        let reply = raw.reply("GET", SOON).await.expect("served to the end of the hold");
        assert!(reply.status == 200 && reply.closes() <= 1, "{}", reply.head.text);
    }
    for (mut raw, text) in stalled {
        let reply = raw.reply("GET", SOON).await.unwrap_or_else(|why| panic!("{text:?}: {why:?}"));
        assert_eq!((reply.status, reply.closes()), (408, 1), "{text:?}");
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin), "{text:?}");
    }
    assert!(silent.all_closed(SOON).await.iter().all(|one| one.ending == Ending::Fin && one.bytes == 0));
    assert_eq!(stage.px.exit(SOON).await, Exit::Code(0));
    let report = stage.px.report(SOON).await;
    assert_eq!(report["forced"]["request_head"], 9, "{report}");
}

/// C44, C22: thousands of idle keep-alive connections: little memory each, closed spread out, no reset, exit in time.
#[tokio::test]
async fn thousands_of_idle_connections_are_cheap_and_closed_spread_out() {
    let _heavy = heavy().await;
    // 10,000, or what ebbtide allows itself where there are few descriptors.
    let count = usize::try_from((raise_open_files() - 256) * 2 / 3).map_or(10_000, |most| (most - 50).min(10_000));
    let drain = "grace_period: 30s, hold: 500ms, close: 1s, close_spread: 4s, quiet: 300ms, margin: 1s";
    let stage = Stage::start(AppOptions::default(), plain(drain)).await;
    stage.used().await;
    let baseline = resident(&stage.px);
    let mut holders = Vec::new();
    // In portions: what counts is a connection that is idle, not one that is just being used.
    for portion in [1000; 10] {
        let portion = portion.min(count.saturating_sub(holders.len() * 1000));
        holders.push(IdleHolder::open(stage.address, portion, Some(Request::get("/"))).await);
        // Buffers go back after a short silence.
        pause(500).await;
    }
    let each = (resident(&stage.px).saturating_sub(baseline)) as f64 / count as f64;
    eprintln!("{count} idle keep-alive connections: {each:.2} KiB resident each (baseline {baseline} KiB)");
    assert_eq!(
        holders.iter().map(IdleHolder::open_count).sum::<usize>(),
        count,
        "idle connections are not closed before t0"
    );
    // 1.5 KiB live for each, the rest is what the allocator keeps of the buffers that a portion had in use at once. One
    // that is still held takes 4 KiB more.
    assert!(each < 6.0, "{each:.2} KiB for an idle connection");

    stage.terminate().await;
    let mut closed = Vec::new();
    for idle in &holders {
        closed.extend(idle.all_closed(Duration::from_secs(15)).await);
    }
    closed.sort_by_key(|one| one.at);
    let resets = closed.iter().filter(|one| one.ending != Ending::Fin).count();
    assert_eq!(resets, 0, "connections that did not end with FIN");
    let spread = closed.last().expect("many").at.since(closed.first().expect("many").at);
    assert!(spread > Duration::from_secs(3), "all closed within {spread:?}");
    // A busy machine bunches what it sees; a burst of all at once would be 40 times the mean.
    let mean = count as f64 / 40.0;
    let slice = Duration::from_millis(100);
    let width = |from: usize| closed[from..].partition_point(|one| one.at.since(closed[from].at) < slice);
    let densest = (0..count).map(width).max().unwrap_or(0) as f64;
    eprintln!("closes in 100 ms: mean {mean}, densest {densest}");
    assert!(densest < mean * 16.0, "{densest} closes in one slice of 100 ms, {mean} on average");
    assert_eq!(stage.px.exit(SOON).await, Exit::Code(0));
}

/// An ebbtide that has drained and stays for the app: every request is refused.
async fn lingering() -> Stage {
    let config = plain("grace_period: 30s, hold: 200ms, close: 1s, close_spread: 200ms, quiet: 100ms");
    let stage = Stage::start(AppOptions::default(), config.env("EBBTIDE_MODE", "sidecar")).await;
    assert!(stage.px.drain().await.status.success());
    stage.px.phase_becomes("lingering", SOON).await;
    stage
}

/// C46: an upload that is refused early still gets to read its 503, however slowly it writes first.
#[tokio::test]
async fn an_upload_that_is_refused_reads_its_503() {
    let stage = lingering().await;
    let mut uploads = JoinSet::new();
    for number in 0..40 {
        let address = stage.address;
        uploads.spawn(async move {
            let length = 4_000_000;
            let mut stream = TcpStream::connect(address).await.expect("accepted");
            let framing = if number % 2 == 0 {
                format!("Content-Length: {length}")
            } else {
                "Transfer-Encoding: chunked".to_owned()
            };
            let head = format!("POST /echo HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.expect("the head is taken");
            let chunk = [b"4000\r\n".as_slice(), &[b'x'; 0x4000], b"\r\n"].concat();
            for piece in 0..length / 0x4000 {
                if number % 4 == 0 && piece % 40 == 0 {
                    pause(20).await;
                }
                // A write may fail once the linger's bound is passed, never what is read.
                stream.write_all(&chunk).await.unwrap_or_else(|why| panic!("upload {number}, piece {piece}: {why}"));
            }
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap_or_else(|why| panic!("upload {number}: {why}"));
            String::from_utf8_lossy(&answer).into_owned()
        });
    }
    let answers = within("all uploads", Duration::from_secs(30), uploads.join_all()).await;
    for answer in answers {
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("connection: close"), "{answer}");
        assert!(answer.to_lowercase().contains("retry-after:"), "{answer}");
    }
    assert_eq!(stage.app.journal.lines("req").len(), 0, "nothing is forwarded any more");
    // Counted when the reading away is over, which the client does not wait for.
    stage.px.metric_becomes("ebbtide_late_bytes_total", &[], SOON, |bytes| bytes > 0.0).await;
}

/// C46: a client that never stops sending is read away for a bounded time, and does not keep the process.
#[tokio::test]
async fn a_client_that_never_stops_sending_does_not_keep_the_process() {
    let stage = lingering().await;
    let stream = TcpStream::connect(stage.address).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    writer.write_all(b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").await.unwrap();
    let endless = tokio::spawn(async move {
        while writer.write_all(b"1\r\nx\r\n").await.is_ok() {
            pause(5).await
        }
    });
    let mut answer = Vec::new();
    let read = async {
        let mut buffer = [0; 4096];
        loop {
            match reader.read(&mut buffer).await {
                Ok(n) if n > 0 => answer.extend_from_slice(&buffer[..n]),
                _ => break,
            }
        }
    };
    within("the 503 and FIN", SOON, read).await;
    assert!(answer.starts_with(b"HTTP/1.1 503 "), "{}", String::from_utf8_lossy(&answer));
    pause(500).await;
    assert!(!endless.is_finished(), "read away for a while");
    stage.px.signal(Signal::TERM);
    assert_eq!(stage.px.exit(Duration::from_secs(4)).await, Exit::Code(0));
    within("the end of the upload", SOON, endless).await.unwrap();
}

/// C46: the linger's own bound, without any end of the process.
#[tokio::test]
async fn lingering_ends_by_itself_when_the_client_does_not() {
    let stage = lingering().await;
    let mut raw = stage.raw().await;
    raw.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nx").await.unwrap();
    assert_eq!(raw.reply("POST", SOON).await.unwrap().status, 503);
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    let bound = Duration::from_secs(15);
    stage.px.metric_becomes("ebbtide_connections", &[], bound, |open| open == 0.0).await;
    stage.assert_no_panic();
}

/// §3: a connection that comes after the drain and says nothing is let go as well.
#[tokio::test]
async fn a_silent_connection_after_the_drain_is_closed_soon() {
    let stage = lingering().await;
    let late = IdleHolder::open(stage.address, 5, None).await;
    let mut speaker = stage.raw().await;
    speaker.send(GET).await.unwrap();
    let reply = speaker.reply("GET", SOON).await.unwrap();
    assert_eq!((reply.status, reply.closes(), reply.head.get("retry-after").is_some()), (503, 1, true));
    assert!(late.all_closed(SOON).await.iter().all(|one| one.ending == Ending::Fin));
}

/// §2 row 7: a second signal closes idle connections at once, and the process ends with the last answer.
#[tokio::test]
async fn a_second_signal_closes_idle_connections_at_once() {
    let stage = Stage::start(AppOptions::default(), plain(LONG)).await;
    let idle = IdleHolder::open(stage.address, 100, Some(Request::get("/"))).await;
    stage.terminate().await;
    stage.px.signal(Signal::TERM);
    assert!(idle.all_closed(SOON).await.iter().all(|one| one.ending == Ending::Fin && one.bytes == 0));
    assert_eq!(stage.px.exit(SOON).await, Exit::Code(0));
}

/// §6: a 503 would end an `EventSource` for good, so it is told to come back instead.
#[tokio::test]
async fn an_event_source_is_told_to_come_back() {
    let stage = lingering().await;
    let events = Request::get("/chunks?sse=1").header("Accept", "text/event-stream");
    let reply = send(stage.address, &events, SOON).await.expect("an answer");
    assert_eq!((reply.status, reply.closes()), (200, 1));
    assert_eq!(reply.head.get("content-type"), Some("text/event-stream"));
    assert_eq!(reply.text(), "retry: 1000\n\n");
    assert_eq!(stage.app.journal.lines("req").len(), 0, "nothing is forwarded any more");
}
