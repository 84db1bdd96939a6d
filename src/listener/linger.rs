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
    if late > 0 {
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
        // Allocated only now: most clients just close, and the wait for that should hold no buffer.
        let mut buffer = [0; 4096];
        for reads in 1_u32.. {
            if reads.is_multiple_of(READS_AT_ONCE) {
                // A client that sends as fast as this reads must not have the worker to itself.
                tokio::task::yield_now().await;
            }
            match stream.try_read(&mut buffer) {
                Ok(0) => return total,
                Ok(n) => {
                    total += n as u64;
                    if total > MOST_BYTES {
                        return total;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => return total,
            }
        }
        if Instant::now() >= end {
            return total;
        }
    }
}

fn shut_down(stream: &tokio::net::TcpStream) -> std::io::Result<()> {
    Ok(rustix::net::shutdown(stream, rustix::net::Shutdown::Write)?)
}
