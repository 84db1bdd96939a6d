//! Bytes that are nobody's business: what follows an upgrade to anything but WebSocket, and connections of a listener
//! with `protocol: tcp`. Nobody can be asked to leave here, so the drain waits, and in the end closes at a quiet moment.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::relay::{Direction, Flow, Relay, Side};
use super::response::Reason;
use super::{Inbound, forward, way};
use crate::detect::proxy_header;
use crate::lifecycle::in_flight::{Permit, Work};
use crate::lifecycle::tick::Tick;
use crate::listener::conn::{Active, Ask, Conn, Doing};
use crate::listener::io::Io;
use crate::listener::linger::linger;
use crate::listener::long::Kind;
use crate::telemetry::logging::chain;
use crate::telemetry::metrics::{Forced, Notice, Reject};
use crate::tls::client::Offer;

/// Silence that makes a moment quiet enough to close in, if the app has spoken last.
const QUIET: Duration = Duration::from_millis(100);
/// The same when half of the time is over: between an answer and the next request.
const QUIET_ENOUGH: Duration = Duration::from_millis(10);
/// Who has waited for longer than this waits for nothing: in some protocols the client alone speaks.
const NO_ANSWER: Duration = Duration::from_secs(60);

/// How a tunnel came to be closed by us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    No,
    /// Asked for; waiting for a quiet moment.
    Asked,
    AtQuietMoment,
    Forced,
    /// The silence that the listener allows is over.
    Silent,
}

struct Tunnel {
    relay: Relay,
    closing: Closing,
    /// When the last bytes have been silent for long enough.
    quiet: Pin<Box<Sleep>>,
    /// The client has spoken last: it may be waiting for an answer.
    asks: bool,
    /// When it was first asked to end.
    asked_at: Option<Tick>,
}

/// A connection of a listener with `protocol: tcp`, of which `io` may hold the first bytes.
pub async fn serve(io: Box<Io>, conn: &Rc<Conn>, inbound: &Rc<Inbound>) {
    let active = conn.activate();
    // Boxed: a relay may be silent for days, and would keep the space of all that has led to it.
    let Some((relay, permit)) = Box::pin(begin(io, &active, inbound)).await else { return };
    if let Some(fault) = run(relay, &active, permit).await {
        forward::broke(inbound, &fault);
    }
}

/// The relay and its permit, or none if there is no way to the app.
async fn begin(mut io: Box<Io>, active: &Active, inbound: &Rc<Inbound>) -> Option<(Relay, Permit)> {
    let conn = active.conn();
    let ahead = io.take_ahead();
    let mut way = pin!(way::single(active, inbound, Work::Tunnel, Offer::Nothing));
    let way = poll_fn(|cx| {
        active.wait_alone(cx);
        way.as_mut().poll(cx)
    });
    let (permit, upstream) = match way.await {
        Ok(way) => way,
        Err(reason) => {
            if !ahead.is_empty() || matches!(io.transport().peek(), Ok(1..)) {
                // A client, and no probe.
                let lifecycle = inbound.worker.lifecycle;
                lifecycle.tallies().connection_came(lifecycle.now());
            }
            refused(inbound, reason);
            linger(io, conn).await;
            return None;
        }
    };
    let first = if inbound.config.send_proxy_protocol {
        let destination = io.transport().local_addr();
        [proxy_header::version2(conn.client.get(), destination), ahead.to_vec()].concat()
    } else {
        ahead.to_vec()
    };
    if !ahead.is_empty() {
        arrived(conn);
    }
    let (transport, _) = io.into_parts();
    let relay = Relay::new(transport, upstream, Direction::opaque(&first), Direction::opaque(&[]));
    Some((relay, permit))
}

/// There are no words for it: the client sees a connection that ends without a byte.
fn refused(inbound: &Inbound, reason: Reason) {
    let (_, text, _) = reason.parts();
    if reason == Reason::DrainOver {
        tracing::debug!(listener = inbound.name, reason = text, "a connection was closed unserved");
    } else if let Some(suppressed) = inbound.warnings.turn(inbound.worker.lifecycle.now()) {
        tracing::warn!(listener = inbound.name, reason = text, suppressed, "a connection was closed unserved");
    }
}

/// An arrival counts at its first byte, also where the app speaks first: a probe sends none.
fn arrived(conn: &Conn) {
    if !conn.served.replace(true) {
        let lifecycle = conn.worker().lifecycle;
        lifecycle.tallies().connection_came(lifecycle.now());
        forward::note_forwarded(conn.worker());
    }
}

/// Relays until both sides are done, or the silence or the termination asks for an end. What TLS had to say against the
/// app comes back.
pub async fn run(relay: Relay, active: &Active, permit: Permit) -> Option<String> {
    let conn = active.conn();
    conn.set_doing(Doing::Relay);
    active.set_long(Kind::Tunnel);
    conn.clear_ask();
    let mut tunnel = Tunnel { relay, closing: Closing::No, quiet: Box::pin(sleep(QUIET)), asks: false, asked_at: None };
    let ended = poll_fn(|cx| tunnel.poll(active, cx)).await;
    let worker = conn.worker();
    match (ended, tunnel.closing) {
        (_, Closing::Silent) => worker.metrics.rejected.add(Reject::TcpSilence as usize),
        (Flow::Killed, _) | (_, Closing::Forced) => worker.count_forced(Forced::Tunnel),
        (_, Closing::AtQuietMoment) => worker.metrics.notices.add(Notice::TunnelClose as usize),
        _ => {}
    }
    match ended {
        Flow::Killed => tunnel.relay.cut_off(),
        Flow::Broken => tunnel.relay.cut_off_what_is_missing(),
        Flow::Finished => {}
    }
    // Nothing of the app's is left to wait for; with the last one the report is written.
    drop(permit);
    let by_us = tunnel.closing.has_begun() && ended == Flow::Finished;
    // A reset in answer to what the client still sends would take away what it has not read yet.
    let by_the_app = ended == Flow::Broken && !tunnel.relay.down.is_target_gone();
    let fault = tunnel.relay.down.fault().map(|error| chain(error));
    if by_us || by_the_app {
        leave(tunnel.relay, conn).await;
    }
    fault
}

/// The end of a relay that was ended by us: the client may still be sending.
pub async fn leave(relay: Relay, conn: &Rc<Conn>) {
    if let Side::Own(transport) = relay.into_downstream() {
        linger(Io::new(transport, Rc::clone(conn)), conn).await;
    }
}

// === impl Tunnel ===

impl Tunnel {
    fn poll(&mut self, active: &Active, cx: &mut Context<'_>) -> Poll<Flow> {
        active.wait_alone(cx);
        let conn = active.conn();
        if conn.asked() == Ask::KILL {
            return Poll::Ready(Flow::Killed);
        }
        let before = self.relay.stand();
        let flow = self.relay.poll(&conn.worker().gear, cx);
        let after = self.relay.stand();
        let moved = after != before;
        if moved {
            // Read on either side; what is merely written is older.
            let (up, down) = (after.0 != before.0, after.1 != before.1);
            self.asks = up || (self.asks && !down);
            if after.0 > 0 {
                arrived(conn);
            }
        }
        if flow.is_ready() {
            return flow;
        }
        let half_closed = self.relay.is_half_closed();
        let was_half_closed = conn.half_closed.replace(half_closed);
        if moved || half_closed != was_half_closed {
            conn.since.set(conn.worker().coarse_now());
        }
        if conn.asked() < Ask::CLOSE {
            return Poll::Pending;
        }
        if conn.worker().phase().is_terminating() {
            self.close_if_asked(conn, moved, cx);
        } else if self.closing == Closing::No {
            if moved {
                // The silence was over before the connection.
                conn.clear_ask();
            } else {
                self.closing = Closing::Silent;
                if !self.relay.is_empty() {
                    // Whoever takes no bytes would not take the end either.
                    return Poll::Ready(Flow::Killed);
                }
                self.finish(cx);
            }
        }
        Poll::Pending
    }

    /// FIN to both sides: at a quiet moment once asked, at any moment once forced.
    fn close_if_asked(&mut self, conn: &Conn, moved: bool, cx: &mut Context<'_>) {
        if self.closing.has_begun() {
            return;
        }
        match conn.asked() {
            Ask::FORCE => {
                let silent = !moved && self.relay.is_empty() && silent_for(conn) >= QUIET;
                if !silent {
                    self.relay.cut_off();
                }
                self.closing = if silent && !self.waits(conn) { Closing::AtQuietMoment } else { Closing::Forced };
            }
            Ask::CLOSE => {
                if self.closing == Closing::No || moved || !self.relay.is_empty() {
                    self.closing = Closing::Asked;
                    let silence = self.silence(conn);
                    self.quiet.as_mut().reset(Instant::now() + silence);
                }
                if self.quiet.as_mut().poll(cx).is_pending() {
                    return;
                }
                self.closing = if self.waits(conn) { Closing::Forced } else { Closing::AtQuietMoment };
            }
            _ => return,
        }
        self.finish(cx);
    }

    /// The silence that makes a moment quiet enough. Who waits for an answer is given half of the time there is: how
    /// long a query takes nobody here can know, and the ends still have to be spread.
    fn silence(&mut self, conn: &Conn) -> Duration {
        let worker = conn.worker();
        let now = worker.lifecycle.now();
        let asked_at = *self.asked_at.get_or_insert(now);
        let end = worker.snapshot().stream_close.map_or(now, |window| window.end);
        let left = end.since(now);
        match self.waits(conn) {
            true => QUIET.max(left / 2),
            false if left < end.since(asked_at) / 2 && !self.relay.down.is_bulk() => QUIET_ENOUGH,
            false => QUIET,
        }
    }

    fn waits(&self, conn: &Conn) -> bool {
        self.asks && silent_for(conn) < NO_ANSWER
    }

    fn finish(&mut self, cx: &Context<'_>) {
        self.relay.finish();
        // The FINs go out with the next poll.
        cx.waker().wake_by_ref();
    }
}

/// Since when nothing has moved, as of the sweep before.
fn silent_for(conn: &Conn) -> Duration {
    conn.worker().lifecycle.now().since(conn.since.get())
}

// === impl Closing ===

impl Closing {
    const fn has_begun(self) -> bool {
        matches!(self, Self::AtQuietMoment | Self::Forced | Self::Silent)
    }
}
