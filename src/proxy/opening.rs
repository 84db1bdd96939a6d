//! What stands before the first request of a connection: a balancer's PROXY header, and a TLS handshake.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

use super::{Inbound, is_cut_by_drain, response};
use crate::config::Protocol;
use crate::detect::proxy_header::{self, ProxyHeader};
use crate::detect::{Detected, detect};
use crate::listener::conn::{Conn, Doing};
use crate::listener::idle::{Woken, asks_to_end, idle};
use crate::listener::io::Io;
use crate::listener::linger::linger;
use crate::telemetry::metrics::{Handshake, Notice, Reject};
use crate::tls::identity::{self, Identity};
use crate::tls::stream::{TlsStream, Wire};
use crate::tls::turns::in_turns;
use crate::transport::Transport;

/// Why a connection was not served at all.
enum Unserved {
    Gone,
    Idle,
    Rejected(Reject, String),
}

const NO_HEADER: &str = "no PROXY protocol header came";
const NO_HANDSHAKE: &str = "no handshake in time";

/// A connection begins with something else than what it is for.
pub fn is_needed(conn: &Conn, inbound: &Inbound) -> bool {
    inbound.tls.is_some() || expects_proxy_header(conn, inbound)
}

/// Goes through what comes first; `None` if the connection has ended there.
pub async fn open(mut io: Box<Io>, conn: &Rc<Conn>, inbound: &Rc<Inbound>) -> Option<Box<Io>> {
    if expects_proxy_header(conn, inbound)
        && let Err(end) = proxy_header(&mut io, conn).await
    {
        end_unserved(end, io, conn, inbound).await;
        return None;
    }
    let Some(tls) = &inbound.tls else { return Some(io) };
    let end = match first(&mut io, conn, |_| true, (Reject::TlsTimeout, NO_HANDSHAKE)).await {
        Ok(first) if detect(&first) == Detected::Tls => {
            let config = Arc::clone(&tls.borrow());
            return handshake(io, first, config, conn, inbound).await;
        }
        Ok(_) => {
            if inbound.config.protocol == Protocol::Http {
                io.transport_mut().write_now(response::NOT_TLS);
            }
            Unserved::Rejected(Reject::NotTls, "the client does not speak TLS".into())
        }
        Err(end) => end,
    };
    end_unserved(end, io, conn, inbound).await;
    None
}

/// Without TLS a handshake can only be told that it is in the wrong place.
pub async fn refuse_tls(mut io: Box<Io>, conn: &Rc<Conn>, inbound: &Inbound) {
    /// Fatal, handshake_failure (RFC 8446 §6).
    const ALERT: [u8; 7] = [21, 3, 1, 0, 2, 2, 40];
    io.transport_mut().write_now(&ALERT);
    let reason = "the client speaks TLS, and this listener has no certificate";
    end_unserved(Unserved::Rejected(Reject::UnexpectedTls, reason.into()), io, conn, inbound).await;
}

/// The connection comes from a balancer that says who its client is.
fn expects_proxy_header(conn: &Conn, inbound: &Inbound) -> bool {
    let sources = &inbound.config.proxy_protocol_from;
    !sources.is_empty() && {
        let ip = conn.client.get().ip().to_canonical();
        sources.iter().any(|network| network.contains(&ip))
    }
}

/// `enough` of the first bytes, or why they have not come; `late` if they have begun.
async fn first(
    io: &mut Io,
    conn: &Rc<Conn>,
    enough: impl Fn(&[u8]) -> bool,
    late: (Reject, &str),
) -> Result<Bytes, Unserved> {
    match idle(io, conn, enough).await {
        Woken::Bytes(bytes) => Ok(bytes),
        Woken::Eof => Err(Unserved::Gone),
        Woken::Close => Err(Unserved::Idle),
        Woken::HeadTimeout => Err(Unserved::Rejected(late.0, late.1.to_owned())),
    }
}

/// The header that a balancer puts first; everything behind it is put back.
async fn proxy_header(io: &mut Io, conn: &Rc<Conn>) -> Result<(), Unserved> {
    let enough = |bytes: &[u8]| proxy_header::parse(bytes) != ProxyHeader::Incomplete;
    let mut bytes = first(io, conn, enough, (Reject::HeaderTimeout, NO_HEADER)).await?;
    let ProxyHeader::Whole(length, client) = proxy_header::parse(&bytes) else {
        return Err(Unserved::Rejected(Reject::ProxyHeader, NO_HEADER.into()));
    };
    if let Some(client) = client {
        conn.client.set(client);
    }
    conn.set_doing(Doing::Idle);
    io.put_back(bytes.split_off(length));
    Ok(())
}

/// A handshake of which `first` has come. It counts as a head: the sweep bounds it, and a drain lets it finish.
async fn handshake(
    io: Box<Io>,
    first: Bytes,
    config: Arc<ServerConfig>,
    conn: &Rc<Conn>,
    inbound: &Rc<Inbound>,
) -> Option<Box<Io>> {
    let worker = conn.worker();
    let (transport, _) = io.into_parts();
    let Transport::Tcp(socket) = transport else { return None };
    let accepting = pin!(TlsAcceptor::from(config).accept(Wire::new(socket, first)).into_fallible());
    let is_over = |cx: &mut Context<'_>| {
        conn.wake_with(cx.waker());
        asks_to_end(conn)
    };
    let Some(accepted) = in_turns(&worker.handshake_turns, accepting, is_over).await else {
        worker.metrics.tls_handshakes.add(Handshake::Failed as usize);
        if !is_cut_by_drain(worker) {
            count(Reject::TlsTimeout, NO_HANDSHAKE, conn, inbound);
        }
        return None;
    };
    match accepted {
        Ok(accepted) => {
            let stream = TlsStream::new(accepted);
            let kind = if stream.is_resumed() { Handshake::Resumed } else { Handshake::Full };
            worker.metrics.tls_handshakes.add(kind as usize);
            let certificate = stream.peer_certificate().and_then(identity::header);
            // Nobody else sets it.
            let _ = conn.secure.set(Box::new(Identity { certificate }));
            conn.accepted.set(worker.lifecycle.now());
            conn.set_doing(Doing::Idle);
            Some(Io::new(Transport::Tls(Box::new(stream)), Rc::clone(conn)))
        }
        Err((error, wire)) => {
            worker.metrics.tls_handshakes.add(Handshake::Failed as usize);
            let io = Io::new(Transport::Tcp(wire.into_socket()), Rc::clone(conn));
            let end = Unserved::Rejected(Reject::TlsHandshake, error.to_string());
            end_unserved(end, io, conn, inbound).await;
            None
        }
    }
}

async fn end_unserved(end: Unserved, io: Box<Io>, conn: &Rc<Conn>, inbound: &Inbound) {
    match end {
        Unserved::Gone => return,
        Unserved::Idle => conn.worker().metrics.notices.add(Notice::IdleClose as usize),
        Unserved::Rejected(reason, text) => count(reason, &text, conn, inbound),
    }
    linger(io, conn).await;
}

fn count(reason: Reject, error: &str, conn: &Conn, inbound: &Inbound) {
    conn.worker().metrics.rejected.add(reason as usize);
    if let Some(suppressed) = inbound.client_warnings[reason as usize].turn(inbound.worker.lifecycle.now()) {
        let (listener, client, reason) = (&inbound.name, conn.client.get(), reason.name());
        tracing::warn!(listener, %client, reason, error, suppressed, "a connection was not served");
    }
}
