//! Owns C77: there is no way to ask a TCP client to go, so it is closed between two bursts, shortly before the deadline.

use std::time::Duration;

use super::{MILLIS, SECONDS, Stage};
use crate::harness::app::Flow;
use crate::harness::client::{BurstPlan, Bursts, Ending};
use crate::harness::stage::terminate;
use crate::harness::wait::Mono;
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
