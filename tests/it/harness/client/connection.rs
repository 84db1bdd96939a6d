//! Owns one client connection: exchanges, one after the other, and how it ends.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::{Ending, Failure, Reply, Request};
use crate::harness::http::{Framing, Sum, Wire};
use crate::harness::tls::{Socket, Target, alpn};
use crate::harness::wait::Mono;

#[derive(Debug)]
pub(crate) struct Connection {
    /// Unique in this test run.
    pub(crate) number: u64,
    /// Exchanges finished.
    pub(crate) used: u32,
    host: String,
    wire: Wire<Socket>,
    writer: Socket,
    open: bool,
}

/// What an idle connection looks like before the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    Usable,
    Ended(Ending),
    /// Bytes nobody asked for, e.g. a 408.
    Unasked,
}

/// Reads one response; the body's first 64 KiB are kept.
pub(super) async fn read_reply<S: AsyncRead + Unpin>(
    wire: &mut Wire<S>,
    method: &str,
    id: Option<&str>,
    expect: Option<Sum>,
) -> Result<Reply, Failure> {
    let mut interim = Vec::new();
    let head = loop {
        let head = wire.head().await?;
        let status = head.status()?;
        if status >= 200 || status == 101 {
            break head;
        }
        interim.push(status);
    };
    let (mut sum, mut body) = (Sum::new(), Vec::new());
    let length = wire
        .body(head.response_framing(method), |piece| {
            sum.add(piece);
            let room = KEPT.saturating_sub(body.len()).min(piece.len());
            body.extend_from_slice(&piece[..room]);
        })
        .await?;
    let status = head.status()?;
    // Responses made by the proxy itself carry no id.
    let own = match (id, head.get("x-id")) {
        (Some(sent), Some(back)) => sent == back,
        _ => true,
    };
    Ok(Reply { status, interim, length, intact: own && expect.is_none_or(|expected| expected == sum), sum, body, head })
}

/// Reads to the end and tells how it came; RST is seen by the read or left in SO_ERROR.
pub(super) async fn read_ending(socket: &mut Socket, deadline: Duration, mut bytes: impl FnMut(&[u8])) -> Ending {
    let end = Mono::now() + deadline;
    let mut buffer = [0; 4096];
    let work = async {
        while let Ok(read @ 1..) = socket.read(&mut buffer).await {
            bytes(&buffer[..read]);
        }
    };
    match timeout(deadline, work).await {
        Ok(()) => socket.ended(end.since(Mono::now())).await,
        Err(_) => Ending::StillOpen,
    }
}

// === impl Connection ===

impl Connection {
    pub(crate) async fn open(to: impl Into<Target>, deadline: Duration) -> Result<Self, Failure> {
        let to = to.into();
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let socket = timeout(deadline, to.connect(alpn::HTTP1)).await.map_err(|_| Failure::Timeout)??;
        Ok(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            used: 0,
            host: to.address.to_string(),
            wire: Wire::new(socket.clone()),
            writer: socket,
            open: true,
        })
    }

    /// Whether another request may be sent; false after `Connection: close` or any failure.
    pub(crate) const fn is_reusable(&self) -> bool {
        self.open
    }

    /// Sends and reads at the same time, so that an early response to an upload is seen.
    pub(crate) async fn exchange(&mut self, request: &Request, id: &str, deadline: Duration) -> Result<Reply, Failure> {
        self.open = false;
        let bytes = request.encode(&self.host, id);
        let (wire, writer) = (&mut self.wire, &mut self.writer);
        let both = async {
            let write = write(writer, &bytes, request.drip);
            let read = read_reply(wire, request.method, Some(id), request.expect);
            tokio::pin!(write, read);
            let mut written = None;
            loop {
                tokio::select! {
                    biased;
                    // A write that fails says less than what can still be read.
                    result = &mut write, if written.is_none() => written = Some(result.is_ok()),
                    reply = &mut read => return reply.map(|reply| (reply, written == Some(true))),
                }
            }
        };
        let (reply, written) = timeout(deadline, both).await.map_err(|_| Failure::Timeout)??;
        self.used += 1;
        self.open = written
            && reply.status != 101
            && reply.head.keeps_alive()
            && reply.head.response_framing(request.method) != Framing::UntilClose;
        Ok(reply)
    }

    /// What pools check before they reuse a connection.
    pub(crate) fn idle(&self) -> Idle {
        let mut byte = [0];
        match self.wire.get_ref().try_read(&mut byte) {
            Ok(1..) => Idle::Unasked,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Idle::Usable,
            Ok(0) | Err(_) => Idle::Ended(self.wire.get_ref().ending()),
        }
    }

    /// Waits for the server's close without closing first.
    pub(crate) async fn ending(mut self, deadline: Duration) -> Ending {
        read_ending(self.wire.get_mut(), deadline, |_| {}).await
    }
}

async fn write(writer: &mut Socket, bytes: &[u8], drip: Option<(usize, Duration)>) -> io::Result<()> {
    let Some((size, pause)) = drip else {
        return writer.write_all(bytes).await;
    };
    for piece in bytes.chunks(size.max(1)) {
        writer.write_all(piece).await?;
        tokio::time::sleep(pause).await;
    }
    Ok(())
}

const KEPT: usize = 64 * 1024;
