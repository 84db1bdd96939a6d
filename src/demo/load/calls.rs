//! gRPC clients: unary calls, and streams that are opened anew when the server ends them.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use http::{HeaderValue, Request, Response};
use tokio::sync::watch;
use tokio::time::timeout;

use super::super::grpc;
use super::super::outcome::Failure;
use super::http2::{Channel, next_data, post};
use super::{Client, Left, REOPEN, REQUEST_TIMEOUT, next, ticker};

/// An answer under way.
#[derive(Debug)]
struct Reply {
    body: RecvStream,
    /// From the head, where the answer is nothing but a status.
    status: Option<u16>,
    received: BytesMut,
}

/// What comes next in an answer.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Message(Bytes),
    /// Behind the last whole message.
    Status(u16),
}

/// One unary call, one verdict.
pub(super) async fn price(channel: Arc<Channel>) {
    let asked = grpc::message(&fastrand::u64(..).to_be_bytes());
    let result = async {
        let mut reply = Reply::begin(channel.send(&call(grpc::PRICE), &asked).await?)?;
        match (reply.next().await?, reply.next().await?) {
            (Part::Message(message), Part::Status(grpc::OK)) if message == asked[asked.len() - message.len()..] => {
                Ok(())
            }
            (Part::Message(_), Part::Status(grpc::OK)) => Err(Failure::Other),
            _ => Err(Failure::GrpcStatus),
        }
    };
    let result = result.await;
    channel.client.tally.record(channel.client.kind, result);
}

/// Keeps one stream open as long as the load goes on.
pub(super) async fn watch(client: Client) {
    let mut stop = client.stop.clone();
    let mut pace = ticker(REOPEN);
    let channel = Channel::new(client.clone());
    while next(&mut pace, &mut stop).await {
        client.left(follow(&channel, &mut stop).await);
    }
}

/// Follows one stream to its end.
pub(super) async fn follow(channel: &Channel, stop: &mut watch::Receiver<bool>) -> Result<Left, Failure> {
    let mut reply = Reply::begin(channel.send(&call(grpc::WATCH), &grpc::message(b"")).await?)?;
    for number in 0_u64.. {
        let part = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return Ok(Left::Running),
            part = reply.next() => part?,
        };
        match part {
            Part::Message(message) if *message == number.to_be_bytes() => {}
            Part::Message(_) => return Err(Failure::Other),
            // A stream that never began to flow is as good as refused.
            Part::Status(grpc::UNAVAILABLE) if number > 0 => return Ok(Left::Told),
            Part::Status(_) => return Err(Failure::GrpcStatus),
        }
    }
    Err(Failure::Other)
}

fn call(path: &str) -> Request<()> {
    let mut request = post(path);
    request.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static(grpc::CONTENT_TYPE));
    request.headers_mut().insert(http::header::TE, HeaderValue::from_static("trailers"));
    request
}

// === impl Reply ===

impl Reply {
    fn begin(response: Response<RecvStream>) -> Result<Self, Failure> {
        match response.status().as_u16() {
            200 => {}
            500..=599 => return Err(Failure::ServerError),
            _ => return Err(Failure::Other),
        }
        let status = grpc::status(response.headers());
        Ok(Self { body: response.into_body(), status, received: BytesMut::new() })
    }

    async fn next(&mut self) -> Result<Part, Failure> {
        loop {
            if let Some(message) = grpc::take_message(&mut self.received) {
                return Ok(Part::Message(message));
            }
            match next_data(&mut self.body).await? {
                Some(data) => self.received.extend_from_slice(&data),
                None if !self.received.is_empty() => return Err(Failure::CutShort),
                None => break,
            }
        }
        if let Some(status) = self.status {
            return Ok(Part::Status(status));
        }
        let trailers = timeout(REQUEST_TIMEOUT, self.body.trailers()).await.map_err(|_| Failure::Timeout)?;
        let trailers = trailers.map_err(|_| Failure::CutShort)?;
        trailers.and_then(|trailers| grpc::status(&trailers)).map(Part::Status).ok_or(Failure::GrpcStatus)
    }
}
