//! The accept loop, and the last look into the accept queue before the process ends.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::conn::Conn;
use super::io::Io;
use crate::proxy::{self, Inbound};
use crate::transport::Transport;
use crate::worker::Worker;

/// One listener's accept loop.
#[derive(Debug)]
pub struct Accepting {
    /// The loop.
    pub task: JoinHandle<()>,
    /// The socket, shared with the loop.
    pub socket: Rc<TcpListener>,
    /// Where its connections go.
    pub inbound: Rc<Inbound>,
}

/// Pause after an accept that failed for want of descriptors or memory.
const BACK_OFF: Duration = Duration::from_millis(50);
/// Pause at the connection limit between two looks.
const FULL: Duration = Duration::from_millis(10);

/// Accepts for ever: in every phase a client gets an answer, never a refusal.
pub async fn inbound(socket: Rc<TcpListener>, inbound: Rc<Inbound>) {
    let worker = Rc::clone(&inbound.worker);
    let mut failing = false;
    loop {
        wait_for_room(&worker).await;
        let (stream, peer) = next(&socket, &worker, &inbound.name, &mut failing).await;
        start(stream, peer, &inbound);
    }
}

/// The next connection. A lasting failure is told once.
pub async fn next(
    socket: &TcpListener,
    worker: &Worker,
    listener: &str,
    failing: &mut bool,
) -> (TcpStream, SocketAddr) {
    loop {
        match socket.accept().await {
            Ok(accepted) => {
                *failing = false;
                return accepted;
            }
            Err(error) if concerns_one_connection(&error) => {}
            Err(error) => {
                worker.metrics.accept_errors.add(0);
                if !std::mem::replace(failing, true) {
                    tracing::warn!(listener, %error, "accepting failed, trying again");
                }
                tokio::time::sleep(BACK_OFF).await;
            }
        }
    }
}

fn start(stream: TcpStream, peer: SocketAddr, inbound: &Rc<Inbound>) {
    let conn = Conn::new(&inbound.worker, inbound.number, peer);
    let io = Io::new(Transport::Tcp(stream), Rc::clone(&conn));
    drop(tokio::task::spawn_local(proxy::serve_connection(io, Retiring(conn), Rc::clone(inbound))));
}

/// Leaves the registry at its end, also if serving panics: that would keep it, and wait for it, for ever.
#[derive(Debug)]
pub struct Retiring(pub Rc<Conn>);

impl Drop for Retiring {
    fn drop(&mut self) {
        self.0.retire();
    }
}

/// Beyond the limit connections stay in the backlog.
async fn wait_for_room(worker: &Worker) {
    let full = || worker.open() >= worker.max_connections;
    if full() {
        worker.metrics.accept_pauses.add(0);
        while full() {
            tokio::time::sleep(FULL).await;
        }
    }
}

/// Errors of the connection that was accepted, not of the socket (accept(2)).
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

/// Accepts what waits in the queues, closes them, and gives what was accepted the time to be answered.
///
/// Closing a socket resets its queue. So each is looked into by itself, past the reactor, and closed in the moment in
/// which it is empty: whoever connects later is refused.
pub async fn answer_backlog(accepting: Vec<Accepting>, longest: Duration) {
    let end = Instant::now() + longest;
    // First with the loops still running: whoever comes meanwhile is answered, not refused.
    let busy = || accepting.first().is_some_and(|one| one.inbound.worker.has_unanswered());
    while Instant::now() < end - longest / 2 && busy() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut worker = None;
    for Accepting { task, socket, inbound } in accepting {
        task.abort();
        // Its share of the socket is gone when this returns; how it ended does not matter.
        let _ = task.await;
        if let Some(Ok(socket)) = Rc::into_inner(socket).map(TcpListener::into_std) {
            empty(&socket, &inbound);
        }
        worker = Some(Rc::clone(&inbound.worker));
    }
    // The connections' tasks run while this one waits.
    while Instant::now() < end && worker.as_ref().is_some_and(|worker| worker.has_unanswered()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn empty(socket: &std::net::TcpListener, inbound: &Rc<Inbound>) {
    loop {
        match socket.accept() {
            Ok((stream, peer)) => {
                if stream.set_nonblocking(true).is_ok()
                    && let Ok(stream) = TcpStream::from_std(stream)
                {
                    start(stream, peer, inbound);
                }
            }
            Err(error) if concerns_one_connection(&error) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_task<F: Future>(_: impl FnOnce(Box<Io>, Retiring, Rc<Inbound>) -> F) -> usize {
        size_of::<F>()
    }

    /// Of ten thousand idle connections each byte counts; whoever needs more may raise this, and should know.
    #[test]
    fn an_idle_connection_is_small() {
        let (task, conn, io) = (size_of_task(proxy::serve_connection), size_of::<Conn>(), size_of::<Io>());
        assert!(task <= 288, "the connection's task: {task} bytes");
        assert!(conn <= 296, "Conn: {conn} bytes");
        assert!(io <= 96, "Io: {io} bytes");
    }
}
