//! Dials of our own, to know whether the app accepts: they run on the control thread, one task per inbound upstream.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::connect::{DialError, Upstream, dial};
use crate::config::{ListenerConfig, Protocol, UpstreamAddr};
use crate::lifecycle::Lifecycle;
use crate::lifecycle::phase::Phase;
use crate::telemetry::logging::chain;
use crate::tls::client::Offer;

/// While it matters: until the app has accepted, after a refusal, and from t0 on.
const OFTEN: Duration = Duration::from_millis(100);
/// While serving, if nothing else has connected. A server that is spoken to in bytes, or inside TLS, is left alone then:
/// it would take each dial for a client that gives up.
const SELDOM: Duration = Duration::from_secs(1);
/// For the dial that a signal asks for.
const AT_A_SIGNAL: Duration = Duration::from_millis(250);

/// What the log says of an app: changes at once, a lasting absence now and then.
struct News {
    listener: String,
    upstream: UpstreamAddr,
    started: Instant,
    said: Said,
    /// Of the latest dial that failed.
    error: String,
}

#[derive(Clone, Copy)]
enum Said {
    Nothing,
    Up,
    Away { since: Instant, logged: Instant },
}

/// An app may take this long to start before that is worth a line.
const SLOW_START: Duration = Duration::from_secs(3);
/// Pause between two lines about the same absence.
const STILL_AWAY: Duration = Duration::from_secs(30);

// === impl News ===

impl News {
    fn tell(&mut self, up: bool, phase: Phase) {
        let now = Instant::now();
        self.said = match (self.said, up) {
            (Said::Nothing, true) => {
                tracing::info!(listener = self.listener, upstream = %self.upstream, "the app accepts connections");
                Said::Up
            }
            (Said::Away { since, .. }, true) => {
                let away = now.duration_since(since).as_secs_f64();
                tracing::info!(listener = self.listener, seconds_away = away, "the app accepts connections again");
                Said::Up
            }
            (Said::Nothing, false) if now.duration_since(self.started) >= SLOW_START => self.away(self.started, phase),
            (Said::Up, false) => self.away(now, phase),
            (Said::Away { since, logged }, false) if now.duration_since(logged) >= STILL_AWAY => {
                self.away(since, phase)
            }
            (said, _) => said,
        };
    }

    fn away(&self, since: Instant, phase: Phase) -> Said {
        let (listener, upstream, error) = (&self.listener, &self.upstream, &self.error);
        if phase.is_terminating() {
            tracing::info!(listener, %upstream, error, "the app accepts no connections any more");
        } else {
            tracing::warn!(listener, %upstream, error, "the app does not accept connections");
        }
        Said::Away { since, logged: Instant::now() }
    }
}

/// Dials for ever.
pub async fn run(lifecycle: Lifecycle, listener: usize, config: ListenerConfig) {
    let ListenerConfig { name, upstream, protocol, .. } = config;
    let mut news = News {
        listener: name,
        upstream: upstream.clone(),
        started: Instant::now(),
        said: Said::Nothing,
        error: String::new(),
    };
    let state = lifecycle.upstream(listener);
    let is_disturbed = protocol == Protocol::Tcp || upstream.is_tls();
    let upstream = to_be_asked(upstream);
    // A pause ends with the first refusal, so somebody has to ask.
    let matters = || {
        let snapshot = lifecycle.snapshot();
        !state.is_up() || snapshot.phase.is_terminating() || snapshot.paused != 0
    };
    loop {
        let started = Instant::now();
        let often = matters();
        let fresh = state.last_accepted().is_some_and(|at| lifecycle.now().since(at) < SELDOM);
        if often || !(is_disturbed || fresh) {
            let result = dial(&upstream, Offer::Nothing).await.map(drop);
            if let Err(error) = &result {
                news.error = chain(error);
            }
            report(lifecycle, listener, result);
        }
        news.tell(state.is_up(), lifecycle.snapshot().phase);
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

/// Dials every inbound upstream once, all at the same time, because a signal has come: a refusal counts at once.
pub async fn at_a_signal(lifecycle: Lifecycle, upstreams: &[UpstreamAddr]) {
    let mut dials = JoinSet::new();
    for (listener, upstream) in upstreams.iter().cloned().enumerate() {
        dials.spawn_local(async move {
            match timeout(AT_A_SIGNAL, dial(&to_be_asked(upstream), Offer::Nothing)).await {
                Ok(Ok(_)) => lifecycle.upstream_accepted(listener),
                Ok(Err(DialError::Refused)) => lifecycle.upstream_refused_for_certain(listener),
                Ok(Err(_)) | Err(_) => {}
            }
        });
    }
    while dials.join_next().await.is_some() {}
}

/// Whether it accepts shows without TLS.
const fn to_be_asked(upstream: UpstreamAddr) -> Upstream {
    Upstream::new(upstream, None)
}

/// A timeout or an error of ours says nothing about the app.
fn report(lifecycle: Lifecycle, listener: usize, result: Result<(), DialError>) {
    match result {
        Ok(()) => lifecycle.upstream_accepted(listener),
        Err(DialError::Refused) => lifecycle.upstream_refused(listener),
        Err(_) => {}
    }
}
