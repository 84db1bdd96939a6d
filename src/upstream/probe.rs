//! Dials of our own, to know whether the app accepts: they run on the control thread, one task per inbound upstream.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::connect::{DialError, dial};
use crate::config::UpstreamAddr;
use crate::lifecycle::Lifecycle;

/// While it matters: until the app has accepted, after a refusal, and from t0 on.
const OFTEN: Duration = Duration::from_millis(100);
/// While serving, if nothing else has connected.
const SELDOM: Duration = Duration::from_secs(1);
/// For the dial that a signal asks for.
const AT_A_SIGNAL: Duration = Duration::from_millis(250);

/// Dials for ever.
pub async fn run(lifecycle: Lifecycle, listener: usize, upstream: UpstreamAddr) {
    let state = lifecycle.upstream(listener);
    // A pause ends with the first refusal, so somebody has to ask.
    let matters = || {
        let snapshot = lifecycle.snapshot();
        !state.is_up() || snapshot.phase.is_terminating() || snapshot.paused != 0
    };
    loop {
        let started = Instant::now();
        let often = matters();
        let fresh = state.last_accepted().is_some_and(|at| lifecycle.now().since(at) < SELDOM);
        if often || !fresh {
            report(lifecycle, listener, dial(&upstream).await.map(drop));
        }
        let often = matters();
        // A refusal seen by a request, or t0, is not waited for: this looks at least every 100 ms.
        let next = started + if often { OFTEN } else { SELDOM };
        while Instant::now() < next {
            sleep_until(next.min(Instant::now() + OFTEN)).await;
            if !often && matters() {
                break;
            }
        }
    }
}

/// Dials every inbound upstream once, because a signal has come: a refusal counts at once.
pub async fn at_a_signal(lifecycle: Lifecycle, upstreams: &[UpstreamAddr]) {
    for (listener, upstream) in upstreams.iter().enumerate() {
        match timeout(AT_A_SIGNAL, dial(upstream)).await {
            Ok(Ok(_)) => lifecycle.upstream_accepted(listener),
            Ok(Err(DialError::Refused)) => lifecycle.upstream_refused_for_certain(listener),
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

/// A timeout or an error of ours says nothing about the app.
fn report(lifecycle: Lifecycle, listener: usize, result: Result<(), DialError>) {
    match result {
        Ok(()) => lifecycle.upstream_accepted(listener),
        Err(DialError::Refused) => lifecycle.upstream_refused(listener),
        Err(_) => {}
    }
}
