//! TCP clients: bursts of requests on connections that are kept, as a pool of database connections does it.
//!
//! Like such a pool it asks an idle connection whether it is still there before it trusts a burst to it.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::super::app::lines::{PING, PONG, answer};
use super::super::http::{Broken, receive};
use super::super::outcome::Failure;
use super::{Client, next, ticker};

/// One connection, and what has come on it beyond the last whole answer.
#[derive(Debug)]
pub(super) struct Line {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// Sends bursts as long as the load goes on.
pub(super) async fn order(client: Client) {
    let mut stop = client.stop.clone();
    // Without this all clients would send in the same instant.
    sleep(BURST_TIME.mul_f64(fastrand::f64())).await;
    let mut pace = ticker(BURST_TIME);
    let mut connection: Option<Line> = None;
    loop {
        tokio::select! {
            biased;
            going = next(&mut pace, &mut stop) => if !going { return },
            broken = idle(&mut connection) => {
                closed(&client, &broken);
                // Pools fill up again what they have lost.
                connection = usable(&client, None).await;
                continue;
            }
        }
        connection = burst(&client, connection.take()).await;
    }
}

/// Sends one burst, and returns its connection if it can be used again.
pub(super) async fn burst(client: &Client, connection: Option<Line>) -> Option<Line> {
    let mut line = usable(client, connection).await?;
    let orders: Vec<String> = (0..BURST).map(|_| format!("order {:016x}\n", fastrand::u64(..))).collect();
    // If this fails, reading says why.
    line.stream.write_all(orders.concat().as_bytes()).await.ok();
    let mut lost = None;
    for order in &orders {
        let result = match lost {
            None => line.expect(client, &answer(order)).await,
            Some(Failure::CutShort) => Err(Failure::NoAnswer),
            Some(failure) => Err(failure),
        };
        lost = result.err();
        client.tally.record(client.kind, result);
    }
    lost.is_none().then_some(line)
}

/// The connection if it is still there, else a new one; a new one that can't be had is a request lost.
async fn usable(client: &Client, connection: Option<Line>) -> Option<Line> {
    if let Some(mut line) = connection {
        match line.ping().await {
            Ok(()) => return Some(line),
            Err(broken) => closed(client, &broken),
        }
    }
    match connect(client).await {
        Ok(line) => Some(line),
        Err(failure) => {
            client.tally.record(client.kind, Err(failure));
            None
        }
    }
}

async fn connect(client: &Client) -> Result<Line, Failure> {
    let mut line = Line { stream: client.connect().await?, buffer: Vec::new() };
    let local = line.stream.local_addr().map_err(|_| Failure::Other)?;
    client.answered(local, line.ping()).await?;
    Ok(line)
}

/// Waits for the end of an idle connection.
pub(super) async fn idle(connection: &mut Option<Line>) -> Broken {
    let Some(line) = connection else { return std::future::pending().await };
    match receive(&mut line.stream, &mut line.buffer, 0).await {
        Ok(()) => Broken::Garbled,
        Err(broken) => broken,
    }
}

/// A connection has ended between two bursts; only a FIN is an order to connect again.
pub(super) fn closed(client: &Client, broken: &Broken) {
    match broken {
        Broken::Closed { received: 0 } => client.tally.told(client.kind),
        _ => client.tally.record(client.kind, Err(broken.failure())),
    }
}

// === impl Line ===

impl Line {
    async fn ping(&mut self) -> Result<(), Broken> {
        self.stream.write_all(PING.as_bytes()).await.map_err(|source| Broken::Failed { received: 0, source })?;
        self.read(PONG).await
    }

    async fn expect(&mut self, client: &Client, answer: &str) -> Result<(), Failure> {
        let local = self.stream.local_addr().map_err(|_| Failure::Other)?;
        client.answered(local, self.read(answer)).await
    }

    async fn read(&mut self, answer: &str) -> Result<(), Broken> {
        while self.buffer.len() < answer.len() {
            let received = self.buffer.len();
            receive(&mut self.stream, &mut self.buffer, received).await?;
        }
        let came: Vec<u8> = self.buffer.drain(..answer.len()).collect();
        if came == answer.as_bytes() { Ok(()) } else { Err(Broken::Garbled) }
    }
}

/// Requests that are sent at once.
pub(super) const BURST: usize = 4;

/// Between two bursts.
const BURST_TIME: Duration = Duration::from_secs(2);
