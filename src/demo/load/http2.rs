//! HTTP/2 clients: one connection each, several streams on it, and another one once the server has said GOAWAY.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use http::{Method, Request, Response};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::http::{Answer, by_error};
use super::super::outcome::Failure;
use super::{Client, REQUEST_TIMEOUT, judge};

/// One client's way to the server: a connection that is replaced when it takes no more requests.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) client: Client,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    link: Option<Link>,
    /// Those that were told to go still carry what was begun.
    connections: JoinSet<()>,
}

/// A connection that requests can be sent on.
#[derive(Debug, Clone)]
struct Link {
    sender: SendRequest<Bytes>,
    local: SocketAddr,
    /// The balancer tells it once, and several requests may want to know.
    refused: Arc<AtomicBool>,
}

/// A server that has refused a request this often does not want it.
const MOST_TRIES: usize = 5;

// === impl Channel ===

impl Channel {
    /// Without a connection; the first request makes one.
    pub(super) fn new(client: Client) -> Self {
        Self { client, state: Mutex::default() }
    }

    /// Sends one request and returns the head of its answer; sends it again only where the server has not looked at it.
    pub(super) async fn send(&self, request: &Request<()>, body: &Bytes) -> Result<Response<RecvStream>, Failure> {
        for _ in 0..MOST_TRIES {
            let mut link = self.link().await?;
            // An error here means that the connection was told to go in this moment: nothing was sent.
            let Ok((answer, mut stream)) = link.sender.send_request(request.clone(), false) else { continue };
            // If this fails, the answer says why.
            stream.send_data(body.clone(), true).ok();
            match answer_in_time(answer).await? {
                Ok(response) => return Ok(response),
                Err(error) if is_unseen(&error) => self.client.tally.repeated(self.client.kind),
                Err(error) => return Err(self.failure(&error, &link)),
            }
        }
        Err(Failure::Other)
    }

    async fn link(&self) -> Result<Link, Failure> {
        let mut state = self.state.lock().await;
        if let Some(Link { sender, local, refused }) = state.link.take()
            && let Ok(sender) = sender.ready().await
        {
            let link = Link { sender, local, refused };
            state.link = Some(link.clone());
            return Ok(link);
        }
        let stream = self.client.connect().await?;
        let local = stream.local_addr().map_err(|_| Failure::Other)?;
        let (sender, connection) = match Builder::new().enable_push(false).handshake(stream).await {
            Ok(connected) => connected,
            Err(_) if self.client.refusals.take(local) => return Err(Failure::Refused),
            Err(error) => return Err(failure(&error)),
        };
        // How it ends shows in its streams.
        state.connections.spawn(async move { connection.await.unwrap_or_default() });
        while state.connections.try_join_next().is_some() {}
        let link = Link { sender, local, refused: Arc::default() };
        state.link = Some(link.clone());
        Ok(link)
    }

    fn failure(&self, error: &h2::Error, link: &Link) -> Failure {
        if self.client.refusals.take(link.local) {
            link.refused.store(true, Ordering::Relaxed);
        }
        if link.refused.load(Ordering::Relaxed) { Failure::Refused } else { failure(error) }
    }
}

/// One POST, one verdict.
pub(super) async fn order(channel: Arc<Channel>) {
    let body = Bytes::from(format!("order {:016x}\n", fastrand::u64(..)));
    let result = async {
        let response = channel.send(&post("/order"), &body).await?;
        let status = response.status().as_u16();
        let body = read(response.into_body()).await?;
        Ok(Answer { status, keep_alive: true, body })
    };
    let result = result.await.and_then(|answer| judge(&answer, &body));
    channel.client.tally.record(channel.client.kind, result);
}

/// A POST's head.
pub(super) fn post(path: &str) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    // Every path that is asked for is a valid one.
    *request.uri_mut() = format!("http://demo{path}").parse().unwrap_or_default();
    request
}

/// What is left of a body, as far as it comes.
async fn read(mut body: RecvStream) -> Result<Vec<u8>, Failure> {
    let mut whole = BytesMut::new();
    while let Some(data) = next_data(&mut body).await? {
        whole.extend_from_slice(&data);
    }
    Ok(whole.to_vec())
}

/// The next bytes; `None` at the end of the body.
pub(super) async fn next_data(body: &mut RecvStream) -> Result<Option<Bytes>, Failure> {
    let Some(data) = timeout(REQUEST_TIMEOUT, body.data()).await.map_err(|_| Failure::Timeout)? else {
        return Ok(None);
    };
    let data = data.map_err(|_| Failure::CutShort)?;
    body.flow_control().release_capacity(data.len()).map_err(|_| Failure::Other)?;
    Ok(Some(data))
}

async fn answer_in_time(answer: ResponseFuture) -> Result<Result<Response<RecvStream>, h2::Error>, Failure> {
    timeout(REQUEST_TIMEOUT, answer).await.map_err(|_| Failure::Timeout)
}

/// The server's word that it has not looked at the request (RFC 9113 §8.7): above the last stream of its GOAWAY, which
/// is what h2 means by this error of a stream, or refused.
fn is_unseen(error: &h2::Error) -> bool {
    error.is_remote() && (error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM))
}

/// Before any byte of the answer.
fn failure(error: &h2::Error) -> Failure {
    match error.get_io().map(io::Error::kind) {
        // What h2 says of every stream when the connection has ended under it.
        Some(io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof) => Failure::NoAnswer,
        Some(kind) => by_error(kind),
        None if error.is_reset() => Failure::Reset,
        None => Failure::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_word_allows_a_second_time() {
        assert!(!is_unseen(&Reason::REFUSED_STREAM.into()), "said by ourselves");
        assert_eq!(failure(&Reason::INTERNAL_ERROR.into()), Failure::Other);
    }
}
