//! Owns the ends that nobody asked for: silence, and peers that are gone.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use super::{MILLIS, Stage, echo};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, Flow};
use crate::harness::client::{BurstPlan, Bursts, Ending, Raw};
use crate::harness::script::{ByHand, Script};
use crate::harness::stage::{LONG, listener, listeners, serving, tcp};

async fn silenced(stage: &Stage, count: f64) {
    let reason = [("reason", "tcp_silence")];
    stage.px.metric_becomes("ebbtide_connections_rejected_total", &reason, SOON, |n| n == count).await;
    assert_eq!(stage.px.metrics().await.sum("ebbtide_notices_total", &[]), 0.0, "nobody was told to go");
}

#[tokio::test]
async fn silence_both_ways_ends_a_connection_and_traffic_does_not() {
    let options = AppOptions::default().tcp(Flow::Echo);
    let more = ", idle_timeout: 1s";
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

/// A client that asks just when its time is over, and whether it was left without an answer; `None` if it came too late.
async fn ask_late(address: SocketAddr) -> Option<bool> {
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send("first").await.unwrap();
    raw.read_exactly(5, SOON).await.unwrap();
    if raw.ending(MILLIS(fastrand::u64(600..1000))).await.1 != Ending::StillOpen {
        return None;
    }
    raw.send("again").await.ok()?;
    Some(raw.read_exactly(5, SOON).await.is_err())
}

/// The time between the end of the silence and the close is no trap: who speaks in it is heard. (A question and a FIN may
/// still cross, which is rare; a close that was not taken back would meet every fourth.)
#[tokio::test]
async fn a_question_at_the_end_of_the_silence_is_answered() {
    let app = Script::start(|_, mut wire| async move {
        while wire.more().await.is_ok_and(|read| read > 0) {
            let question = wire.take(wire.unread().len());
            tokio::time::sleep(MILLIS(250)).await;
            if wire.get_mut().write_all(&question).await.is_err() {
                return;
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
    let asked: Vec<bool> = clients.join_all().await.into_iter().flatten().collect();
    let lost = asked.iter().filter(|lost| **lost).count();
    assert!(asked.len() >= 20 && lost * 20 <= asked.len(), "{lost} of {} got no answer", asked.len());
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
