//! A small layer-4 balancer that, like kube-proxy, keeps flows and learns of a deleted pod late.

use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::DemoError;
use super::outcome::Flows;

/// The running balancer; stops, and cuts its flows, when dropped.
#[derive(Debug)]
pub(super) struct Balancer {
    /// Where clients connect.
    pub(super) address: SocketAddr,
    state: Arc<Mutex<State>>,
    _task: JoinSet<()>,
}

/// Tells a load client what a refused dial would have looked like without a balancer process in between.
#[derive(Debug, Clone)]
pub(super) struct Refusals(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    pod_a: SocketAddr,
    pod_b: SocketAddr,
    knowledge: Knowledge,
    next_is_a: bool,
    flows: Flows,
    /// Clients whose flow was refused by the pod and who have not asked yet.
    refused: HashSet<SocketAddr>,
}

/// ```text
/// BothServe ──pod A is deleted──▶ NotYetTold ──endpoints have propagated──▶ OnlyB
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Knowledge {
    /// New flows go to A and B in turn, rightly.
    BothServe,
    /// New flows still go to A in turn.
    NotYetTold,
    /// New flows go to B; those on A stay there.
    OnlyB,
}

// === impl Balancer ===

impl Balancer {
    /// Starts to balance between two pods on a loopback port of its own.
    pub(super) async fn start(pod_a: SocketAddr, pod_b: SocketAddr) -> Result<Self, DemoError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(DemoError::Port)?;
        let address = listener.local_addr().map_err(DemoError::Port)?;
        let state = State {
            pod_a,
            pod_b,
            knowledge: Knowledge::BothServe,
            next_is_a: true,
            flows: Flows::default(),
            refused: HashSet::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let mut task = JoinSet::new();
        task.spawn(accept(listener, Arc::clone(&state)));
        Ok(Self { address, state, _task: task })
    }

    /// Pod A has been deleted; from now on flows to it count as late.
    pub(super) fn pod_a_deleted(&self) {
        lock(&self.state).knowledge = Knowledge::NotYetTold;
    }

    /// The news of the deletion arrives: no new flow goes to pod A.
    pub(super) fn learn(&self) {
        lock(&self.state).knowledge = Knowledge::OnlyB;
    }

    /// New flows so far.
    pub(super) fn flows(&self) -> Flows {
        lock(&self.state).flows
    }

    /// A view for the load clients.
    pub(super) fn refusals(&self) -> Refusals {
        Refusals(Arc::clone(&self.state))
    }
}

// === impl Refusals ===

impl Refusals {
    /// Whether the pod refused the flow of the client with this local address. Answers once per flow.
    pub(super) fn take(&self, client: SocketAddr) -> bool {
        lock(&self.0).refused.remove(&client)
    }
}

// === impl State ===

impl State {
    fn pick(&mut self) -> SocketAddr {
        let to_a = self.knowledge != Knowledge::OnlyB && self.next_is_a;
        self.next_is_a = !self.next_is_a;
        if !to_a {
            self.flows.to_b += 1;
            return self.pod_b;
        }
        match self.knowledge {
            Knowledge::BothServe => self.flows.to_a += 1,
            Knowledge::NotYetTold | Knowledge::OnlyB => self.flows.to_a_late += 1,
        }
        self.pod_a
    }
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut flows = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, address)) => { flows.spawn(flow(client, address, Arc::clone(&state))); }
                Err(_) => sleep(Duration::from_millis(10)).await,
            },
            Some(_) = flows.join_next() => {}
        }
    }
}

/// Relays one flow; an error on either side resets the other, as if there were no balancer between them.
async fn flow(mut client: TcpStream, address: SocketAddr, state: Arc<Mutex<State>>) {
    let pod = lock(&state).pick();
    let mut upstream = match TcpStream::connect(pod).await {
        Ok(upstream) => upstream,
        Err(error) => {
            if error.kind() == io::ErrorKind::ConnectionRefused {
                lock(&state).refused.insert(address);
            }
            reset(&client);
            return;
        }
    };
    let relayed = match client.set_nodelay(true).and_then(|()| upstream.set_nodelay(true)) {
        Ok(()) => copy_bidirectional(&mut client, &mut upstream).await.map(|_| ()),
        Err(error) => Err(error),
    };
    if relayed.is_err() {
        reset(&client);
        reset(&upstream);
    }
}

/// Makes the coming close of `stream` a reset; on failure it stays a plain close.
fn reset(stream: &TcpStream) {
    stream.set_zero_linger().ok();
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_go_to_a_until_the_balancer_has_learned() {
        let (pod_a, pod_b) = (SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([127, 0, 0, 1], 2)));
        let mut state = State {
            pod_a,
            pod_b,
            knowledge: Knowledge::BothServe,
            next_is_a: true,
            flows: Flows::default(),
            refused: HashSet::new(),
        };
        assert_eq!([state.pick(), state.pick()], [pod_a, pod_b]);
        state.knowledge = Knowledge::NotYetTold;
        assert_eq!([state.pick(), state.pick()], [pod_a, pod_b]);
        state.knowledge = Knowledge::OnlyB;
        assert_eq!([state.pick(), state.pick()], [pod_b, pod_b]);
        assert_eq!(state.flows, Flows { to_a: 1, to_a_late: 1, to_b: 4 });
    }
}
