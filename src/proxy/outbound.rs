//! Outbound listeners: bytes from the app to a service elsewhere. Never drained, never told anything.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};

use super::relay::Relay;
use crate::config::UpstreamAddr;
use crate::lifecycle::Counted;
use crate::telemetry::logging::chain;
use crate::telemetry::metrics::Protocol;
use crate::upstream::connect::dial;
use crate::worker::Worker;

/// Pause after an accept that failed for want of descriptors or memory.
const BACK_OFF: Duration = Duration::from_millis(50);

/// Accepts until the process ends: the app may use its network until it has exited.
pub async fn accept(socket: Rc<TcpListener>, worker: Rc<Worker>, upstream: UpstreamAddr) {
    loop {
        match socket.accept().await {
            Ok((stream, _)) => {
                let worker = Rc::clone(&worker);
                let upstream = upstream.clone();
                drop(tokio::task::spawn_local(async move { relay(stream, &worker, &upstream).await }));
            }
            Err(error) => {
                worker.metrics.accept_errors.add(0);
                tracing::warn!(%upstream, %error, "accepting on an outbound listener failed, trying again");
                tokio::time::sleep(BACK_OFF).await;
            }
        }
    }
}

async fn relay(downstream: TcpStream, worker: &Worker, upstream: &UpstreamAddr) {
    let tallies = worker.lifecycle.tallies();
    tallies.outbound_came(worker.lifecycle.now());
    let _open = Counted::new(&tallies.outbound);
    match dial(upstream).await {
        Ok(stream) => {
            let mut relay = Relay::new(downstream, stream, Bytes::new(), Bytes::new());
            poll_fn(|cx| relay.poll(cx)).await;
        }
        Err(error) => {
            // The app sees what it would have seen without us: a connection that does not work.
            let _ = downstream.set_zero_linger();
            tracing::warn!(%upstream, error = chain(&error), "dialling failed");
        }
    }
    worker.metrics.connections.add(Protocol::Outbound as usize);
}
