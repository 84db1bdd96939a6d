//! One connection from its first byte to its orderly end, and one request to the app and back.

pub mod opening;
pub mod http1;
pub mod http2;
pub mod forward;
pub mod to_http1;
pub mod to_http2;
pub mod way;
pub mod again;
pub mod headers;
pub mod body;
pub mod boundary;
pub mod events;
pub mod websocket;
pub mod response;
pub mod grpc;
pub mod access;
pub mod upgrade;
pub mod tunnel;
pub mod relay;
pub mod outbound;
pub mod warnings;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::sync::{Semaphore, watch};

use crate::config::{self, ListenerConfig};
use crate::detect::{Detected, detect};
use crate::lifecycle::phase::Phase;
use crate::listener::accept::Retiring;
use crate::listener::conn::Conn;
use crate::listener::idle::{Woken, has_unread, idle};
use crate::listener::io::Io;
use crate::listener::linger::linger;
use crate::telemetry::metrics::{Forced, Notice, Protocol, Reject};
use crate::tls::reload::ListenerTls;
use crate::tls::stream::TlsStream;
use crate::upstream::connect::Upstream;
use crate::upstream::multiplex::Multiplex;
use crate::upstream::pool::Pool;
use crate::upstream::speaks::Known;
use crate::worker::Worker;
use warnings::Warnings;

/// An inbound listener as a worker's connections see it.
#[derive(Debug)]
pub struct Inbound {
    /// The worker.
    pub worker: Rc<Worker>,
    /// Number among the inbound listeners.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// The rest of its configuration.
    pub config: ListenerConfig,
    /// TLS towards clients, as the files are now.
    pub tls: Option<watch::Receiver<Arc<ServerConfig>>>,
    /// This worker's connections to the app.
    pub pool: Pool,
    /// This worker's HTTP/2 connections to the app.
    pub multiplex: Multiplex,
    /// What the app speaks, if it had to be asked.
    pub speaks: Known,
    /// Who asks it, one at a time.
    pub asking: Semaphore,
    /// The app has begun to leave by itself; only of use once the pod terminates.
    pub app_leaves: Cell<bool>,
    /// Dials at once by requests that were parked.
    pub dial_turns: Semaphore,
    /// Warnings about the app.
    pub warnings: Warnings,
    /// Warnings about clients, by [`Reject`]: none hides another.
    pub client_warnings: [Warnings; Reject::NAMES.len()],
}

/// How serving a connection ended.
#[derive(Debug)]
pub enum Served {
    /// Nothing is under way: the socket is ours again, with what was read ahead put back.
    Idle(Box<Io>),
    /// The last response is out: close in order.
    Close(Box<Io>),
    /// The client is gone, or has closed after its last response.
    Gone,
    /// An upgrade was agreed.
    Upgraded(Box<Io>),
    /// The head did not come in time.
    HeadTimeout(Box<Io>),
    /// Let go of the socket as it is; with a reset where a plain close would look like a clean end.
    Drop(Box<Io>),
}

/// An old app's listen backlog may be as short as this.
const DIAL_TURNS: usize = 32;
/// Longest time for the end of a request body that has been answered, once its client's connection is over.
const LAST_BYTES: Duration = Duration::from_secs(2);

// === impl Inbound ===

impl Inbound {
    /// The listener number `number` of `worker`.
    pub fn new(worker: Rc<Worker>, number: usize, config: &ListenerConfig, tls: ListenerTls) -> Self {
        let header_bytes = worker.config.limits.header_bytes;
        let upstream = Upstream::new(config.upstream.clone(), tls.client);
        Self {
            worker,
            number,
            name: config.name.clone(),
            config: config.clone(),
            tls: tls.server,
            pool: Pool::new(upstream.clone(), header_bytes),
            multiplex: Multiplex::new(upstream, header_bytes),
            speaks: Known::default(),
            asking: Semaphore::new(1),
            app_leaves: Cell::new(false),
            dial_turns: Semaphore::new(DIAL_TURNS),
            warnings: Warnings::default(),
            client_warnings: Default::default(),
        }
    }
}

/// Serves a downstream connection to its end. What few connections come to is boxed: an idle one keeps the space of all
/// of it.
pub async fn serve_connection(mut io: Box<Io>, conn: Retiring, inbound: Rc<Inbound>) {
    let (conn, inbound) = (&conn.0, &inbound);
    let metrics = conn.worker().metrics;
    if opening::is_needed(conn, inbound) {
        match Box::pin(opening::open(io, conn, inbound)).await {
            Some(opened) => io = opened,
            None => return metrics.connections.add(Protocol::Silent as usize),
        }
    }
    if inbound.config.protocol == config::Protocol::Tcp {
        Box::pin(tunnel::serve(io, conn, inbound)).await;
        metrics.connections.add(Protocol::Tcp as usize);
        return;
    }
    let mut protocol = Protocol::Silent;
    let enough = |bytes: &[u8]| conn.served.get() || detect(bytes) != Detected::Undecided;
    loop {
        let first = match idle(&mut io, conn, enough).await {
            Woken::Bytes(bytes) => bytes,
            Woken::Eof => {
                if io.transport().tls().is_some() {
                    // It may have hung up, or an alert of ours is on its way: a farewell waits until it is taken.
                    linger(io, conn).await;
                }
                break;
            }
            Woken::Close => {
                metrics.notices.add(Notice::IdleClose as usize);
                linger(io, conn).await;
                break;
            }
            Woken::HeadTimeout => {
                Box::pin(head_timeout(io, conn)).await;
                break;
            }
        };
        if protocol == Protocol::Silent {
            // Later bytes of a connection that has spoken HTTP/1 are HTTP/1.
            protocol = match (io.transport().tls().and_then(TlsStream::alpn), detect(&first)) {
                (Some(b"h2"), _) | (None, Detected::Http2) => Protocol::Http2,
                (None, Detected::Tls) => {
                    Box::pin(opening::refuse_tls(io, conn, inbound)).await;
                    break;
                }
                _ => Protocol::Http1,
            };
        }
        io.put_back(first);
        let served = if protocol == Protocol::Http2 {
            http2::serve(io, conn, inbound).await
        } else {
            if !conn.served.get() && !conn.framing.get().whole {
                // An arrival counts at its first byte; whether a slow head belongs to a probe can't be waited for.
                conn.worker().lifecycle.tallies().connection_came(conn.worker().lifecycle.now());
            }
            http1::serve(io, conn, inbound).await
        };
        match served {
            Served::Idle(back) => io = back,
            Served::Close(io) if is_over(&io, conn) => break,
            Served::Close(io) => {
                linger(io, conn).await;
                break;
            }
            Served::Upgraded(io) => {
                Box::pin(upgrade::relay(io, conn)).await;
                break;
            }
            Served::HeadTimeout(io) => {
                Box::pin(head_timeout(io, conn)).await;
                break;
            }
            Served::Drop(mut io) => {
                if conn.reset.get() {
                    io.transport_mut().reset_when_dropped();
                }
                break;
            }
            Served::Gone => break,
        }
    }
    metrics.connections.add(protocol as usize);
}

/// A plain close destroys nothing: all has been read, and TLS would still have to say farewell.
fn is_over(io: &Io, conn: &Conn) -> bool {
    let is_tls = io.transport().tls().is_some();
    conn.client_closes.get() && !conn.body_unread.get() && !is_tls && !has_unread(io)
}

/// Request bodies that were answered and go on: at the end of their connection they have a last moment, or none.
fn finish_uploads(conn: &Conn, at_once: bool) {
    let uploads = conn.uploads.take();
    if at_once {
        uploads.iter().for_each(|upload| upload.let_go());
    } else if !uploads.is_empty() {
        // The client may have sent all of it: what we still have is on its way to the app.
        drop(tokio::task::spawn_local(async move {
            tokio::time::sleep(LAST_BYTES).await;
            uploads.iter().for_each(|upload| upload.let_go());
        }));
    }
}

async fn head_timeout(io: Box<Io>, conn: &Conn) {
    count_late_head(conn.worker());
    response::write_and_close(io, conn, response::HEAD_TIMEOUT).await;
}

fn count_late_head(worker: &Worker) {
    if !is_cut_by_drain(worker) {
        worker.metrics.rejected.add(Reject::HeaderTimeout as usize);
    }
}

/// What has begun and not come in time is late by the drain's end, and by no fault of the client's; that is counted here.
fn is_cut_by_drain(worker: &Worker) -> bool {
    let is_cut = worker.phase() > Phase::Holding;
    if is_cut {
        worker.count_forced(Forced::RequestHead);
    }
    is_cut
}
