//! Owns what became of a load: one record per request, and the questions tests ask about them.

use std::collections::BTreeMap;

use super::{Ending, Failure, How, Reply};
use crate::harness::app::journal::Journal;
use crate::harness::tally;
use crate::harness::wait::Mono;

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) id: String,
    pub(crate) how: How,
    /// 0 if none could be opened.
    pub(crate) connection: u64,
    /// Whether the connection had been used before.
    pub(crate) reused: bool,
    pub(crate) began: Mono,
    pub(crate) ended: Mono,
    pub(crate) result: Result<u16, Failure>,
    /// How often the response says `close`.
    pub(crate) closes: usize,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) records: Vec<Record>,
    /// Pooled connections that ended while idle.
    pub(crate) idle_endings: Vec<(Mono, Ending)>,
    /// Connections that ended after a response that announced it.
    pub(crate) marked_endings: Vec<(Mono, Ending)>,
}

// === impl Record ===

impl Record {
    pub(super) fn new(id: &str, began: Mono) -> Self {
        Self {
            id: id.to_owned(),
            how: How::Pooled,
            connection: 0,
            reused: false,
            began,
            ended: began,
            result: Err(Failure::Other),
            closes: 0,
        }
    }

    pub(super) fn finish(&mut self, result: &Result<Reply, Failure>) {
        self.ended = Mono::now();
        self.closes = result.as_ref().map_or(0, Reply::closes);
        self.result = match result {
            Ok(reply) => reply.verdict(),
            Err(failure) => Err(*failure),
        };
    }
}

// === impl Summary ===

impl Summary {
    pub(crate) fn total(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn ok(&self) -> usize {
        self.records.iter().filter(|one| one.result.is_ok()).count()
    }

    pub(crate) fn failures(&self) -> BTreeMap<Failure, usize> {
        let mut failures = BTreeMap::new();
        for record in &self.records {
            if let Err(failure) = record.result {
                *failures.entry(failure).or_default() += 1;
            }
        }
        failures
    }

    /// The requests that began at this moment or later.
    #[must_use]
    pub(crate) fn since(&self, moment: Mono) -> Self {
        Self {
            records: self.filtered(|one| one.began >= moment),
            idle_endings: later(&self.idle_endings, moment),
            marked_endings: later(&self.marked_endings, moment),
        }
    }

    /// The requests that began before.
    #[must_use]
    pub(crate) fn before(&self, moment: Mono) -> Self {
        Self { records: self.filtered(|one| one.began < moment), ..Self::default() }
    }

    /// Requests per connection of those on the pool.
    pub(crate) fn per_pooled_connection(&self) -> BTreeMap<u64, usize> {
        let mut counts = BTreeMap::new();
        for record in &self.records {
            if record.how == How::Pooled && record.connection != 0 {
                *counts.entry(record.connection).or_default() += 1;
            }
        }
        counts
    }

    /// Answered requests whose response does not say `close` exactly once.
    pub(crate) fn unmarked(&self) -> Vec<&Record> {
        self.records.iter().filter(|one| one.result.is_ok() && one.closes != 1).collect()
    }

    /// Answered requests whose response says `close`.
    pub(crate) fn marked(&self) -> usize {
        self.records.iter().filter(|one| one.closes > 0).count()
    }

    /// Panics if any request failed or any socket ended in a reset.
    pub(crate) fn assert_clean(&self) {
        assert!(self.total() > 0, "nothing was sent");
        let first = self.records.iter().map(|one| one.began).min();
        let shown: Vec<String> = self
            .records
            .iter()
            .filter(|one| one.result.is_err())
            .take(20)
            .map(|one| {
                let at = first.map_or_else(Default::default, |first| one.began.since(first));
                format!("{at:?} {:?} reused={} {:?}", one.how, one.reused, one.result)
            })
            .collect();
        assert!(
            shown.is_empty(),
            "{} of {} requests failed: {:?}\n{}",
            self.total() - self.ok(),
            self.total(),
            self.failures(),
            shown.join("\n")
        );
        assert_eq!(self.resets(), 0, "sockets that ended in a reset");
        let endings = self.endings();
        let good = |ending: &Ending| matches!(ending, Ending::Fin | Ending::StillOpen);
        assert!(endings.keys().all(good), "idle and announced ends, of TLS too: {endings:?}");
    }

    /// Idle or announced ends that were a reset.
    pub(crate) fn resets(&self) -> usize {
        self.endings().get(&Ending::Reset).copied().unwrap_or(0)
    }

    /// How often each idle or announced end came.
    pub(crate) fn endings(&self) -> BTreeMap<Ending, usize> {
        tally(self.idle_endings.iter().chain(&self.marked_endings).map(|(_, ending)| *ending))
    }

    /// Panics unless every answered request reached the app exactly once and no other more often.
    pub(crate) fn assert_at_most_once(&self, journal: &Journal) {
        journal.assert_at_most_once(self.records.iter().map(|one| (one.id.as_str(), &one.result)));
    }

    fn filtered(&self, wanted: impl Fn(&Record) -> bool) -> Vec<Record> {
        self.records.iter().filter(|one| wanted(one)).cloned().collect()
    }
}

fn later(endings: &[(Mono, Ending)], moment: Mono) -> Vec<(Mono, Ending)> {
    endings.iter().filter(|(at, _)| *at >= moment).copied().collect()
}
