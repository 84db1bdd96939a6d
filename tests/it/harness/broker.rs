//! Owns a TCP peer outside the pod that echoes every byte and remembers each connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use super::client::Ending;
use super::wait::Mono;

/// A broker or a database, reached through an outbound listener; stops on drop.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) address: SocketAddr,
    flows: Arc<Mutex<Vec<Flow>>>,
    task: JoinHandle<()>,
}

#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) opened: Mono,
    pub(crate) received: Vec<u8>,
    pub(crate) ended: Option<(Mono, Ending)>,
}

// === impl Broker ===

impl Broker {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let address = listener.local_addr().expect("the listener is bound");
        let flows = Arc::new(Mutex::new(Vec::new()));
        let task = tokio::spawn(accept(listener, flows.clone()));
        Self { address, flows, task }
    }

    /// All connections so far, in order.
    pub(crate) fn flows(&self) -> Vec<Flow> {
        self.flows.lock().expect("no holder panics").clone()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, flows: Arc<Mutex<Vec<Flow>>>) {
    let mut tasks = JoinSet::new();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            let mut all = flows.lock().expect("no holder panics");
            let number = all.len();
            all.push(Flow { opened: Mono::now(), received: Vec::new(), ended: None });
            tasks.spawn(echo(stream, number, flows.clone()));
        }
    }
}

async fn echo(mut stream: TcpStream, number: usize, flows: Arc<Mutex<Vec<Flow>>>) {
    let mut buffer = vec![0; 16 * 1024];
    let ending = loop {
        match stream.read(&mut buffer).await {
            Ok(0) => break Ending::Fin,
            Ok(read) => {
                let bytes = &buffer[..read];
                flows.lock().expect("no holder panics")[number].received.extend_from_slice(bytes);
                if stream.write_all(bytes).await.is_err() {
                    break Ending::Reset;
                }
            }
            Err(_) => break Ending::Reset,
        }
    };
    flows.lock().expect("no holder panics")[number].ended = Some((Mono::now(), ending));
}
