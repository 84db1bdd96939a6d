//! The admin port: probes, metrics, status, and the app's blocking hook. GET only; nothing here starts a drain.

pub mod hooks;
pub mod status;

use std::cell::Cell;
use std::convert::Infallible;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use crate::config::Config;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::machine::Findings;
use crate::lifecycle::phase::Phase;
use crate::proxy::body::Body;
use crate::telemetry::metrics::Metrics;
use hooks::Hooks;
use status::Status;

/// What the handlers need.
#[derive(Debug)]
pub struct Admin {
    /// The lifecycle's handle.
    pub lifecycle: Lifecycle,
    /// Counters.
    pub metrics: &'static Metrics,
    /// The machine's findings, kept up to date by the observer.
    pub findings: Cell<Findings>,
    hooks: Rc<Hooks>,
    /// Connections without a held hook call.
    connections: Cell<usize>,
    most_hooks: u64,
}

/// A connection's share of the places.
struct Place(Rc<Admin>);

/// While a hook call is held its connection takes none of the places: an answer that comes too early, or a refusal,
/// would free the app's SIGTERM, so there is no limit at which one is given.
struct Uncounted<'a>(&'a Admin);

/// Connections that may ask for anything.
const PLACES: usize = 128;
/// Connections beyond those that may ask for a probe, quickly, or be held as a hook.
const PROBE_PLACES: usize = 128;
/// Held hook calls that take no place; further ones do, and in the end new connections wait in the backlog.
const MOST_HOOKS: u64 = 4096;
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const PROBE_HEAD_TIMEOUT: Duration = Duration::from_secs(1);

// === impl Admin ===

impl Admin {
    /// Handlers for one process that may open so many descriptors.
    pub fn new(lifecycle: Lifecycle, metrics: &'static Metrics, config: &Config, descriptors: u64) -> Rc<Self> {
        Rc::new(Self {
            lifecycle,
            metrics,
            findings: Cell::default(),
            hooks: Rc::new(Hooks::new(config.admin.token.clone())),
            connections: Cell::new(0),
            // Most descriptors belong to the traffic.
            most_hooks: MOST_HOOKS.min(descriptors / 8),
        })
    }

    /// Serves until the process ends.
    ///
    /// # Errors
    /// If the socket can't be registered with the runtime.
    pub fn serve(self: &Rc<Self>, socket: TcpListener) -> std::io::Result<()> {
        let socket = tokio::net::TcpListener::from_std(socket)?;
        let admin = Rc::clone(self);
        drop(tokio::task::spawn_local(async move {
            loop {
                while admin.connections.get() >= PLACES + PROBE_PLACES {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                match socket.accept().await {
                    Ok((stream, _)) => admin.start(stream),
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        }));
        Ok(())
    }

    fn start(self: &Rc<Self>, stream: TcpStream) {
        let place = Place::take(self);
        let admin = Rc::clone(self);
        let probes_only = self.connections.get() > PLACES;
        drop(tokio::task::spawn_local(async move {
            let _place = place;
            let service = service_fn(|request| {
                let admin = Rc::clone(&admin);
                async move { Ok::<_, Infallible>(admin.answer(&request, probes_only).await) }
            });
            // No write timeout: a hook is held as long as the drain takes.
            let _ = http1::Builder::new()
                .half_close(true)
                .timer(TokioTimer::new())
                .header_read_timeout(if probes_only { PROBE_HEAD_TIMEOUT } else { HEAD_TIMEOUT })
                .max_buf_size(16 * 1024)
                .keep_alive(!probes_only)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }));
    }

    async fn answer(&self, request: &Request<Incoming>, probes_only: bool) -> Response<Body> {
        if request.method() != Method::GET {
            let mut response =
                text(StatusCode::METHOD_NOT_ALLOWED, "only GET; a drain is started by `ebbtide drain`\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            return response;
        }
        match request.uri().path() {
            "/livez" => text(StatusCode::OK, "alive\n"),
            // Served only after every listener is bound.
            "/startupz" => text(StatusCode::OK, "started\n"),
            "/readyz" => self.readyz(),
            "/app-stop" => {
                let _uncounted = Uncounted::new(self);
                self.hooks.hold(self.lifecycle, self.metrics, request).await
            }
            _ if probes_only => text(StatusCode::SERVICE_UNAVAILABLE, "too many connections to the admin port\n"),
            "/metrics" => {
                self.lifecycle.tallies().scraped(self.lifecycle.now());
                let exposition = self.metrics.render(self.lifecycle, &self.findings.get());
                typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", exposition)
            }
            "/status" => {
                let status = Status::now(self.lifecycle, self.findings.get());
                typed(StatusCode::OK, "application/json", format!("{}\n", status.to_json()))
            }
            _ => text(StatusCode::NOT_FOUND, "paths: /livez /readyz /startupz /metrics /status /app-stop\n"),
        }
    }

    fn readyz(&self) -> Response<Body> {
        let snapshot = self.lifecycle.snapshot();
        if matches!(snapshot.phase, Phase::Starting | Phase::Serving)
            && let Some((name, _)) = self.lifecycle.upstreams().find(|(_, upstream)| !upstream.is_up())
        {
            let phase = snapshot.phase.name();
            let reason = format!("not ready, {phase}: the app behind listener {name} does not accept\n");
            return text(StatusCode::SERVICE_UNAVAILABLE, reason);
        }
        if snapshot.is_ready(self.lifecycle.now()) {
            text(StatusCode::OK, format!("ready, {}\n", snapshot.phase.name()))
        } else {
            text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready, {}\n", snapshot.phase.name()))
        }
    }
}

// === impl Place ===

impl Place {
    fn take(admin: &Rc<Admin>) -> Self {
        admin.connections.set(admin.connections.get() + 1);
        Self(Rc::clone(admin))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get() - 1);
    }
}

// === impl Uncounted ===

impl<'a> Uncounted<'a> {
    fn new(admin: &'a Admin) -> Option<Self> {
        if admin.metrics.app_hooks_open.load(Relaxed) >= admin.most_hooks {
            return None;
        }
        admin.connections.set(admin.connections.get() - 1);
        Some(Self(admin))
    }
}

impl Drop for Uncounted<'_> {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get() + 1);
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    typed(status, "text/plain; charset=utf-8", body)
}

fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::own(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
