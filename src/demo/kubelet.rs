//! Plays a pod's deletion in the kubelet's order.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::DemoError;
use super::http::get;
use super::pod::{Container, Pod, Sidecar};
use super::progress::Events;

/// The app container's preStop.
#[derive(Debug, Clone, Copy)]
pub(super) enum AppHook {
    /// None.
    None,
    /// `sleep`.
    Sleep(Duration),
    /// `httpGet` on this address.
    AppStop(SocketAddr),
}

/// How the deletion went.
#[derive(Debug)]
pub(super) struct Deletion {
    /// From the deletion to the app's SIGTERM.
    pub(super) app_sigterm: Duration,
    /// From the deletion to the end of the last container.
    pub(super) gone: Duration,
    /// How the sidecar ended, if there was one.
    pub(super) sidecar: Option<ExitStatus>,
}

/// Deletes the pod: all hooks at once; the app's SIGTERM after its own hook; the sidecar's SIGTERM after its own hook
/// and the app's end; SIGKILL to what outlives the grace period.
pub(super) async fn delete(
    pod: &mut Pod,
    hook: AppHook,
    grace: Duration,
    events: &Events,
) -> Result<Deletion, DemoError> {
    let start = Instant::now();
    let name = pod.name;
    let (app_ended, turn) = watch::channel(false);
    let app = async {
        let left = run_hook(grace, app_hook(hook, events)).await?;
        let app_sigterm = start.elapsed();
        stop(&mut pod.app, "the app", left, events).await?;
        app_ended.send_replace(true);
        Ok(app_sigterm)
    };
    let sidecar = async {
        match &mut pod.sidecar {
            Some(sidecar) => stop_sidecar(sidecar, name, grace, turn, events).await.map(Some),
            None => Ok(None),
        }
    };
    let (app_sigterm, sidecar) = tokio::try_join!(app, sidecar)?;
    Ok(Deletion { app_sigterm, gone: start.elapsed(), sidecar })
}

async fn stop_sidecar(
    sidecar: &mut Sidecar,
    pod: &str,
    grace: Duration,
    mut turn: watch::Receiver<bool>,
    events: &Events,
) -> Result<ExitStatus, DemoError> {
    let left = run_hook(grace, own_hook(sidecar, pod, events)).await?;
    let waiting = Instant::now();
    // Whether the turn came or the grace ran out, the sidecar is next.
    timeout(left, turn.wait_for(|ended| *ended)).await.ok();
    stop(&mut sidecar.container, "ebbtide", spend(left, waiting.elapsed()), events).await
}

/// Runs a hook for at most `left`, and returns what is left after it.
async fn run_hook(left: Duration, hook: impl Future<Output = Result<(), DemoError>>) -> Result<Duration, DemoError> {
    let start = Instant::now();
    match timeout(left, hook).await {
        Ok(result) => result?,
        Err(_) => return Ok(Duration::ZERO),
    }
    Ok(spend(left, start.elapsed()))
}

async fn app_hook(hook: AppHook, events: &Events) -> Result<(), DemoError> {
    match hook {
        AppHook::None => {}
        AppHook::Sleep(time) => {
            events.line(format!("app hook called: sleep {}", time.as_secs()));
            sleep(time).await;
            events.line("app hook returned");
        }
        AppHook::AppStop(admin) => {
            events.line("app hook called: ebbtide blocks it");
            match get(admin, "/app-stop", "kube-lifecycle/1.36").await {
                Ok(status) => events.line(format!("app hook returned (status {status})")),
                Err(error) => events.line(format!("app hook failed: {error}")),
            }
        }
    }
    Ok(())
}

async fn own_hook(sidecar: &Sidecar, pod: &str, events: &Events) -> Result<(), DemoError> {
    let mut hook = sidecar.own_hook(pod)?;
    let status = hook.ended().await?;
    events.line(format!("own hook `ebbtide drain` returned ({})", describe(status)));
    if !status.success() {
        events.line(format!("its output:\n{}", hook.log_tail()));
    }
    Ok(())
}

/// SIGTERM, then SIGKILL if the grace ends first.
async fn stop(container: &mut Container, what: &str, left: Duration, events: &Events) -> Result<ExitStatus, DemoError> {
    match container.try_ended()? {
        Some(status) => {
            events.line(format!("{what} has already ended ({})", describe(status)));
            return Ok(status);
        }
        None => events.line(format!("SIGTERM to {what}")),
    }
    container.signal(Signal::TERM)?;
    let status = match timeout(left.max(FLOOR), container.ended()).await {
        Ok(status) => status?,
        Err(_) => {
            events.line(format!("the grace period is over: SIGKILL to {what}"));
            container.signal(Signal::KILL)?;
            container.ended().await?
        }
    };
    events.line(format!("{what} ended ({})", describe(status)));
    Ok(status)
}

/// What is left of the grace; like the kubelet it takes off whole seconds only.
fn spend(left: Duration, used: Duration) -> Duration {
    left.saturating_sub(Duration::from_secs(used.as_secs()))
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// The least a container gets between SIGTERM and SIGKILL.
const FLOOR: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_shrinks_by_whole_seconds() {
        let grace = Duration::from_secs(20);
        assert_eq!(spend(grace, Duration::from_millis(900)), grace);
        assert_eq!(spend(grace, Duration::from_millis(3900)), Duration::from_secs(17));
        assert_eq!(spend(grace, Duration::from_secs(21)), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_hook_is_given_up_when_the_grace_ends() {
        let blocked = std::future::pending();
        assert_eq!(run_hook(Duration::from_millis(20), blocked).await.expect("must run"), Duration::ZERO);
        let grace = Duration::from_secs(20);
        assert_eq!(run_hook(grace, async { Ok(()) }).await.expect("must run"), grace);
    }

    #[test]
    fn endings_are_described() {
        assert_eq!(describe(ExitStatus::from_raw(15)), "killed by signal 15");
        assert_eq!(describe(ExitStatus::from_raw(0)), "exit code 0");
    }
}
