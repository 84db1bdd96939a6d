//! The embedded app's event stream. Events are numbered by the clock, so every pod continues where another has left.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// Where events are streamed.
pub(in crate::demo) const PATH: &str = "/events";

/// Streams events without an end: those after `last`, or from now on.
pub(super) async fn serve(mut stream: TcpStream, last: Option<u64>) -> io::Result<()> {
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n\
        Transfer-Encoding: chunked\r\n\r\n";
    stream.write_all(HEAD).await?;
    let mut next = last.map_or_else(newest, |last| last + 1);
    loop {
        while next <= newest() {
            let event = event(next);
            stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
            next += 1;
        }
        sleep(EVENT_TIME / 2).await;
    }
}

/// An event as it is sent.
pub(in crate::demo) fn event(id: u64) -> String {
    format!("id: {id}\ndata: news {id}\n\n")
}

/// The number of the event that happened last.
fn newest() -> u64 {
    // A clock before 1970 has no events.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis() / EVENT_TIME.as_millis()).unwrap_or(u64::MAX)
}

/// Between two events.
const EVENT_TIME: Duration = Duration::from_millis(250);
