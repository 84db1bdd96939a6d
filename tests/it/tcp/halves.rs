//! Owns half-closed connections (C75): a FIN is passed on as one, and the other direction goes on until its own.

use std::net::SocketAddr;

use super::{MILLIS, Stage, echo, from_clients};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, Flow, GREETING};
use crate::harness::client::{Ending, Raw};
use crate::harness::http::{Sum, pattern};
use crate::harness::script::ByHand;
use crate::harness::stage::{DRAINS, LONG, alone, listener, listeners, serving, tcp, terminate};
use crate::harness::wait::eventually;

#[tokio::test]
async fn a_server_that_speaks_first_is_heard() {
    let stage = Stage::start(Flow::Greet, LONG).await;
    let mut raw = stage.raw().await;
    assert_eq!(raw.read_until(GREETING, SOON).await.as_deref(), Ok(GREETING));
    echo(&mut raw, b"hello").await;
    raw.half_close().await.unwrap();
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
}

/// Sends `sent` and closes this side before or after the other one has; answers whether all was as it should be.
async fn assert_both_halves(address: SocketAddr, server_ends_first: bool, sent: &[u8], reply: &[u8]) {
    let mut raw = Raw::connect(address).await.unwrap();
    if server_ends_first {
        assert_eq!(raw.ending(SOON).await, (reply.to_vec(), Ending::Fin));
        raw.send(sent).await.unwrap();
        raw.half_close().await.unwrap();
    } else {
        raw.send(sent).await.unwrap();
        raw.half_close().await.unwrap();
        let (came, ending) = raw.ending(SOON).await;
        assert_eq!((came.len(), came == reply, ending), (reply.len(), true, Ending::Fin));
    }
}

/// C75: inbound and outbound, who ends first, before t0 and in the hold: eight combinations.
#[tokio::test]
async fn either_side_may_end_first_in_both_directions_of_the_network() {
    for server_ends_first in [false, true] {
        let flow = if server_ends_first {
            Flow::EndFirst { bytes: 100_000 }
        } else {
            Flow::ReplyAfterEnd { after: MILLIS(50), bytes: 100_000 }
        };
        let (app, options, _dir) = alone(AppOptions::default().tcp(flow)).await;
        let to = options.upstream();
        let lines = [listener("db", &to, ""), listener("out", &to, ", direction: outbound")].concat();
        let (px, inbound) = serving(listeners(LONG, &lines)).await;
        let outbound = px.address("out").await;
        let (sent, reply) = (pattern(70_000), pattern(100_000));
        for terminating in [false, true] {
            if terminating {
                terminate(&px).await;
            }
            for address in [inbound, outbound] {
                assert_both_halves(address, server_ends_first, &sent, &reply).await;
            }
        }
        eventually("four whole uploads at the app", SOON, || {
            let lines = from_clients(&app.journal);
            let count = lines.iter().filter(|line| line.get("sum") == Sum::of(&sent).hex()).count();
            let clean = lines.iter().all(|line| line.get("how") == "fin");
            if count == 4 && clean { Ok(()) } else { Err((count, clean)) }
        })
        .await;
    }
}

/// C75: the client has said its last word, and half of the reply has come when the pod terminates.
#[tokio::test]
async fn a_long_reply_behind_a_half_close_is_whole_with_t0_in_its_middle() {
    let mut app = ByHand::connections().await;
    let (px, address) = serving(tcp(DRAINS, &format!("tcp://{}", app.address()))).await;
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send("give me ten megabytes").await.unwrap();
    raw.half_close().await.unwrap();
    let mut asked = app.next().await;
    let reply = pattern(10_000_000);
    let (first, second) = reply.split_at(5_000_000);
    let (half, ()) = tokio::join!(raw.read_exactly(first.len(), SOON), asked.write(first));
    assert!(half.unwrap() == first);
    terminate(&px).await;
    px.phase_becomes("draining", SOON).await;
    let rest = async {
        asked.write(second).await;
        drop(asked);
    };
    let ((came, ending), ()) = tokio::join!(raw.ending(SOON), rest);
    assert!(came == second, "{} bytes came", came.len());
    assert_eq!(ending, Ending::Fin);
    let report = px.report_at_exit(SOON).await;
    assert_eq!((&report["outcome"], &report["forced"]), (&"drained".into(), &serde_json::json!({})), "{report}");
}
