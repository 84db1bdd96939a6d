//! The embedded legacy app: knows nothing of Kubernetes and dies the moment it gets SIGTERM.

mod http2;
mod websocket;
pub(super) mod events;
pub(super) mod lines;

use std::io::{self, Cursor};
use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::DemoError;
use super::http::{Head, parse_head};
use super::websocket::PATH as CHAT;
use crate::detect::{Detected, detect};

/// Serves until it is killed; the body of the hidden `demo-app` command. Must not be called from inside a runtime.
///
/// No signal handler is installed: the default action of SIGTERM is what the demo is about.
pub fn app_main(listen: SocketAddr, raw: SocketAddr) -> Result<(), DemoError> {
    // A demo that is itself killed by SIGKILL leaves no app behind.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|errno| DemoError::App(errno.into()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(DemoError::Runtime)?;
    runtime.block_on(serve(listen, raw)).map_err(DemoError::App)
}

async fn serve(listen: SocketAddr, raw: SocketAddr) -> io::Result<()> {
    let (listener, raw) = (TcpListener::bind(listen).await?, TcpListener::bind(raw).await?);
    tokio::join!(accept(listener, connection), accept(raw, lines::serve));
    Ok(())
}

async fn accept<F>(listener: TcpListener, serve: fn(TcpStream) -> F)
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => { connections.spawn(serve(stream)); }
                Err(_) => sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while buffer.is_empty() || detect(&buffer) == Detected::Undecided {
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
    if detect(&buffer) == Detected::Http2 {
        let (read, write) = stream.into_split();
        let io = tokio::io::join(Cursor::new(buffer).chain(read), write);
        return http2::serve(io).await.map_err(io::Error::other);
    }
    loop {
        let Some(head) = read_request(&mut stream, &mut buffer).await? else { return Ok(()) };
        let mut request: Vec<u8> = buffer.drain(..head.length + head.content_length).collect();
        let body = request.split_off(head.length);
        let target = head.first_line.trim_end_matches(" HTTP/1.1").trim_end_matches(" HTTP/1.0");
        match target.split_once(' ') {
            Some(("POST", "/order")) => {
                sleep(ORDER_TIME).await;
                answer(&mut stream, "200 OK", &body, head.keep_alive).await?;
            }
            Some(("GET", "/")) => answer(&mut stream, "200 OK", b"hello\n", head.keep_alive).await?,
            Some(("GET", CHAT)) if let Some(key) = head.field("sec-websocket-key") => {
                return websocket::serve(stream, buffer, key).await;
            }
            Some(("GET", events::PATH)) => {
                let last = head.field("last-event-id").and_then(|id| id.parse().ok());
                return events::serve(stream, last).await;
            }
            Some(("GET", path)) if let Some(time) = report_time(path) => {
                report(&mut stream, time, head.keep_alive).await?
            }
            _ => answer(&mut stream, "404 Not Found", b"", head.keep_alive).await?,
        }
        if !head.keep_alive {
            return Ok(());
        }
    }
}

/// Reads until `buffer` holds a whole request; `None` if the peer has closed.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Option<Head>> {
    loop {
        if let Some(head) = parse_head(buffer).map_err(|_| io::Error::other("not HTTP"))?
            && buffer.len() >= head.length + head.content_length
        {
            return Ok(Some(head));
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

async fn answer(stream: &mut TcpStream, status: &str, body: &[u8], keep_alive: bool) -> io::Result<()> {
    let mut bytes = head(status, body.len(), keep_alive).into_bytes();
    bytes.extend_from_slice(body);
    stream.write_all(&bytes).await
}

/// Sends the head at once and a row every [`ROW_TIME`], so that a death in between shows as a cut answer.
async fn report(stream: &mut TcpStream, time: Duration, keep_alive: bool) -> io::Result<()> {
    let rows = report_rows(time);
    stream.write_all(head("200 OK", rows * ROW.len(), keep_alive).as_bytes()).await?;
    for _ in 0..rows {
        sleep(ROW_TIME).await;
        stream.write_all(ROW).await?;
    }
    Ok(())
}

fn head(status: &str, length: usize, keep_alive: bool) -> String {
    let connection = if keep_alive { "" } else { "Connection: close\r\n" };
    format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n{connection}\r\n")
}

fn report_time(path: &str) -> Option<Duration> {
    let milliseconds: u64 = path.strip_prefix("/report?ms=")?.parse().ok()?;
    Some(Duration::from_millis(milliseconds.min(60_000)))
}

/// How many rows a report of this length has.
pub(super) fn report_rows(time: Duration) -> usize {
    time.as_millis().div_ceil(ROW_TIME.as_millis()) as usize
}

/// One row of a report.
pub(super) const ROW: &[u8] = b"one row of the report\n";

const ROW_TIME: Duration = Duration::from_millis(250);

/// What a small database write takes.
const ORDER_TIME: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_asked_for_in_milliseconds() {
        assert_eq!(report_time("/report?ms=3000"), Some(Duration::from_secs(3)));
        assert_eq!(report_rows(Duration::from_secs(3)), 12);
        assert_eq!(report_time("/report?ms=x"), None);
        assert_eq!(report_time("/"), None);
    }
}
