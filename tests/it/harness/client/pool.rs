//! Owns a keep-alive pool as HTTP clients have them: reuse in turn, obey `Connection: close`, never retry.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::summary::Record;
use super::{Connection, Ending, Failure, Idle, Reply, Request};
use crate::harness::SOON;
use crate::harness::tls::Target;
use crate::harness::wait::{Mono, eventually};

#[derive(Debug)]
pub(crate) struct Pool {
    to: Target,
    slots: Semaphore,
    idle: Mutex<VecDeque<Connection>>,
    idle_endings: Mutex<Vec<(Mono, Ending)>>,
    marked_endings: Arc<Mutex<Vec<(Mono, Ending)>>>,
    /// Connections whose announced close has not come yet.
    awaited: Arc<AtomicUsize>,
}

// === impl Pool ===

impl Pool {
    /// At most so many connections at once.
    pub(crate) fn new(to: impl Into<Target>, connections: usize) -> Self {
        Self {
            to: to.into(),
            slots: Semaphore::new(connections),
            idle: Mutex::default(),
            idle_endings: Mutex::default(),
            marked_endings: Arc::default(),
            awaited: Arc::default(),
        }
    }

    /// Opens connections until the pool is full; panics if one fails.
    pub(crate) async fn warm(&self, deadline: Duration) {
        let missing = self.slots.available_permits();
        for _ in self.idle_count()..missing {
            let connection = Connection::open(&self.to, deadline).await;
            let connection = connection.expect("the pool can be filled");
            self.idle.lock().expect("no holder panics").push_back(connection);
        }
    }

    /// One request; waits for a free connection if all are busy.
    pub(crate) async fn send(&self, request: &Request, id: &str, deadline: Duration) -> (Record, Option<Reply>) {
        let _slot = self.slots.acquire().await.expect("never closed");
        let began = Mono::now();
        let reused = self.reusable();
        let was_reused = reused.is_some();
        let opened = match reused {
            Some(connection) => Ok(connection),
            None => Connection::open(&self.to, deadline).await,
        };
        let mut record = Record::new(id, began);
        record.reused = was_reused;
        let result = match opened {
            Ok(mut connection) => {
                record.connection = connection.number;
                let result = connection.exchange(request, id, deadline).await;
                self.put_back(connection, &result);
                result
            }
            Err(failure) => Err(failure),
        };
        record.finish(&result);
        (record, result.ok())
    }

    /// Drops connections that ended while idle, as pools with a background reader do.
    pub(crate) fn sweep(&self) {
        let mut idle = self.idle.lock().expect("no holder panics");
        let mut endings = self.idle_endings.lock().expect("no holder panics");
        idle.retain(|connection| match connection.idle() {
            Idle::Usable => true,
            Idle::Ended(ending) => {
                endings.push((Mono::now(), ending));
                false
            }
            Idle::Unasked => {
                endings.push((Mono::now(), Ending::Fin));
                false
            }
        });
    }

    pub(crate) fn idle_count(&self) -> usize {
        self.idle.lock().expect("no holder panics").len()
    }

    /// How connections ended that were idle in the pool.
    pub(crate) fn idle_endings(&self) -> Vec<(Mono, Ending)> {
        self.idle_endings.lock().expect("no holder panics").clone()
    }

    /// How connections ended after a response that announced it.
    pub(crate) fn marked_endings(&self) -> Vec<(Mono, Ending)> {
        self.marked_endings.lock().expect("no holder panics").clone()
    }

    fn reusable(&self) -> Option<Connection> {
        loop {
            let connection = self.idle.lock().expect("no holder panics").pop_front()?;
            let ending = match connection.idle() {
                Idle::Usable => return Some(connection),
                Idle::Ended(ending) => ending,
                Idle::Unasked => Ending::Fin,
            };
            let mut endings = self.idle_endings.lock().expect("no holder panics");
            endings.push((Mono::now(), ending));
        }
    }

    fn put_back(&self, connection: Connection, result: &Result<Reply, Failure>) {
        if connection.is_reusable() {
            self.idle.lock().expect("no holder panics").push_back(connection);
        } else if result.is_ok() {
            self.await_end(connection);
        }
    }

    /// Records how a connection ends whose response has announced it.
    pub(super) fn await_end(&self, connection: Connection) {
        let (endings, awaited) = (self.marked_endings.clone(), self.awaited.clone());
        awaited.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            let ending = connection.ending(END_BOUND).await;
            let at = Mono::now();
            endings.lock().expect("no holder panics").push((at, ending));
            awaited.fetch_sub(1, Ordering::SeqCst);
        });
    }

    /// Waits until every announced close has come, or is overdue.
    pub(super) async fn settled(&self) {
        eventually("announced closes", END_BOUND + SOON, || match self.awaited.load(Ordering::SeqCst) {
            0 => Ok(()),
            awaited => Err(awaited),
        })
        .await;
    }
}

/// A server that announced a close must not need longer.
const END_BOUND: Duration = Duration::from_secs(5);
