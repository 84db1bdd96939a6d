//! The end of a connection that we close first: half-close, then read and discard, bounded.
//!
//! close() with unread bytes makes the kernel send RST, which can destroy a response that the client has not read yet
//! (RFC 9112 §9.6).

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout_at};

use super::conn::{Conn, Doing};
use super::io::Io;
use crate::lifecycle::Counted;
use crate::transport::Transport;

/// Silence that ends it.
const SILENCE: Duration = Duration::from_secs(2);
/// Longest in all.
const LONGEST: Duration = Duration::from_secs(10);
/// Reads before the worker's other connections have their turn.
const READS_AT_ONCE: u32 = 16;
/// Most bytes read away.
const MOST_BYTES: u64 = 64 << 20;

/// Closes our side, under TLS with a close_notify, reads away what still comes and counts it, then lets go. Boxed: its
/// callers mostly wait for something else, and would keep the space meanwhile.
pub fn linger(io: Box<Io>, conn: &Conn) -> Pin<Box<impl Future<Output = ()>>> {
    Box::pin(end_in_order(io, conn))
}

async fn end_in_order(mut io: Box<Io>, conn: &Conn) {
    conn.set_doing(Doing::Lingering);
    let worker = conn.worker();
    let _lingering = Counted::new(&worker.lifecycle.tallies().lingering);
    let mut late = io.take_ahead().len() as u64;
    let transport = io.transport_mut();
    let end = Instant::now() + LONGEST;
    // A close_notify waits behind what the client has not read yet; a FIN does not wait.
    if let Ok(Ok(())) = timeout_at(end, poll_fn(|cx| Pin::new(&mut *transport).poll_shutdown(cx))).await {
        late += read_away(transport, end).await;
    }
    // A frame behind our farewell is no request: HTTP/2 says by itself which streams were begun.
    if late > 0 && conn.http2().is_none() {
        worker.metrics.late_bytes.add_many(late);
    }
}

async fn read_away(transport: &mut Transport, end: Instant) -> u64 {
    let mut total = 0;
    loop {
        let until = end.min(Instant::now() + SILENCE);
        match timeout_at(until, poll_fn(|cx| poll_some(transport, cx))).await {
            Ok(n) if n > 0 => total += n,
            _ => return total,
        }
        // A client that sends as fast as this reads must not have the worker to itself.
        tokio::task::yield_now().await;
        if total > MOST_BYTES || Instant::now() >= end {
            return total;
        }
    }
}

/// Reads a few times; 0 at the end. No part of the future above, which would hold the buffer on every connection.
fn poll_some(transport: &mut Transport, cx: &mut Context<'_>) -> Poll<u64> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut total = 0;
    for _ in 0..READS_AT_ONCE {
        let mut buffer = ReadBuf::uninit(&mut buffer);
        match Pin::new(&mut *transport).poll_read(cx, &mut buffer) {
            Poll::Ready(result) => {
                let n = result.map_or(0, |()| buffer.filled().len() as u64);
                total += n;
                if n == 0 {
                    break;
                }
            }
            Poll::Pending if total == 0 => return Poll::Pending,
            Poll::Pending => break,
        }
    }
    Poll::Ready(total)
}
