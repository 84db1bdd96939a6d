//! The embedded app's protocol of its own: lines over TCP, one answer after the other.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::sleep;

/// Asks whether the app is there, which is no order.
pub(in crate::demo) const PING: &str = "ping\n";
/// The answer to [`PING`].
pub(in crate::demo) const PONG: &str = "pong\n";

/// Serves one connection until the peer has closed.
pub(in crate::demo) async fn serve(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        if line == PING {
            stream.write_all(PONG.as_bytes()).await?;
        } else {
            sleep(LINE_TIME).await;
            stream.write_all(answer(&line).as_bytes()).await?;
        }
        line.clear();
    }
    Ok(())
}

/// What comes back for an order.
pub(in crate::demo) fn answer(order: &str) -> String {
    format!("{order}ordered\npacked\ndone\n")
}

/// What an order takes. Short, since a proxy can tell by nothing but silence that no answer is due.
const LINE_TIME: Duration = Duration::from_millis(5);
