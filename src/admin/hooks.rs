//! `/app-stop`, the app's blocking preStop hook.
//!
//! It answers 200 in every state: the kubelet ignores the status, only transport errors count. A caller that hangs up
//! cancels nothing.

use std::cell::Cell;
use std::rc::Rc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::Notify;

use super::text;
use crate::config::Secret;
use crate::lifecycle::{Counted, Lifecycle};
use crate::proxy::body::Body;
use crate::telemetry::metrics::Metrics;

/// The places for held calls.
#[derive(Debug)]
pub struct Hooks {
    token: Option<Secret>,
    /// Calls that the lifecycle has not answered yet, whether or not their callers still wait.
    held: Cell<usize>,
    released: Notify,
}

/// One of the places; given back when the lifecycle has answered.
struct Place(Rc<Hooks>);

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
        self: &Rc<Self>,
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
        let _open = Counted::new(&metrics.app_hooks_open);
        let places = if self.is_trusted(request) { PLACES } else { PLACES - RESERVED };
        if self.held.get() < places {
            let place = Place::take(self);
            let released = lifecycle.app_hook(scope);
            // A task of its own: a caller that hangs up cancels nothing, so its place must stay taken, or callers who
            // come and go would pile up in the lifecycle.
            let held = tokio::task::spawn_local(async move {
                // An error means that the driver is gone, and with it every reason to hold.
                let _ = released.await;
                drop(place);
            });
            // The task neither panics nor is it aborted.
            let _ = held.await;
        } else {
            self.released.notified().await;
        }
        text(StatusCode::OK, "the app may stop\n")
    }

    /// Without a token everybody has all places.
    fn is_trusted(&self, request: &Request<Incoming>) -> bool {
        let Some(token) = &self.token else { return true };
        request.headers().get("x-ebbtide-token").is_some_and(|given| token.matches(given.as_bytes()))
    }
}

// === impl Place ===

impl Place {
    fn take(hooks: &Rc<Hooks>) -> Self {
        hooks.held.set(hooks.held.get() + 1);
        Self(Rc::clone(hooks))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.held.set(self.0.held.get() - 1);
        self.0.released.notify_waiters();
    }
}

fn listener_of(request: &Request<Incoming>) -> Option<&str> {
    let query = request.uri().query()?;
    query.split('&').find_map(|pair| pair.strip_prefix("listener="))
}
