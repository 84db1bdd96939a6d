//! Owns handshakes during a termination: an open one is completed in every phase, a new one is served or told to try
//! again.

use tokio::task::JoinSet;

use super::{CLOSES, SECONDS, ended, keep, stage};
use crate::harness::SOON;
use crate::harness::stage::terminate;
use crate::harness::wait::Mono;
use crate::harness::ws::{Over, Refusal, Sessions, WsFault, WsPlan};

/// A hold of 1 s, sessions closed in the half second behind it, and time for all that a test may do.
const HOLDS: &str = "grace_period: 20s, hold: 1s, close: 1s, close_spread: 500ms, quiet: 1s, margin: 500ms";

/// C67: served as long as the hold lasts, refused from then on with words that clients take for "try again".
#[tokio::test]
async fn a_new_session_is_served_in_the_hold_and_told_to_try_again_behind_it() {
    for over in [Over::Http1, Over::Http2] {
        let stage = stage(HOLDS, "").await;
        let _kept = keep(stage.address).await;
        let plan = WsPlan { over, ..WsPlan::new("/ws") };
        terminate(&stage.px).await;
        let mut attempts = JoinSet::new();
        let mut number = 0;
        let mut phase = String::new();
        // From shortly after t0 to shortly after the hold's end, again and again.
        while phase != "draining" || number < 20 {
            attempts.spawn(attempt(stage.address, plan.clone(), number));
            number += 1;
            phase = stage.px.status().await["phase"].as_str().unwrap_or_default().to_lowercase();
            assert!(["holding", "draining"].contains(&phase.as_str()), "{phase}");
        }
        for _ in 0..5 {
            attempts.spawn(attempt(stage.address, plan.clone(), number));
            number += 1;
        }
        let mut attempts = attempts.join_all().await;
        attempts.sort_by_key(|(number, _)| *number);
        let refused = Refusal::Status { status: 503, retry_after: true, closes: over == Over::Http1 };
        let served: Vec<usize> = attempts.iter().filter(|(_, one)| one.is_none()).map(|(number, _)| *number).collect();
        for (number, fault) in &attempts {
            assert!(fault.is_none_or(|fault| fault == WsFault::Refused(refused)), "attempt {number}: {fault:?}");
        }
        assert!(served.contains(&0), "{attempts:?}");
        assert!(attempts[number - 5..].iter().all(|(_, fault)| fault.is_some()), "{attempts:?}");
        ended(&stage.px, "closed_by_notice", served.len()).await;
        assert_eq!(stage.app.journal.count("ws"), served.len());
    }
}

/// `None` is a session that was closed in order.
async fn attempt(address: std::net::SocketAddr, plan: WsPlan, number: usize) -> (usize, Option<WsFault>) {
    let record = Sessions::start(address, &plan, 1).await.ended(SOON).await.records.remove(0);
    assert!(record.fault.is_some() || (record.is_complete() && record.code() == 1001), "{record:?}");
    (number, record.fault)
}

/// C68: whatever the moment of the handshake at which the pod is deleted, the 101 is one.
#[tokio::test]
async fn a_handshake_under_way_is_completed_in_every_phase() {
    for over in [Over::Http1, Over::Http2] {
        let stage = stage(CLOSES, "").await;
        let _kept = keep(stage.address).await;
        let address = stage.address;
        let t0 = Mono::now() + SECONDS(1);
        let mut sessions = JoinSet::new();
        for before in [501, 500, 499, 400, 350, 300, 200, 100, 0] {
            let plan = WsPlan { over, ..WsPlan::new("/ws?ms=500") };
            sessions.spawn(async move {
                Mono::from_nanos(t0.nanos() - before * 1_000_000).reached().await;
                Sessions::start(address, &plan, 2).await.ended(SOON).await
            });
        }
        t0.reached().await;
        terminate(&stage.px).await;
        let mut served = 0;
        for summary in sessions.join_all().await {
            for record in summary.records {
                let late = Refusal::Status { status: 503, retry_after: true, closes: over == Over::Http1 };
                if record.fault == Some(WsFault::Refused(late)) {
                    continue;
                }
                assert!(record.is_complete() && record.code() == 1001, "{record:?}");
                served += 1;
            }
        }
        assert!(served >= 16, "all but the last had been asked for in time, {served} were served");
        ended(&stage.px, "closed_by_notice", served).await;
    }
}
