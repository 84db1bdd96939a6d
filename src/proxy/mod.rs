//! One connection from its first byte to its orderly end, and one request to the app and back.

pub mod http1;
pub mod http2;
pub mod forward;
pub mod to_http1;
pub mod to_http2;
pub mod way;
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
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::Semaphore;

use crate::config::{self, ListenerConfig};
use crate::detect::proxy_header::{self, ProxyHeader};
use crate::detect::{Detected, detect};
use crate::lifecycle::phase::Phase;
use crate::listener::conn::{Ask, Conn, Doing};
use crate::listener::io::Io;
use crate::listener::linger::linger;
use crate::telemetry::metrics::{Forced, Notice, Protocol, Reject};
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
}

/// How serving a connection ended.
#[derive(Debug)]
pub enum Served {
    /// Nothing is under way: the socket is ours again, with what was read ahead put back.
    Idle(Io),
    /// The last response is out: close in order.
    Close(Io),
    /// The client is gone, or has closed after its last response.
    Gone,
    /// An upgrade was agreed.
    Upgraded(Io),
    /// The head did not come in time.
    HeadTimeout(Io),
    /// Let go of the socket as it is; with a reset where a plain close would look like a clean end.
    Drop(Io),
}

/// What the bare socket brought.
enum Woken {
    Bytes(Bytes),
    Eof,
    Close,
    HeadTimeout,
}

/// An old app's listen backlog may be as short as this.
const DIAL_TURNS: usize = 32;
/// Longest time for the end of a request body that has been answered, once its client's connection is over.
const LAST_BYTES: Duration = Duration::from_secs(2);
/// Most bytes read to tell protocols apart; the rest stays in the kernel.
const FIRST_READ: usize = 8192;

// === impl Inbound ===

impl Inbound {
    /// The listener number `number` of `worker`.
    pub fn new(worker: Rc<Worker>, number: usize, config: &ListenerConfig) -> Self {
        let header_bytes = worker.config.limits.header_bytes;
        Self {
            worker,
            number,
            name: config.name.clone(),
            config: config.clone(),
            pool: Pool::new(config.upstream.clone(), header_bytes),
            multiplex: Multiplex::new(config.upstream.clone(), header_bytes),
            speaks: Known::default(),
            asking: Semaphore::new(1),
            app_leaves: Cell::new(false),
            dial_turns: Semaphore::new(DIAL_TURNS),
            warnings: Warnings::default(),
        }
    }

    /// The connection comes from a balancer that says who its client is.
    fn expects_proxy_header(&self, conn: &Conn) -> bool {
        let sources = &self.config.proxy_protocol_from;
        !sources.is_empty() && {
            let ip = conn.client.get().ip().to_canonical();
            sources.iter().any(|network| network.contains(&ip))
        }
    }
}

/// Serves a downstream connection to its end. What few connections come to is boxed: an idle one keeps the space of all
/// of it.
pub async fn serve_connection(mut io: Io, conn: &Rc<Conn>, inbound: &Rc<Inbound>) {
    let metrics = conn.worker().metrics;
    if inbound.expects_proxy_header(conn)
        && let Err(end) = Box::pin(proxy_header(&mut io, conn)).await
    {
        metrics.connections.add(Protocol::Silent as usize);
        return Box::pin(end_unserved(end, io, conn, inbound)).await;
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
            Woken::Eof => break,
            Woken::Close => {
                metrics.notices.add(Notice::IdleClose as usize);
                linger(io, conn).await;
                break;
            }
            Woken::HeadTimeout => {
                head_timeout(io, conn).await;
                break;
            }
        };
        if protocol == Protocol::Silent {
            // Later bytes of a connection that has spoken HTTP/1 are HTTP/1.
            protocol = match detect(&first) {
                Detected::Http2 => Protocol::Http2,
                Detected::Http1 | Detected::Undecided => Protocol::Http1,
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
            // Nothing is there and nothing more will come: a plain close destroys nothing.
            Served::Close(io) if conn.client_closes.get() && !conn.body_unread.get() && !has_unread(&io) => break,
            Served::Close(io) => {
                linger(io, conn).await;
                break;
            }
            Served::Upgraded(io) => {
                Box::pin(upgrade::relay(io, conn)).await;
                break;
            }
            Served::HeadTimeout(io) => {
                head_timeout(io, conn).await;
                break;
            }
            Served::Drop(io) => {
                if conn.reset.get() {
                    // Errors only if the peer is gone, which is what we want.
                    let _ = io.stream().set_zero_linger();
                }
                break;
            }
            Served::Gone => break,
        }
    }
    metrics.connections.add(protocol as usize);
}

/// The header that a balancer puts first; everything behind it is put back.
async fn proxy_header(io: &mut Io, conn: &Rc<Conn>) -> Result<(), Unserved> {
    let enough = |bytes: &[u8]| proxy_header::parse(bytes) != ProxyHeader::Incomplete;
    let mut bytes = match idle(io, conn, enough).await {
        Woken::Bytes(bytes) => bytes,
        Woken::Eof => return Err(Unserved::Gone),
        Woken::Close => return Err(Unserved::Idle),
        Woken::HeadTimeout => return Err(Unserved::Rejected(Reject::HeaderTimeout)),
    };
    let ProxyHeader::Whole(length, client) = proxy_header::parse(&bytes) else {
        return Err(Unserved::Rejected(Reject::ProxyHeader));
    };
    if let Some(client) = client {
        conn.client.set(client);
    }
    conn.set_doing(Doing::Idle);
    io.put_back(bytes.split_off(length));
    Ok(())
}

/// Why a connection was not served at all.
enum Unserved {
    Gone,
    Idle,
    Rejected(Reject),
}

async fn end_unserved(end: Unserved, io: Io, conn: &Rc<Conn>, inbound: &Inbound) {
    let worker = conn.worker();
    match end {
        Unserved::Gone => return,
        Unserved::Idle => worker.metrics.notices.add(Notice::IdleClose as usize),
        Unserved::Rejected(reason) => {
            worker.metrics.rejected.add(reason as usize);
            if let Some(suppressed) = inbound.warnings.turn(inbound) {
                let (listener, client, reason) = (&inbound.name, conn.client.get(), reason.name());
                tracing::warn!(listener, %client, reason, suppressed, "no PROXY protocol header came");
            }
        }
    }
    linger(io, conn).await;
}

/// The socket without any buffer until something comes; then `enough` bytes to go on.
async fn idle(io: &mut Io, conn: &Rc<Conn>, enough: impl Fn(&[u8]) -> bool) -> Woken {
    conn.clear_ask();
    let ahead = io.take_ahead();
    if ahead.is_empty() {
        conn.set_doing(Doing::Idle);
    }
    let mut read = BytesMut::from(ahead.as_ref());
    loop {
        if !read.is_empty() && enough(&read) {
            return Woken::Bytes(read.freeze());
        }
        conn.bare.set(true);
        let ready = poll_fn(|cx| {
            conn.wake_with(cx.waker());
            match io.stream().poll_read_ready(cx) {
                Poll::Ready(result) => Poll::Ready(result.is_ok()),
                Poll::Pending if asks_to_end(conn) => Poll::Ready(false),
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
        conn.bare.set(false);
        if ready {
            read.reserve(FIRST_READ);
            match io.stream().try_read_buf(&mut read) {
                Ok(0) => return Woken::Eof,
                Ok(_) => {
                    conn.head_began();
                    continue;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if read.is_empty() {
                        read = BytesMut::new();
                    }
                    if !asks_to_end(conn) {
                        continue;
                    }
                }
                Err(_) => return Woken::Eof,
            }
        }
        return match conn.asked() {
            Ask::HEAD_TIMEOUT => Woken::HeadTimeout,
            // The kernel knows better than the reactor: a request that is already here gets its answer.
            Ask::CLOSE if has_unread(io) => {
                conn.clear_ask();
                continue;
            }
            Ask::CLOSE => Woken::Close,
            _ => Woken::Eof,
        };
    }
}

fn has_unread(io: &Io) -> bool {
    use rustix::net::{RecvFlags, recv};
    matches!(recv(io.stream(), &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((n, _)) if n > 0)
}

fn asks_to_end(conn: &Conn) -> bool {
    match conn.asked() {
        Ask::CLOSE => conn.doing.get() == Doing::Idle,
        Ask::HEAD_TIMEOUT => conn.doing.get() == Doing::Head,
        Ask::KILL => true,
        _ => {
            conn.clear_ask();
            false
        }
    }
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

async fn head_timeout(io: Io, conn: &Conn) {
    let worker = conn.worker();
    if worker.snapshot().phase > Phase::Holding {
        worker.count_forced(Forced::RequestHead);
    } else {
        worker.metrics.rejected.add(Reject::HeaderTimeout as usize);
    }
    response::write_and_close(io, conn, response::HEAD_TIMEOUT).await;
}
