//! Owns a TCP balancer that keeps the flows it has and sends new ones where it is told.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Stops, and drops its flows, on drop.
#[derive(Debug)]
pub(crate) struct Balancer {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    target: SocketAddr,
    /// Open and total flows of each address.
    flows: BTreeMap<SocketAddr, Flows>,
    refused: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flows {
    pub(crate) open: usize,
    pub(crate) total: usize,
}

// === impl Balancer ===

impl Balancer {
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let address = listener.local_addr().expect("the listener is bound");
        let state = Arc::new(Mutex::new(State { target, flows: BTreeMap::new(), refused: 0 }));
        let task = tokio::spawn(accept(listener, state.clone()));
        Self { address, state, task }
    }

    /// New flows go there from now on; old ones stay.
    pub(crate) fn switch(&self, target: SocketAddr) {
        self.state.lock().expect("no holder panics").target = target;
    }

    pub(crate) fn flows(&self, target: SocketAddr) -> Flows {
        let state = self.state.lock().expect("no holder panics");
        state.flows.get(&target).copied().unwrap_or_default()
    }

    /// Flows whose target did not take the connection.
    pub(crate) fn refused(&self) -> usize {
        self.state.lock().expect("no holder panics").refused
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut flows = tokio::task::JoinSet::new();
    loop {
        if let Ok((client, _)) = listener.accept().await {
            flows.spawn(carry(client, state.clone()));
        }
        while flows.try_join_next().is_some() {}
    }
}

async fn carry(mut client: TcpStream, state: Arc<Mutex<State>>) {
    let target = state.lock().expect("no holder panics").target;
    let connect = tokio::time::timeout(CONNECT, TcpStream::connect(target)).await;
    let Ok(Ok(mut server)) = connect else {
        state.lock().expect("no holder panics").refused += 1;
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let count = |change: fn(&mut Flows)| {
        let mut state = state.lock().expect("no holder panics");
        change(state.flows.entry(target).or_default());
    };
    count(|flows| {
        flows.open += 1;
        flows.total += 1;
    });
    if copy_bidirectional(&mut client, &mut server).await.is_err() {
        // A reset on one side is passed on as one; a FIN would hide it.
        for stream in [&client, &server] {
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
    }
    count(|flows| flows.open -= 1);
}

const CONNECT: Duration = Duration::from_secs(5);
