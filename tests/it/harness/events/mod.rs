//! Owns the client of event streams as the HTML standard has it: it comes back by itself with the last id it has seen.

mod parser;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(crate) use self::parser::{Event, Parser};
use super::SOON;
use super::client::{Failure, Request, fresh_id};
use super::http::Wire;
use super::tls::{Target, alpn};
use super::wait::{Mono, eventually, within};

/// A running client; gives up its connection when it is stopped or dropped.
#[derive(Debug)]
pub(crate) struct EventSource {
    heard: Arc<Mutex<Heard>>,
    stopped: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// Everything that has come so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    pub(crate) events: Vec<Event>,
    pub(crate) attempts: Vec<Attempt>,
    /// Bytes of streams with a content coding, which are not looked into.
    pub(crate) opaque: usize,
}

/// One connection.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) at: Mono,
    /// The `Last-Event-ID` that was sent.
    pub(crate) after: String,
    /// When the head of a stream came.
    pub(crate) opened: Option<Mono>,
    pub(crate) ended: Option<(Mono, StreamEnd)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum StreamEnd {
    /// The last chunk, or the length that was said.
    Clean,
    /// No connection, no answer, or a body that is not whole.
    Broken(Failure),
    /// An answer that ends it for good: another status than 200.
    Status(u16),
    /// As Status: not `text/event-stream`.
    OtherType,
}

// === impl EventSource ===

impl EventSource {
    /// Begins at once; `retry` is the pause before it comes back, until the stream says another one.
    pub(crate) fn start(to: impl Into<Target>, path: &str, retry: Duration) -> Self {
        let heard = Arc::new(Mutex::new(Heard::default()));
        let (stopped, mut stop) = watch::channel(false);
        let work = run(to.into(), path.to_owned(), retry, heard.clone());
        let task = tokio::spawn(async move {
            tokio::select! {
                () = work => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        });
        Self { heard, stopped, task }
    }

    pub(crate) fn so_far(&self) -> Heard {
        self.heard.lock().expect("no holder panics").clone()
    }

    /// Whether it has given up for good.
    pub(crate) fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits until what came so far is as wanted.
    pub(crate) async fn has(&self, what: &str, deadline: Duration, wanted: impl Fn(&Heard) -> bool) -> Heard {
        eventually(what, deadline, || {
            let heard = self.so_far();
            if wanted(&heard) { Ok(heard) } else { Err((heard.events.len(), heard.attempts)) }
        })
        .await
    }

    /// When the head of the first stream came.
    pub(crate) async fn opened(&self, deadline: Duration) -> Mono {
        eventually("the head of a stream", deadline, || {
            let heard = self.so_far();
            heard.attempts.iter().find_map(|one| one.opened).ok_or(heard.attempts)
        })
        .await
    }

    pub(crate) async fn has_events(&self, count: usize, deadline: Duration) -> Heard {
        self.has(&format!("{count} events"), deadline, |heard| heard.events.len() >= count).await
    }

    pub(crate) async fn stop(self) -> Heard {
        self.stopped.send_replace(true);
        within("end of the event source", SOON, self.task).await.expect("the event source does not panic");
        let heard = self.heard.lock().expect("no holder panics");
        heard.clone()
    }
}

// === impl Heard ===

impl Heard {
    /// The ids in their order.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.events.iter().map(|event| event.id.parse().expect("ids are numbers")).collect()
    }

    /// Panics unless the ids are 1, 2, 3 and so on.
    pub(crate) fn assert_gapless(&self) {
        let ids = self.ids();
        let wrong = ids.iter().zip(1..).position(|(id, expected)| *id != expected);
        assert!(wrong.is_none() && !ids.is_empty(), "place {wrong:?} of {ids:?}; {:?}", self.attempts);
    }

    /// How the streams ended that have ended.
    pub(crate) fn ends(&self) -> Vec<StreamEnd> {
        self.attempts.iter().filter_map(|one| one.ended).map(|(_, end)| end).collect()
    }
}

async fn run(to: Target, path: String, retry: Duration, heard: Arc<Mutex<Heard>>) {
    let (mut retry, mut last) = (retry, String::new());
    loop {
        let attempt = Attempt { at: Mono::now(), after: last.clone(), opened: None, ended: None };
        heard.lock().expect("no holder panics").attempts.push(attempt);
        let mut parser = Parser::new(&last);
        let end = stream(&to, &path, &mut parser, &heard).await;
        let now = Mono::now();
        if let Some(attempt) = heard.lock().expect("no holder panics").attempts.last_mut() {
            attempt.ended = Some((now, end));
        }
        last = parser.last_id().to_owned();
        retry = parser.retry().unwrap_or(retry);
        if matches!(end, StreamEnd::Status(_) | StreamEnd::OtherType) {
            return;
        }
        tokio::time::sleep(retry).await;
    }
}

async fn stream(to: &Target, path: &str, parser: &mut Parser, heard: &Mutex<Heard>) -> StreamEnd {
    match read_stream(to, path, parser, heard).await {
        Ok(end) => end,
        Err(failure) => StreamEnd::Broken(failure),
    }
}

async fn read_stream(to: &Target, path: &str, parser: &mut Parser, heard: &Mutex<Heard>) -> Result<StreamEnd, Failure> {
    let stream = timeout(SOON, to.connect(alpn::HTTP1)).await.map_err(|_| Failure::Timeout)??;
    let mut request = Request::get(path).header("Accept", "text/event-stream").header("Cache-Control", "no-store");
    if !parser.last_id().is_empty() {
        request = request.header("Last-Event-ID", parser.last_id());
    }
    let mut wire = Wire::new(stream);
    wire.get_mut().write_all(&request.encode(&to.address.to_string(), &fresh_id())).await?;
    let head = wire.head().await?;
    let status = head.status()?;
    if status != 200 {
        return Ok(StreamEnd::Status(status));
    }
    let kind = head.get("content-type").unwrap_or_default();
    if !kind.split(';').next().is_some_and(|name| name.trim().eq_ignore_ascii_case("text/event-stream")) {
        return Ok(StreamEnd::OtherType);
    }
    let opened = Mono::now();
    if let Some(attempt) = heard.lock().expect("no holder panics").attempts.last_mut() {
        attempt.opened = Some(opened);
    }
    let coded = head.get("content-encoding").is_some();
    let body = wire.body(head.response_framing("GET"), |piece| {
        let mut heard = heard.lock().expect("no holder panics");
        if coded {
            heard.opaque += piece.len();
        } else {
            heard.events.extend(parser.feed(piece, Mono::now()));
        }
    });
    body.await?;
    Ok(StreamEnd::Clean)
}
