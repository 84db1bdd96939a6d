//! Owns the kubelet's killContainer: hook, turn, floor, stop signal, SIGKILL, with its arithmetic.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Inner;
use super::hook::Hook;
use super::timeline::{Event, HookEnd};
use crate::harness::SOON;
use crate::harness::wait::{Mono, within};

/// Tells sidecars when the containers that go before them have stopped.
#[derive(Debug)]
pub(super) struct Ordering {
    stopped: watch::Sender<Vec<bool>>,
}

/// What is left of the grace after something took `spent`: whole seconds, truncated (kubelet).
pub(crate) const fn left_after(left: u64, spent: Duration) -> u64 {
    left.saturating_sub(spent.as_secs())
}

/// What a container gets between its stop signal and SIGKILL: never less than the floor.
pub(crate) const fn stop_grace(left: u64) -> u64 {
    if left < FLOOR { FLOOR } else { left }
}

// === impl Inner ===

impl Inner {
    /// killContainersWithSyncResult: one worker per running container, all at the same moment.
    pub(super) async fn kill_pod(self: &Arc<Self>, grace: u64) {
        let running: Vec<bool> = self.containers.iter().map(|container| container.running().is_some()).collect();
        let ordered = self.containers.iter().any(|one| one.is_sidecar);
        let ordering = Arc::new(Ordering { stopped: watch::Sender::new(running.iter().map(|runs| !runs).collect()) });
        let mut workers = JoinSet::new();
        let mut indices: Vec<usize> = (0..running.len()).filter(|&one| running[one]).collect();
        self.random(|random| random.shuffle(&mut indices));
        for index in indices {
            let jitter = Duration::from_millis(self.random(|random| random.u64(0..=JITTER)));
            let (pod, ordering) = (self.clone(), ordered.then(|| ordering.clone()));
            workers.spawn(async move {
                tokio::time::sleep(jitter).await;
                pod.kill_container(index, grace, ordering.as_deref()).await;
            });
        }
        while let Some(worker) = workers.join_next().await {
            worker.expect("no worker panics");
        }
    }

    /// killContainer, in the kubelet's order of steps.
    pub(super) async fn kill_container(&self, index: usize, grace: u64, ordering: Option<&Ordering>) {
        let mut left = grace;
        let container = &self.containers[index];
        if container.hook != Hook::None && left > 0 {
            let began = Mono::now();
            self.run_hook(index, left).await;
            left = left_after(left, began.elapsed());
        }
        if let Some(ordering) = ordering
            && container.is_sidecar
            && left > 0
        {
            let began = Mono::now();
            let turn = self.turn(index, ordering);
            let _ = tokio::time::timeout(Duration::from_secs(left), turn).await;
            self.timeline.push(Event::Turn(container.who));
            left = left_after(left, began.elapsed());
        }
        self.stop_container(index, stop_grace(left)).await;
        if let Some(ordering) = ordering {
            ordering.stopped.send_modify(|stopped| stopped[index] = true);
        }
    }

    /// Runs the hook, at most for the grace; on a timeout it goes on by itself, as with the kubelet.
    pub(super) async fn run_hook(&self, index: usize, grace: u64) {
        let container = &self.containers[index];
        let who = container.who;
        self.timeline.push(Event::HookStarted(who));
        let hook = tokio::spawn(container.hook.clone().run(self.hook_context()));
        let (end, note) = match tokio::time::timeout(Duration::from_secs(grace), hook).await {
            Ok(Ok(Ok(()))) => (HookEnd::Ok, String::new()),
            Ok(Ok(Err(why))) => (HookEnd::Failed, why),
            Ok(Err(panic)) => (HookEnd::Failed, panic.to_string()),
            Err(_) => (HookEnd::TimedOut, String::new()),
        };
        self.timeline.push_at(Mono::now(), Event::HookReturned(who, end), note);
    }

    /// Mains first, then sidecars in reverse order of declaration.
    async fn turn(&self, index: usize, ordering: &Ordering) {
        let before: Vec<usize> = self
            .containers
            .iter()
            .enumerate()
            .filter(|(other, one)| !one.is_sidecar || *other > index)
            .map(|(other, _)| other)
            .collect();
        let mut stopped = ordering.stopped.subscribe();
        let _ = stopped.wait_for(|stopped| before.iter().all(|&other| stopped[other])).await;
    }

    /// CRI StopContainer.
    pub(super) async fn stop_container(&self, index: usize, grace: u64) {
        let container = &self.containers[index];
        let Some(process) = container.running() else {
            return;
        };
        container.signal(container.stop_signal, &self.timeline);
        let grace = Duration::from_secs(grace);
        if tokio::time::timeout(grace, process.ended()).await.is_err() {
            container.signal(Signal::KILL, &self.timeline);
            within("exit after SIGKILL", SOON, process.ended()).await;
        }
    }
}

/// Seconds between the stop signal and SIGKILL when the grace is used up.
const FLOOR: u64 = 2;

/// Workers start within so many milliseconds, ±50 around the middle.
const JITTER: u64 = 100;
