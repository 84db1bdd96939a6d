//! Owns what became of calls over HTTP/2: one record each, and the questions tests ask about them.

use std::collections::{BTreeMap, BTreeSet};

use crate::harness::app::journal::Journal;
use crate::harness::client::Ending;
use crate::harness::tally;
use crate::harness::wait::Mono;

/// One call, retries included.
#[derive(Clone, Debug)]
pub(crate) struct H2Record {
    pub(crate) id: String,
    /// Place of its lane in the plan.
    pub(crate) lane: usize,
    /// Of the last attempt; 0 if none could be opened.
    pub(crate) connection: u64,
    pub(crate) stream: u32,
    pub(crate) began: Mono,
    pub(crate) ended: Mono,
    /// Attempts of which the server has said that it did not process them.
    pub(crate) retries: u32,
    /// Whole gRPC messages received, in order and without a gap.
    pub(crate) messages: u64,
    /// Bytes of a message whose end never came.
    pub(crate) torn: usize,
    /// Whether `grpc-status` came in the head, without any trailers.
    pub(crate) trailers_only: bool,
    pub(crate) grpc_message: Option<String>,
    /// HTTP status; of a gRPC call 0.
    pub(crate) result: Result<u16, Loss>,
}

/// Why a call failed, as its caller sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Loss {
    Refused,
    /// The connection ended under the stream.
    Broken,
    /// RST_STREAM with this code.
    Reset(u32),
    /// A GOAWAY with this code that ended a stream which may have been processed.
    Goaway(u32),
    Status(u16),
    /// A `grpc-status` other than 0.
    Grpc(u16),
    /// A gRPC answer without any status.
    NoGrpcStatus,
    /// A message missing, doubled or damaged.
    Gap,
    /// A good end in the middle of a message.
    Torn,
    /// The answer of another request, or no answer at all to what was asked.
    Garbage,
    Timeout,
    /// No TLS session, for whatever reason.
    Tls,
    /// Not processed or not even sent, again and again.
    Unprocessed,
    Other,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct H2Summary {
    pub(crate) records: Vec<H2Record>,
    pub(crate) endings: Vec<H2Ending>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct H2Ending {
    pub(crate) connection: u64,
    pub(crate) at: Mono,
    pub(crate) fault: Option<Loss>,
    /// Without TLS the peer's end is unknown where ours came first.
    pub(crate) ending: Ending,
}

// === impl H2Record ===

impl H2Record {
    pub(super) fn new(id: &str) -> Self {
        let now = Mono::now();
        Self {
            id: id.to_owned(),
            lane: 0,
            connection: 0,
            stream: 0,
            began: now,
            ended: now,
            retries: 0,
            messages: 0,
            torn: 0,
            trailers_only: false,
            grpc_message: None,
            result: Err(Loss::Other),
        }
    }
}

// === impl H2Summary ===

impl H2Summary {
    pub(crate) fn total(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn ok(&self) -> usize {
        self.records.iter().filter(|one| one.result.is_ok()).count()
    }

    pub(crate) fn losses(&self) -> BTreeMap<Loss, usize> {
        let mut losses = BTreeMap::new();
        for loss in self.records.iter().filter_map(|one| one.result.err()) {
            *losses.entry(loss).or_default() += 1;
        }
        losses
    }

    /// How often each end of a connection came.
    pub(crate) fn ends(&self) -> BTreeMap<Ending, usize> {
        tally(self.endings.iter().map(|one| one.ending))
    }

    /// Calls that needed more than one attempt.
    pub(crate) fn retried(&self) -> usize {
        self.records.iter().filter(|one| one.retries > 0).count()
    }

    /// How many connections carried at least one answer.
    pub(crate) fn connections(&self) -> usize {
        self.records.iter().map(|one| one.connection).filter(|number| *number != 0).collect::<BTreeSet<_>>().len()
    }

    /// The calls that began at this moment or later.
    #[must_use]
    pub(crate) fn since(&self, moment: Mono) -> Self {
        Self {
            records: self.records.iter().filter(|one| one.began >= moment).cloned().collect(),
            endings: self.endings.iter().filter(|one| one.at >= moment).copied().collect(),
        }
    }

    /// The calls that began before.
    #[must_use]
    pub(crate) fn before(&self, moment: Mono) -> Self {
        Self { records: self.records.iter().filter(|one| one.began < moment).cloned().collect(), endings: Vec::new() }
    }

    /// The calls of one lane.
    #[must_use]
    pub(crate) fn lane(&self, lane: usize) -> Self {
        let records = self.records.iter().filter(|one| one.lane == lane).cloned().collect();
        Self { records, endings: self.endings.clone() }
    }

    /// Panics if any call failed or any connection ended in a fault.
    pub(crate) fn assert_clean(&self) {
        assert!(self.total() > 0, "nothing was sent");
        let first = self.records.iter().map(|one| one.began).min();
        let failed = self.records.iter().filter(|one| one.result.is_err());
        let shown: Vec<String> = failed
            .take(20)
            .map(|one| {
                let at = first.map_or_else(Default::default, |first| one.began.since(first));
                format!("{at:?} lane={} conn={} stream={} {:?}", one.lane, one.connection, one.stream, one.result)
            })
            .collect();
        assert!(
            shown.is_empty(),
            "{} of {} calls failed: {:?}\n{}",
            self.total() - self.ok(),
            self.total(),
            self.losses(),
            shown.join("\n")
        );
        let faults: Vec<_> = self.endings.iter().filter(|one| one.fault.is_some()).collect();
        assert!(faults.is_empty(), "connections that ended in a fault: {faults:?}");
        let bad = |one: &&H2Ending| matches!(one.ending, Ending::Bare | Ending::Alert(_) | Ending::BadTls);
        let bad: Vec<_> = self.endings.iter().filter(bad).collect();
        assert!(bad.is_empty(), "connections whose TLS ended badly: {bad:?}");
    }

    /// Panics unless every answered call reached the app exactly once and no other more often.
    pub(crate) fn assert_at_most_once(&self, journal: &Journal) {
        journal.assert_at_most_once(self.records.iter().map(|one| (one.id.as_str(), &one.result)));
    }
}
