//! Owns thousands of idle keep-alive connections, and when and how each was closed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::{read_ending, read_reply};
use super::{Ending, Failure, Request, fresh_id};
use crate::harness::SOON;
use crate::harness::http::Wire;
use crate::harness::tls::{Socket, Target, alpn};
use crate::harness::wait::{Mono, densest, eventually};

#[derive(Debug)]
pub(crate) struct IdleHolder {
    total: usize,
    closed: Arc<Mutex<Vec<Closed>>>,
    /// Dropping it closes what is still open.
    _tasks: JoinSet<()>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    pub(crate) at: Mono,
    pub(crate) ending: Ending,
    /// Bytes that came while idle.
    pub(crate) bytes: usize,
}

// === impl IdleHolder ===

impl IdleHolder {
    /// Opens all; each does `first` if given, then waits. Panics if one fails.
    pub(crate) async fn open(to: impl Into<Target>, count: usize, first: Option<Request>) -> Self {
        let to = to.into();
        crate::harness::raise_open_files();
        let closed = Arc::new(Mutex::new(Vec::with_capacity(count)));
        let turns = Arc::new(Semaphore::new(50));
        let mut openings = JoinSet::new();
        for _ in 0..count {
            let (to, turns, first) = (to.clone(), turns.clone(), first.clone());
            openings.spawn(async move {
                let _turn = turns.acquire().await.expect("never closed");
                let opened = open_one(&to, first).await;
                // Connecting is faster than accepting: a full backlog would cost a second each time.
                tokio::time::sleep(Duration::from_millis(10)).await;
                opened
            });
        }
        let mut tasks = JoinSet::new();
        while let Some(opened) = openings.join_next().await {
            let mut stream = opened.expect("no opener panics").expect("every connection can be opened");
            let closed = closed.clone();
            tasks.spawn(async move {
                let mut bytes = 0;
                let ending = read_ending(&mut stream, FOREVER, |piece| bytes += piece.len()).await;
                let at = Mono::now();
                closed.lock().expect("no holder panics").push(Closed { at, ending, bytes });
            });
        }
        Self { total: count, closed, _tasks: tasks }
    }

    pub(crate) fn open_count(&self) -> usize {
        self.total - self.closed.lock().expect("no holder panics").len()
    }

    /// Those that ended so far, in order.
    pub(crate) fn closed(&self) -> Vec<Closed> {
        self.closed.lock().expect("no holder panics").clone()
    }

    pub(crate) async fn all_closed(&self, deadline: Duration) -> Vec<Closed> {
        eventually("close of all idle connections", deadline, || match self.open_count() {
            0 => Ok(self.closed()),
            open => Err(format!("{open} open")),
        })
        .await
    }

    /// The greatest number of closes in any slice of this width.
    pub(crate) fn densest(&self, slice: Duration) -> usize {
        densest(self.closed().iter().map(|one| one.at), slice)
    }
}

async fn open_one(to: &Target, first: Option<Request>) -> Result<Socket, Failure> {
    let stream = timeout(SOON, to.connect(alpn::HTTP1)).await.map_err(|_| Failure::Timeout)??;
    let Some(request) = first else {
        return Ok(stream);
    };
    let bytes = request.encode(&to.address.to_string(), &fresh_id());
    let mut wire = Wire::new(stream);
    tokio::io::AsyncWriteExt::write_all(wire.get_mut(), &bytes).await?;
    let read = read_reply(&mut wire, request.method, None, request.expect);
    let reply = timeout(SOON, read).await.map_err(|_| Failure::Timeout)??;
    reply.verdict()?;
    Ok(wire.into_parts().0)
}

const FOREVER: Duration = Duration::from_secs(24 * 3600);
