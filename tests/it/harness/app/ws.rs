//! Owns the app's WebSocket sessions: echo, numbered messages of its own, and all ways to end.

use std::collections::VecDeque;
use std::process::exit;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::entry::Shared;
use super::routes::{Exchange, Next};
use super::server::Io;
use crate::harness::http::Fault;
use crate::harness::ws::{Close, NO_STATUS, Reader, Said, Side, WsFrame, number_of, numbered, opcode};

/// Messages that the app sends by itself.
struct Push {
    every: Duration,
    /// The next number, and the one at which it stops.
    next: u64,
    end: u64,
    size: usize,
    /// Written so many bytes at a time, with a pause after each.
    piece: usize,
    pause: Duration,
    /// Each piece is a frame of its own.
    fragmented: bool,
}

/// When and how the app ends the session.
struct Ends {
    /// Messages of the client.
    after: u64,
    after_time: Duration,
    how: How,
    close: WsFrame,
    ignores_close: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Never,
    /// With a Close.
    Close,
    /// The connection, without a word.
    Drop,
    /// The whole process.
    Exit,
}

/// What the reading side leaves behind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Closed,
    Fin,
    Reset,
    Violation,
    Dropped,
}

struct Session<'a> {
    app: &'a Shared,
    id: &'a str,
    ends: Ends,
    got: u64,
    close_sent: bool,
}

impl<S: Io> Exchange<'_, S> {
    /// `/ws?ms=&refuse=STATUS` and, after the 101: every message goes back; `push_ms=&push_n=&size=&piece=&pause_ms=
    /// &fragmented=1` are messages of the app, `early=1` puts the first one into the write of the 101;
    /// `after=N` messages or `after_ms=` `then=close|drop|exit` with `code=&reason=`; `ignore_close=1`.
    /// The first subprotocol and the first extension offered are agreed, `agree=0` is neither.
    pub(super) async fn websocket(&mut self) -> Result<Next, Fault> {
        sleep(self.millis("ms")).await;
        if let Some(status) = self.text("refuse").and_then(|text| text.parse().ok()) {
            return self.reply(status, &[], b"no\n").await;
        }
        let Some(key) = self.head.get("sec-websocket-key") else {
            return self.reply(426, &[], b"an upgrade was expected\n").await;
        };
        let mut bytes = format!(
            "HTTP/1.1 101 Switching Protocols\r\n{}Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {}\r\n",
            self.id_line(),
            derive_accept_key(key.as_bytes()),
        );
        let agreed = self.number("agree", 1) == 1;
        let first = |name| self.head.get(name).filter(|_| agreed).and_then(|all| all.split(',').next()).map(str::trim);
        let (protocol, extension) = (first("sec-websocket-protocol"), first("sec-websocket-extensions"));
        for (name, value) in [("Protocol", protocol), ("Extensions", extension)] {
            if let Some(value) = value {
                bytes.push_str(&format!("Sec-WebSocket-{name}: {value}\r\n"));
            }
        }
        bytes.push_str("\r\n");
        let mut bytes = bytes.into_bytes();
        let mut push = self.push();
        if self.number("early", 0) == 1 {
            bytes.extend(WsFrame::new(opcode::TEXT, numbered('p', 0, push.size)).encode());
            push.next = 1;
        }
        self.write(&bytes).await?;

        let id = self.head.get("x-id").unwrap_or("-");
        self.app.pen.note("ws", &format!("id={id}"));
        let mut reader = Reader::new(Side::Client, extension.is_some());
        reader.feed(self.wire.unread());
        let mut session = Session { app: self.app, id, ends: self.ends(), got: 0, close_sent: false };
        let over = session.run(self.wire.get_mut(), reader, push).await;
        self.app.pen.note("over", &format!("id={id} how={over}"));
        Ok(Next::Close)
    }

    fn push(&self) -> Push {
        let every = self.text("push_ms").map(|_| self.millis("push_ms"));
        Push {
            every: every.unwrap_or_default(),
            next: 0,
            end: if every.is_some() { self.number("push_n", u64::MAX) } else { 0 },
            size: self.number("size", 0),
            piece: self.number("piece", usize::MAX).max(1),
            pause: self.millis("pause_ms"),
            fragmented: self.number("fragmented", 0) == 1,
        }
    }

    fn ends(&self) -> Ends {
        let how = match self.text("then") {
            Some("close") => How::Close,
            Some("drop") => How::Drop,
            Some("exit") => How::Exit,
            _ => How::Never,
        };
        let after_time = self.text("after_ms").map_or(FOREVER, |_| self.millis("after_ms"));
        Ends {
            after: self.number("after", u64::MAX),
            after_time,
            how,
            close: close(self.number("code", 1000), self.text("reason").unwrap_or_default()),
            ignores_close: self.number("ignore_close", 0) == 1,
        }
    }
}

// === impl Session ===

impl Session<'_> {
    async fn run(&mut self, stream: &mut impl Io, reader: Reader, push: Push) -> &'static str {
        let (mut input, mut output) = tokio::io::split(stream);
        // Bounded: a client that does not read is not read either.
        let (frames, queue) = channel(64);
        let (over, ()) = tokio::join!(self.read(&mut input, reader, frames), write(&mut output, queue, push));
        if over == Over::Dropped {
            return "dropped";
        }
        let _ = output.shutdown().await;
        let mut rest = [0; 4096];
        let end = async {
            loop {
                match input.read(&mut rest).await {
                    Ok(0) => return "fin",
                    Ok(_) => {}
                    Err(_) => return "reset",
                }
            }
        };
        match over {
            Over::Fin => "fin",
            Over::Reset => "reset",
            Over::Violation => "violation",
            _ => timeout(LINGER, end).await.unwrap_or("open"),
        }
    }

    async fn read(
        &mut self,
        input: &mut (impl AsyncRead + Unpin),
        mut reader: Reader,
        frames: Sender<WsFrame>,
    ) -> Over {
        let mut buffer = vec![0; 64 * 1024];
        let timer = sleep(self.ends.after_time);
        tokio::pin!(timer);
        let mut waits = self.ends.how != How::Never;
        loop {
            loop {
                match reader.next() {
                    Ok(Some(said)) => {
                        if let Some(over) = self.hear(said, &frames).await {
                            return over;
                        }
                    }
                    Ok(None) => break,
                    Err(violation) => {
                        self.app.pen.note("violation", &format!("id={} what={violation:?}", self.id));
                        return Over::Violation;
                    }
                }
            }
            tokio::select! {
                read = input.read(&mut buffer) => match read {
                    Ok(0) => return Over::Fin,
                    Ok(read) => reader.feed(&buffer[..read]),
                    Err(_) => return Over::Reset,
                },
                () = &mut timer, if waits => {
                    waits = false;
                    if let Some(over) = self.end(&frames).await {
                        return over;
                    }
                }
            }
        }
    }

    /// What has been heard is noted before it is answered: a message that came back has reached the app.
    async fn hear(&mut self, said: Said, frames: &Sender<WsFrame>) -> Option<Over> {
        match said {
            Said::Message { text, compressed, payload } => {
                let number = number_of(&payload).map_or_else(|| "-".to_owned(), |(_, number)| number.to_string());
                self.app.pen.note("message", &format!("id={} n={number} bytes={}", self.id, payload.len()));
                self.got += 1;
                let frame = WsFrame::new(if text { opcode::TEXT } else { opcode::BINARY }, payload);
                let _ = frames.send(if compressed { frame.reserved(4) } else { frame }).await;
                if self.got == self.ends.after {
                    return self.end(frames).await;
                }
            }
            Said::Ping(payload) => drop(frames.send(WsFrame::new(opcode::PONG, payload)).await),
            Said::Pong(_) => {}
            Said::Close(Close { code, reason }) => {
                let reason = reason.replace(' ', "_");
                let first = if self.close_sent { "app" } else { "client" };
                self.app.pen.note("close", &format!("id={} code={code} reason={reason} first={first}", self.id));
                if self.close_sent {
                    return Some(Over::Closed);
                }
                if !self.ends.ignores_close {
                    self.close_sent = true;
                    let _ = frames.send(close(code, "")).await;
                    return Some(Over::Closed);
                }
            }
        }
        None
    }

    async fn end(&mut self, frames: &Sender<WsFrame>) -> Option<Over> {
        match self.ends.how {
            How::Close if !self.close_sent => {
                self.close_sent = true;
                let _ = frames.send(self.ends.close.clone()).await;
                None
            }
            How::Never | How::Close => None,
            How::Drop => Some(Over::Dropped),
            How::Exit => exit(1),
        }
    }
}

/// Until the reading side has gone or a Close has been written.
async fn write(output: &mut (impl AsyncWrite + Unpin), mut queue: Receiver<WsFrame>, mut push: Push) {
    let mut due = interval(push.every.max(Duration::from_millis(1)));
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waiting = VecDeque::new();
    loop {
        let frame = match waiting.pop_front() {
            Some(frame) => Some(frame),
            None => tokio::select! {
                frame = queue.recv() => frame,
                _ = due.tick(), if push.next < push.end => {
                    if message(output, &mut queue, &mut waiting, &push).await.is_err() {
                        return drain(queue).await;
                    }
                    push.next += 1;
                    continue;
                }
            },
        };
        let Some(frame) = frame else { return };
        if output.write_all(&frame.encode()).await.is_err() || frame.opcode == opcode::CLOSE {
            return drain(queue).await;
        }
    }
}

/// Answers to a client that can't be told any more must not hold up the reading side.
async fn drain(mut queue: Receiver<WsFrame>) {
    while queue.recv().await.is_some() {}
}

/// One message, piece by piece; control frames go out between its fragments, all else waits behind it.
async fn message(
    output: &mut (impl AsyncWrite + Unpin),
    queue: &mut Receiver<WsFrame>,
    waiting: &mut VecDeque<WsFrame>,
    push: &Push,
) -> std::io::Result<()> {
    let whole = WsFrame::new(opcode::TEXT, numbered('p', push.next, push.size));
    if !push.fragmented {
        output.write_all(&whole.head()).await?;
        for piece in whole.payload.chunks(push.piece) {
            output.write_all(piece).await?;
            sleep(push.pause).await;
        }
        return Ok(());
    }
    let mut pieces = whole.payload.chunks(push.piece).peekable();
    let mut opcode = opcode::TEXT;
    while let Some(piece) = pieces.next() {
        let frame = WsFrame::new(opcode, piece.to_vec());
        opcode = opcode::CONTINUATION;
        let frame = if pieces.peek().is_some() { frame.open_ended() } else { frame };
        output.write_all(&frame.encode()).await?;
        sleep(push.pause).await;
        while let Ok(frame) = queue.try_recv() {
            if frame.opcode == opcode::PONG && waiting.is_empty() {
                output.write_all(&frame.encode()).await?;
            } else {
                waiting.push_back(frame);
            }
        }
    }
    Ok(())
}

fn close(code: u16, reason: &str) -> WsFrame {
    if code == NO_STATUS { WsFrame::new(opcode::CLOSE, Vec::new()) } else { WsFrame::close(code, reason) }
}

const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// For the client's end after ours.
const LINGER: Duration = Duration::from_secs(5);
