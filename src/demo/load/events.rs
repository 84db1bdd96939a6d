//! Clients of server-sent events, as browsers are: what ends is opened anew, from the last event on.

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::super::app::events::{PATH, event};
use super::super::http::receive;
use super::super::outcome::Failure;
use super::{Client, Left, REOPEN, REQUEST_TIMEOUT, next, ticker};

/// A body in chunks, while it comes.
#[derive(Debug)]
struct Chunks {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// Keeps one stream open as long as the load goes on.
pub(super) async fn listen(client: Client) {
    let mut stop = client.stop.clone();
    let mut pace = ticker(REOPEN);
    let mut last = None;
    while next(&mut pace, &mut stop).await {
        client.left(follow(&client, &mut last, &mut stop).await);
    }
}

/// Follows one stream to its end; `last` is the event that came last, on this stream or the one before.
pub(super) async fn follow(
    client: &Client,
    last: &mut Option<u64>,
    stop: &mut watch::Receiver<bool>,
) -> Result<Left, Failure> {
    let resume = last.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
    let request = format!("GET {PATH} HTTP/1.1\r\nHost: demo\r\nAccept: text/event-stream\r\n{resume}\r\n");
    let (stream, head, buffer) = client.open(&request, 200).await?;
    if !head.chunked || head.field("content-type") != Some("text/event-stream") {
        return Err(Failure::Other);
    }
    let mut body = Chunks { stream, buffer };
    let mut text = String::new();
    loop {
        let chunk = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return Ok(Left::Running),
            chunk = timeout(REQUEST_TIMEOUT, body.next()) => chunk.map_err(|_| Failure::Timeout)??,
        };
        match chunk {
            Some(chunk) => text.push_str(&chunk),
            None if text.is_empty() => return Ok(Left::Told),
            None => return Err(Failure::CutShort),
        }
        while let Some(end) = text.find("\n\n") {
            take(&text[..end + 2], last)?;
            text.drain(..end + 2);
        }
    }
}

/// Takes one block in, which is an event if it has a number.
fn take(block: &str, last: &mut Option<u64>) -> Result<(), Failure> {
    let Some(id) = block.lines().find_map(|line| line.strip_prefix("id: ")) else { return Ok(()) };
    let id = id.parse().map_err(|_| Failure::Other)?;
    let before = last.replace(id);
    match before {
        Some(before) if id != before + 1 => Err(Failure::Message),
        _ if block != event(id) => Err(Failure::Other),
        _ => Ok(()),
    }
}

// === impl Chunks ===

impl Chunks {
    /// The next chunk; `None` after the last one. Can be abandoned and taken up again.
    async fn next(&mut self) -> Result<Option<String>, Failure> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|window| window == b"\r\n") {
                let line = std::str::from_utf8(&self.buffer[..end]).map_err(|_| Failure::Other)?;
                let size = usize::from_str_radix(line.trim(), 16).map_err(|_| Failure::Other)?;
                let whole = end + 2 + size + 2;
                if self.buffer.len() >= whole {
                    let chunk = String::from_utf8_lossy(&self.buffer[end + 2..whole - 2]).into_owned();
                    self.buffer.drain(..whole);
                    return Ok(Some(chunk).filter(|_| size > 0));
                }
            }
            // The head has come, so whatever ends here is cut short.
            receive(&mut self.stream, &mut self.buffer, 1).await.map_err(|broken| broken.failure())?;
        }
    }
}
