//! Owns numbered conversations: one session from its handshake to its end, and many at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::client::WsClient;
use super::frame::{RSV1, WsFrame, opcode};
use super::reader::Said;
use super::summary::{WsFault, WsRecord, WsSummary};
use super::transport::Pace;
use super::{NO_STATUS, number_of, numbered};
use crate::harness::client::{Ending, fresh_id};
use crate::harness::tls::Target;
use crate::harness::wait::{Mono, eventually, within};

/// How a session is opened, and what the client says in it.
#[derive(Clone, Debug)]
pub(crate) struct WsPlan {
    pub(crate) path: String,
    pub(crate) over: Over,
    /// Offers, as in `Sec-WebSocket-Protocol`.
    pub(crate) protocols: Option<String>,
    pub(crate) extensions: Option<String>,
    /// A pause between numbered messages; `None` is a silent client.
    pub(crate) every: Option<Duration>,
    /// Of each message, at least.
    pub(crate) size: usize,
    /// Of messages, at most.
    pub(crate) count: u64,
    /// Marks messages as compressed, once an extension is agreed.
    pub(crate) compressed: bool,
    /// A slow reader.
    pub(crate) reads: Option<Pace>,
    pub(crate) answer: Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Http1,
    /// RFC 8441.
    Http2,
}

/// What follows on the peer's Close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    AtOnce,
    /// So many more messages, which must still arrive, and then the Close.
    After(u64),
    Never,
}

/// Sessions that run beside the test.
#[derive(Debug)]
pub(crate) struct Sessions {
    received: Vec<Arc<AtomicU64>>,
    tasks: Vec<JoinHandle<WsRecord>>,
    closes: watch::Sender<Option<u16>>,
}

struct Session {
    client: WsClient,
    plan: WsPlan,
    tick: Interval,
    record: WsRecord,
    /// Messages of any kind.
    received: Arc<AtomicU64>,
}

// === impl WsPlan ===

impl WsPlan {
    /// Over HTTP/1, and silent.
    pub(crate) fn new(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            over: Over::Http1,
            protocols: None,
            extensions: None,
            every: None,
            size: 0,
            count: u64::MAX,
            compressed: false,
            reads: None,
            answer: Answer::AtOnce,
        }
    }

    /// Numbered messages, each echoed.
    pub(crate) fn talking(every: Duration) -> Self {
        Self { every: Some(every), ..Self::new("/ws") }
    }

    pub(super) fn offers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let protocols = self.protocols.as_deref().map(|offer| ("Sec-WebSocket-Protocol", offer));
        let extensions = self.extensions.as_deref().map(|offer| ("Sec-WebSocket-Extensions", offer));
        protocols.into_iter().chain(extensions)
    }
}

// === impl Sessions ===

impl Sessions {
    /// Opens so many; returns when every handshake has ended in one way or the other.
    pub(crate) async fn start(to: impl Into<Target>, plan: &WsPlan, count: usize) -> Self {
        let to = to.into();
        crate::harness::raise_open_files();
        let turns = Arc::new(Semaphore::new(50));
        let mut handshakes = JoinSet::new();
        for _ in 0..count {
            let (to, turns, plan) = (to.clone(), turns.clone(), plan.clone());
            handshakes.spawn(async move {
                let _turn = turns.acquire().await.expect("never closed");
                let id = fresh_id();
                let client = WsClient::open(to, &plan, &id).await;
                // Connecting is faster than accepting: a full backlog would cost a second each time.
                tokio::time::sleep(Duration::from_millis(10)).await;
                (client, WsRecord::new(&id))
            });
        }
        let (closes, close) = watch::channel(None);
        let (mut received, mut tasks) = (Vec::new(), Vec::new());
        while let Some(done) = handshakes.join_next().await {
            let (client, record) = done.expect("no handshake panics");
            let counter = Arc::new(AtomicU64::new(0));
            received.push(counter.clone());
            tasks.push(tokio::spawn(run(client, plan.clone(), record, counter, close.clone())));
        }
        Self { received, tasks, closes }
    }

    /// Sessions that have not ended.
    pub(crate) fn open(&self) -> usize {
        self.tasks.iter().filter(|task| !task.is_finished()).count()
    }

    /// Waits until each has received so many messages.
    pub(crate) async fn all_have(&self, messages: u64, deadline: Duration) {
        eventually(&format!("{messages} messages in every session"), deadline, || {
            let least = self.received.iter().map(|one| one.load(Ordering::Acquire)).min().unwrap_or(0);
            if least >= messages { Ok(()) } else { Err(format!("{least}, {} open", self.open())) }
        })
        .await;
    }

    /// The clients themselves begin the close.
    pub(crate) fn close(&self, code: u16) {
        self.closes.send_replace(Some(code));
    }

    /// Waits for the end of all.
    pub(crate) async fn ended(self, deadline: Duration) -> WsSummary {
        let work = async {
            let mut records = Vec::new();
            for task in self.tasks {
                records.push(task.await.expect("no session panics"));
            }
            records
        };
        WsSummary { records: within("end of all sessions", deadline, work).await }
    }
}

async fn run(
    client: Result<WsClient, super::Refusal>,
    plan: WsPlan,
    mut record: WsRecord,
    received: Arc<AtomicU64>,
    close: watch::Receiver<Option<u16>>,
) -> WsRecord {
    match client {
        Ok(client) => {
            let mut tick = interval(plan.every.unwrap_or(Duration::from_secs(1)));
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut session = Session { client, plan, tick, record, received };
            session.talk(close).await;
            record = session.record;
        }
        Err(refusal) => record.fault = Some(WsFault::Refused(refusal)),
    }
    record.ended = Mono::now();
    record
}

// === impl Session ===

impl Session {
    async fn talk(&mut self, mut close: watch::Receiver<Option<u16>>) {
        loop {
            let talks = self.plan.every.is_some() && self.may_speak() && self.record.sent < self.plan.count;
            tokio::select! {
                said = self.client.next() => match said {
                    Ok(said) => self.hear(said).await,
                    Err(fault) => return self.end(fault).await,
                },
                _ = self.tick.tick(), if talks => self.say().await,
                code = asked_to_close(&mut close), if self.may_speak() => self.close(code).await,
            }
        }
    }

    const fn may_speak(&self) -> bool {
        self.record.close_sent.is_none() && self.record.close.is_none()
    }

    async fn hear(&mut self, said: Said) {
        match said {
            Said::Message { payload, .. } => {
                let expected = match number_of(&payload) {
                    Some(('c', number)) if number == self.record.echoed => &mut self.record.echoed,
                    Some(('p', number)) if number == self.record.pushed => &mut self.record.pushed,
                    _ => {
                        self.record.fault.get_or_insert(WsFault::OutOfOrder);
                        return;
                    }
                };
                *expected += 1;
                self.received.fetch_add(1, Ordering::AcqRel);
            }
            Said::Ping(payload) => self.send(WsFrame::new(opcode::PONG, payload)).await,
            Said::Pong(_) => {}
            Said::Close(close) => {
                let code = close.code;
                self.record.close = Some((Mono::now(), close));
                self.answer(code).await;
            }
        }
    }

    async fn answer(&mut self, code: u16) {
        let more = match self.plan.answer {
            // Only the side that began the handshake gets a Close after its own.
            _ if self.record.close_sent.is_some() => return,
            Answer::Never => return,
            Answer::AtOnce => 0,
            Answer::After(more) => more,
        };
        for _ in 0..more {
            self.say().await;
        }
        self.close(code).await;
    }

    async fn close(&mut self, code: u16) {
        self.record.close_sent = Some(code);
        let frame = if code == NO_STATUS { WsFrame::new(opcode::CLOSE, Vec::new()) } else { WsFrame::close(code, "") };
        self.send(frame).await;
    }

    async fn say(&mut self) {
        let frame = WsFrame::new(opcode::TEXT, numbered('c', self.record.sent, self.plan.size));
        let compressed = self.plan.compressed && self.client.extensions.is_some();
        self.record.sent += 1;
        self.send(if compressed { frame.reserved(RSV1) } else { frame }).await;
    }

    /// A peer that can't be written to can still be read: how it ended is told there.
    async fn send(&mut self, frame: WsFrame) {
        let _ = self.client.send(frame).await;
    }

    async fn end(&mut self, fault: WsFault) {
        match fault {
            WsFault::Ended(ending) => self.record.ending = ending,
            WsFault::Torn(ending) => {
                self.record.ending = ending;
                self.record.fault.get_or_insert(fault);
            }
            _ => {
                self.record.fault.get_or_insert(fault);
            }
        }
        if self.record.ending == Ending::Fin {
            self.client.finish().await;
        }
    }
}

async fn asked_to_close(close: &mut watch::Receiver<Option<u16>>) -> u16 {
    match close.wait_for(Option::is_some).await.map(|code| *code) {
        Ok(Some(code)) => code,
        _ => std::future::pending().await,
    }
}
