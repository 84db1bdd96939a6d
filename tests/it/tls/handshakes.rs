//! Owns handshakes that meet the termination: one that has begun is finished and its first request served, and one that
//! never finishes keeps nobody.

use std::net::{Ipv4Addr, SocketAddr};

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{BOTH, CLEAN, GET, MILLIS, SECONDS, Stage};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, Flow};
use crate::harness::client::{Ending, Failure, Raw};
use crate::harness::stage::{DRAINS, LONG, terminate};
use crate::harness::tls::alpn;
use crate::harness::wait::{Mono, within};

/// A drain that lasts as long as a request does, with all the time that is needed in its spread.
const SLOW_SPREAD: &str = "grace_period: 50s, hold: 300ms, close: 1s, close_spread: 30s, quiet: 300ms, margin: 500ms";

/// How much of a handshake reaches ebbtide before it is held up.
#[derive(Clone, Copy, Debug)]
enum Held {
    /// The first bytes of a ClientHello.
    Half,
    /// All of it, and the answer is on its way back.
    Whole,
}

/// A network between one client and ebbtide that holds up a handshake.
struct Gate {
    address: SocketAddr,
    holds: watch::Receiver<bool>,
    open: watch::Sender<bool>,
}

// === impl Gate ===

impl Gate {
    async fn start(to: SocketAddr, held: Held) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (open, mut opened) = watch::channel(false);
        let (holding, holds) = watch::channel(false);
        tokio::spawn(async move {
            let mut client = listener.accept().await.unwrap().0;
            let mut server = TcpStream::connect(to).await.unwrap();
            let mut hello = vec![0; 5];
            client.read_exact(&mut hello).await.unwrap();
            hello.resize(5 + usize::from(u16::from_be_bytes([hello[3], hello[4]])), 0);
            client.read_exact(&mut hello[5..]).await.unwrap();
            let (before, after) = match held {
                Held::Half => hello.split_at(hello.len() / 2),
                Held::Whole => hello.split_at(hello.len()),
            };
            server.write_all(before).await.unwrap();
            if after.is_empty() {
                server.readable().await.unwrap();
            }
            holding.send_replace(true);
            opened.wait_for(|open| *open).await.unwrap();
            server.write_all(after).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
        Self { address, holds, open }
    }

    async fn holds(&mut self) {
        within("a handshake that is held up", SOON, self.holds.wait_for(|holds| *holds)).await.unwrap();
    }

    fn open(&self) {
        self.open.send_replace(true);
    }
}

/// Handshakes of every kind that are under way, and their clients, which go on to a first request.
async fn begin(stage: &Stage) -> (Vec<Gate>, JoinSet<(u16, usize, Option<Ending>)>) {
    let (mut gates, mut clients) = (Vec::new(), JoinSet::new());
    for versions in BOTH {
        for held in [Held::Half, Held::Whole] {
            let mut gate = Gate::start(stage.address, held).await;
            let target = stage.site.target(versions, gate.address);
            clients.spawn(async move {
                let mut raw = Raw::connect(target).await.unwrap_or_else(|why| panic!("{versions:?} {held:?}: {why:?}"));
                raw.send(GET).await.unwrap();
                let reply = raw.reply("GET", SOON).await.unwrap_or_else(|why| panic!("{versions:?} {held:?}: {why:?}"));
                let ending = if reply.closes() > 0 { Some(raw.ending(SOON).await.1) } else { None };
                (reply.status, reply.closes(), ending)
            });
            gate.holds().await;
            gates.push(gate);
        }
    }
    (gates, clients)
}

#[tokio::test]
async fn a_handshake_that_t0_meets_is_finished_and_served_in_the_hold() {
    let stage = Stage::start(AppOptions::default(), LONG).await;
    let (gates, clients) = begin(&stage).await;
    terminate(&stage.px).await;
    stage.px.phase_becomes("holding", SOON).await;
    gates.iter().for_each(Gate::open);
    for first in clients.join_all().await {
        assert_eq!(first, (200, 0, None), "nobody is told in the first half of the hold");
    }
}

#[tokio::test]
async fn a_handshake_that_t0_meets_is_finished_and_served_in_the_drain() {
    let stage = Stage::start(AppOptions::default(), SLOW_SPREAD).await;
    // It goes on for as long as its body does.
    let mut keeper = Raw::connect(stage.target(BOTH[1])).await.unwrap();
    keeper.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na").await.unwrap();
    let (gates, clients) = begin(&stage).await;
    terminate(&stage.px).await;
    stage.px.phase_becomes("draining", SOON).await;
    gates.iter().for_each(Gate::open);
    for first in clients.join_all().await {
        assert_eq!(first, (200, 1, Some(Ending::Fin)));
    }
    // A new one too, from its first byte on.
    let mut late = Raw::connect(stage.target(BOTH[0])).await.unwrap();
    late.send(GET).await.unwrap();
    assert_eq!(late.reply("GET", SOON).await.unwrap().status, 200);
    keeper.send("b").await.unwrap();
    assert_eq!(keeper.reply("POST", SOON).await.unwrap().status, 200);
    assert_eq!(keeper.ending(SOON).await.1, Ending::Fin);
}

/// The same where bytes are bytes: the connection reaches the app, and is served.
#[tokio::test]
async fn a_handshake_of_a_tcp_listener_is_finished_in_the_hold() {
    let stage = Stage::start(AppOptions::default().tcp(Flow::Echo), LONG).await;
    for versions in BOTH {
        let mut gate = Gate::start(stage.address, Held::Half).await;
        let target = stage.site.target(versions, gate.address);
        let client = tokio::spawn(async move {
            let mut raw = Raw::speaking(target, alpn::NONE).await.unwrap();
            raw.send("hello").await.unwrap();
            assert_eq!(raw.read_exactly(5, SOON).await.as_deref(), Ok(&b"hello"[..]));
            raw.half_close().await.unwrap();
            assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
        });
        gate.holds().await;
        if versions == BOTH[0] {
            terminate(&stage.px).await;
        }
        stage.px.phase_becomes("holding", SOON).await;
        gate.open();
        client.await.unwrap();
    }
}

/// Their deadline comes 17 s after t0; nobody waits for that.
#[tokio::test]
async fn handshakes_that_never_finish_do_not_hold_the_drain() {
    for options in [AppOptions::default(), AppOptions::default().tcp(Flow::Echo)] {
        let stage = Stage::start(options, DRAINS).await;
        let hello = stage.target(BOTH[1]).client_hello(alpn::NONE);
        let mut stuck = Vec::new();
        for said in [&hello[..0], &hello[..1], &hello[..hello.len() / 2], &hello] {
            let mut stream = TcpStream::connect(stage.address).await.unwrap();
            stream.write_all(said).await.unwrap();
            stuck.push(stream);
        }
        // The answer to the whole one: ebbtide has read what it will ever read.
        stuck[3].readable().await.unwrap();
        terminate(&stage.px).await;
        for stream in &mut stuck {
            let mut answer = Vec::new();
            within("the end of a handshake", SOON, stream.read_to_end(&mut answer)).await.expect("a FIN, no reset");
        }
        let report = stage.px.report_at_exit(SOON).await;
        assert_eq!(report["outcome"], "drained", "{report}");
    }
}

/// C40 inside TLS: what queued up in the kernel while ebbtide could not accept gets an answer, also past the hold.
#[tokio::test]
async fn handshakes_that_queued_past_the_hold_are_all_answered() {
    const CONNECTIONS: usize = 50;
    let stage = Stage::start(AppOptions::default(), DRAINS).await;
    terminate(&stage.px).await;
    let t0 = Mono::now();
    stage.px.signal(Signal::STOP);
    let mut clients = JoinSet::new();
    for number in 0..CONNECTIONS {
        let target = stage.target(BOTH[number % 2]);
        clients.spawn(async move {
            let mut raw = Raw::connect(target).await?;
            raw.send(GET).await?;
            let reply = raw.reply("GET", SOON).await?;
            Ok::<_, Failure>((reply.status, reply.closes(), raw.ending(SOON).await))
        });
    }
    (t0 + MILLIS(800)).reached().await;
    stage.px.signal(Signal::CONT);
    for answer in clients.join_all().await {
        let (status, closes, ending) = answer.expect("an HTTP answer");
        assert!(matches!(status, 200 | 503) && closes == 1, "{status} {closes}");
        assert_eq!(ending, (Vec::new(), Ending::Fin));
    }
}

/// C40 inside TLS: up to the very end a connection is either refused or answered.
#[tokio::test]
async fn until_the_process_ends_no_accepted_handshake_is_left_alone() {
    let stage = Stage::start(AppOptions::default(), "grace_period: 4s, hold: 300ms, quiet: 100ms").await;
    terminate(&stage.px).await;
    let mut requests = JoinSet::new();
    let t0 = Mono::now();
    // Arrivals go on, so the drain lasts to its deadline: the last ones meet Draining, Closing and the exit.
    let mut turn = BOTH.into_iter().cycle();
    while t0.elapsed() < SOON && stage.px.exited_at().is_none() {
        let target = stage.target(turn.next().unwrap());
        requests.spawn(async move {
            let mut raw = match Raw::connect(target).await {
                Ok(raw) => raw,
                Err(Failure::Refused) => return Ok(None),
                Err(other) => return Err(("handshake", other)),
            };
            // A socket that is accepted here may belong to a process that is just leaving: no write, no read fails.
            raw.send(GET).await.map_err(|why| ("request", why))?;
            let reply = raw.reply("GET", SOON).await.map_err(|why| ("answer", why))?;
            Ok(Some((reply.status, reply.closes())))
        });
        tokio::time::sleep(MILLIS(10)).await;
    }
    assert_eq!(stage.px.exit(SECONDS(10)).await, CLEAN);
    let mut served = 0;
    for answer in requests.join_all().await {
        match answer {
            Ok(Some((200, closes))) if closes <= 1 => served += 1,
            Ok(Some((503, 1)) | None) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(served > 0);
}
