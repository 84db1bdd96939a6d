//! Owns the HTTP/2 clients of a termination, plain and gRPC-shaped: few connections, many streams, and GOAWAY obeyed.
//!
//! A stream that GOAWAY says was not seen (its id is above the last), one refused with REFUSED_STREAM, and one that
//! was never sent go again on another connection, as RFC 9113 §6.8 allows; that is no failure. A stream that was
//! accepted and ends without its answer is one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use http::{HeaderMap, Method, Request, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};

use super::{Ask, World, tell};
use crate::net::{Fail, PATIENCE, Rng, connect};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// GET with an answer of 128 bytes.
    Plain,
    /// Unary calls with trailers.
    Grpc,
}

#[derive(Clone)]
struct Connection {
    send: SendRequest<Bytes>,
    /// Whether the server ended it by RST or FIN in mid-air; for the class of a failure.
    reset: Rc<Cell<bool>>,
}

/// Why a try had no answer.
enum Miss {
    /// The server has not seen it and never will.
    Unseen,
    Failed(Fail),
}

/// A pipe whose writing side reaches the socket after `delay`: what is written crosses what comes meanwhile.
fn delayed(stream: TcpStream, delay: Duration, reset: Rc<Cell<bool>>) -> DuplexStream {
    let (near, far) = tokio::io::duplex(1 << 16);
    let (mut from_net, mut to_net) = stream.into_split();
    let (mut from_us, mut to_us) = tokio::io::split(far);
    let (queue, mut queued) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::task::spawn_local(async move {
        let mut buffer = vec![0; 1 << 14];
        while let Ok(read @ 1..) = from_us.read(&mut buffer).await {
            if queue.send((Instant::now() + delay, buffer[..read].to_vec())).is_err() {
                break;
            }
        }
    });
    tokio::task::spawn_local(async move {
        while let Some((at, bytes)) = queued.recv().await {
            sleep_until(at.into()).await;
            if to_net.write_all(&bytes).await.is_err() {
                break;
            }
        }
    });
    tokio::task::spawn_local(async move {
        let mut buffer = vec![0; 1 << 14];
        loop {
            match from_net.read(&mut buffer).await {
                Ok(read @ 1..) if to_us.write_all(&buffer[..read]).await.is_ok() => {}
                Err(_) => break reset.set(true),
                Ok(_) => break,
            }
        }
        let _ = to_us.shutdown().await;
    });
    near
}

async fn open(world: &World) -> Result<Connection, Fail> {
    let stream = connect(world.proxy).await?;
    let reset = Rc::new(Cell::new(false));
    let pipe = delayed(stream, world.rtt, reset.clone());
    let (send, connection) = h2::client::handshake(pipe).await.map_err(|_| Fail::Eof)?;
    tokio::task::spawn_local(async move {
        let _ = connection.await;
    });
    Ok(Connection { send, reset })
}

fn request(shape: Shape, slow: bool) -> Request<()> {
    let path = match (shape, slow) {
        (Shape::Plain, false) => "/d20",
        (Shape::Plain, true) => "/slow",
        (Shape::Grpc, false) => "/echo.Echo/D20",
        (Shape::Grpc, true) => "/echo.Echo/Slow",
    };
    let builder = Request::builder().uri(format!("http://app.local{path}"));
    let builder = match shape {
        Shape::Plain => builder,
        Shape::Grpc => builder.method(Method::POST).header("content-type", "application/grpc").header("te", "trailers"),
    };
    builder.body(()).expect("a request")
}

fn miss(error: &h2::Error, connection: &Connection, begun: bool) -> Miss {
    if (error.is_go_away() && error.is_remote()) || error.reason() == Some(Reason::REFUSED_STREAM) {
        return Miss::Unseen;
    }
    Miss::Failed(match error {
        _ if begun => Fail::Truncated,
        _ if error.is_reset() => Fail::Status,
        _ if connection.reset.get() => Fail::Reset,
        _ => Fail::Eof,
    })
}

async fn whole_body(body: &mut RecvStream) -> Result<Option<HeaderMap>, h2::Error> {
    while let Some(chunk) = body.data().await {
        body.flow_control().release_capacity(chunk?.len())?;
    }
    body.trailers().await
}

async fn answered(shape: Shape, connection: &Connection, answer: ResponseFuture) -> Result<(), Miss> {
    let answer = answer.await.map_err(|error| miss(&error, connection, false))?;
    let (head, mut body) = answer.into_parts();
    let trailers = whole_body(&mut body).await.map_err(|error| miss(&error, connection, true))?;
    // An answer without a message has its status in the head.
    let status = trailers.as_ref().and_then(|map| map.get("grpc-status")).or_else(|| head.headers.get("grpc-status"));
    let well = match shape {
        Shape::Plain => head.status == StatusCode::OK,
        Shape::Grpc => head.status == StatusCode::OK && status.is_some_and(|value| value == "0"),
    };
    if well { Ok(()) } else { Err(Miss::Failed(Fail::Status)) }
}

/// A try on this connection. An error before anything was sent means that it takes no more requests.
async fn once(shape: Shape, slow: bool, connection: &Connection) -> Result<(), Miss> {
    let mut send = connection.send.clone().ready().await.map_err(|_| Miss::Unseen)?;
    let end = shape == Shape::Plain;
    let (answer, mut body) = send.send_request(request(shape, slow), end).map_err(|_| Miss::Unseen)?;
    if !end {
        let message = [&[0, 0, 0, 0, 123][..], &[b'm'; 123]].concat();
        let sent = body.send_data(message.into(), true);
        if let Err(error) = sent {
            return Err(miss(&error, connection, false));
        }
    }
    answered(shape, connection, answer).await
}

type Slots = Rc<RefCell<Vec<Option<Connection>>>>;

/// One request of a client, tried until it is seen. `slot`: its connection is shared and kept; none: it has its own.
async fn ask(world: &World, shape: Shape, slot: Option<(&Slots, usize)>, kind: [&'static str; 2], due: Instant) {
    let phase = world.phase();
    let slow = kind[0] == "slow";
    for tries in 0..4 {
        world.note("sent_again", u64::from(tries > 0));
        let kept = slot.and_then(|(slots, at)| slots.borrow()[at].clone());
        let kind = kind[usize::from(kept.is_some())];
        let connection = match kept {
            Some(connection) => connection,
            None if !world.is_known() => return world.note("moved", 1),
            None => match open(world).await {
                Ok(connection) => connection,
                Err(fail) => return world.failed(phase, kind, fail),
            },
        };
        if let Some((slots, at)) = slot {
            slots.borrow_mut()[at].get_or_insert_with(|| connection.clone());
        }
        let tried = timeout(PATIENCE, once(shape, slow, &connection)).await;
        let tried = tried.unwrap_or(Err(Miss::Failed(Fail::Timeout)));
        if let (Err(_), Some((slots, at))) = (&tried, slot) {
            forget(world, &mut slots.borrow_mut()[at], &connection);
        }
        match tried {
            Ok(()) => return world.ok(phase, due),
            Err(Miss::Failed(fail)) => return world.failed(phase, kind, fail),
            Err(Miss::Unseen) => {}
        }
    }
    world.failed(phase, kind[0], Fail::Refused);
}

/// Empties the slot if it still holds this connection.
fn forget(world: &World, slot: &mut Option<Connection>, connection: &Connection) {
    if slot.as_ref().is_some_and(|kept| Rc::ptr_eq(&kept.reset, &connection.reset)) {
        *slot = None;
        world.note("left", 1);
    }
}

/// How many connections are open at the end.
pub(super) async fn run(world: &Rc<World>, shape: Shape) -> usize {
    let slots: Slots = Slots::default();
    for _ in 0..world.conns {
        let connection = open(world).await.ok();
        world.note("not_opened", u64::from(connection.is_none()));
        slots.borrow_mut().push(connection);
    }
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
    tell(world, 10, |wanted, due| {
        let (world, slots) = (world.clone(), slots.clone());
        let at = rng.below(world.conns);
        tokio::task::spawn_local(async move {
            match wanted {
                Ask::Pooled => ask(&world, shape, Some((&slots, at)), ["new", "reused"], due).await,
                Ask::Fresh => ask(&world, shape, None, ["new"; 2], due).await,
                Ask::Slow => ask(&world, shape, None, ["slow"; 2], due).await,
            }
        });
    })
    .await;
    let kept: Vec<Connection> = slots.borrow().iter().flatten().cloned().collect();
    let mut count = 0;
    for connection in kept {
        let ready = timeout(Duration::from_millis(10), connection.send.ready()).await;
        count += usize::from(matches!(ready, Ok(Ok(_))));
    }
    count
}
