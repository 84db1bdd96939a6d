//! One side of the comparison: two pods under load, one of them deleted.

use std::fs;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::balancer::Balancer;
use super::kubelet::{self, AppHook};
use super::load::Load;
use super::outcome::{Side, SidecarEnd};
use super::pod::{Pod, Sidecar};
use super::progress::{Event, Events};
use super::table::grouped;
use super::websocket::heard;
use super::workdir::WorkDir;
use super::{DemoError, Options};

/// Which side is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// The app alone.
    WithoutEbbtide,
    /// The app behind ebbtide, with both hooks.
    WithEbbtide,
}

/// The times and sizes, the same for both sides.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) rate: u32,
    /// How late the balancer learns of the deletion.
    pub(super) lag: Duration,
    /// The app's preStop on the side without ebbtide; zero is none.
    pub(super) baseline_sleep: Duration,
    pub(super) grace: Duration,
    pub(super) hold: Duration,
    pub(super) app_stop: Duration,
    /// The load goes on for at least this long after the deletion, so that both sides get the same.
    window: Duration,
}

// === impl Plan ===

impl Plan {
    /// Derives the rest from what the user can choose.
    pub(super) fn new(options: &Options) -> Self {
        let hold = Duration::from_secs(options.hold);
        let lag = Duration::from_secs(options.lag);
        let baseline_sleep = Duration::from_secs(options.baseline_sleep);
        Self {
            rate: options.rate,
            lag,
            baseline_sleep,
            grace: hold + AFTER_HOLD,
            hold,
            app_stop: Duration::from_secs(1),
            window: (hold + EXIT_AFTER_HOLD).max(lag).max(baseline_sleep) + AFTERMATH,
        }
    }

    /// About how long both sides take.
    pub(super) fn estimate(&self) -> Duration {
        2 * (Duration::from_secs(1) + WARM_UP + self.window + LAST_ANSWERS)
    }

    fn app_hook(&self, sidecar: Option<&Sidecar>) -> AppHook {
        match sidecar {
            Some(sidecar) => AppHook::AppStop(sidecar.admin),
            None if self.baseline_sleep.is_zero() => AppHook::None,
            None => AppHook::Sleep(self.baseline_sleep),
        }
    }
}

// === impl Which ===

impl Which {
    fn heading(self, plan: &Plan) -> String {
        match self {
            Self::WithoutEbbtide if plan.baseline_sleep.is_zero() => {
                "WITHOUT EBBTIDE: the app alone, no hook".to_owned()
            }
            Self::WithoutEbbtide => {
                format!("WITHOUT EBBTIDE: the app alone, preStop: sleep {}", plan.baseline_sleep.as_secs())
            }
            Self::WithEbbtide => format!(
                "WITH EBBTIDE: native sidecar, grace period {} s, hold {} s",
                plan.grace.as_secs(),
                plan.hold.as_secs()
            ),
        }
    }
}

/// Plays one side from the start of its pods to the last answer.
pub(super) async fn play(plan: &Plan, which: Which, dir: &WorkDir, events: &Events) -> Result<Side, DemoError> {
    events.send(Event::Heading(which.heading(plan)));
    let mut pod_a = Pod::start("pod-a", plan, which, dir).await?;
    let pod_b = Pod::start("pod-b", plan, which, dir).await?;
    events.line("pods A and B are ready, load starts");

    let balancer = Balancer::start(pod_a.address, pod_b.address).await?;
    let raw = Balancer::start(pod_a.raw, pod_b.raw).await?;
    let load = Load::start(&balancer, &raw, plan.rate);
    events.send(Event::Load(Some(load.tally())));
    sleep(WARM_UP).await;

    let start = Instant::now();
    events.send(Event::Deleted(start));
    events.line("pod A is deleted");
    balancer.pod_a_deleted();
    raw.pod_a_deleted();
    let hook = plan.app_hook(pod_a.sidecar.as_ref());
    let learn = async {
        sleep_until(start + plan.lag).await;
        balancer.learn();
        raw.learn();
        events.line("the balancer learns of it: new connections go to pod B only");
        Ok(())
    };
    let (deletion, ()) = tokio::try_join!(kubelet::delete(&mut pod_a, hook, plan.grace, events), learn)?;
    sleep_until((start + plan.window).max(Instant::now() + AFTERMATH)).await;
    events.line("load ends, last answers are awaited");

    let mut side = Side {
        loads: load.finish(|| heard(&[pod_a.app.log(), pod_b.app.log()].concat())).await,
        flows: balancer.flows() + raw.flows(),
        app_sigterm_seconds: deletion.app_sigterm.as_secs_f64(),
        pod_gone_seconds: deletion.gone.as_secs_f64(),
        ebbtide: None,
    };
    let (requests, failed) = side.totals();
    events.line(format!("{} requests made, {} failed", grouped(requests), grouped(failed)));
    events.send(Event::Load(None));
    if let (Some(sidecar), Some(status)) = (&pod_a.sidecar, deletion.sidecar) {
        let exit_code = status.code();
        let log_tail = (failed > 0 || exit_code != Some(0)).then(|| sidecar.container.log_tail());
        side.ebbtide = Some(SidecarEnd { exit_code, report: read_report(sidecar), log_tail });
    }
    drop(pod_b);
    Ok(side)
}

fn read_report(sidecar: &Sidecar) -> Option<serde_json::Value> {
    let text = fs::read_to_string(&sidecar.report).ok().filter(|text| !text.trim().is_empty())?;
    Some(serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text)))
}

/// Long enough for keep-alive connections to settle and slow requests to be under way.
const WARM_UP: Duration = Duration::from_secs(2);

/// The grace period beside the hold: 5 s of drain, 2 s of close, 1 s for the app to stop, 2 s of margin.
const AFTER_HOLD: Duration = Duration::from_secs(10);

/// What ebbtide takes after its hold: the streams without an end go on until the drain deadline.
const EXIT_AFTER_HOLD: Duration = Duration::from_millis(5500);

/// The load goes on for this long after the pod is gone, to see what the survivors lose.
const AFTERMATH: Duration = Duration::from_secs(2);

/// A slow request that began at the very end.
const LAST_ANSWERS: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::super::Output;
    use super::*;

    fn plan(hold: u64, lag: u64, baseline_sleep: u64) -> Plan {
        Plan::new(&Options { rate: 400, hold, lag, baseline_sleep, output: Output::Text })
    }

    #[test]
    fn every_choice_stays_below_a_minute() {
        assert!(plan(6, 3, 0).estimate() <= Duration::from_secs(45));
        assert!(plan(15, 15, 15).estimate() < Duration::from_secs(60));
    }

    #[test]
    fn the_load_outlasts_the_lag_and_the_sleep() {
        assert!(plan(1, 15, 0).window >= Duration::from_secs(17));
        assert!(plan(1, 1, 15).window >= Duration::from_secs(17));
    }
}
