//! Owns what comes where a handshake should: floods, dribbles, garbage, plaintext, and TLS in the wrong place.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::BOTH;
use super::front::{Front, NAME};
use crate::harness::app::{AppOptions, Flow};
use crate::harness::client::{Connection, Ending, Failure, Load, Plan, Raw, Request, send};
use crate::harness::ebbtide::surface::field;
use crate::harness::h2::{PREFACE, RawH2};
use crate::harness::stage::{LONG, alone, descriptors, listener, listeners, serving, tls};
use crate::harness::tls::{Authority, TlsPlan, TlsServer, Versions, alpn};
use crate::harness::wait::{Mono, eventually};
use crate::harness::{SOON, heavy};

const HANDSHAKE_FAILURE: u8 = 40;
const NO_APPLICATION_PROTOCOL: u8 = 120;

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

/// Sockets and pipes as before, up to a few connections to the app.
async fn leaves_nothing(front: &Front, before: usize) {
    front.px.metric_becomes("ebbtide_connections", &[], SOON, |n| n == 0.0).await;
    eventually("descriptors as before", SOON, || {
        let now = descriptors(&front.px).0;
        if now <= before + 8 { Ok(()) } else { Err((before, now)) }
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_handshakes_leaves_everybody_else_their_time() {
    const CLIENTS: usize = 200;
    const EACH: usize = 20;
    let _heavy = heavy().await;
    let front = Front::start("", "").await;
    let before = descriptors(&front.px).0;
    let mut silent = Connection::open(front.target(), SOON).await.unwrap();
    assert!(silent.exchange(&Request::get("/"), "early", SOON).await.is_ok());
    let load = Load::start(Plan::pooled(front.target(), 100.0, 10));
    load.has_done(50, SOON).await;
    let done = load.so_far().ok();

    let hellos: Arc<[Vec<u8>]> = BOTH
        .map(|one| front.plan().versions(one).to(front.address))
        .map(|target| target.client_hello(alpn::HTTP1))
        .into();
    let sent = Arc::new(AtomicUsize::new(0));
    let mut flood = JoinSet::new();
    for client in 0..CLIENTS {
        let (hellos, sent, address) = (hellos.clone(), sent.clone(), front.address);
        flood.spawn(async move {
            for round in 0..EACH {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(&hellos[(client + round) % 2]).await.unwrap();
                sent.fetch_add(1, Ordering::SeqCst);
                if round % 4 == 0 {
                    // One that waits for its answer, whose work cannot be spared.
                    stream.readable().await.unwrap();
                }
            }
        });
    }
    eventually("half of the flood", SOON * 3, || {
        let sent = sent.load(Ordering::SeqCst);
        if sent >= CLIENTS * EACH / 2 { Ok(()) } else { Err(sent) }
    })
    .await;
    let amid = load.so_far().ok() - done;
    // A new client gets its handshake among all the others.
    assert_eq!(send(front.target(), &Request::get("/"), SOON).await.map(|reply| reply.status), Ok(200));
    while let Some(ended) = flood.join_next().await {
        ended.unwrap();
    }
    let during = load.so_far().ok() - done;
    assert!(during > 0, "nobody was served during the flood");
    assert!(silent.exchange(&Request::get("/"), "late", SOON).await.is_ok());
    let summary = load.stop().await;
    summary.assert_clean();
    eprintln!("{} hellos; {amid}, then {during} requests meanwhile", CLIENTS * EACH);

    // Each was taken up, and each is counted.
    front.has_rejected("tls_handshake", CLIENTS * EACH).await;
    let metrics = front.px.metrics().await;
    let failed = metrics.sum("ebbtide_tls_handshakes_total", &[("result", "failed")]);
    assert_eq!(failed, (CLIENTS * EACH) as f64);
    // The next line says how many were left out, once it is time for one.
    let (mut more, mut suppressed, began) = (0, 0, Mono::now());
    while suppressed == 0 {
        assert!(began.elapsed() < SOON * 2, "nothing was left out of the log");
        let mut raw = Raw::connect(front.address).await.unwrap();
        raw.send(record(&[20, 0, 0, 0])).await.unwrap();
        assert_eq!(raw.ending(SOON).await.1, Ending::Fin);
        more += 1;
        front.has_rejected("tls_handshake", CLIENTS * EACH + more).await;
        let told = front.px.logged("a connection was not served", 1).await;
        suppressed = told.iter().filter_map(|event| field(event, "suppressed")?.as_u64()).sum::<u64>() as usize;
        assert!(suppressed + told.len() <= CLIENTS * EACH + more, "{suppressed} were not logged");
        assert!(told.len() < CLIENTS, "{} lines in the log", told.len());
    }
    drop(silent);
    leaves_nothing(&front, before).await;
}

#[tokio::test]
async fn a_handshake_that_takes_too_long_ends_and_harms_nobody() {
    let front = Front::start("", "limits: {header_timeout: 1s}\n").await;
    let before = descriptors(&front.px).0;
    let load = Load::start(Plan::mixed(front.target(), 50.0));
    load.has_done(10, SOON).await;
    let mut clients = JoinSet::new();
    for versions in BOTH {
        let hello = front.plan().versions(versions).to(front.address).client_hello(alpn::HTTP1);
        // Cut at the type, in the header of the record, in the middle, before the last byte, and behind all of it.
        for cut in [1, 3, hello.len() / 2, hello.len() - 1, hello.len()] {
            let (hello, address) = (hello[..cut].to_vec(), front.address);
            clients.spawn(async move {
                let mut raw = Raw::connect(address).await.unwrap();
                raw.send(hello).await.unwrap();
                raw.ending(SOON).await.1
            });
        }
        let address = front.address;
        clients.spawn(async move {
            let mut raw = Raw::connect(address).await.unwrap();
            // Takes 5 s or so: it ends earlier.
            let dripped = raw.drip(hello, 1, MILLIS(50)).await;
            if dripped.is_err() { Ending::Reset } else { raw.ending(SOON).await.1 }
        });
    }
    while let Some(ending) = clients.join_next().await {
        let ending = ending.unwrap();
        assert!(matches!(ending, Ending::Fin | Ending::Reset), "{ending:?}");
    }
    front.has_rejected("tls_timeout", 12).await;
    let metrics = front.px.metrics().await;
    assert_eq!(metrics.sum("ebbtide_tls_handshakes_total", &[("result", "failed")]), 12.0);
    assert_eq!(front.rejected("tls_handshake").await, 0.0);
    load.stop().await.assert_clean();
    leaves_nothing(&front, before).await;
}

/// A record of a handshake.
fn record(handshake: &[u8]) -> Vec<u8> {
    [&[22, 3, 1], &(handshake.len() as u16).to_be_bytes()[..], handshake].concat()
}

/// The hello of a client that knows nothing newer than TLS 1.1.
fn old_hello() -> Vec<u8> {
    let suites = [0xc0, 0x13, 0xc0, 0x14, 0, 0x2f, 0, 0x35];
    let extensions = [0, 10, 0, 4, 0, 2, 0, 23, 0, 11, 0, 2, 1, 0];
    let body = [&[3, 2], &[7; 32][..], &[0], &[0, 8], &suites, &[1, 0], &[0, 14], &extensions].concat();
    record(&[&[1, 0, 0, body.len() as u8][..], &body].concat())
}

/// What came is one fatal alert: its code.
fn alert(bytes: &[u8]) -> Option<u8> {
    match bytes {
        [21, 3, _, 0, 2, 2, code] => Some(*code),
        _ => None,
    }
}

#[tokio::test]
async fn a_hello_that_is_none_is_answered_with_an_alert() {
    let front = Front::start("", "").await;
    let before = descriptors(&front.px).0;
    let whole = front.target().client_hello(alpn::HTTP1);
    // The session's id is longer than all of the hello.
    let mut torn = whole.clone();
    torn[43] = 255;
    let mut count = 0;
    // Of a message that is too long rustls says nothing: the FIN comes without an alert.
    for (what, bytes, told) in [
        ("garbage in a record", record(&[0xff; 40]), false),
        ("a hello of 16 MiB", record(&[1, 0xff, 0xff, 0xff, 3, 3]), false),
        ("an empty record", record(&[]), true),
        ("a record larger than any", [&[22, 3, 1, 0xff, 0xff][..], &[1; 0xffff]].concat(), true),
        ("a hello that ends elsewhere", torn, true),
        ("a Finished", record(&[20, 0, 0, 4, 1, 2, 3, 4]), true),
        ("TLS 1.1", old_hello(), true),
        ("a version that never was", vec![22, 9, 9, 0, 1, 1], true),
    ] {
        let mut raw = Raw::connect(front.address).await.unwrap();
        raw.send(&bytes).await.unwrap();
        let (answer, ending) = raw.ending(SOON).await;
        assert_eq!((alert(&answer).is_some(), ending), (told, Ending::Fin), "{what}: {answer:?}");
        assert_eq!(answer.is_empty(), !told, "{what}: {answer:?}");
        count += 1;
        front.has_rejected("tls_handshake", count).await;
    }
    for cut in [1, 4, 7, whole.len() / 2, whole.len() - 1] {
        let mut raw = Raw::connect(front.address).await.unwrap();
        raw.send(&whole[..cut]).await.unwrap();
        raw.half_close().await.unwrap();
        assert_eq!(raw.ending(SOON).await.1, Ending::Fin, "cut behind {cut} bytes");
        count += 1;
        front.has_rejected("tls_handshake", count).await;
    }
    let unknown = front.plan().alpn(&["nothing"]).to(front.address);
    assert_eq!(Raw::connect(unknown).await.unwrap_err(), Failure::Alert(NO_APPLICATION_PROTOCOL));
    front.has_rejected("tls_handshake", count + 1).await;
    let metrics = front.px.metrics().await;
    assert_eq!(metrics.sum("ebbtide_connections_rejected_total", &[]), (count + 1) as f64, "and as nothing else");
    assert_eq!(front.app.journal.count("req"), 0);
    assert_eq!(send(front.target(), &Request::get("/"), SOON).await.unwrap().status, 200);
    leaves_nothing(&front, before).await;
}

#[tokio::test]
async fn plaintext_on_a_port_for_tls_is_told_so() {
    let front = Front::with(AppOptions::default(), |secret, upstream| {
        listener("web", upstream, &tls(secret, ""))
            + &listener("db", &upstream.replace("http", "tcp"), &format!("{}, protocol: tcp", tls(secret, "")))
    })
    .await;
    let before = descriptors(&front.px).0;
    let bytes = front.px.address("db").await;
    let mut count = 0;
    for said in [
        &b"GET / HTTP/1.1\r\nHost: toy\r\n\r\n"[..],
        b"POST / HTTP/1.1\r\nHost: toy\r\nContent-Length: 100000\r\n\r\nthe beginning",
        PREFACE,
        b"\0\x01\x02\x03",
        // SSL 2, and TLS that begins in the middle.
        b"\x80\x2e\x01\x03\x01\0\x15",
        b"\x17\x03\x03\0\x05hello",
        b"G",
    ] {
        let mut raw = Raw::connect(front.address).await.unwrap();
        raw.send(said).await.unwrap();
        let reply = raw.reply("GET", SOON).await.unwrap();
        assert_eq!((reply.status, reply.closes()), (400, 1), "{said:?}");
        assert!(reply.text().contains("https"), "{}", reply.text());
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin), "{said:?}");
        let mut raw = Raw::connect(bytes).await.unwrap();
        raw.send(said).await.unwrap();
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin), "{said:?}");
        count += 2;
        front.has_rejected("not_tls", count).await;
    }
    assert_eq!(front.px.metrics().await.sum("ebbtide_connections_rejected_total", &[]), count as f64);
    assert_eq!(front.app.journal.count("req"), 0);
    leaves_nothing(&front, before).await;
}

#[tokio::test]
async fn tls_on_a_port_without_it_is_told_so_unless_bytes_are_bytes() {
    let ca = Authority::new("app");
    let pair = ca.pair(&[NAME]);
    let (_web, web, _dir) = alone(AppOptions::default()).await;
    let (echo, db, _dir2) = alone(AppOptions::default().tcp(Flow::Echo).tls(TlsServer::new(&pair))).await;
    // To ebbtide its upstream's TLS is the client's business.
    let lines = listener("web", &web.upstream(), "") + &listener("db", &db.upstream().replace("tls:", "tcp:"), "");
    let (px, address) = serving(listeners(LONG, &lines)).await;
    let plan = TlsPlan::new(ca.pem(), NAME);
    for versions in [BOTH[0], BOTH[1], Versions::Both] {
        let target = plan.clone().versions(versions).to(address);
        assert_eq!(Raw::connect(&target).await.unwrap_err(), Failure::Alert(HANDSHAKE_FAILURE));
        assert_eq!(RawH2::connect(&target).await.unwrap_err(), Failure::Alert(HANDSHAKE_FAILURE));
        let mut raw = Raw::connect(address).await.unwrap();
        raw.send(target.client_hello(alpn::HTTP1)).await.unwrap();
        let (answer, ending) = raw.ending(SOON).await;
        assert_eq!((alert(&answer), ending), (Some(HANDSHAKE_FAILURE), Ending::Fin));
    }
    let reason = [("reason", "unexpected_tls")];
    px.metric_becomes("ebbtide_connections_rejected_total", &reason, SOON, |n| n == 9.0).await;
    assert_eq!(send(address, &Request::get("/"), SOON).await.unwrap().status, 200, "plaintext is as ever");

    for versions in BOTH {
        let target = plan.clone().versions(versions).to(px.address("db").await);
        let mut raw = Raw::speaking(target, alpn::NONE).await.unwrap();
        assert_eq!(raw.socket().peer_serial(), Some(pair.serial));
        raw.send(b"there and back").await.unwrap();
        assert_eq!(raw.read_exactly(14, SOON).await.unwrap(), b"there and back");
        raw.half_close().await.unwrap();
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin), "the app's close_notify, then ours of TCP");
    }
    assert_eq!(echo.journal.wait("tls_end", 2, SOON).await[1].get("how"), "Fin");
    let metrics = px.metrics().await;
    assert_eq!(metrics.sum("ebbtide_connections_rejected_total", &[]), 9.0);
    assert_eq!(metrics.sum("ebbtide_tls_handshakes_total", &[]), 0.0);
}
