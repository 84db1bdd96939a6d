//! Owns scripts on a raw socket: every byte and every end is the test's own.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::connection::{read_ending, read_reply};
use super::{Ending, Failure, Reply};
use crate::harness::SOON;
use crate::harness::http::Wire;
use crate::harness::tls::{Socket, Target, alpn};

#[derive(Debug)]
pub(crate) struct Raw {
    wire: Wire<Socket>,
}

// === impl Raw ===

impl Raw {
    pub(crate) async fn connect(to: impl Into<Target>) -> Result<Self, Failure> {
        Self::speaking(to, alpn::HTTP1).await
    }

    /// Over TLS another protocol, or [`alpn::NONE`].
    pub(crate) async fn speaking(to: impl Into<Target>, protocol: &'static str) -> Result<Self, Failure> {
        let socket = timeout(SOON, to.into().connect(protocol)).await.map_err(|_| Failure::Timeout)??;
        Ok(Self { wire: Wire::new(socket) })
    }

    /// What TLS has agreed, and parts of an end.
    pub(crate) const fn socket(&self) -> &Socket {
        self.wire.get_ref()
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
        let write = self.wire.get_mut().write_all(bytes.as_ref());
        let done = timeout(SOON, write).await;
        Ok(done.map_err(|_| Failure::Timeout)??)
    }

    /// So many bytes at a time with a pause after each; stops at the first failure.
    pub(crate) async fn drip(&mut self, bytes: impl AsRef<[u8]>, size: usize, pause: Duration) -> Result<(), Failure> {
        for piece in bytes.as_ref().chunks(size.max(1)) {
            self.send(piece).await?;
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Our FIN; reading goes on.
    pub(crate) async fn half_close(&mut self) -> Result<(), Failure> {
        Ok(self.wire.get_mut().shutdown().await?)
    }

    /// Everything up to and with the needle.
    pub(crate) async fn read_until(&mut self, needle: &[u8], deadline: Duration) -> Result<Vec<u8>, Failure> {
        let work = async {
            loop {
                let unread = self.wire.unread();
                let found = unread.windows(needle.len()).position(|window| window == needle);
                if let Some(start) = found {
                    return Ok(self.wire.take(start + needle.len()));
                }
                let empty = unread.is_empty();
                if self.wire.more().await? == 0 {
                    return Err(if empty { Failure::Eof } else { Failure::Truncated });
                }
            }
        };
        timeout(deadline, work).await.unwrap_or(Err(Failure::Timeout))
    }

    pub(crate) async fn read_exactly(&mut self, length: usize, deadline: Duration) -> Result<Vec<u8>, Failure> {
        let work = async {
            while self.wire.unread().len() < length {
                if self.wire.more().await? == 0 {
                    return Err(Failure::Truncated);
                }
            }
            Ok(self.wire.take(length))
        };
        timeout(deadline, work).await.unwrap_or(Err(Failure::Timeout))
    }

    /// One whole response to a request of this method.
    pub(crate) async fn reply(&mut self, method: &str, deadline: Duration) -> Result<Reply, Failure> {
        let read = read_reply(&mut self.wire, method, None, None);
        timeout(deadline, read).await.unwrap_or(Err(Failure::Timeout))
    }

    /// What still comes, and how the socket ends; nothing is sent or closed by us.
    pub(crate) async fn ending(&mut self, deadline: Duration) -> (Vec<u8>, Ending) {
        let mut rest = self.wire.take(self.wire.unread().len());
        let ending = read_ending(self.wire.get_mut(), deadline, |piece| rest.extend_from_slice(piece)).await;
        (rest, ending)
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.wire.get_ref().local_addr()
    }

    /// A receive buffer of this size, so that the peer's writes block early.
    pub(crate) fn receive_buffer(&self, bytes: usize) {
        self.wire.get_ref().options().set_recv_buffer_size(bytes).expect("the buffer can be set");
    }

    /// Ends with RST.
    pub(crate) fn reset(self) {
        self.wire.get_ref().options().set_linger(Some(Duration::ZERO)).expect("linger can be set");
    }
}
