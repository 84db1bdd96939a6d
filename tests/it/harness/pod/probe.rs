//! Owns the kubelet's probes of ebbtide: startup gates the apps, readiness is recorded.

use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::timeline::{Event, Who};
use crate::harness::SOON;
use crate::harness::ebbtide::surface::get;
use crate::harness::wait::{Mono, eventually_async};

/// One answer to the readiness probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) at: Mono,
    /// `None`: refused, reset or no answer in a second.
    pub(crate) status: Option<u16>,
}

// === impl Inner ===

impl Inner {
    /// As a native sidecar with a startupProbe: nothing after it starts before it has passed.
    pub(super) async fn startup_probe(&self) {
        let container = &self.containers[self.index(Who::Ebbtide)];
        eventually_async("startup probe", SOON, || async {
            let process = container.process();
            let running = process.as_ref().is_some_and(|one| one.is_running());
            assert!(running, "ebbtide ended at its start:\n{}", process.map(|one| one.log_text()).unwrap_or_default());
            match get(self.admin, "/startupz", PROBE_AGENT, TIMEOUT).await {
                Ok(got) if (200..400).contains(&got.status) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        self.timeline.push(Event::StartupPassed(Who::Ebbtide));
    }

    /// Goes on during the termination, as the kubelet's readiness probe does.
    pub(super) async fn readiness_probes(self: Arc<Self>, period: Duration) {
        let container = &self.containers[self.index(Who::Ebbtide)];
        let mut was = false;
        loop {
            let mut ready = false;
            if container.running().is_some() {
                let at = Mono::now();
                let got = get(self.admin, "/readyz", PROBE_AGENT, TIMEOUT).await;
                let status = got.ok().map(|got| got.status);
                ready = status.is_some_and(|status| (200..400).contains(&status));
                let mut readings = self.readings.lock().expect("no writer panics");
                readings.push(Reading { at, status });
            }
            if ready != was {
                self.timeline.push(Event::Ready(ready));
                was = ready;
            }
            tokio::time::sleep(period).await;
        }
    }
}

/// Of the kubelet's probes.
pub(crate) const PROBE_AGENT: &str = "kube-probe/1.34";

const TIMEOUT: Duration = Duration::from_secs(1);
