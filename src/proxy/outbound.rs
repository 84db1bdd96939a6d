//! Outbound listeners: bytes from the app to a service elsewhere. Never drained, never told anything.

use std::future::poll_fn;
use std::rc::Rc;

use tokio::net::{TcpListener, TcpStream};

use super::relay::{Direction, Flow, Relay};
use crate::lifecycle::Counted;
use crate::listener::accept;
use crate::telemetry::logging::chain;
use crate::telemetry::metrics::{Dial, Protocol};
use crate::transport::Transport;
use crate::upstream::connect::DialError;
use crate::upstream::remote::Remote;
use crate::worker::Worker;

/// Accepts until the process ends: the app may use its network until it has exited.
pub async fn serve(socket: Rc<TcpListener>, worker: Rc<Worker>, remote: Rc<Remote>) {
    let mut failing = false;
    loop {
        let (stream, _) = accept::next(&socket, &worker, remote.listener(), &mut failing).await;
        let worker = Rc::clone(&worker);
        let remote = Rc::clone(&remote);
        drop(tokio::task::spawn_local(async move { relay(stream, &worker, &remote).await }));
    }
}

async fn relay(downstream: TcpStream, worker: &Worker, remote: &Rc<Remote>) {
    let tallies = worker.lifecycle.tallies();
    tallies.outbound_came(worker.lifecycle.now());
    let _open = Counted::new(&tallies.outbound);
    let metrics = worker.metrics;
    match remote.connect().await {
        Ok(upstream) => {
            metrics.outbound_dials.add(Dial::Ok as usize);
            let downstream = Transport::Tcp(downstream);
            let mut relay = Relay::new(downstream, upstream, Direction::opaque(&[]), Direction::opaque(&[]));
            if poll_fn(|cx| relay.poll(&worker.gear, cx)).await == Flow::Broken {
                relay.cut_off_what_is_missing();
            }
            if let Some(error) = relay.down.fault() {
                warn(worker, remote, error, "the service broke off");
            }
        }
        Err(error) => {
            let result = if matches!(error, DialError::Refused) { Dial::Refused } else { Dial::Failed };
            metrics.outbound_dials.add(result as usize);
            // The app sees what it would have seen without us: a connection that does not work.
            let _ = downstream.set_zero_linger();
            warn(worker, remote, &error, "dialling failed");
        }
    }
    metrics.connections.add(Protocol::Outbound as usize);
}

/// An app tries again and again, and the log must not be flooded.
fn warn(worker: &Worker, remote: &Remote, error: &dyn std::error::Error, what: &str) {
    if let Some(suppressed) = remote.warnings.turn(worker.lifecycle.now()) {
        let (listener, upstream) = (remote.listener(), remote.upstream());
        tracing::warn!(listener, %upstream, error = chain(error), suppressed, "{what}");
    }
}
