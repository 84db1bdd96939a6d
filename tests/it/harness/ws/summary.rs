//! Owns what became of WebSocket sessions, and the questions tests ask about them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::NO_CLOSE;
use super::client::Refusal;
use super::frame::Violation;
use super::reader::Close;
use crate::harness::app::journal::Journal;
use crate::harness::client::Ending;
use crate::harness::wait::{Mono, densest, eventually};
use crate::harness::{SOON, tally};

/// One session.
#[derive(Clone, Debug)]
pub(crate) struct WsRecord {
    pub(crate) id: String,
    /// Numbered messages of the client.
    pub(crate) sent: u64,
    /// Those that came back, in order.
    pub(crate) echoed: u64,
    /// Numbered messages of the app, in order.
    pub(crate) pushed: u64,
    /// The peer's Close, and when it came.
    pub(crate) close: Option<(Mono, Close)>,
    /// The code of ours.
    pub(crate) close_sent: Option<u16>,
    pub(crate) ending: Ending,
    pub(crate) ended: Mono,
    /// The first one; a session that merely ends has none.
    pub(crate) fault: Option<WsFault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum WsFault {
    Refused(Refusal),
    Protocol(Violation),
    /// An end in the middle of a frame.
    Torn(Ending),
    /// An end between frames.
    Ended(Ending),
    /// A message that is not the next one of its sender, or not as it was sent.
    OutOfOrder,
}

#[derive(Clone, Debug)]
pub(crate) struct WsSummary {
    pub(crate) records: Vec<WsRecord>,
}

// === impl WsRecord ===

impl WsRecord {
    pub(super) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            sent: 0,
            echoed: 0,
            pushed: 0,
            close: None,
            close_sent: None,
            ending: Ending::StillOpen,
            ended: Mono::now(),
            fault: None,
        }
    }

    /// As an API tells it: 1006 without a Close.
    pub(crate) fn code(&self) -> u16 {
        self.close.as_ref().map_or(NO_CLOSE, |(_, close)| close.code)
    }

    /// Both Closes, then the peer's FIN, and no fault before.
    pub(crate) fn is_complete(&self) -> bool {
        self.close.is_some() && self.close_sent.is_some() && self.ending == Ending::Fin && self.fault.is_none()
    }
}

// === impl WsSummary ===

impl WsSummary {
    pub(crate) fn codes(&self) -> BTreeMap<u16, usize> {
        tally(self.records.iter().map(WsRecord::code))
    }

    pub(crate) fn faults(&self) -> BTreeMap<WsFault, usize> {
        tally(self.records.iter().filter_map(|one| one.fault))
    }

    pub(crate) fn endings(&self) -> BTreeMap<Ending, usize> {
        tally(self.records.iter().map(|one| one.ending))
    }

    /// When the peer's Closes came, counted from this moment, in order.
    pub(crate) fn closes_since(&self, t0: Mono) -> Vec<Duration> {
        let mut times: Vec<Duration> = self.close_times().map(|at| at.since(t0)).collect();
        times.sort_unstable();
        times
    }

    /// The greatest number of Closes in any slice of this width.
    pub(crate) fn densest(&self, slice: Duration) -> usize {
        densest(self.close_times(), slice)
    }

    /// Panics unless every session got this code and ended with both Closes and a FIN.
    pub(crate) fn assert_closed(&self, code: u16) {
        assert!(!self.records.is_empty(), "there was no session");
        let wrong: Vec<&WsRecord> =
            self.records.iter().filter(|one| !one.is_complete() || one.code() != code).collect();
        assert!(
            wrong.is_empty(),
            "{} of {} sessions: codes {:?}, faults {:?}, endings {:?}\n{:#?}",
            wrong.len(),
            self.records.len(),
            self.codes(),
            self.faults(),
            self.endings(),
            &wrong[..wrong.len().min(5)]
        );
    }

    /// Waits until the app has seen the end of every session: it is another process, and may be behind its clients.
    pub(crate) async fn seen_by(&self, journal: &Journal) {
        eventually("the ends of all sessions in the journal", SOON, || {
            let over: BTreeSet<String> = journal.lines("over").iter().map(|one| one.get("id").to_owned()).collect();
            let missing = self.records.iter().filter(|one| !over.contains(&one.id)).count();
            if missing == 0 { Ok(()) } else { Err(missing) }
        })
        .await;
    }

    /// Panics unless the app got every client's messages, each once and in order.
    pub(crate) fn assert_none_lost(&self, journal: &Journal) {
        let mut got: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in journal.lines("message") {
            got.entry(line.get("id").to_owned()).or_default().push(line.get("n").to_owned());
        }
        for record in &self.records {
            let got = got.remove(&record.id).unwrap_or_default();
            let sent: Vec<String> = (0..record.sent).map(|number| number.to_string()).collect();
            assert!(got == sent, "{} of {} messages of {} reached the app: {got:?}", got.len(), sent.len(), record.id);
        }
    }

    /// Messages that did not come back, over all sessions.
    pub(crate) fn unechoed(&self) -> u64 {
        self.records.iter().map(|one| one.sent - one.echoed).sum()
    }

    fn close_times(&self) -> impl Iterator<Item = Mono> {
        self.records.iter().filter_map(|one| one.close.as_ref()).map(|(at, _)| *at)
    }
}
