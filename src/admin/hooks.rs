//! `/app-stop`, the app's blocking preStop hook.
//!
//! It answers 200 in every state: the kubelet ignores the status, only transport errors count. A caller that hangs up
//! cancels nothing.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::Notify;

use super::text;
use crate::config::Secret;
use crate::lifecycle::Lifecycle;
use crate::proxy::body::Body;
use crate::telemetry::metrics::Metrics;

/// The places for held calls.
#[derive(Debug)]
pub struct Hooks {
    token: Option<Secret>,
    held: Cell<usize>,
    released: Notify,
}

/// Calls that the lifecycle is told of. Further ones wait for the next release without being refused.
pub const PLACES: usize = 1024;
/// Of these, kept for calls that carry the token, if one is configured.
const RESERVED: usize = 64;

// === impl Hooks ===

impl Hooks {
    /// No call is held.
    pub fn new(token: Option<Secret>) -> Self {
        Self { token, held: Cell::new(0), released: Notify::new() }
    }

    /// Holds a call until the lifecycle lets the app go.
    pub async fn hold(
        &self,
        lifecycle: Lifecycle,
        metrics: &'static Metrics,
        request: &Request<Incoming>,
    ) -> Response<Body> {
        let scope = match listener_of(request) {
            None => None,
            Some(name) => match lifecycle.inbound_index(name) {
                Some(index) => Some(index),
                // Held for all: a wrong name must not cut the app's requests short.
                None => {
                    tracing::warn!(listener = name, "app hook names a listener that does not exist, held for all");
                    None
                }
            },
        };
        metrics.app_hooks_open.fetch_add(1, Relaxed);
        let places = if self.is_trusted(request) { PLACES } else { PLACES - RESERVED };
        if self.held.get() < places {
            self.held.set(self.held.get() + 1);
            // An error means that the driver is gone, and with it every reason to hold.
            let _ = lifecycle.app_hook(scope).await;
            self.held.set(self.held.get() - 1);
            self.released.notify_waiters();
        } else {
            self.released.notified().await;
        }
        metrics.app_hooks_open.fetch_sub(1, Relaxed);
        text(StatusCode::OK, "the app may stop\n")
    }

    /// Without a token everybody has all places.
    fn is_trusted(&self, request: &Request<Incoming>) -> bool {
        let Some(token) = &self.token else { return true };
        request.headers().get("x-ebbtide-token").is_some_and(|given| token.matches(given.as_bytes()))
    }
}

fn listener_of(request: &Request<Incoming>) -> Option<&str> {
    let query = request.uri().query()?;
    query.split('&').find_map(|pair| pair.strip_prefix("listener="))
}
