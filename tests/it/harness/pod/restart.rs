//! Owns what happens to a pod short of a deletion, and deletions: each a task the test can await.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::task::{JoinHandle, JoinSet};

use super::timeline::{Event, Who};
use super::{Inner, Pod};
use crate::harness::SOON;
use crate::harness::wait::{Mono, within};

/// Something the kubelet does in the background.
#[derive(Debug)]
#[must_use = "await `finished`, or the test may end first"]
pub(crate) struct Work {
    pub(crate) since: Mono,
    what: &'static str,
    bound: Duration,
    task: JoinHandle<()>,
}

// === impl Work ===

impl Work {
    fn begin(what: &'static str, bound: Duration, task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { since: Mono::now(), what, bound: bound + SOON, task: tokio::spawn(task) }
    }

    pub(crate) async fn finished(self) {
        within(self.what, self.bound, self.task).await.expect("the kubelet does not panic");
    }
}

// === impl Pod ===

impl Pod {
    /// Deletes the pod with this real grace in seconds; what the spec says may differ.
    ///
    /// Node shutdown and eviction look the same from inside, with a smaller grace (1 for a hard
    /// eviction).
    pub(crate) fn delete(&self, grace: u64) -> Work {
        let pod = self.inner.clone();
        pod.timeline.push(Event::Deleting(grace));
        let bound = Duration::from_secs(grace + 4) + self.busy_bound();
        Work::begin("deletion", bound, async move {
            // There is one worker per pod: a blocked app restart delays the deletion.
            let _worker = pod.worker.lock().await;
            pod.deleted.store(true, std::sync::atomic::Ordering::SeqCst);
            pod.kill_pod(grace).await;
        })
    }

    /// Liveness failure or image change of an app: its hook, its stop signal, down, start; the
    /// sidecar is told nothing.
    pub(crate) fn restart_app_only(&self, app: u8, grace: u64, down: Duration) -> Work {
        let bound = Duration::from_secs(grace + 2) + down;
        self.restart(Who::App(app), grace, down, bound)
    }

    /// Own liveness failure: own hook, then the stop signal at once, then start.
    pub(crate) fn restart_sidecar_only(&self, grace: u64, down: Duration) -> Work {
        let bound = Duration::from_secs(grace + 2) + down;
        self.restart(Who::Ebbtide, grace, down, bound)
    }

    fn restart(&self, who: Who, grace: u64, down: Duration, bound: Duration) -> Work {
        let (pod, index) = (self.inner.clone(), self.inner.index(who));
        Work::begin("restart", bound, async move {
            {
                let _worker = pod.worker.lock().await;
                pod.timeline.push(Event::Restarting(who));
                pod.kill_container(index, grace, None).await;
            }
            pod.start_again(index, down).await;
        })
    }

    /// The app dies without hooks and comes back after the back-off.
    pub(crate) fn crash_app(&self, app: u8, back_off: Duration) -> Work {
        let who = Who::App(app);
        let (pod, index) = (self.inner.clone(), self.inner.index(who));
        Work::begin("restart after a crash", back_off, async move {
            let container = &pod.containers[index];
            if let Some(process) = container.running() {
                container.signal(Signal::KILL, &pod.timeline);
                within("exit after SIGKILL", SOON, process.ended()).await;
            }
            pod.start_again(index, back_off).await;
        })
    }

    /// Starts a container that has exited by itself, as restartPolicy says.
    pub(crate) async fn start_container(&self, who: Who) {
        let index = self.inner.index(who);
        self.inner.start_again(index, Duration::ZERO).await;
    }

    /// A Job: when the apps have exited by themselves, sidecars get their hooks and are stopped.
    pub(crate) fn finish_job(&self, deadline: Duration) -> Work {
        let pod = self.inner.clone();
        let bound = deadline + Duration::from_secs(pod.grace + 4);
        Work::begin("end of the job", bound, async move {
            for container in pod.containers.iter().filter(|one| !one.is_sidecar) {
                if let Some(process) = container.process() {
                    within("end of the main containers", deadline, process.ended()).await;
                }
            }
            let _worker = pod.worker.lock().await;
            pod.timeline.push(Event::MainsFinished);
            pod.deleted.store(true, std::sync::atomic::Ordering::SeqCst);
            pod.kill_pod(pod.grace).await;
        })
    }

    /// Outside Kubernetes (`docker stop`, systemd): stop signals at once, in this order, no hooks,
    /// and SIGKILL when the grace ends.
    pub(crate) fn stop_plain(&self, order: &[Who], grace: u64) -> Work {
        let pod = self.inner.clone();
        let indices: Vec<usize> = order.iter().map(|&who| pod.index(who)).collect();
        pod.timeline.push(Event::Deleting(grace));
        Work::begin("plain stop", Duration::from_secs(grace), async move {
            pod.deleted.store(true, std::sync::atomic::Ordering::SeqCst);
            let mut stops = JoinSet::new();
            for index in indices {
                let pod = pod.clone();
                // Spawned tasks may run in any order; the order of the signals is asked for.
                let container = &pod.containers[index];
                container.signal(container.stop_signal, &pod.timeline);
                stops.spawn(async move { pod.kill_after(index, grace).await });
            }
            stops.join_all().await;
        })
    }

    /// Any signal at any moment: an early SIGKILL, a second SIGTERM, SIGSTOP and SIGCONT.
    pub(crate) fn signal(&self, who: Who, signal: Signal) -> bool {
        let container = &self.inner.containers[self.inner.index(who)];
        container.signal(signal, &self.inner.timeline)
    }

    /// Delivers a hook once more, or by hand; hooks are delivered at least once.
    pub(crate) fn deliver_hook(&self, who: Who, grace: u64) -> Work {
        let (pod, index) = (self.inner.clone(), self.inner.index(who));
        Work::begin("hook", Duration::from_secs(grace), async move {
            pod.run_hook(index, grace).await;
        })
    }

    /// A restart that still holds the worker may run for its own grace.
    fn busy_bound(&self) -> Duration {
        Duration::from_secs(self.inner.grace + 2)
    }
}

// === impl Inner ===

impl Inner {
    /// Nothing is started in a pod that terminates.
    async fn start_again(self: &Arc<Self>, index: usize, down: Duration) {
        tokio::time::sleep(down).await;
        let _worker = self.worker.lock().await;
        if !self.deleted.load(std::sync::atomic::Ordering::SeqCst) {
            self.start_container(index).await;
        }
    }

    async fn kill_after(&self, index: usize, grace: u64) {
        let container = &self.containers[index];
        let Some(process) = container.process() else {
            return;
        };
        let grace = Duration::from_secs(grace);
        if tokio::time::timeout(grace, process.ended()).await.is_err() {
            container.signal(Signal::KILL, &self.timeline);
            within("exit after SIGKILL", SOON, process.ended()).await;
        }
    }
}
