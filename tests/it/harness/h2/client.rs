//! Owns an HTTP/2 client as the RFC wants it: many streams per connection, a new connection after a
//! GOAWAY, and a second attempt only for what the server has said that it did not process.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use tokio::time::timeout;

use super::call::{Call, Counter, Trouble, loss};
use super::summary::{H2Ending, H2Record, H2Summary, Loss};
use crate::harness::SOON;
use crate::harness::client::{Ending, Failure, fresh_id};
use crate::harness::tls::{Socket, Target, alpn};
use crate::harness::wait::{Mono, eventually};

/// Cheap to clone; its connections close when the last clone is gone.
#[derive(Clone, Debug)]
pub(crate) struct H2Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    to: Target,
    slots: Vec<tokio::sync::Mutex<Option<Connection>>>,
    turn: AtomicUsize,
    endings: Arc<Mutex<Vec<H2Ending>>>,
    /// Connections that we have left, and whose end has not come yet.
    awaited: Arc<AtomicUsize>,
}

#[derive(Clone, Debug)]
struct Connection {
    number: u64,
    sender: SendRequest<Bytes>,
}

// === impl H2Client ===

impl H2Client {
    /// So many connections, each opened when it is first needed.
    pub(crate) fn new(to: impl Into<Target>, connections: usize) -> Self {
        let slots = (0..connections).map(|_| tokio::sync::Mutex::default()).collect();
        let (turn, endings, awaited) = (AtomicUsize::new(0), Arc::default(), Arc::default());
        let shared = Shared { to: to.into(), slots, turn, endings, awaited };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) async fn call(&self, call: &Call, deadline: Duration) -> H2Record {
        self.call_as(call, &fresh_id(), deadline, &Counter::default()).await
    }

    /// Waits until every connection that was left has ended, or is overdue.
    pub(super) async fn settled(&self) {
        eventually("ends of connections", SOON * 2, || match self.shared.awaited.load(Ordering::SeqCst) {
            0 => Ok(()),
            awaited => Err(awaited),
        })
        .await;
    }

    /// The calls of others together with how this client's connections ended.
    pub(crate) fn summary(&self, records: Vec<H2Record>) -> H2Summary {
        H2Summary { records, endings: self.shared.endings.lock().expect("no holder panics").clone() }
    }

    pub(super) async fn call_as(&self, call: &Call, id: &str, deadline: Duration, counter: &Counter) -> H2Record {
        let mut record = H2Record::new(id);
        let slot = self.shared.turn.fetch_add(1, Ordering::Relaxed) % self.shared.slots.len();
        let work = self.attempts(call, slot, &mut record, counter);
        record.result = timeout(deadline, work).await.unwrap_or(Err(Loss::Timeout));
        record.messages = counter.load(Ordering::Acquire);
        record.ended = Mono::now();
        record
    }

    async fn attempts(&self, call: &Call, slot: usize, record: &mut H2Record, counter: &Counter) -> Result<u16, Loss> {
        let base = format!("{}://{}", self.shared.to.scheme(), self.shared.to.address);
        for _ in 0..ATTEMPTS {
            let connection = self.shared.connection(slot).await?;
            record.connection = connection.number;
            match call.attempt(connection.sender, &base, record, counter).await {
                Ok(status) => return Ok(status),
                Err(Trouble::Lost(loss)) => return Err(loss),
                Err(Trouble::Unsent) => {}
                Err(Trouble::Unprocessed) => record.retries += 1,
            }
            self.shared.leave(slot, connection.number).await;
        }
        Err(Loss::Unprocessed)
    }
}

// === impl Shared ===

impl Shared {
    async fn connection(&self, slot: usize) -> Result<Connection, Loss> {
        let mut slot = self.slots[slot].lock().await;
        if let Some(connection) = &*slot {
            return Ok(connection.clone());
        }
        let connection = self.dial().await?;
        *slot = Some(connection.clone());
        Ok(connection)
    }

    /// Unless somebody else has already put a new one there.
    async fn leave(&self, slot: usize, number: u64) {
        let mut slot = self.slots[slot].lock().await;
        if slot.as_ref().is_some_and(|one| one.number == number) {
            *slot = None;
        }
    }

    async fn dial(&self) -> Result<Connection, Loss> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let socket = self.to.connect(alpn::H2).await.map_err(|failure| match failure {
            Failure::Refused => Loss::Refused,
            Failure::Reset | Failure::Eof => Loss::Broken,
            Failure::Timeout => Loss::Timeout,
            Failure::Alert(_) | Failure::BadCertificate | Failure::Tls => Loss::Tls,
            _ => Loss::Other,
        })?;
        let mut builder = Builder::new();
        builder
            .initial_window_size(WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADERS)
            .enable_push(false);
        let (sender, connection) = builder.handshake(socket.clone()).await.map_err(|error| loss(&error))?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (endings, awaited) = (self.endings.clone(), self.awaited.clone());
        tokio::spawn(async move {
            let fault = connection.await.err().map(|error| loss(&error));
            awaited.fetch_add(1, Ordering::SeqCst);
            let ending = end_of(&socket).await;
            drop(socket);
            let ending = H2Ending { connection: number, at: Mono::now(), fault, ending };
            endings.lock().expect("no holder panics").push(ending);
            awaited.fetch_sub(1, Ordering::SeqCst);
        });
        Ok(Connection { number, sender })
    }
}

/// A client that has had its last answer ends first; over TLS the server's own end is still worth a look.
async fn end_of(socket: &Socket) -> Ending {
    if socket.is_tls() { socket.ended(SOON).await } else { socket.ending() }
}

/// A server that goes on refusing is at fault.
const ATTEMPTS: u32 = 5;
const WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
const HEADERS: u32 = 256 * 1024;
