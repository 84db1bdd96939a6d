//! Owns one request on an HTTP/2 stream: its body, its answer, and the note of how it ended.

use std::future::poll_fn;
use std::pin::pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tokio::sync::mpsc::UnboundedSender;

use super::Order;
use crate::harness::app::entry::Shared;
use crate::harness::app::server::Busy;

/// One request being answered.
pub(super) struct Exchange {
    app: Arc<Shared>,
    pub(super) head: http::request::Parts,
    body: RecvStream,
    out: Out,
    orders: UnboundedSender<Order>,
    /// `id= conn= stream=` of its lines in the journal.
    label: String,
    received: u64,
    /// Messages or pieces written so far.
    pub(super) sent: u64,
}

/// The answer so far.
enum Out {
    Nothing(SendResponse<Bytes>),
    Head(SendStream<Bytes>),
    Over,
}

/// Why a stream ended before its answer did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// The peer reset the stream.
    Cancelled(Reason),
    /// The connection ended.
    Lost,
    /// The route itself has ended the stream.
    Done,
}

// === impl Exchange ===

impl Exchange {
    pub(super) fn new(
        app: Arc<Shared>,
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        connection: u64,
        orders: UnboundedSender<Order>,
    ) -> Self {
        let (head, body) = request.into_parts();
        let id = head.headers.get("x-id").and_then(|id| id.to_str().ok()).unwrap_or("-");
        let label = format!("id={id} conn={connection} stream={}", respond.stream_id().as_u32());
        Self { app, head, body, out: Out::Nothing(respond), orders, label, received: 0, sent: 0 }
    }

    pub(super) async fn serve(mut self) {
        let app = self.app.clone();
        let _busy = Busy::begin(&app.in_flight);
        let target = self.head.uri.path_and_query().map_or("-", http::uri::PathAndQuery::as_str);
        app.pen.note("req", &format!("{} method={} path={target} proto=h2", self.label, self.head.method));
        let _turn = app.turns.acquire().await;
        let end = super::routes::answer(&mut self).await;
        let tail = format!("{} received={} sent={}", self.label, self.received, self.sent);
        match end {
            Ok(()) | Err(Gone::Done) => app.pen.note("done", &tail),
            Err(Gone::Cancelled(reason)) => app.pen.note("cancel", &format!("{tail} code={}", u32::from(reason))),
            Err(Gone::Lost) => app.pen.note("lost", &tail),
        }
    }

    pub(super) fn path(&self) -> &str {
        self.head.uri.path()
    }

    pub(super) fn number<T: FromStr>(&self, key: &str, otherwise: T) -> T {
        let pairs = self.head.uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(name, _)| *name == key).find_map(|(_, value)| value.parse().ok()).unwrap_or(otherwise)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        !self.number(key, String::new()).is_empty()
    }

    pub(super) fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    pub(super) async fn reply_delay(&mut self) -> Result<(), Gone> {
        self.sleep(self.app.options.reply_delay).await
    }

    pub(super) const fn received(&self) -> u64 {
        self.received
    }

    // --- the request's body ---

    /// The next piece; nothing at its end. The peer may send as much again.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, Gone> {
        let read = {
            let body = &mut self.body;
            guarded(&mut self.out, poll_fn(|cx| body.poll_data(cx))).await?
        };
        match read {
            Some(Ok(piece)) => {
                let _ = self.body.flow_control().release_capacity(piece.len());
                self.received += piece.len() as u64;
                Ok(Some(piece))
            }
            Some(Err(error)) => Err(Gone::from(error)),
            None => Ok(None),
        }
    }

    pub(super) async fn upload(&mut self) -> Result<Vec<u8>, Gone> {
        let mut upload = Vec::new();
        while let Some(piece) = self.piece().await? {
            upload.extend_from_slice(&piece);
        }
        Ok(upload)
    }

    // --- the answer ---

    /// The request's id goes back, so that a client sees a response that belongs to another request.
    pub(super) fn begin(&mut self, status: u16, fields: &[(&str, String)], end: bool) -> Result<(), Gone> {
        let mut response = Response::builder().status(status);
        if let Some(id) = self.head.headers.get("x-id") {
            response = response.header("x-id", id);
        }
        for (name, value) in fields {
            response = response.header(*name, value);
        }
        let response = response.body(()).expect("the head is valid");
        let Out::Nothing(mut respond) = std::mem::replace(&mut self.out, Out::Over) else { return Err(Gone::Done) };
        let stream = respond.send_response(response, end).map_err(Gone::from)?;
        if !end {
            self.out = Out::Head(stream);
        }
        Ok(())
    }

    /// Writes as flow control allows; `end` needs something to write.
    pub(super) async fn write(&mut self, bytes: &[u8], end: bool) -> Result<(), Gone> {
        let mut left = Bytes::copy_from_slice(bytes);
        while !left.is_empty() {
            let Out::Head(stream) = &mut self.out else { return Err(Gone::Done) };
            stream.reserve_capacity(left.len());
            let room = poll_fn(|cx| {
                if let Poll::Ready(reset) = stream.poll_reset(cx) {
                    return Poll::Ready(Err(reset.map_or_else(Gone::from, Gone::Cancelled)));
                }
                stream.poll_capacity(cx).map(|room| match room {
                    Some(Ok(room)) => Ok(room),
                    Some(Err(error)) => Err(Gone::from(error)),
                    None => Err(Gone::Lost),
                })
            })
            .await?;
            let piece = left.split_to(room.min(left.len()));
            let last = end && left.is_empty();
            if !piece.is_empty() {
                stream.send_data(piece, last).map_err(Gone::from)?;
            }
        }
        if end {
            self.out = Out::Over;
        }
        Ok(())
    }

    pub(super) fn trailers(&mut self, fields: &[(&str, String)]) -> Result<(), Gone> {
        let pair = |(name, value): &(&str, String)| {
            let name = HeaderName::try_from(*name).expect("a valid name");
            (name, HeaderValue::try_from(value).expect("a valid value"))
        };
        let trailers: HeaderMap = fields.iter().map(pair).collect();
        match std::mem::replace(&mut self.out, Out::Over) {
            Out::Head(mut stream) => stream.send_trailers(trailers).map_err(Gone::from),
            Out::Nothing(_) | Out::Over => Err(Gone::Done),
        }
    }

    pub(super) async fn reply(&mut self, status: u16, fields: &[(&str, String)], body: &[u8]) -> Result<(), Gone> {
        if body.is_empty() || self.head.method == "HEAD" {
            return self.begin(status, fields, true);
        }
        let mut all = vec![("content-length", body.len().to_string())];
        all.extend_from_slice(fields);
        self.begin(status, &all, false)?;
        self.write(body, true).await
    }

    pub(super) fn reset(&mut self, code: u32) {
        match &mut self.out {
            Out::Nothing(respond) => respond.send_reset(Reason::from(code)),
            Out::Head(stream) => stream.send_reset(Reason::from(code)),
            Out::Over => {}
        }
        self.out = Out::Over;
    }

    // --- time ---

    /// Ends early if the stream does.
    pub(super) async fn sleep(&mut self, time: Duration) -> Result<(), Gone> {
        if time.is_zero() {
            return Ok(());
        }
        guarded(&mut self.out, tokio::time::sleep(time)).await
    }

    pub(super) async fn pause(&mut self, key: &str) -> Result<(), Gone> {
        let time = Duration::from_millis(self.number(key, 0));
        self.sleep(time).await
    }

    /// Until the peer has had enough.
    pub(super) async fn silence(&mut self) -> Result<(), Gone> {
        guarded(&mut self.out, std::future::pending()).await
    }
}

/// Does the work unless the stream ends before.
async fn guarded<T>(out: &mut Out, work: impl Future<Output = T>) -> Result<T, Gone> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(done));
        }
        let reset = match out {
            Out::Nothing(respond) => respond.poll_reset(cx),
            Out::Head(stream) => stream.poll_reset(cx),
            Out::Over => Poll::Pending,
        };
        reset.map(|reset| Err(reset.map_or_else(Gone::from, Gone::Cancelled)))
    })
    .await
}

// === impl Gone ===

impl From<h2::Error> for Gone {
    fn from(error: h2::Error) -> Self {
        match error.reason() {
            Some(reason) if error.is_reset() && error.is_remote() => Self::Cancelled(reason),
            _ => Self::Lost,
        }
    }
}
