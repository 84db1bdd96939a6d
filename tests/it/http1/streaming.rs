//! Owns bodies on their way: both ways at once, back-pressure, bounded memory, every byte in its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::stage::{LONG, Script, Stage, front, pause, plain, resident};
use crate::harness::client::{Raw, Request};
use crate::harness::wait::within;
use crate::harness::{SOON, heavy};

/// Large bodies of every framing, many at once, arrive whole.
#[tokio::test]
async fn large_bodies_arrive_whole() {
    let stage = Arc::new(Stage::simple().await);
    let mut transfers = JoinSet::new();
    for number in 0..12_usize {
        let stage = stage.clone();
        transfers.spawn(async move {
            let request = match number % 4 {
                0 => Request::echo(3_000_000 + number),
                1 => Request::echo(3_000_000 + number).chunked(),
                2 => Request::bytes(5_000_000 + number as u64, false),
                _ => Request::bytes(5_000_000 + number as u64, true),
            };
            let reply = crate::harness::client::send(stage.address, &request, Duration::from_secs(30)).await;
            let reply = reply.unwrap_or_else(|why| panic!("{} {}: {why:?}", request.method, request.path));
            assert_eq!((reply.status, reply.intact), (200, true), "{} {}", request.method, request.path);
        });
    }
    transfers.join_all().await;
}

/// A response is passed on as it comes, not when it is whole; so is an upload.
#[tokio::test]
async fn pieces_pass_one_by_one_in_both_directions() {
    let script = Script::start(|_, mut wire| async move {
        if wire.head().await.is_err() {
            return;
        }
        let _ = wire.get_mut().write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        // Echoes piece by piece: each side waits for the other's last piece.
        let mut total = 0;
        while total < 50 {
            let mut piece = [0; 64];
            match wire.unread().len() {
                0 => match wire.more().await {
                    Ok(n) if n > 0 => {}
                    _ => return,
                },
                n => {
                    let bytes = wire.take(n.min(64));
                    piece[..bytes.len()].copy_from_slice(&bytes);
                    let pings = bytes.iter().filter(|byte| **byte == b'!').count();
                    for _ in 0..pings {
                        total += 1;
                        let _ = wire.get_mut().write_all(b"5\r\npong\n\r\n").await;
                    }
                }
            }
        }
        let _ = wire.get_mut().write_all(b"0\r\n\r\n").await;
        while matches!(wire.more().await, Ok(n) if n > 0) {}
    })
    .await;
    let (_px, address) = front(plain(LONG), &script.upstream()).await;
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").await.unwrap();
    for round in 0..50 {
        raw.send("5\r\nping!\r\n").await.unwrap();
        raw.read_until(b"pong\n", SOON).await.unwrap_or_else(|why| panic!("round {round}: {why:?}"));
    }
    raw.send("0\r\n\r\n").await.unwrap();
    raw.read_until(b"0\r\n\r\n", SOON).await.expect("the end of the response");
}

/// Waits until the counter has begun and then not moved for half a second.
async fn stands_still(what: &str, counter: &AtomicU64) -> u64 {
    let work = async {
        let (mut before, mut still) = (0, 0);
        while still < 25 {
            pause(20).await;
            let now = counter.load(Ordering::SeqCst);
            still = if now == before && now > 0 { still + 1 } else { 0 };
            before = now;
        }
        before
    };
    within(what, Duration::from_secs(20), work).await
}

/// C105: stalled readers of large responses: the app is held up, and memory stays bounded; others are served.
#[tokio::test]
async fn stalled_readers_hold_up_the_app_and_not_the_memory() {
    const READERS: usize = 50;
    const LENGTH: u64 = 200_000_000;
    let _heavy = heavy().await;
    let written = Arc::new(AtomicU64::new(0));
    let count = written.clone();
    let script = Script::start(move |_, mut wire| {
        let count = count.clone();
        async move {
            let Ok(head) = wire.head().await else { return };
            let length = if head.start.contains("/large") { LENGTH } else { 2 };
            let stream = wire.get_mut();
            let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            let _ = stream.write_all(text.as_bytes()).await;
            let piece = [b'x'; 65_536];
            let mut left = length;
            while left > 0 {
                let size = left.min(65_536) as usize;
                match stream.write(&piece[..size]).await {
                    Ok(n) => left -= n as u64,
                    Err(_) => return,
                }
                count.fetch_add(size as u64, Ordering::SeqCst);
            }
            while matches!(wire.more().await, Ok(n) if n > 0) {}
        }
    })
    .await;
    let (px, address) = front(plain(LONG), &script.upstream()).await;
    let baseline = resident(&px);
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let mut raw = Raw::connect(address).await.unwrap();
        raw.receive_buffer(65_536);
        raw.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        readers.push(raw);
    }
    // Progress stops at what sockets and buffers hold.
    let before = stands_still("the app's writes stop", &written).await;
    let grown = resident(&px).saturating_sub(baseline);
    eprintln!("{READERS} stalled readers: {grown} KiB more resident, {before} bytes taken from the app");
    assert!(grown < 64 * 1024, "{grown} KiB");
    assert!(before < LENGTH * READERS as u64 / 4, "{before} bytes taken from the app");
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send("GET /small HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert_eq!(raw.reply("GET", SOON).await.unwrap().length, 2, "others are served");
}

/// C105, the reverse: an app that does not read holds up its uploaders, and memory stays bounded.
#[tokio::test]
async fn an_app_that_does_not_read_holds_up_uploads_and_not_the_memory() {
    const UPLOADS: usize = 50;
    let _heavy = heavy().await;
    let script = Script::start(|_, mut wire| async move {
        if wire.head().await.is_ok() {
            std::future::pending::<()>().await;
        }
    })
    .await;
    let (px, address) = front(plain(LONG), &script.upstream()).await;
    let baseline = resident(&px);
    let written = Arc::new(AtomicU64::new(0));
    let mut uploads = JoinSet::new();
    for _ in 0..UPLOADS {
        let written = written.clone();
        uploads.spawn(async move {
            let mut stream = TcpStream::connect(address).await.expect("accepted");
            let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000000\r\n\r\n";
            stream.write_all(head).await.expect("the head is taken");
            let piece = [b'x'; 65_536];
            while let Ok(n) = stream.write(&piece).await {
                written.fetch_add(n as u64, Ordering::SeqCst);
            }
        });
    }
    let before = stands_still("the uploads stop", &written).await;
    let grown = resident(&px).saturating_sub(baseline);
    eprintln!("{UPLOADS} stalled uploads: {grown} KiB more resident, {before} bytes taken from the clients");
    assert!(grown < 64 * 1024, "{grown} KiB");
    assert!(before < 200_000_000 * UPLOADS as u64 / 4, "{before} bytes");
}

/// A client that is gone in the middle of a response frees what it held, on both sides.
#[tokio::test]
async fn a_client_that_leaves_frees_everything() {
    let stage = Stage::simple().await;
    for reset in [false, true] {
        for _ in 0..10 {
            let mut raw = stage.raw().await;
            raw.send("GET /bytes?n=20000000 HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            raw.read_until(b"\r\n\r\n", SOON).await.unwrap();
            if reset {
                raw.reset();
            }
        }
    }
    stage.px.metric_becomes("ebbtide_in_flight", &[], SOON, |count| count == 0.0).await;
    stage.px.metric_becomes("ebbtide_connections", &[], SOON, |count| count == 0.0).await;
    let gone = stage.px.metrics().await.sum("ebbtide_requests_total", &[("outcome", "abandoned")]);
    assert_eq!(gone, 20.0);
}

/// An upload whose client vanishes half-way never looks whole to the app.
#[tokio::test]
async fn half_an_upload_never_looks_whole_to_the_app() {
    let stage = Stage::simple().await;
    for request in [
        "POST /echo HTTP/1.1\r\nHost: a\r\nx-id: half\r\nContent-Length: 100\r\n\r\nhalf",
        "POST /echo HTTP/1.1\r\nHost: a\r\nx-id: half\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ] {
        for half_close in [true, false] {
            let seen = stage.seen();
            let mut raw = stage.raw().await;
            raw.send(request).await.unwrap();
            stage.app.journal.wait("req", seen + 1, SOON).await;
            if half_close {
                raw.half_close().await.unwrap();
                let mut rest = Vec::new();
                let read = async { raw.ending(SOON).await };
                rest.extend(within("an end", SOON, read).await.0);
                assert!(!rest.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&rest));
            }
        }
    }
    stage.px.metric_becomes("ebbtide_in_flight", &[], SOON, |count| count == 0.0).await;
    pause(100).await;
    assert_eq!(stage.app.journal.count("done"), 0);
    let mut stream = TcpStream::connect(stage.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.0 200"), "{text}");
}
