//! One worker's HTTP/1 connections to an app: the most recently used one is taken first.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::connect::{DialError, Marks, Peek, Upstream, UpstreamIo, dial};
use super::quiet::Quiet;
use crate::proxy::body::RequestBody;
use crate::tls::client::Offer;

/// The idle connections to one upstream.
#[derive(Debug, Clone)]
pub struct Pool(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    upstream: Upstream,
    header_bytes: usize,
    idle: RefCell<Vec<Idle>>,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

/// One connection, in use. Dropping it closes it, unless it is given back.
#[derive(Debug)]
pub struct Pooled {
    /// `None` only while it is given back.
    connection: Option<Connection>,
    pool: Pool,
    reused: bool,
}

#[derive(Debug)]
struct Connection {
    sender: SendRequest<RequestBody>,
    task: AbortHandle,
    quiet: Arc<Quiet>,
    marks: Rc<Marks>,
    peek: Peek,
    keep: Duration,
}

/// Most bytes of a response that are read at once: a head and 64 KiB come in one piece, and go out in one.
const PIECE: usize = (64 + 8) * 1024;
/// Shorter than the keep-alive of any common app server (gunicorn 2 s, Node and uvicorn 5 s): a request must never
/// meet the app's own idle close.
const KEEP: Duration = Duration::from_millis(800);
/// Longest use of an app's announced timeout.
const KEEP_LONGEST: Duration = Duration::from_secs(30);

// === impl Pool ===

impl Pool {
    /// An empty pool.
    pub fn new(upstream: Upstream, header_bytes: usize) -> Self {
        Self(Rc::new(Shared { upstream, header_bytes, idle: RefCell::default() }))
    }

    /// Where its connections go.
    pub fn upstream(&self) -> &Upstream {
        &self.0.upstream
    }

    /// An idle connection that is certainly still good, if there is one.
    pub fn take(&self) -> Option<Pooled> {
        let now = Instant::now();
        let mut not_ready = Vec::new();
        let mut idle = self.0.idle.borrow_mut();
        let found = loop {
            let Some(Idle { connection, since }) = idle.pop() else { break None };
            if connection.sender.is_closed() {
                continue;
            }
            if !connection.sender.is_ready() {
                // Its task has not been polled since the last body ended, or still writes the end of one.
                not_ready.push(Idle { connection, since });
                continue;
            }
            if now.duration_since(since) >= connection.keep {
                continue;
            }
            if connection.peek.is_fresh() {
                break Some(connection);
            }
        };
        idle.append(&mut not_ready);
        drop(idle);
        found.map(|connection| self.hand_out(connection, true))
    }

    /// A new connection.
    ///
    /// # Errors
    /// As [`dial`] gives them; a failed handshake can't happen before bytes are exchanged.
    pub async fn connect(&self) -> Result<Pooled, DialError> {
        let io = UpstreamIo::new(dial(&self.0.upstream, Offer::Http1).await?);
        let (marks, peek) = (Rc::clone(io.marks()), io.peek());
        let (sender, connection) = self
            .client()
            .handshake(TokioIo::new(io))
            .await
            .map_err(|error| DialError::Failed(std::io::Error::other(error)))?;
        let quiet = Arc::<Quiet>::default();
        // How it ends shows at the request, or does not concern one.
        let task = tokio::task::spawn_local(Arc::clone(&quiet).drive(connection));
        let connection = Connection { sender, task: task.abort_handle(), quiet, marks, peek, keep: KEEP };
        Ok(self.hand_out(connection, false))
    }

    /// The settings of every connection to an app.
    pub fn client(&self) -> http1::Builder {
        let mut client = http1::Builder::new();
        client.max_buf_size(self.0.header_bytes.max(PIECE)).max_header_size(self.0.header_bytes);
        client
    }

    /// Lets go of what has been idle for too long.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.0.idle.borrow_mut().retain(|idle| {
            // The app has answered and still takes in the end of the request.
            let keep = if idle.connection.sender.is_ready() { idle.connection.keep } else { KEEP_LONGEST };
            now.duration_since(idle.since) < keep && !idle.connection.sender.is_closed()
        });
    }

    fn hand_out(&self, connection: Connection, reused: bool) -> Pooled {
        connection.marks.reset();
        Pooled { connection: Some(connection), pool: self.clone(), reused }
    }
}

// === impl Pooled ===

impl Pooled {
    /// It has served a request before.
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// What has passed since it was taken.
    pub fn marks(&self) -> Option<&Marks> {
        self.connection.as_ref().map(|connection| &*connection.marks)
    }

    /// The sender for one request.
    pub fn sender(&mut self) -> Option<&mut SendRequest<RequestBody>> {
        self.connection.as_mut().map(|connection| &mut connection.sender)
    }

    /// Polls the body of its response.
    pub fn poll_body(&self, body: &mut Incoming, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        match &self.connection {
            Some(connection) => connection.quiet.poll_body(body, cx),
            None => Poll::Ready(None),
        }
    }

    /// The app has said how long it keeps idle connections, in seconds.
    pub fn learn_keep_alive(&mut self, seconds: u64) {
        if let Some(connection) = &mut self.connection {
            let announced = Duration::from_secs(seconds);
            connection.keep = if seconds >= 2 { announced - Duration::from_secs(1) } else { announced / 2 };
            connection.keep = connection.keep.min(KEEP_LONGEST);
        }
    }

    /// Request and response came to a clean end: back into the pool with it.
    pub fn give_back(mut self) {
        if let Some(connection) = self.connection.take()
            && !connection.sender.is_closed()
            && !connection.marks.is_deaf()
        {
            self.pool.0.idle.borrow_mut().push(Idle { connection, since: Instant::now() });
        }
    }
}

// === impl Connection ===

impl Drop for Connection {
    fn drop(&mut self) {
        // Without this a connection whose app answered before the request was through would stay for ever
        // (hyperium/hyper#4176).
        self.task.abort();
    }
}
