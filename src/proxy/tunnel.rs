//! Upgrades: the handshake with the app, then opaque bytes both ways, counted as in flight.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Sleep;

use super::body::{Body, Exchange, RequestBody, Upstream};
use super::forward::{answer, broke, out_of_time, unless_forced};
use super::relay::{Flow, Relay};
use super::response::Reason;
use super::{Inbound, headers, way};
use crate::listener::conn::{Active, Ask, Conn, Doing, Upgrade};
use crate::listener::io::Io;
use crate::listener::linger::linger;
use crate::telemetry::metrics::{Forced, Notice, RequestOutcome, Spoken};
use crate::upstream::connect::UpstreamIo;

/// Silence that makes a moment quiet enough to close a tunnel in.
const QUIET: Duration = Duration::from_millis(50);

/// Sends an upgrade request to the app on a connection of its own and passes the answer on.
pub async fn open(
    request: &mut Option<Request<Incoming>>,
    version: Version,
    active: &Active,
    inbound: &Rc<Inbound>,
) -> Result<Response<Body>, Reason> {
    let Some(request) = request.take() else { return Err(Reason::BadTarget) };
    let conn = active.conn();
    let metrics = inbound.worker.metrics;
    let (permit, stream) = way::single(active, inbound).await?;
    let io = UpstreamIo::new(stream);
    let client = inbound.pool.client();
    let (mut sender, connection) = client.handshake(TokioIo::new(io)).await.map_err(|_| Reason::AppBroke)?;
    let mut connection = Some(connection);
    let request = request.map(|inner| RequestBody::new(inner, active));
    let upload = request.body().upload();
    let mut sending = pin!(sender.send_request(request));
    let answered = unless_forced(
        active,
        pin!(poll_fn(|cx| {
            if let Some(driven) = &mut connection
                && let Poll::Ready(result) = driven.poll_without_shutdown(cx)
                && result.is_err()
            {
                connection = None;
            }
            sending.as_mut().poll(cx)
        })),
    )
    .await;
    let Some(answered) = answered else { return Err(out_of_time(inbound, true)) };
    let response = answered.map_err(|error| {
        if upload.is_some_and(|upload| upload.has_failed()) {
            return Reason::of_failed_body(conn);
        }
        broke(inbound, &error);
        Reason::AppBroke
    })?;
    if headers::has_other_coding(response.headers()) {
        return Err(Reason::AppAnswer);
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(connection) = connection else { return Err(Reason::AppBroke) };
        let parts = connection.into_parts();
        let Some(stream) = parts.io.into_inner().into_stream() else { return Err(Reason::AppBroke) };
        let upgrade = Upgrade { stream, read: parts.read_buf, permit };
        conn.upgrade.replace(Some(upgrade));
        metrics.requests.add_pair(Spoken::Http1 as usize, RequestOutcome::Upgraded as usize);
        // Untouched, in every phase: a 101 with `Connection: close` is no handshake (C68).
        let mut response = response.map(|_| Body::empty());
        *response.version_mut() = version;
        return Ok(response);
    }
    let Some(connection) = connection else { return Err(Reason::AppBroke) };
    let task = tokio::task::spawn_local(async move {
        // How it ended shows in the body.
        let _ = connection.await;
    });
    let upstream = Upstream::Single(task.abort_handle());
    let exchange = Exchange::new(active, inbound, permit, upstream, None, Spoken::Http1);
    Ok(answer(response, version, exchange))
}

/// Relays until both sides are done, or the termination asks for an end.
pub async fn relay(io: Io, conn: &Rc<Conn>) {
    let Some(Upgrade { stream: upstream, read, permit }) = conn.upgrade.take() else { return };
    conn.set_doing(Doing::Tunnel);
    let (stream, ahead) = io.into_parts();
    let mut relay = Relay::new(stream, upstream, ahead, read);
    let mut closing = Closing::No;
    let mut quiet: Pin<Box<Sleep>> = Box::pin(tokio::time::sleep(QUIET));
    let ended = poll_fn(|cx| {
        conn.wake_with(cx.waker());
        if conn.asked() == Ask::KILL {
            return Poll::Ready(Flow::Killed);
        }
        let before = relay.moved();
        if let Poll::Ready(flow) = relay.poll(cx) {
            return Poll::Ready(flow);
        }
        poll_closing(conn, &mut relay, &mut closing, before, &mut quiet, cx);
        Poll::Pending
    })
    .await;
    // Nothing of the app's is left to wait for.
    drop(permit);
    let worker = conn.worker();
    match (ended, closing) {
        (Flow::Killed, _) => worker.count_forced(Forced::Tunnel),
        (_, Closing::Forced) => worker.count_forced(Forced::Tunnel),
        (_, Closing::AtQuietMoment) => worker.metrics.notices.add(Notice::TunnelClose as usize),
        _ => {}
    }
    if closing.has_begun() && ended == Flow::Finished {
        linger(Io::new(relay.into_downstream(), Rc::clone(conn)), conn).await;
    }
}

/// How a tunnel came to be closed by us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    No,
    /// Asked for; waiting for a quiet moment.
    Asked,
    AtQuietMoment,
    Forced,
}

// === impl Closing ===

impl Closing {
    fn has_begun(self) -> bool {
        matches!(self, Self::AtQuietMoment | Self::Forced)
    }
}

/// FIN to both sides: at a quiet moment once asked, at any moment once forced.
fn poll_closing<D, U>(
    conn: &Conn,
    relay: &mut Relay<D, U>,
    closing: &mut Closing,
    moved_before: u64,
    quiet: &mut Pin<Box<Sleep>>,
    cx: &mut Context<'_>,
) where
    D: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    if closing.has_begun() {
        return;
    }
    match conn.asked() {
        Ask::FORCE => *closing = if relay.is_empty() { Closing::AtQuietMoment } else { Closing::Forced },
        Ask::CLOSE => {
            if *closing == Closing::No || relay.moved() != moved_before || !relay.is_empty() {
                *closing = Closing::Asked;
                quiet.as_mut().reset(tokio::time::Instant::now() + QUIET);
            }
            if quiet.as_mut().poll(cx).is_pending() {
                return;
            }
            *closing = Closing::AtQuietMoment;
        }
        _ => return,
    }
    relay.finish();
    // The FINs go out with the next poll.
    cx.waker().wake_by_ref();
}
