//! Owns one call on one connection: what is sent, and whether what comes back is whole.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request};

use super::grpc::{Messages, message, number_of, numbered};
use super::summary::{H2Record, Loss};
use crate::harness::client;
use crate::harness::http::Sum;

/// A call that can be made many times, each time with an id of its own.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    what: What,
    request: client::Request,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Anything but gRPC.
    Plain,
    /// One message of this size, which must come back.
    Unary(usize),
    /// Numbered messages come; `None` if nobody knows how many.
    ServerStream(Option<u64>),
    /// Numbered messages go, and must come back in order.
    Bidi { count: u64, every: Duration, size: usize },
}

/// Why an attempt brought nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The connection was of no use any more, and no stream was begun.
    Unsent,
    /// The server has said that it did nothing with it.
    Unprocessed,
    Lost(Loss),
}

/// What a running call shows to others.
pub(super) type Counter = Arc<AtomicU64>;

// === impl Call ===

impl Call {
    /// The body, the expected sum and the pauses of the request hold; `chunked` has no meaning here.
    pub(crate) const fn plain(request: client::Request) -> Self {
        Self { what: What::Plain, request }
    }

    pub(crate) fn unary(size: usize) -> Self {
        Self::grpc(What::Unary(size), "/grpc/unary")
    }

    /// An app that waits so long before it answers.
    pub(crate) fn slow_unary(size: usize, wait: Duration) -> Self {
        Self::grpc(What::Unary(size), &format!("/grpc/unary?ms={}", wait.as_millis()))
    }

    /// `None` is a stream without an end.
    pub(crate) fn server_stream(count: Option<u64>, every: Duration, size: usize) -> Self {
        let end = count.map_or_else(String::new, |count| format!("&n={count}"));
        let path = format!("/grpc/stream?every_ms={}&size={size}{end}", every.as_millis());
        Self::grpc(What::ServerStream(count), &path)
    }

    /// `u64::MAX` is a stream without an end.
    pub(crate) fn bidi(count: u64, every: Duration, size: usize) -> Self {
        Self::grpc(What::Bidi { count, every, size }, "/grpc/bidi")
    }

    /// Any path of the app whose messages are numbered, e.g. `/grpc/half?...` or `/grpc/error?...`.
    pub(crate) fn numbered(path: &str) -> Self {
        Self::grpc(What::ServerStream(None), path)
    }

    fn grpc(what: What, path: &str) -> Self {
        let request = client::Request::new("POST", path).header("te", "trailers");
        Self { what, request: request.header("content-type", "application/grpc") }
    }

    #[must_use]
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.request.headers.retain(|(known, _)| known != name);
        self.request = self.request.header(name, value);
        self
    }

    const fn is_grpc(&self) -> bool {
        !matches!(self.what, What::Plain)
    }

    fn head(&self, base: &str, id: &str) -> Request<()> {
        let mut request = Request::builder()
            .method(self.request.method)
            .uri(format!("{base}{}", self.request.path))
            .header("x-id", id);
        for (name, value) in &self.request.headers {
            request = request.header(name, value);
        }
        request.body(()).expect("the request is valid")
    }

    /// Sends and reads at the same time, so that an early answer is seen.
    pub(super) async fn attempt(
        &self,
        sender: SendRequest<Bytes>,
        base: &str,
        record: &mut H2Record,
        counter: &Counter,
    ) -> Result<u16, Trouble> {
        // No stream exists before these two, whatever has become of the connection.
        let mut sender = sender.ready().await.map_err(|_| Trouble::Unsent)?;
        let bodiless = !self.is_grpc() && self.request.body.is_empty();
        let (response, stream) =
            sender.send_request(self.head(base, &record.id), bodiless).map_err(|_| Trouble::Unsent)?;
        record.stream = response.stream_id().as_u32();
        let write = async {
            if !bodiless {
                self.write(stream).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = write => unreachable!("the end of the answer decides"),
            result = self.read(response, record, counter) => result,
        }
    }

    /// Faults are left to the reading side, which knows more.
    async fn write(&self, mut stream: SendStream<Bytes>) {
        match self.what {
            What::Plain => {
                let body = &self.request.body[..];
                let (size, pause) = self.request.drip.unwrap_or((body.len(), Duration::ZERO));
                let mut pieces = body.chunks(size.max(1)).peekable();
                while let Some(piece) = pieces.next() {
                    if !send(&mut stream, piece, pieces.peek().is_none()).await {
                        return;
                    }
                    tokio::time::sleep(pause).await;
                }
            }
            What::Unary(size) => {
                send(&mut stream, &message(&numbered(0, size)), true).await;
            }
            What::ServerStream(_) => {
                send(&mut stream, &message(b""), true).await;
            }
            What::Bidi { count, every, size } => {
                for number in 0..count {
                    if !send(&mut stream, &message(&numbered(number, size)), number + 1 == count).await {
                        return;
                    }
                    tokio::time::sleep(every).await;
                }
            }
        }
        // Dropping the handle of an open stream would not cancel it, but keep it until it ends.
        std::future::pending::<()>().await;
    }

    async fn read(&self, response: ResponseFuture, record: &mut H2Record, counter: &Counter) -> Result<u16, Trouble> {
        let response = response.await.map_err(|error| trouble(&error))?;
        let (head, mut body) = response.into_parts();
        // From here on nothing is safe to repeat.
        let own = head.headers.get("x-id").is_none_or(|back| back.as_bytes() == record.id.as_bytes());
        let lost = |loss| Err(Trouble::Lost(loss));
        if !own {
            return lost(Loss::Garbage);
        }
        if !self.is_grpc() {
            let sum = drain(&mut body).await.map_err(|error| Trouble::Lost(loss(&error)))?;
            return match head.status.as_u16() {
                status if status >= 400 => lost(Loss::Status(status)),
                _ if self.request.expect.is_some_and(|expected| expected != sum) => lost(Loss::Garbage),
                status => Ok(status),
            };
        }
        if head.status.as_u16() != 200 {
            return lost(Loss::Status(head.status.as_u16()));
        }
        let kind =
            head.headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        let trailers = self.messages(&mut body, record, counter).await?;
        record.trailers_only = trailers.is_none();
        let fields = trailers.unwrap_or(head.headers);
        let text = |name| fields.get(name).and_then(|value| value.to_str().ok());
        record.grpc_message = text("grpc-message").map(str::to_owned);
        match text("grpc-status").and_then(|status| status.parse().ok()) {
            _ if record.torn > 0 => lost(Loss::Torn),
            None => lost(Loss::NoGrpcStatus),
            Some(_) if !kind => lost(Loss::Garbage),
            Some(0) if self.is_short(record.messages) => lost(Loss::Gap),
            Some(0) => Ok(0),
            Some(status) => lost(Loss::Grpc(status)),
        }
    }

    /// Checks each message as it comes; answers the trailers.
    async fn messages(
        &self,
        body: &mut RecvStream,
        record: &mut H2Record,
        counter: &Counter,
    ) -> Result<Option<HeaderMap>, Trouble> {
        let mut messages = Messages::default();
        let mut faulty = false;
        let result = async {
            while let Some(piece) = body.data().await {
                let piece = piece?;
                let _ = body.flow_control().release_capacity(piece.len());
                messages.add(&piece);
                while let Some(payload) = messages.next() {
                    faulty |= number_of(&payload) != Some(record.messages);
                    record.messages += 1;
                    counter.store(record.messages, Ordering::Release);
                }
            }
            body.trailers().await
        }
        .await;
        record.torn = messages.left();
        if faulty {
            return Err(Trouble::Lost(Loss::Gap));
        }
        result.map_err(|error: h2::Error| Trouble::Lost(loss(&error)))
    }

    fn is_short(&self, messages: u64) -> bool {
        match self.what {
            What::Plain | What::ServerStream(None) => false,
            What::Unary(_) => messages != 1,
            What::ServerStream(Some(count)) | What::Bidi { count, .. } => messages != count,
        }
    }
}

async fn drain(body: &mut RecvStream) -> Result<Sum, h2::Error> {
    let mut sum = Sum::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        sum.add(&piece);
        let _ = body.flow_control().release_capacity(piece.len());
    }
    body.trailers().await?;
    Ok(sum)
}

/// As flow control allows; false if the stream is over.
async fn send(stream: &mut SendStream<Bytes>, bytes: &[u8], end: bool) -> bool {
    let mut left = Bytes::copy_from_slice(bytes);
    while !left.is_empty() {
        stream.reserve_capacity(left.len());
        let Some(Ok(room)) = poll_fn(|cx| stream.poll_capacity(cx)).await else { return false };
        let piece = left.split_to(room.min(left.len()));
        let last = end && left.is_empty();
        if !piece.is_empty() && stream.send_data(piece, last).is_err() {
            return false;
        }
    }
    true
}

/// A stream above the last id of a GOAWAY, and a refused one, was not processed: RFC 9113 §8.7.
fn trouble(error: &h2::Error) -> Trouble {
    let beyond = error.is_go_away() && error.is_remote();
    let refused = error.is_reset() && error.is_remote() && error.reason() == Some(Reason::REFUSED_STREAM);
    if beyond || refused { Trouble::Unprocessed } else { Trouble::Lost(loss(error)) }
}

pub(super) fn loss(error: &h2::Error) -> Loss {
    match error.reason() {
        Some(reason) if error.is_reset() => Loss::Reset(reason.into()),
        Some(reason) if error.is_go_away() => Loss::Goaway(reason.into()),
        _ if error.is_io() => Loss::Broken,
        _ => Loss::Other,
    }
}
