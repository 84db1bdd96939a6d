//! Owns apps that are scripts, in the test's own process.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use super::SOON;
use super::http::{Wire, chunk};
use super::wait::within;

/// An app that is a script, in the test's own process.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

// === impl Script ===

impl Script {
    /// `serve` gets the number of the connection, from 0 on; ebbtide's own dials are counted as well.
    pub(crate) async fn start<F, S>(serve: F) -> Self
    where
        F: Fn(usize, Wire<TcpStream>) -> S + Send + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let address = listener.local_addr().expect("the listener is bound");
        let (accepted, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (count, gauge) = (accepted.clone(), open.clone());
        let task = tokio::spawn(async move {
            let mut tasks = JoinSet::new();
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    let work = serve(count.fetch_add(1, Ordering::SeqCst), Wire::new(stream));
                    let gauge = gauge.clone();
                    gauge.fetch_add(1, Ordering::SeqCst);
                    tasks.spawn(async move {
                        work.await;
                        gauge.fetch_sub(1, Ordering::SeqCst);
                    });
                }
                while tasks.try_join_next().is_some() {}
            }
        });
        Self { address, accepted, open, task }
    }

    pub(crate) fn upstream(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Connections whose script has not ended.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An app in the test's own hand: what it is asked comes out here, and the test writes the answers.
#[derive(Debug)]
pub(crate) struct ByHand {
    script: Script,
    asked: mpsc::UnboundedReceiver<Asked>,
}

/// One request, or one connection with its first bytes; the way back to the client.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Empty where no HTTP is spoken.
    pub(crate) head: String,
    pub(crate) wire: Wire<TcpStream>,
}

// === impl ByHand ===

impl ByHand {
    /// Speaks HTTP/1; each connection has one request.
    pub(crate) async fn requests() -> Self {
        Self::start(true).await
    }

    /// Takes connections that have sent something, which is left unread.
    pub(crate) async fn connections() -> Self {
        Self::start(false).await
    }

    async fn start(http: bool) -> Self {
        let (sender, asked) = mpsc::unbounded_channel();
        let script = Script::start(move |_, mut wire| {
            let sender = sender.clone();
            async move {
                // What ends without a word is a dial of ebbtide's own.
                let head = if http {
                    wire.head().await.ok().map(|head| head.text)
                } else {
                    wire.more().await.ok().filter(|read| *read > 0).map(|_| String::new())
                };
                if let Some(head) = head {
                    let _ = sender.send(Asked { head, wire });
                }
            }
        })
        .await;
        Self { script, asked }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.script.address
    }

    pub(crate) fn upstream(&self) -> String {
        self.script.upstream()
    }

    /// Connections so far, ebbtide's own dials among them.
    pub(crate) fn accepted(&self) -> usize {
        self.script.accepted()
    }

    pub(crate) async fn next(&mut self) -> Asked {
        within("a request at the app", SOON, self.asked.recv()).await.expect("the app runs")
    }
}

// === impl Asked ===

impl Asked {
    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        let write = self.wire.get_mut().write_all(bytes.as_ref());
        within("room for what the app writes", SOON, write).await.expect("ebbtide takes it");
    }

    /// The head of an answer whose body is written as [`Self::chunk`]s.
    pub(crate) async fn begin(&mut self, content_type: &str, more: &str) {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n";
        self.write(format!("{head}Content-Type: {content_type}\r\n{more}\r\n")).await;
    }

    pub(crate) async fn chunk(&mut self, piece: impl AsRef<[u8]>) {
        self.write(chunk(piece)).await;
    }
}
