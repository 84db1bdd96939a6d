//! Owns an HTTP/2 client as the RFC wants it: many streams per connection, a new connection after a
//! GOAWAY, and a second attempt only for what the server has said that it did not process.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::call::{Call, Counter, Trouble, loss};
use super::summary::{H2Ending, H2Record, H2Summary, Loss};
use crate::harness::client::{Failure, fresh_id};
use crate::harness::wait::Mono;

/// Cheap to clone; its connections close when the last clone is gone.
#[derive(Clone, Debug)]
pub(crate) struct H2Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    slots: Vec<tokio::sync::Mutex<Option<Connection>>>,
    turn: AtomicUsize,
    endings: Arc<Mutex<Vec<H2Ending>>>,
}

#[derive(Clone, Debug)]
struct Connection {
    number: u64,
    sender: SendRequest<Bytes>,
}

// === impl H2Client ===

impl H2Client {
    /// So many connections, each opened when it is first needed.
    pub(crate) fn new(address: SocketAddr, connections: usize) -> Self {
        let slots = (0..connections).map(|_| tokio::sync::Mutex::default()).collect();
        let shared = Shared { address, slots, turn: AtomicUsize::new(0), endings: Arc::default() };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) async fn call(&self, call: &Call, deadline: Duration) -> H2Record {
        self.call_as(call, &fresh_id(), deadline, &Counter::default()).await
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
        let authority = self.shared.address.to_string();
        for _ in 0..ATTEMPTS {
            let connection = self.shared.connection(slot).await?;
            record.connection = connection.number;
            match call.attempt(connection.sender, &authority, record, counter).await {
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
        let stream = TcpStream::connect(self.address).await.map_err(|error| match Failure::from(error) {
            Failure::Refused => Loss::Refused,
            Failure::Reset | Failure::Eof => Loss::Broken,
            Failure::Timeout => Loss::Timeout,
            _ => Loss::Other,
        })?;
        stream.set_nodelay(true).map_err(|_| Loss::Broken)?;
        let mut builder = Builder::new();
        builder
            .initial_window_size(WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADERS)
            .enable_push(false);
        let (sender, connection) = builder.handshake(stream).await.map_err(|error| loss(&error))?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let endings = self.endings.clone();
        tokio::spawn(async move {
            let fault = connection.await.err().map(|error| loss(&error));
            endings.lock().expect("no holder panics").push(H2Ending { connection: number, at: Mono::now(), fault });
        });
        Ok(Connection { number, sender })
    }
}

/// A server that goes on refusing is at fault.
const ATTEMPTS: u32 = 5;
const WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
const HEADERS: u32 = 256 * 1024;
