//! Owns the app's HTTP/2 side: from the preface to the end of the connection, and when it is told to go.

mod exchange;

mod grpc;

mod lent;

mod routes;

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::server::{Builder, Connection};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use self::exchange::Exchange;
use self::lent::Lent;
use super::entry::Shared;
use super::server::Io;
use super::{After, Farewell, Speaks};
use crate::harness::h2::PREFACE;
use crate::harness::http::{Fault, Wire};

/// What a request asks of its whole connection.
#[derive(Clone, Copy, Debug)]
enum Order {
    Go(Farewell),
    Die,
}

/// How the app leaves a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All said; what still comes is read away.
    InOrder,
    /// The socket is dropped as it is.
    Abrupt,
}

/// Whether an HTTP/2 client begins here; reads no more than it must.
pub(super) async fn has_preface<S: Io>(wire: &mut Wire<S>) -> Result<bool, Fault> {
    loop {
        let unread = wire.unread();
        let length = unread.len().min(PREFACE.len());
        if unread[..length] != PREFACE[..length] {
            return Ok(false);
        }
        if length == PREFACE.len() {
            return Ok(true);
        }
        if wire.more().await? == 0 {
            // A request cut off in its first bytes is for HTTP/1 to judge.
            return Ok(false);
        }
    }
}

pub(super) async fn serve<S: Io>(app: &Arc<Shared>, wire: Wire<S>, number: u64) {
    app.pen.note("preface", &format!("conn={number}"));
    let (mut io, read) = wire.into_parts();
    match app.options.speaks {
        Speaks::Http1 | Speaks::Tcp(_) => {}
        Speaks::Http1Refusing(status) => {
            let answer = format!("HTTP/1.1 {status} Toy\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
            let _ = io.write_all(answer.as_bytes()).await;
            let _ = io.shutdown().await;
            swallow(&mut io).await;
        }
        Speaks::SilentAfterPreface => swallow(&mut io).await,
        Speaks::Http2 | Speaks::Both => {
            let mut lent = Lent::new(io);
            let io = tokio::io::join(Cursor::new(read).chain(lent.again()), lent.again());
            let mut builder = Builder::new();
            builder
                .initial_window_size(WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_header_list_size(HEADERS)
                .max_concurrent_streams(app.options.max_streams.unwrap_or(1000));
            if let Ok(connection) = builder.handshake(io).await
                && run(app, connection, number).await == End::InOrder
            {
                let _ = lent.shutdown().await;
                let _ = tokio::time::timeout(LINGER, swallow(&mut lent)).await;
            }
        }
    }
}

async fn run<T>(app: &Arc<Shared>, mut connection: Connection<T, Bytes>, number: u64) -> End
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let (orders, mut ordered) = mpsc::unbounded_channel();
    let (age, enough, farewell) = match app.options.goaway {
        Some((After::Age(age), farewell)) => (age, u64::MAX, farewell),
        Some((After::Requests(enough), farewell)) => (FOREVER, enough, farewell),
        None => (FOREVER, u64::MAX, Farewell::Graceful),
    };
    let mut aged = std::pin::pin!(tokio::time::sleep(age));
    let mut listening = app.listening.subscribe();
    let mut taken = 0;
    let (mut going, mut end) = (false, End::InOrder);
    let mut gone = std::pin::pin!(tokio::time::sleep(FOREVER));
    loop {
        let wanted = tokio::select! {
            biased;
            order = ordered.recv() => match order {
                Some(Order::Go(farewell)) => Some(farewell),
                Some(Order::Die) | None => return End::Abrupt,
            },
            () = &mut gone => return End::Abrupt,
            () = &mut aged, if !going => Some(farewell),
            _ = listening.wait_for(|open| !*open), if !going => Some(Farewell::Graceful),
            accepted = connection.accept() => {
                let Some(Ok((request, respond))) = accepted else { return end };
                taken += 1;
                let exchange = Exchange::new(app.clone(), request, respond, number, orders.clone());
                tokio::spawn(exchange.serve());
                (taken == enough).then_some(farewell)
            }
        };
        let Some(wanted) = wanted else { continue };
        app.pen.note("goaway", &format!("conn={number} how={}", wanted.name()));
        going = true;
        match wanted {
            Farewell::Graceful => connection.graceful_shutdown(),
            Farewell::GracefulThenGone(after) => {
                connection.graceful_shutdown();
                gone.as_mut().reset(tokio::time::Instant::now() + after);
            }
            Farewell::Abrupt(code) => {
                end = End::Abrupt;
                connection.abrupt_shutdown(Reason::from(code));
            }
        }
    }
}

/// Reads away what comes, so that our close is a FIN and takes back nothing that was said.
async fn swallow(io: &mut (impl AsyncRead + Unpin)) {
    let _ = tokio::io::copy(io, &mut tokio::io::sink()).await;
}

impl Farewell {
    const fn name(self) -> &'static str {
        match self {
            Self::Graceful => "graceful",
            Self::GracefulThenGone(_) => "gone",
            Self::Abrupt(_) => "abrupt",
        }
    }
}

/// Small enough to show whether a proxy applies back-pressure.
const WINDOW: u32 = 256 * 1024;
/// As large as it gets: h2 ends connections on which many small unread frames pile up, by this measure.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
const HEADERS: u32 = 256 * 1024;
const LINGER: Duration = Duration::from_secs(2);
const FOREVER: Duration = Duration::from_secs(24 * 3600);
