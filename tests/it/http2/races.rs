//! Owns many real deletions at random moments under a steady stream of calls: whatever crosses whichever frame, nothing
//! is lost and nothing happens twice.

use fastrand::Rng;
use tokio::task::JoinSet;

use super::{CLEAN, MILLIS};
use crate::harness::app::AppOptions;
use crate::harness::client::Request;
use crate::harness::h2::{Call, H2Load, H2Plan};
use crate::harness::pod::{Event, Pod, Who};
use crate::harness::{SOON, fresh_seed, heavy};

/// `SIM_SEED`, or a seed of this run; whoever fails prints it.
pub(super) fn seed() -> u64 {
    std::env::var("SIM_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(fresh_seed)
}

/// Deletions at the same time; together they carry 1,000 calls a second over 100 connections.
const PODS: usize = 10;
const ROUNDS: usize = 10;

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    calls: usize,
    retried: usize,
    connections: usize,
    after_t0: usize,
}

/// C51: one deletion; the load goes on across both GOAWAYs, redials as it is told, and ends in the drain.
async fn delete_at_a_random_moment(seed: u64) -> Sum {
    let mut random = Rng::with_seed(seed);
    // Everything that gets an answer here gets it from the old pod, so the hold must not end under the last calls.
    let app = AppOptions { reply_delay: MILLIS(random.u64(0..8)), ..AppOptions::default().h2c() };
    let pod = Pod::builder().seed(seed).grace(5).hold("1s").app_stop("500ms").app(app).start().await;
    pod.ready().await;
    let lanes = vec![
        Call::plain(Request::get("/")),
        Call::plain(Request::echo(random.usize(1..40_000))),
        Call::unary(random.usize(8..2000)),
        Call::plain(Request::get(&format!("/slow?ms={}", random.u64(0..200)))),
        Call::server_stream(Some(5), MILLIS(random.u64(1..30)), 300),
    ];
    let plan = H2Plan { to: pod.address().into(), rate: 100.0, connections: 10, lanes, timeout: SOON };
    let load = H2Load::start(plan);
    load.has_done(10, SOON).await;
    tokio::time::sleep(MILLIS(random.u64(0..400))).await;
    let deletion = pod.delete(5);
    let px = pod.ebbtide();
    px.phase_becomes("draining", SOON).await;
    tokio::time::sleep(MILLIS(random.u64(0..200))).await;
    let summary = load.stop().await;
    deletion.finished().await;

    eprintln!("SIM_SEED={seed}: {} calls, {:?}", summary.total(), summary.losses());
    summary.assert_clean();
    let journal = pod.journal(0);
    summary.assert_at_most_once(&journal);
    assert_eq!(journal.count("req"), journal.count("done"), "SIM_SEED={seed}: half-served by the app");
    let t0 = pod.timeline().find(|event| matches!(event, Event::Deleting(_))).expect("it was deleted");
    let report: serde_json::Value = serde_json::from_str(&px.termination_text()).expect("a report");
    assert_eq!(report["forced"], serde_json::json!({}), "SIM_SEED={seed}: {report}");
    assert_eq!(pod.exit_of(Who::Ebbtide), Some(CLEAN), "SIM_SEED={seed}");
    Sum {
        calls: summary.total(),
        retried: summary.retried(),
        connections: summary.connections(),
        after_t0: summary.since(t0).total(),
    }
}

/// C51: a hundred deletions, each at another moment of its calls and with another order of hooks and signals.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_deletions_at_random_moments_lose_no_stream() {
    let _heavy = heavy().await;
    let seed = seed();
    eprintln!("SIM_SEED={seed}");
    let mut all = Sum::default();
    let mut pods = JoinSet::new();
    for number in 0..(PODS * ROUNDS) as u64 {
        if pods.len() == PODS {
            let one: Sum = pods.join_next().await.expect("pods run").expect("no deletion fails");
            all = all.and(one);
        }
        pods.spawn(delete_at_a_random_moment(seed.wrapping_add(number)));
    }
    while let Some(one) = pods.join_next().await {
        all = all.and(one.expect("no deletion fails"));
    }
    eprintln!("{all:?}");
    // Without calls that crossed a notice nothing would have been shown.
    let deletions = PODS * ROUNDS;
    assert!(all.after_t0 > 40 * deletions, "{all:?}");
    assert!(all.connections > 13 * deletions, "the clients were not told to go: {all:?}");
}

// === impl Sum ===

impl Sum {
    const fn and(self, other: Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            retried: self.retried + other.retried,
            connections: self.connections + other.connections,
            after_t0: self.after_t0 + other.after_t0,
        }
    }
}
