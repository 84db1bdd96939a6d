//! Owns apps that are scripts, in the test's own process.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use super::http::Wire;

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
