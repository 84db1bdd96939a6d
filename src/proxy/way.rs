//! The way of a request to the app: a permit first, then the gate, then a connection; waiting where that helps.

use std::pin::pin;
use std::rc::Rc;

use tokio::time::{Instant, timeout, timeout_at};

use super::Inbound;
use super::forward::{out_of_time, unless_forced};
use super::response::Reason;
use crate::lifecycle::in_flight::{Permit, Work};
use crate::lifecycle::{Counted, Gate};
use crate::listener::conn::Active;
use crate::telemetry::logging::chain;
use crate::telemetry::metrics::{Dial, Parked};
use crate::tls::client::Offer;
use crate::transport::Transport;
use crate::upstream::connect::{CONNECT_TIMEOUT, DialError, dial};
use crate::upstream::multiplex::{Near, Slot};
use crate::upstream::park::{Unparked, park};
use crate::upstream::pool::Pooled;
use crate::upstream::speaks::{self, Speaks};

/// The common case of [`pooled`]: the gate is open and a connection is idle.
pub fn open(active: &Active, inbound: &Inbound) -> Option<(Permit, Pooled)> {
    at_once(active, inbound, || inbound.pool.take())
}

/// The common case of [`slot`]: the gate is open and a connection has room.
pub fn open_slot(active: &Active, inbound: &Inbound) -> Option<(Permit, Slot)> {
    at_once(active, inbound, || inbound.multiplex.take(near(active)))
}

fn at_once<T>(active: &Active, inbound: &Inbound, take: impl Fn() -> Option<T>) -> Option<(Permit, T)> {
    let lifecycle = inbound.worker.lifecycle;
    let permit = lifecycle.permit(inbound.number, kind_of(active));
    if lifecycle.gate(inbound.number) != Gate::Open || !lifecycle.upstream(inbound.number).is_up() {
        return None;
    }
    Some((permit, take()?))
}

fn near(active: &Active) -> Option<&Near> {
    active.conn().http2().map(|http2| &http2.near)
}

fn kind_of(active: &Active) -> Work {
    if active.stream().is_some() { Work::Stream } else { Work::Request }
}

/// A permit and a connection for one request; `fresh` asks for one that has served nothing yet.
pub async fn pooled(active: &Active, inbound: &Rc<Inbound>, fresh: bool) -> Result<(Permit, Pooled), Reason> {
    let idle = || if fresh { None } else { inbound.pool.take() };
    find(active, inbound, kind_of(active), idle, async || Ok((inbound.pool.connect().await?, true))).await
}

/// A permit and a place on an HTTP/2 connection for one request.
pub async fn slot(active: &Active, inbound: &Rc<Inbound>) -> Result<(Permit, Slot), Reason> {
    let room = || inbound.multiplex.take(near(active));
    find(active, inbound, kind_of(active), room, async || inbound.multiplex.connect(near(active)).await).await
}

/// A permit and a connection of its own for a tunnel or session.
pub async fn single(
    active: &Active,
    inbound: &Rc<Inbound>,
    work: Work,
    offer: Offer,
) -> Result<(Permit, Transport), Reason> {
    find(active, inbound, work, || None, async || Ok((dial(inbound.pool.upstream(), offer).await?, true))).await
}

/// What the app speaks, where only the app can tell.
pub async fn speaks(active: &Active, inbound: &Rc<Inbound>) -> Result<Speaks, Reason> {
    let lifecycle = inbound.worker.lifecycle;
    let life = || lifecycle.upstream(inbound.number).lives();
    let known = || inbound.speaks.get(life(), lifecycle.now());
    if let Some(speaks) = known() {
        return Ok(speaks);
    }
    let ask = async || {
        // Never closed. One asks, the others hear.
        let _turn = timeout(CONNECT_TIMEOUT, inbound.asking.acquire()).await.map_err(|_| DialError::TimedOut)?;
        match known() {
            Some(speaks) => Ok((speaks, false)),
            None => Ok((speaks::ask(inbound.pool.upstream(), &inbound.speaks, life(), lifecycle.now()).await?, true)),
        }
    };
    Box::pin(find(active, inbound, kind_of(active), known, ask)).await.map(|(_permit, speaks)| speaks)
}

async fn find<T>(
    active: &Active,
    inbound: &Rc<Inbound>,
    work: Work,
    idle: impl Fn() -> Option<T>,
    connect: impl AsyncFn() -> Result<(T, bool), DialError>,
) -> Result<(Permit, T), Reason> {
    let lifecycle = inbound.worker.lifecycle;
    let metrics = inbound.worker.metrics;
    let terminating = || lifecycle.snapshot().phase.is_terminating();
    let mut stay = Stay::new(inbound);
    loop {
        let permit = lifecycle.permit(inbound.number, work);
        let gate = lifecycle.gate(inbound.number);
        if gate == Gate::Closed {
            metrics.late_refusals.add(0);
            return Err(Reason::DrainOver);
        }
        let up = lifecycle.upstream(inbound.number).is_up();
        if gate == Gate::Paused || (!up && !terminating()) {
            drop(permit);
            stay.wait().await?;
            continue;
        }
        if let Some(found) = idle() {
            stay.end(if terminating() { Parked::Released } else { Parked::Forwarded });
            return Ok((permit, found));
        }
        let deadline = stay.deadline;
        let dialling = async {
            // Everybody who waited wants a connection in the same moment; an old app's backlog may be short.
            let _turn = match deadline {
                Some(deadline) => match timeout_at(deadline, inbound.dial_turns.acquire()).await {
                    Ok(turn) => turn.ok(),
                    Err(_) => return None,
                },
                None => None,
            };
            Some(connect().await)
        };
        let dialled = unless_forced(active, pin!(dialling)).await;
        let Some(dialled) = dialled else {
            return Err(out_of_time(inbound, false));
        };
        let Some(dialled) = dialled else {
            stay.end(Parked::TimedOut);
            return Err(Reason::AppDown);
        };
        match dialled {
            Ok((found, dialled)) => {
                if dialled {
                    lifecycle.upstream_accepted(inbound.number);
                    metrics.dials.add(Dial::Ok as usize);
                }
                stay.end(if terminating() { Parked::Released } else { Parked::Forwarded });
                return Ok((permit, found));
            }
            Err(DialError::Refused) => {
                lifecycle.upstream_refused(inbound.number);
                metrics.dials.add(Dial::Refused as usize);
                drop(permit);
                if terminating() {
                    stay.end(Parked::Released);
                    return Err(Reason::AppGone);
                }
                stay.wait().await?;
            }
            Err(error) => {
                if matches!(error, DialError::Handshake(_)) {
                    // It may be another app by now, that speaks something else.
                    inbound.speaks.forget();
                }
                metrics.dials.add(Dial::Failed as usize);
                if let Some(suppressed) = inbound.warnings.turn(inbound.worker.lifecycle.now()) {
                    let upstream = inbound.pool.upstream();
                    let (listener, error) = (&inbound.name, chain(&error));
                    tracing::warn!(listener, %upstream, error, suppressed, "dialling the app failed");
                }
                stay.end(Parked::TimedOut);
                return Err(Reason::AppUnreachable);
            }
        }
    }
}

/// One request's stay in the waiting room, over several waits.
struct Stay<'a> {
    inbound: &'a Inbound,
    place: Option<Counted>,
    deadline: Option<Instant>,
}

// === impl Stay ===

impl<'a> Stay<'a> {
    const fn new(inbound: &'a Inbound) -> Self {
        Self { inbound, place: None, deadline: None }
    }

    async fn wait(&mut self) -> Result<(), Reason> {
        let worker = &self.inbound.worker;
        let rules = worker.config.parking;
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + rules.wait_timeout);
        let unparked = park(worker.lifecycle, self.inbound.number, rules.max_requests, deadline, &mut self.place).await;
        match unparked {
            Unparked::LookAgain => Ok(()),
            Unparked::TimedOut => {
                self.end(Parked::TimedOut);
                Err(Reason::AppDown)
            }
            Unparked::Full => {
                worker.metrics.parked.add(Parked::Full as usize);
                Err(Reason::ParkingFull)
            }
        }
    }

    /// Counts how the stay ended, if there was one.
    fn end(&mut self, outcome: Parked) {
        if self.place.take().is_some() {
            self.inbound.worker.metrics.parked.add(outcome as usize);
        }
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        let terminating = self.inbound.worker.lifecycle.snapshot().phase.is_terminating();
        self.end(if terminating { Parked::Released } else { Parked::Abandoned });
    }
}
