//! Owns the far end: which of several hosts is taken, what becomes of a name, and what the app sees where none answers.

use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};
use tokio::net::TcpStream;

use crate::harness::broker::Broker;
use crate::harness::client::{Ending, Failure, Raw};
use crate::harness::ebbtide::Ebbtide;
use crate::harness::ebbtide::surface::field;
use crate::harness::stage::{LONG, listener, listeners};
use crate::harness::wait::eventually;
use crate::harness::{SOON, fresh_ip};

/// Ebbtide with one way out, and where the app finds it.
async fn way_out(upstream: &str, more: &str) -> (Ebbtide, SocketAddr) {
    let more = format!(", direction: outbound{more}");
    let px = listeners(LONG, &listener("out", upstream, &more)).start().await;
    let address = px.address("out").await;
    (px, address)
}

async fn assert_echo(address: SocketAddr) {
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send("hello").await.unwrap();
    assert_eq!(raw.read_exactly(5, SOON).await.as_deref(), Ok(&b"hello"[..]));
    raw.half_close().await.unwrap();
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
}

/// The app sees what it would see without us: a connection that does not work.
async fn assert_reset(address: SocketAddr) {
    match Raw::connect(address).await {
        Ok(mut raw) => assert_eq!(raw.ending(SOON * 4).await, (Vec::new(), Ending::Reset)),
        // It was there before we had looked.
        Err(failure) => assert_eq!(failure, Failure::Reset),
    }
}

async fn dialled(px: &Ebbtide, result: &str, times: f64) {
    px.metric_becomes("ebbtide_outbound_connects_total", &[("result", result)], SOON, |n| n == times).await;
}

/// A host that neither takes a connection nor refuses it: its queue is full, and more is dropped unanswered.
struct Silent {
    address: SocketAddr,
    _socket: Socket,
    _queued: Vec<TcpStream>,
}

impl Silent {
    async fn start() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let mut queued = Vec::new();
        let patience = std::time::Duration::from_millis(300);
        while let Ok(stream) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
            queued.push(stream.unwrap());
        }
        Self { address, _socket: socket, _queued: queued }
    }
}

#[tokio::test]
async fn the_first_host_that_answers_is_taken() {
    let (first, second, silent) = (Broker::start().await, Broker::start().await, Silent::start().await);
    let refusing = SocketAddr::new(fresh_ip(), 9);
    for (hosts, taken) in [
        (format!("tcp://{},{}", first.address, second.address), &first),
        (format!("tcp://{refusing},{}", second.address), &second),
        (format!("tcp://{},{}", silent.address, second.address), &second),
        (format!("tcp://{},{refusing},{}", silent.address, first.address), &first),
    ] {
        let before = taken.flows().len();
        let (px, address) = way_out(&hosts, "").await;
        assert_echo(address).await;
        assert_eq!(taken.flows().len(), before + 1, "{hosts}");
        dialled(&px, "ok", 1.0).await;
    }
    assert_eq!((first.flows().len(), second.flows().len()), (2, 2));
}

#[tokio::test]
async fn where_nobody_answers_the_app_sees_a_reset() {
    let silent = Silent::start().await;
    let refusing = SocketAddr::new(fresh_ip(), 9);
    for (host, result) in [(refusing, "refused"), (silent.address, "failed")] {
        let (px, address) = way_out(&format!("tcp://{host}"), ", connect_timeout: 300ms").await;
        for times in [1.0, 2.0] {
            assert_reset(address).await;
            dialled(&px, result, times).await;
        }
        // An app tries again and again: at most one line a second.
        let warnings = px.logged("dialling failed", 1).await;
        let named = field(&warnings[0], "upstream").unwrap().to_string();
        assert!(named.contains(&host.to_string()), "{named}");
        dialled(&px, "ok", 0.0).await;
    }
}

#[tokio::test]
async fn names_are_looked_up_and_unknown_ones_are_named_in_the_log() {
    let broker = Broker::start().await;
    let (px, address) = way_out(&format!("tcp://localhost:{}", broker.address.port()), "").await;
    for _ in 0..3 {
        assert_echo(address).await;
    }
    dialled(&px, "ok", 3.0).await;

    // Time enough for a resolver that nobody answers: the end of the wait says nothing about the name.
    let (px, address) = way_out("tcp://nobody.invalid:5432", ", connect_timeout: 60s").await;
    assert_reset(address).await;
    dialled(&px, "failed", 1.0).await;
    let warnings = px.logged("dialling failed", 1).await;
    let error = field(&warnings[0], "error").and_then(serde_json::Value::as_str).unwrap();
    assert!(error.starts_with("no address for"), "{warnings:?}");
    let unknown = px.logged("looking up the name failed", 1).await;
    assert_eq!(field(&unknown[0], "host"), Some(&"nobody.invalid".into()), "{unknown:?}");

    // An unknown name does not keep its neighbour from being used.
    let hosts = format!("tcp://nobody.invalid:1,{}", broker.address);
    let (px, address) = way_out(&hosts, "").await;
    assert_echo(address).await;
    dialled(&px, "ok", 1.0).await;
}

#[tokio::test]
async fn the_apps_ends_pass_to_the_far_end() {
    let broker = Broker::start().await;
    let (px, address) = way_out(&format!("tcp://{}", broker.address), "").await;
    for (number, reset) in [false, true].into_iter().enumerate() {
        let mut raw = Raw::connect(address).await.unwrap();
        raw.send("hello").await.unwrap();
        raw.read_exactly(5, SOON).await.unwrap();
        px.metric_becomes("ebbtide_outbound_connections", &[], SOON, |open| open == 1.0).await;
        if reset {
            raw.reset();
        } else {
            drop(raw);
        }
        let ending = eventually("the end at the broker", SOON, || {
            broker.flows()[number].ended.map(|(_, ending)| ending).ok_or("still open")
        })
        .await;
        assert!(reset || ending == Ending::Fin);
        px.metric_becomes("ebbtide_outbound_connections", &[], SOON, |open| open == 0.0).await;
    }
    px.metric_becomes("ebbtide_connections_total", &[("protocol", "outbound")], SOON, |closed| closed == 2.0).await;
}
