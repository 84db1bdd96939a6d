//! The access log: one event per answered request, off by default.

use http::{Method, Request, Response, StatusCode};
use tokio::time::Instant;

use super::body::Body;
use crate::worker::Worker;

/// What is remembered of a request until its answer starts; nothing if the log is off.
#[derive(Debug)]
pub struct Access(Option<Box<Entry>>);

#[derive(Debug)]
struct Entry {
    started: Instant,
    method: Method,
    path: String,
    phase: &'static str,
}

// === impl Access ===

impl Access {
    /// A request came.
    pub fn begin<B>(worker: &Worker, request: &Request<B>) -> Self {
        Self(worker.config.log.access.then(|| {
            Box::new(Entry {
                started: Instant::now(),
                method: request.method().clone(),
                // The query may hold secrets.
                path: request.uri().path().to_owned(),
                phase: worker.phase().name(),
            })
        }))
    }

    /// Its answer starts.
    pub fn end(self, response: &Response<Body>) {
        let Some(entry) = self.0 else { return };
        let is_session = entry.method == Method::CONNECT && response.status().is_success();
        let by = match response.body() {
            // Only the app agrees to an upgrade.
            _ if response.status() == StatusCode::SWITCHING_PROTOCOLS || is_session => "app",
            Body::App(_) => "app",
            Body::Own(..) => "ebbtide",
        };
        tracing::info!(
            method = %entry.method,
            path = entry.path,
            status = response.status().as_u16(),
            by,
            seconds_to_head = (entry.started.elapsed().as_secs_f64() * 1e6).round() / 1e6,
            phase = entry.phase,
            "request"
        );
    }
}
