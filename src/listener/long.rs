//! Work that may go on for ever, and how it is asked to end in good order before the drain deadline. Pure.

use std::time::Duration;

use super::conn::Ask;
use crate::lifecycle::machine::Snapshot;
use crate::lifecycle::phase::Phase;
use crate::lifecycle::tick::{Tick, Window};

/// One piece of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Long {
    /// What it is.
    pub kind: Kind,
    /// Since when it can be ended.
    pub since: Tick,
}

/// Kinds that end in different ways, at different times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The response of a gRPC call.
    Call,
    /// A stream of events.
    Events,
    /// A WebSocket session.
    Session,
    /// Opaque bytes.
    Tunnel,
}

/// A response that has only just begun may be a short one.
const LATE_HEAD: Duration = Duration::from_secs(1);

// === impl Long ===

impl Long {
    /// What it is time for, for one with this `share` of every window.
    pub fn due(self, share: f32, snapshot: &Snapshot, now: Tick) -> Ask {
        let deadline = snapshot.stream_close.map(|window| window.end);
        let past_deadline = deadline.is_some_and(|end| now >= end);
        let young = match self.kind {
            // Their ends have to be over when the others' begin to be forced.
            Kind::Session | Kind::Tunnel if past_deadline || snapshot.phase == Phase::Closing => return Ask::FORCE,
            Kind::Session | Kind::Tunnel => Duration::ZERO,
            Kind::Events | Kind::Call => LATE_HEAD,
        };
        let Some(window) = self.window(snapshot) else { return Ask::NOTHING };
        let moment = window.moment(share).max(self.since + young);
        if now >= deadline.map_or(moment, |end| moment.min(end)) { Ask::CLOSE } else { Ask::NOTHING }
    }

    /// It began when others of its kind had been asked to end already.
    pub fn is_late(self, share: f32, snapshot: &Snapshot) -> bool {
        self.window(snapshot).is_some_and(|window| self.since >= window.moment(share))
    }

    const fn window(self, snapshot: &Snapshot) -> Option<Window> {
        match self.kind {
            Kind::Session => snapshot.session_close,
            Kind::Events => snapshot.event_close,
            Kind::Call | Kind::Tunnel => snapshot.stream_close,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Tick {
        Tick::from_millis(ms)
    }

    /// Sessions from 4 s, events from 6 s, the rest in the 2 s before 12 s.
    fn snapshot() -> Snapshot {
        let window = |start| Some(Window { start: at(start), end: at(start + 2000) });
        Snapshot {
            phase: Phase::Draining,
            session_close: window(4000),
            event_close: window(6000),
            stream_close: window(10_000),
            ..Snapshot::starting()
        }
    }

    #[test]
    fn each_kind_has_its_own_window_and_everyone_his_share_of_it() {
        for (kind, start) in [(Kind::Session, 4000), (Kind::Events, 6000), (Kind::Tunnel, 10_000), (Kind::Call, 10_000)]
        {
            let long = Long { kind, since: at(0) };
            for (share, offset) in [(0.0, 0), (0.5, 1000), (1.0, 2000)] {
                let moment = start + offset;
                assert_eq!(long.due(share, &snapshot(), at(moment - 1)), Ask::NOTHING, "{kind:?} {share}");
                let force = matches!(kind, Kind::Tunnel) && moment == 12_000;
                let expected = if force { Ask::FORCE } else { Ask::CLOSE };
                assert_eq!(long.due(share, &snapshot(), at(moment)), expected, "{kind:?} {share}");
            }
        }
    }

    #[test]
    fn relays_are_forced_from_the_drain_deadline_on_and_while_closing() {
        let closing = Snapshot { phase: Phase::Closing, ..snapshot() };
        for kind in [Kind::Session, Kind::Tunnel] {
            let long = Long { kind, since: at(0) };
            assert_eq!(long.due(0.9, &snapshot(), at(12_000)), Ask::FORCE);
            assert_eq!(long.due(0.9, &closing, at(1)), Ask::FORCE);
        }
        assert_eq!(Long { kind: Kind::Events, since: at(0) }.due(0.9, &closing, at(1)), Ask::NOTHING);
    }

    #[test]
    fn a_response_that_has_just_begun_has_a_second_but_not_beyond_the_deadline() {
        for (kind, since, asked) in [
            (Kind::Call, 10_500, 11_500),
            (Kind::Call, 11_900, 12_000),
            (Kind::Events, 9000, 10_000),
            (Kind::Events, 11_900, 12_000),
        ] {
            let long = Long { kind, since: at(since) };
            assert_eq!(long.due(0.0, &snapshot(), at(asked - 1)), Ask::NOTHING, "{kind:?} since {since}");
            assert_eq!(long.due(0.0, &snapshot(), at(asked)), Ask::CLOSE, "{kind:?} since {since}");
        }
        assert!(Long { kind: Kind::Events, since: at(6000) }.is_late(0.0, &snapshot()));
        assert!(!Long { kind: Kind::Events, since: at(6000) }.is_late(0.1, &snapshot()));
    }

    #[test]
    fn without_a_termination_nothing_is_asked() {
        for kind in [Kind::Session, Kind::Events, Kind::Tunnel, Kind::Call] {
            assert_eq!(Long { kind, since: at(0) }.due(0.0, &Snapshot::starting(), at(99_000)), Ask::NOTHING);
        }
    }
}
