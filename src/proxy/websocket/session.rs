//! One WebSocket session: frames pass as they are, and its end is a closing handshake wherever there can be one
//! (RFC 6455 §7).
//!
//! The contract's §5: our Close goes to the client between two frames, and nothing behind it; what the client still
//! sends goes to the app, up to its own Close; then the app's side is closed. A handshake that one of the two ends has
//! begun is left to them.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::time::{Instant, Sleep, sleep};

use super::frames::close;
use crate::lifecycle::in_flight::Permit;
use crate::lifecycle::phase::Phase;
use crate::listener::conn::{Active, Ask, Doing};
use crate::listener::long::Kind;
use crate::proxy::relay::{Flow, Relay, Side};
use crate::proxy::tunnel::leave;
use crate::telemetry::metrics::{Forced, Notice, SessionEnd};

struct Session<'a> {
    relay: Relay,
    active: &'a Active,
    stage: Stage,
    /// As it stands.
    end: SessionEnd,
    /// For a Close on its way or unanswered, and for the app's end.
    patience: Pin<Box<Sleep>>,
    /// Bytes that had gone either way when patience began.
    progress: (u64, u64),
    /// What the client said waited for the app when patience ended.
    waited_for_app: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Everything passes.
    Open,
    /// Our Close is on its way to the client.
    Telling,
    /// A Close has gone one way, the other one is awaited.
    Awaiting,
    /// Nothing more is expected from the client; the app has time for its own end.
    Leaving,
}

enum Step {
    Again,
    Wait,
    Over,
}

/// Unsent bytes that may wait in the kernel.
const WAITING: u32 = 128 * 1024;
/// For people who look at the frames.
const LEAVING: &str = "ebbtide: this pod is going away";
/// "Service restart" in the registry of close codes.
const APP_DIED: u16 = 1012;

/// Relays until it is over. The permit is held as long as the app has something to say.
pub async fn run(relay: Relay, active: &Active, permit: Permit) {
    let conn = active.conn();
    if active.stream().is_none() {
        conn.set_doing(Doing::Relay);
        conn.clear_ask();
    }
    active.set_long(Kind::Session);
    let worker = conn.worker();
    if let Side::Own(transport) = relay.downstream()
        && let Some(client) = transport.tcp()
    {
        // What waits in the kernel stands in front of our Close, and counts against the client's time for it. Fails only
        // on a socket that is already broken.
        let _ = SockRef::from(client).set_tcp_notsent_lowat(WAITING);
    }
    let mut session = Session {
        relay,
        active,
        stage: Stage::Open,
        end: SessionEnd::Closed,
        patience: Box::pin(sleep(Duration::ZERO)),
        progress: (0, 0),
        waited_for_app: false,
    };
    let end = poll_fn(|cx| session.poll(cx)).await;
    worker.metrics.sessions.add(end as usize);
    tracing::debug!(client = %conn.client.get(), outcome = end.name(), "a WebSocket session has ended");
    if matches!(end, SessionEnd::Cut | SessionEnd::Unanswered) && worker.phase().is_terminating() {
        worker.count_forced(Forced::Session);
    }
    // Only now: with the last one the report is written.
    drop(permit);
    if active.stream().is_none() && end != SessionEnd::Cut {
        leave(session.relay, conn).await;
    }
}

// === impl Session ===

impl Session<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        self.active.wait_alone(cx);
        loop {
            let asked = self.active.asked();
            if asked == Ask::KILL || self.active.conn().asked() == Ask::KILL {
                return Poll::Ready(match (self.stage, self.end) {
                    (Stage::Leaving, end) | (Stage::Awaiting, end @ SessionEnd::AppDied) => end,
                    (Stage::Awaiting, _) => SessionEnd::Unanswered,
                    (Stage::Open | Stage::Telling, _) => SessionEnd::Cut,
                });
            }
            if let Poll::Ready(flow) = self.relay.poll(&self.active.conn().worker().gear, cx) {
                return Poll::Ready(self.outcome(flow));
            }
            let step = match self.stage {
                Stage::Open => self.open(asked),
                Stage::Telling => self.telling(asked, cx),
                Stage::Awaiting => self.awaiting(asked, cx),
                Stage::Leaving => self.leaving(cx),
            };
            match step {
                Step::Again => {}
                Step::Wait => return Poll::Pending,
                Step::Over => return Poll::Ready(self.end),
            }
        }
    }

    fn open(&mut self, asked: Ask) -> Step {
        let Relay { up, down, .. } = &mut self.relay;
        if down.is_target_gone() || (up.has_ended() && up.is_broken()) {
            let end = if up.has_closed() { SessionEnd::Closed } else { gone(asked) };
            return self.leave(end);
        }
        if down.is_lost() && asked >= Ask::FORCE {
            return self.leave(SessionEnd::Cut);
        }
        if down.is_lost() {
            // No frames: a tunnel, of which each direction ends by itself.
            return if down.has_ended() && down.hang_up() { Step::Again } else { Step::Wait };
        }
        if down.has_ended() {
            if down.has_closed() && !up.has_closed() && !up.has_ended() {
                // The app may only have closed its sending side: the client's answer is still to come.
                return self.await_close();
            }
            if down.has_closed() || up.has_closed() {
                return self.leave(SessionEnd::Closed);
            }
            if up.has_ended() {
                return self.leave(SessionEnd::ClientGone);
            }
            return if down.at_boundary() {
                self.tell(APP_DIED, SessionEnd::AppDied)
            } else {
                // Half a frame can't be taken back.
                self.leave(SessionEnd::AppDied)
            };
        }
        if asked < Ask::CLOSE {
            return Step::Wait;
        }
        if down.has_closed() || up.has_closed() {
            return self.await_close();
        }
        if up.has_ended() {
            return self.leave(SessionEnd::ClientGone);
        }
        self.tell(self.close_code(), SessionEnd::ClosedByNotice)
    }

    /// The frame that is open may be long, and the client slow; but it has to move.
    fn telling(&mut self, asked: Ask, cx: &mut Context<'_>) -> Step {
        self.be_patient_with_progress();
        let Relay { up, down, .. } = &mut self.relay;
        if down.is_lost() {
            // No frames, so there is no end of one to wait for.
            self.stage = Stage::Open;
            return Step::Again;
        }
        if down.is_target_gone() || (up.has_ended() && up.is_broken()) {
            return self.leave(gone(asked));
        }
        if down.has_closed() && down.is_empty() {
            if !down.has_put_in() {
                // The frame that was open was the app's own Close.
                self.end = SessionEnd::Closed;
            }
            if self.end == SessionEnd::ClosedByNotice {
                self.active.conn().worker().metrics.notices.add(Notice::WebsocketClose as usize);
            }
            return self.await_close();
        }
        if down.has_ended() && !down.has_closed() {
            return self.leave(SessionEnd::AppDied);
        }
        if self.patience.as_mut().poll(cx).is_pending() {
            return Step::Wait;
        }
        self.leave(SessionEnd::Cut)
    }

    /// The client's Close may stand behind what an app that is slow to read has not taken.
    fn awaiting(&mut self, asked: Ask, cx: &mut Context<'_>) -> Step {
        let Relay { up, down, .. } = &mut self.relay;
        // An app that hangs up instead of answering does as it likes.
        if up.has_closed() && (down.has_closed() || down.has_ended()) {
            return self.leave(self.end);
        }
        let gone = up.has_ended() || down.is_target_gone();
        if !gone && self.patience.as_mut().poll(cx).is_pending() {
            return Step::Wait;
        }
        let waits_for_app = !up.is_empty() || (self.waited_for_app && up.written() != self.progress.0);
        if !gone && waits_for_app && has_time(self.active) {
            self.waited_for_app = !up.is_empty();
            self.progress.0 = up.written();
            self.be_patient();
            return Step::Again;
        }
        if up.has_closed() {
            // The client began, and the app's answer does not come.
            let end = self.end;
            return if gone { self.leave(end) } else { self.tell(self.close_code(), SessionEnd::ClosedByNotice) };
        }
        self.leave(match self.end {
            SessionEnd::AppDied => self.end,
            _ if gone && asked < Ask::FORCE => SessionEnd::ClientGone,
            _ => SessionEnd::Unanswered,
        })
    }

    /// What the client has said waits for an app that is slow to read, as long as there is time.
    fn leaving(&mut self, cx: &mut Context<'_>) -> Step {
        self.be_patient_with_progress();
        let Relay { up, down, .. } = &mut self.relay;
        if down.has_ended() && up.hang_up() {
            // The FIN goes out with the next poll of the relay.
            return Step::Again;
        }
        if self.patience.as_mut().poll(cx).is_ready() && (up.is_empty() || !has_time(self.active)) {
            return Step::Over;
        }
        match (down.has_ended(), down.is_fin_sent(), up.is_fin_sent()) {
            (true, true, true) => Step::Over,
            _ => Step::Wait,
        }
    }

    fn tell(&mut self, code: u16, end: SessionEnd) -> Step {
        self.end = end;
        let reason = if end == SessionEnd::AppDied { "ebbtide: the app has gone" } else { LEAVING };
        self.relay.down.end_with(close(code, reason, false));
        self.be_patient();
        self.stage = Stage::Telling;
        Step::Again
    }

    fn await_close(&mut self) -> Step {
        self.be_patient();
        self.stage = Stage::Awaiting;
        Step::Again
    }

    /// FIN to the client behind what is on its way; a Close to the app, if it has not had one, and time to answer it.
    fn leave(&mut self, end: SessionEnd) -> Step {
        self.end = end;
        let code = self.close_code();
        let Relay { up, down, .. } = &mut self.relay;
        down.drop_the_rest();
        let _ = down.hang_up();
        if !up.has_closed() && up.at_boundary() && !up.is_fin_sent() && !down.has_ended() {
            up.end_with(close(code, LEAVING, true));
        } else {
            up.drop_the_rest();
        }
        self.be_patient();
        self.stage = Stage::Leaving;
        Step::Again
    }

    fn be_patient_with_progress(&mut self) {
        let progress = (self.relay.up.written(), self.relay.down.written());
        if progress != self.progress {
            self.progress = progress;
            self.be_patient();
        }
    }

    fn be_patient(&mut self) {
        let worker = self.active.conn().worker();
        // In a small budget there is less time (contract §3).
        let half_of_drain = worker.snapshot().deadlines.map(|at| at.drain_deadline.since(at.hold_end) / 2);
        let longest = worker.config.websocket.close_timeout;
        let length = half_of_drain.map_or(longest, |half| longest.min(half));
        self.patience.as_mut().reset(Instant::now() + length);
    }

    fn close_code(&self) -> u16 {
        self.active.conn().worker().config.websocket.close_code
    }

    /// Both directions are over by themselves.
    fn outcome(&self, flow: Flow) -> SessionEnd {
        let Relay { up, down, .. } = &self.relay;
        match (self.stage, flow) {
            (Stage::Open, Flow::Finished) if up.is_lost() || down.is_lost() => SessionEnd::Closed,
            (Stage::Open, _) if up.has_closed() || down.has_closed() => SessionEnd::Closed,
            (Stage::Open, _) => SessionEnd::ClientGone,
            _ => self.end,
        }
    }
}

/// The pod terminates, and the drain may still take its time.
fn has_time(active: &Active) -> bool {
    let phase = active.conn().worker().phase();
    phase.is_terminating() && phase < Phase::Closing
}

/// The client's connection ended; at the end of the budget it was we who dropped it.
fn gone(asked: Ask) -> SessionEnd {
    if asked >= Ask::FORCE { SessionEnd::Cut } else { SessionEnd::ClientGone }
}
