//! Owns one client connection: exchanges, one after the other, and how it ends.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::{Ending, Failure, Reply, Request};
use crate::harness::http::{Framing, Sum, Wire};

#[derive(Debug)]
pub(crate) struct Connection {
    /// Unique in this test run.
    pub(crate) number: u64,
    /// Exchanges finished.
    pub(crate) used: u32,
    host: String,
    wire: Wire<OwnedReadHalf>,
    writer: OwnedWriteHalf,
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
pub(super) async fn read_ending(
    stream: &mut (impl AsyncRead + Unpin),
    deadline: Duration,
    mut bytes: impl FnMut(&[u8]),
) -> Ending {
    let mut buffer = [0; 4096];
    let work = async {
        loop {
            match stream.read(&mut buffer).await {
                Ok(0) => return Ending::Fin,
                Ok(read) => bytes(&buffer[..read]),
                Err(_) => return Ending::Reset,
            }
        }
    };
    timeout(deadline, work).await.unwrap_or(Ending::StillOpen)
}

// === impl Connection ===

impl Connection {
    pub(crate) async fn open(address: SocketAddr, deadline: Duration) -> Result<Self, Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let stream = timeout(deadline, TcpStream::connect(address)).await.map_err(|_| Failure::Timeout)??;
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        Ok(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            used: 0,
            host: address.to_string(),
            wire: Wire::new(reader),
            writer,
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
            Ok(0) => Idle::Ended(Ending::Fin),
            Ok(_) => Idle::Unasked,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Idle::Usable,
            Err(_) => Idle::Ended(Ending::Reset),
        }
    }

    /// Waits for the server's close without closing first.
    pub(crate) async fn ending(mut self, deadline: Duration) -> Ending {
        let ending = read_ending(self.wire.get_mut(), deadline, |_| {}).await;
        let stream: &TcpStream = self.wire.get_ref().as_ref();
        match stream.take_error() {
            Ok(Some(_)) => Ending::Reset,
            _ => ending,
        }
    }
}

async fn write(writer: &mut OwnedWriteHalf, bytes: &[u8], drip: Option<(usize, Duration)>) -> io::Result<()> {
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
