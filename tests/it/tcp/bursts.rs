//! Owns C77: there is no way to ask a TCP client to go, so it is closed between two bursts, shortly before the deadline.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::{MILLIS, SECONDS, Stage};
use crate::harness::app::Flow;
use crate::harness::client::{BurstPlan, Bursts, Ending};
use crate::harness::http::pattern;
use crate::harness::script::Script;
use crate::harness::stage::{serving, tcp, terminate};
use crate::harness::wait::{Mono, within};
use crate::harness::{SOON, heavy};

const COUNT: usize = 500;
/// Bytes of one burst.
const BURST: u64 = 1000;

/// Drain deadline at 10.5 s, closes from 6.5 s on.
#[tokio::test]
async fn long_lived_connections_end_between_bursts_and_spread() {
    let _heavy = heavy().await;
    let drain = "grace_period: 12s, hold: 2s, close_spread: 4s, close: 1s, margin: 500ms";
    let stage = Stage::start(Flow::Echo, drain).await;
    let bursts = Bursts::start(stage.address, BurstPlan::default(), COUNT).await;
    bursts.all_have(1, SECONDS(20)).await;
    let t0 = Mono::now();
    terminate(&stage.px).await;
    let summary = bursts.ended(SECONDS(30)).await;
    assert_eq!(summary.endings(), [(Ending::Fin, COUNT)].into());
    let in_burst = summary.in_burst();
    assert!(in_burst * 20 <= COUNT, "{in_burst} of {COUNT} were closed inside a burst");
    // A client that begins, or has paused, in the moment of the FIN sends into nothing; of all others each byte came back.
    assert!(
        summary.lost() <= in_burst as u64 * BURST,
        "{} bytes never came back, {in_burst} in a burst",
        summary.lost()
    );
    let ends = summary.ends_since(t0);
    assert!(ends[0] >= MILLIS(6500), "the first ended after {:?}", ends[0]);
    // Evenly it would be an eighth.
    assert!(summary.densest(Duration::from_millis(500)) <= COUNT * 2 / 5, "{ends:?}");
    let report = stage.px.report_at_exit(SOON).await;
    let closed = report["notices"]["tunnel_close"].as_u64().unwrap();
    let forced = report["forced"]["tunnel"].as_u64().unwrap_or(0);
    assert_eq!(closed + forced, COUNT as u64, "{report}");
    assert!(forced * 20 <= COUNT as u64, "{report}");
}

/// The next request comes soon after each answer: there is no long silence, but there are moments between the two.
#[tokio::test]
async fn busy_connections_end_between_an_answer_and_the_next_request() {
    const BUSY: usize = 60;
    let _heavy = heavy().await;
    // Drain deadline at 6.5 s, closes from 2.5 s on.
    let drain = "grace_period: 8s, hold: 500ms, close_spread: 4s, close: 1s, margin: 500ms";
    let stage = Stage::start(Flow::Echo, drain).await;
    let plan = BurstPlan { every: MILLIS(60), pieces: 1, pause: MILLIS(0), size: 100 };
    let bursts = Bursts::start(stage.address, plan, BUSY).await;
    bursts.all_have(5, SOON).await;
    terminate(&stage.px).await;
    let summary = bursts.ended(SECONDS(20)).await;
    assert_eq!(summary.endings(), [(Ending::Fin, BUSY)].into());
    let in_burst = summary.in_burst();
    assert!(in_burst * 3 <= BUSY, "{in_burst} of {BUSY} were closed between a request and its answer");
    assert!(summary.records.iter().all(|one| one.intact), "other bytes came back");
    // Evenly it would be an eighth; each of them has half of its time for a moment that is quieter.
    let densest = summary.densest(MILLIS(500));
    assert!(densest <= BUSY * 3 / 5, "{densest} of {BUSY} within half a second");
    let report = stage.px.report_at_exit(SOON).await;
    let closed = report["notices"]["tunnel_close"].as_u64().unwrap_or(0);
    let forced = report["forced"]["tunnel"].as_u64().unwrap_or(0);
    assert_eq!(closed + forced, BUSY as u64, "{report}");
    assert!(forced * 4 <= BUSY as u64, "{report}");
}

/// Bytes without a pause have no quiet moment: what the deadline cuts is counted as cut.
#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_the_deadline_meets_counts_as_forced() {
    const COUNT: usize = 2;
    let _heavy = heavy().await;
    let app = Script::start(|_, mut wire| async move {
        let piece = pattern(64 * 1024);
        while wire.get_mut().write_all(&piece).await.is_ok() {}
    })
    .await;
    // No window before the deadline: on a busy machine a transfer may pause in it.
    let drain = "grace_period: 7s, hold: 200ms, close: 300ms, close_spread: 1ms, quiet: 200ms, margin: 500ms";
    let (px, address) = serving(tcp(drain, &format!("tcp://{}", app.address))).await;
    let mut readers = JoinSet::new();
    for _ in 0..COUNT {
        let mut stream = TcpStream::connect(address).await.unwrap();
        readers.spawn(async move {
            let mut buffer = vec![0; 64 * 1024];
            while stream.read(&mut buffer).await.expect("no reset") > 0 {}
        });
    }
    px.metric_becomes("ebbtide_in_flight", &[("kind", "tunnel")], SOON, |n| n == COUNT as f64).await;
    terminate(&px).await;
    within("the end of the transfers", SOON, readers.join_all()).await;
    let report = px.report_at_exit(SOON).await;
    assert_eq!((&report["outcome"], &report["forced"]), (&json!("forced"), &json!({"tunnel": COUNT})), "{report}");
    assert_eq!(report["notices"], json!({}), "{report}");
}
