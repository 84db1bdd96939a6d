//! Owns many long calls at once, and what each has received so far.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::call::{Call, Counter};
use super::client::H2Client;
use super::summary::{H2Record, H2Summary};
use crate::harness::client::fresh_id;
use crate::harness::wait::{eventually, within};

#[derive(Debug)]
pub(crate) struct Held {
    client: H2Client,
    calls: Vec<(Counter, JoinHandle<H2Record>)>,
}

// === impl Held ===

impl Held {
    /// Starts so many at once; none has a deadline of its own.
    pub(crate) fn start(client: &H2Client, call: &Call, count: usize) -> Self {
        let start = |_| {
            let (client, call, counter) = (client.clone(), call.clone(), Counter::default());
            let seen = counter.clone();
            let work = async move { client.call_as(&call, &fresh_id(), FOREVER, &counter).await };
            (seen, tokio::spawn(work))
        };
        Self { client: client.clone(), calls: (0..count).map(start).collect() }
    }

    /// Waits until each has received so many messages.
    pub(crate) async fn all_have(&self, messages: u64, deadline: Duration) {
        eventually(&format!("{messages} messages on every stream"), deadline, || {
            let least = self.calls.iter().map(|(counter, _)| counter.load(Ordering::Acquire)).min().unwrap_or(0);
            if least >= messages { Ok(()) } else { Err(format!("{least}, {} open", self.open())) }
        })
        .await;
    }

    pub(crate) fn open(&self) -> usize {
        self.calls.iter().filter(|(_, task)| !task.is_finished()).count()
    }

    /// Waits for the end of all.
    pub(crate) async fn ended(self, deadline: Duration) -> H2Summary {
        let work = async {
            let mut records = Vec::new();
            for (_, task) in self.calls {
                records.push(task.await.expect("no call panics"));
            }
            records
        };
        let records = within("end of all calls", deadline, work).await;
        self.client.settled().await;
        self.client.summary(records)
    }

    /// Gives up all: each open stream is cancelled.
    pub(crate) fn cancel(self) {
        for (_, task) in self.calls {
            task.abort();
        }
    }
}

const FOREVER: Duration = Duration::from_secs(24 * 3600);
