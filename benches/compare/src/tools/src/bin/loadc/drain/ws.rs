//! Owns the WebSocket clients of a termination: sessions that send a message now and then and have it echoed.
//!
//! A session that the server ends with a Close frame is well, and its client opens another one. One that ends without
//! is cut: failed. A message that was on its way when the Close came cannot be echoed any more (RFC 6455 §5.5.1: no
//! data after Close), but must have reached the app: the app counts what it gets, and what is missing is lost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use super::{Ask, World, tell};
use crate::net::{Fail, Idle, Rng, look};
use crate::ws::{frame, parse, upgrade};

const CLOSE: u8 = 8;
const PING: u8 = 9;

#[derive(Default)]
struct Counts {
    sent: Cell<u64>,
    /// Without an echo at a Close frame, and at a cut.
    unanswered: Cell<u64>,
    cut: Cell<u64>,
    open: Cell<usize>,
}

enum End {
    /// By a Close frame.
    Closed,
    /// Without one, while a message waited for its echo or not.
    Cut,
}

struct Session {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// When the messages were due that have no echo yet.
    waiting: Vec<Instant>,
}

impl Session {
    /// Handles the frames that are there; true if one of them was a Close, which is answered.
    async fn frames(&mut self, world: &World, phase: &'static str) -> std::io::Result<bool> {
        while let Some((length, opcode, start)) = parse(&self.buffer) {
            let payload = self.buffer[start..length].to_vec();
            self.buffer.drain(..length);
            match opcode {
                CLOSE => {
                    let code = payload.get(..2).map_or(1005, |code| u16::from_be_bytes([code[0], code[1]]));
                    world.note(if code == 1001 { "close_1001" } else { "close_other" }, 1);
                    let _ = self.stream.write_all(&frame(CLOSE, &payload)).await;
                    return Ok(true);
                }
                PING => self.stream.write_all(&frame(10, &payload)).await?,
                1 | 2 if !self.waiting.is_empty() => world.ok(phase, self.waiting.remove(0)),
                _ => {}
            }
        }
        Ok(false)
    }

    /// Until the server ends it.
    async fn live(&mut self, world: &World, counts: &Counts, messages: &mut UnboundedReceiver<Instant>) -> End {
        let message = frame(2, &[b'w'; 128]);
        loop {
            tokio::select! {
                read = self.stream.read_buf(&mut self.buffer) => {
                    if !matches!(read, Ok(1..)) {
                        return End::Cut;
                    }
                    match self.frames(world, world.phase()).await {
                        Ok(false) => {}
                        Ok(true) => return End::Closed,
                        Err(_) => return End::Cut,
                    }
                }
                Some(due) = messages.recv() => {
                    // On its way: what comes from the server meanwhile is seen after it has been sent.
                    sleep(world.rtt).await;
                    self.waiting.push(due);
                    counts.sent.set(counts.sent.get() + 1);
                    if self.stream.write_all(&message).await.is_err() {
                        return End::Cut;
                    }
                }
            }
        }
    }
}

/// A client: one session after the other, until it finds another pod.
async fn client(world: Rc<World>, counts: Rc<Counts>, mut messages: UnboundedReceiver<Instant>) {
    let mut opened = 0;
    while world.is_known() {
        let phase = world.phase();
        let stream = match upgrade(world.proxy).await {
            Ok(stream) => stream,
            Err(fail) => {
                world.failed(phase, "new", fail);
                sleep(Duration::from_millis(500)).await;
                continue;
            }
        };
        world.note("opened_again", u64::from(opened > 0));
        opened += 1;
        counts.open.set(counts.open.get() + 1);
        let mut session = Session { stream, buffer: Vec::with_capacity(512), waiting: Vec::new() };
        let end = session.live(&world, &counts, &mut messages).await;
        counts.open.set(counts.open.get() - 1);
        let missing = session.waiting.len() as u64;
        match end {
            End::Closed => {
                counts.unanswered.set(counts.unanswered.get() + missing);
                // The server closes first (RFC 6455 §7.1.1).
                let _ = timeout(Duration::from_secs(3), session.stream.read_u8()).await;
            }
            End::Cut => {
                counts.cut.set(counts.cut.get() + missing);
                world.note(if look(&session.stream) == Idle::Fin { "cut_by_fin" } else { "cut_by_rst" }, 1);
                world.failed(world.phase(), "session", Fail::Cut);
            }
        }
    }
    world.note("moved", 1);
}

/// How many messages the app has had in all its sessions.
async fn received(world: &World) -> u64 {
    let mut text = String::new();
    let asked = async {
        let mut stream = TcpStream::connect(world.app).await?;
        stream.write_all(b"GET /ws-count HTTP/1.1\r\nhost: app.local\r\nconnection: close\r\n\r\n").await?;
        stream.read_to_string(&mut text).await
    };
    asked.await.expect("the app tells its count");
    text.rsplit("\r\n\r\n").next().and_then(|count| count.trim().parse().ok()).expect("a count")
}

/// How many sessions are open at the end.
pub(super) async fn run(world: &Rc<World>) -> usize {
    let counts = Rc::new(Counts::default());
    let before = received(world).await;
    let clients: RefCell<Vec<UnboundedSender<Instant>>> = RefCell::default();
    for _ in 0..world.conns {
        let (send, messages) = unbounded_channel();
        tokio::task::spawn_local(client(world.clone(), counts.clone(), messages));
        clients.borrow_mut().push(send);
        // One after the other: all at once would overflow a backlog.
        sleep(Duration::from_micros(200)).await;
    }
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
    tell(world, 0, |wanted, due| {
        if wanted == Ask::Pooled {
            let at = rng.below(world.conns);
            let _ = clients.borrow()[at].send(due);
        }
    })
    .await;
    let reached = received(world).await - before;
    let missing = counts.sent.get().saturating_sub(reached);
    // Those of a session that was cut have failed with it.
    let lost = missing.saturating_sub(counts.cut.get());
    for _ in 0..lost {
        world.failed(world.phase(), "message", Fail::Lost);
    }
    world.note("crossed_close", counts.unanswered.get());
    world.note("messages", counts.sent.get());
    counts.open.get()
}
