//! The end of a connection that we close first: half-close, then read and discard, bounded.
//!
//! close() with unread bytes makes the kernel send RST, which can destroy a response that the client has not read yet
//! (RFC 9112 §9.6).

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::conn::{Conn, Doing};
use super::io::Io;
use crate::lifecycle::Counted;

/// Silence that ends it.
const SILENCE: Duration = Duration::from_secs(2);
/// Longest in all.
const LONGEST: Duration = Duration::from_secs(10);
/// Reads before the worker's other connections have their turn.
const READS_AT_ONCE: u32 = 16;
/// Most bytes read away.
const MOST_BYTES: u64 = 64 << 20;

/// Closes our side, reads away what still comes and counts it, then lets go of the socket.
pub async fn linger(mut io: Io, conn: &Conn) {
    conn.set_doing(Doing::Lingering);
    let worker = conn.worker();
    let _lingering = Counted::new(&worker.lifecycle.tallies().lingering);
    let mut late = io.take_ahead().len() as u64;
    let stream = io.stream();
    if shut_down(stream).is_ok() {
        late += read_away(stream).await;
    }
    // A frame behind our farewell is no request: HTTP/2 says by itself which streams were begun.
    if late > 0 && conn.http2().is_none() {
        worker.metrics.late_bytes.add_many(late);
    }
}

async fn read_away(stream: &tokio::net::TcpStream) -> u64 {
    let end = Instant::now() + LONGEST;
    let mut total = 0;
    loop {
        let until = end.min(Instant::now() + SILENCE);
        if !matches!(timeout_at(until, stream.readable()).await, Ok(Ok(()))) {
            return total;
        }
        if read_some(stream, &mut total) {
            return total;
        }
        // A client that sends as fast as this reads must not have the worker to itself.
        tokio::task::yield_now().await;
        if Instant::now() >= end {
            return total;
        }
    }
}

/// Reads a few times; true at the end. No part of the future above, which would hold the buffer on every connection.
fn read_some(stream: &tokio::net::TcpStream, total: &mut u64) -> bool {
    let mut buffer = [0; 4096];
    for _ in 0..READS_AT_ONCE {
        match stream.try_read(&mut buffer) {
            Ok(0) => return true,
            Ok(n) => {
                *total += n as u64;
                if *total > MOST_BYTES {
                    return true;
                }
            }
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
    false
}

fn shut_down(stream: &tokio::net::TcpStream) -> std::io::Result<()> {
    Ok(rustix::net::shutdown(stream, rustix::net::Shutdown::Write)?)
}
