//! Owns the ends that nobody asked for: silence, and peers that are gone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{MILLIS, SECONDS, Stage, descriptors, echo};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, Flow};
use crate::harness::client::{BurstPlan, Bursts, Ending, Raw};
use crate::harness::script::{Asked, ByHand, Script};
use crate::harness::stage::{LONG, listener, listeners, serving, tcp};
use crate::harness::wait::eventually;

async fn silenced(stage: &Stage, count: f64) {
    let reason = [("reason", "tcp_silence")];
    stage.px.metric_becomes("ebbtide_connections_rejected_total", &reason, SOON, |n| n == count).await;
    assert_eq!(stage.px.metrics().await.sum("ebbtide_notices_total", &[]), 0.0, "nobody was told to go");
}

#[tokio::test]
async fn silence_both_ways_ends_a_connection_and_traffic_does_not() {
    let options = AppOptions::default().tcp(Flow::Echo);
    let more = ", idle_timeout: 3s";
    let stage = Stage::with(options, |upstream| listeners(LONG, &listener("db", upstream, more))).await;
    let plan = BurstPlan { every: MILLIS(100), pieces: 2, pause: MILLIS(5), size: 50 };
    let busy = Bursts::start(stage.address, plan, 5).await;
    let mut spoke = stage.raw().await;
    echo(&mut spoke, b"hello").await;
    let mut silent = stage.raw().await;
    for raw in [&mut spoke, &mut silent] {
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    }
    silenced(&stage, 2.0).await;
    assert_eq!(busy.open(), 5);
    busy.stop();
    let summary = busy.ended(SOON).await;
    assert_eq!((summary.lost(), summary.in_burst()), (0, 0));
}

/// A client that asks just when its time is over; whether it got an answer.
async fn ask_late(address: SocketAddr) -> bool {
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send("first").await.unwrap();
    raw.read_exactly(5, SOON).await.unwrap();
    let silence = MILLIS(fastrand::u64(600..1000));
    raw.ending(silence).await.1 == Ending::StillOpen
        && raw.send("again").await.is_ok()
        && raw.read_exactly(5, SOON).await.is_ok()
}

/// The time between the end of the silence and the close is no trap: who is heard in it gets an answer. (A question that
/// crosses with the FIN is not heard.)
#[tokio::test]
async fn a_question_at_the_end_of_the_silence_is_answered() {
    let heard = Arc::new(AtomicUsize::new(0));
    let count = heard.clone();
    let app = Script::start(move |_, mut wire| {
        let heard = count.clone();
        async move {
            while wire.more().await.is_ok_and(|read| read > 0) {
                let question = wire.take(wire.unread().len());
                if question == b"again" {
                    heard.fetch_add(1, Ordering::SeqCst);
                }
                tokio::time::sleep(MILLIS(250)).await;
                if wire.get_mut().write_all(&question).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    let upstream = format!("tcp://{}", app.address);
    let (_px, address) = serving(listeners(LONG, &listener("db", &upstream, ", idle_timeout: 600ms"))).await;
    let mut clients = JoinSet::new();
    for _ in 0..200 {
        clients.spawn(ask_late(address));
    }
    let answered = clients.join_all().await.into_iter().filter(|answered| *answered).count();
    let heard = heard.load(Ordering::SeqCst);
    // How many come just in time is a matter of the machine; that each of them is answered is not.
    assert!(answered > 0 && heard == answered, "{answered} of {heard} that were heard got an answer");
}

#[tokio::test]
async fn half_a_connection_ends_earlier() {
    let options = AppOptions::default().tcp(Flow::ReplyAfterEnd { after: SOON * 60, bytes: 1 });
    let more = ", half_closed_timeout: 500ms";
    let stage = Stage::with(options, |upstream| listeners(LONG, &listener("db", upstream, more))).await;
    let mut whole = stage.raw().await;
    whole.send("hello").await.unwrap();
    let mut half = stage.raw().await;
    half.send("hello").await.unwrap();
    half.half_close().await.unwrap();
    assert_eq!(half.ending(SOON).await, (Vec::new(), Ending::Fin));
    silenced(&stage, 1.0).await;
    assert_eq!(whole.ending(MILLIS(1)).await, (Vec::new(), Ending::StillOpen));
}

/// A connection on which the client has spoken, and its other end.
async fn spoken(app: &mut ByHand, address: SocketAddr) -> (Raw, Asked) {
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send("hello").await.unwrap();
    (raw, app.next().await)
}

/// Not with the last word: a query may be long under way when its client says that it was the last.
#[tokio::test]
async fn the_time_of_half_a_connection_begins_when_it_becomes_one() {
    let mut app = ByHand::connections().await;
    let lines = listener("db", &format!("tcp://{}", app.address()), ", half_closed_timeout: 4s");
    let (_px, address) = serving(listeners(LONG, &lines)).await;
    let (mut raw, mut asked) = spoken(&mut app, address).await;
    let (mut first, _first) = spoken(&mut app, address).await;
    first.half_close().await.unwrap();
    assert_eq!(raw.ending(SECONDS(2)).await, (Vec::new(), Ending::StillOpen));
    let (mut second, _second) = spoken(&mut app, address).await;
    second.half_close().await.unwrap();
    assert_eq!(first.ending(SOON).await, (Vec::new(), Ending::Fin), "the silence before has been longer as well");
    raw.half_close().await.unwrap();
    assert_eq!(asked.wire.more().await.unwrap(), 0);
    assert_eq!(second.ending(SOON).await, (Vec::new(), Ending::Fin), "and half of the time behind it is over");
    asked.write("an answer").await;
    drop(asked);
    assert_eq!(raw.ending(SOON).await, (b"an answer".to_vec(), Ending::Fin));
}

/// Writes until nobody takes any more.
async fn fill(stream: &mut TcpStream) {
    let piece = [7; 64 * 1024];
    while let Ok(written) = timeout(MILLIS(300), stream.write(&piece)).await {
        written.expect("nobody has ended");
    }
}

/// With both directions full nothing is read or written any more: only the reset itself tells that the client is gone.
#[tokio::test]
async fn a_client_that_vanishes_from_an_app_that_is_stuck_leaves_nothing_behind() {
    const COUNT: usize = 3;
    let mut app = ByHand::connections().await;
    let upstream = format!("tcp://{}", app.address());
    let lines = listener("db", &upstream, "") + &listener("out", &upstream, ", direction: outbound");
    let (px, inbound) = serving(listeners(LONG, &lines)).await;
    let before = descriptors(&px).0;
    for (address, gauge) in [(inbound, "ebbtide_in_flight"), (px.address("out").await, "ebbtide_outbound_connections")]
    {
        let (mut clients, mut stuck) = (Vec::new(), Vec::new());
        for _ in 0..COUNT {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"hello").await.unwrap();
            let mut asked = app.next().await;
            fill(&mut client).await;
            fill(asked.wire.get_mut()).await;
            clients.push(client);
            stuck.push(asked);
        }
        px.metric_becomes(gauge, &[], SOON, |n| n == COUNT as f64).await;
        for client in clients {
            client.set_zero_linger().unwrap();
        }
        px.metric_becomes(gauge, &[], SOON, |n| n == 0.0).await;
        eventually("sockets as before", SOON, || {
            let now = descriptors(&px).0;
            if now < before + COUNT { Ok(()) } else { Err((before, now)) }
        })
        .await;
    }
}

#[tokio::test]
async fn a_client_that_vanishes_leaves_nothing_behind() {
    let stage = Stage::start(Flow::Echo, LONG).await;
    let mut raw = stage.raw().await;
    echo(&mut raw, b"hello").await;
    stage.px.metric_becomes("ebbtide_in_flight", &[("kind", "tunnel")], SOON, |n| n == 1.0).await;
    raw.reset();
    stage.received(1).await;
    for gauge in ["ebbtide_in_flight", "ebbtide_connections"] {
        stage.px.metric_becomes(gauge, &[], SOON, |n| n == 0.0).await;
    }
}

/// An app that breaks ends its clients' connections, behind everything that it had said.
#[tokio::test]
async fn an_app_that_dies_ends_its_connections() {
    let mut app = ByHand::connections().await;
    let (px, address) = serving(tcp(LONG, &format!("tcp://{}", app.address()))).await;
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send("hello").await.unwrap();
    let mut asked = app.next().await;
    asked.write("last words").await;
    assert_eq!(raw.read_until(b"last words", SOON).await.as_deref(), Ok(&b"last words"[..]));
    let stream = socket2::SockRef::from(asked.wire.get_ref());
    stream.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(asked);
    let (rest, ending) = raw.ending(SOON).await;
    assert!(rest.is_empty() && ending != Ending::StillOpen, "{rest:?} {ending:?}");
    px.metric_becomes("ebbtide_in_flight", &[], SOON, |n| n == 0.0).await;
}
