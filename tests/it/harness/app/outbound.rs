//! Owns the calls that the app makes itself, through outbound listeners, each noted in the journal.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::entry::Shared;
use crate::harness::h2::RawH2;
use crate::harness::http::{Sum, Wire};

/// One GET on a fresh connection; answers whether it got status 200.
pub(super) async fn get(app: &Shared, kind: &str, address: SocketAddr) -> bool {
    let result = timeout(BOUND, async {
        let mut wire = Wire::new(TcpStream::connect(address).await.map_err(debug)?);
        exchange(&mut wire, address).await
    })
    .await
    .unwrap_or_else(|_| Err("timeout".to_owned()));
    let ok = result == Ok(200);
    app.pen.note(kind, &told("http", &result));
    ok
}

/// Raw bytes out, the same bytes back, on a fresh connection.
pub(super) async fn echo(app: &Shared, address: SocketAddr) {
    let result = timeout(BOUND, async {
        let mut stream = TcpStream::connect(address).await.map_err(debug)?;
        round_trip(&mut stream, b"farewell\n").await
    })
    .await
    .unwrap_or_else(|_| Err("timeout".to_owned()));
    app.pen.note("call", &told("tcp", &result));
}

pub(super) async fn hold(app: &Shared, address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect(address).await;
    app.pen.note("held", &format!("ok={}", stream.is_ok()));
    stream.ok()
}

/// The last acknowledgement of a consumer, on the connection it held all the time.
pub(super) async fn ack(app: &Shared, held: Option<TcpStream>) {
    let result = match held {
        Some(mut stream) => {
            timeout(BOUND, round_trip(&mut stream, b"ack\n")).await.unwrap_or_else(|_| Err("timeout".to_owned()))
        }
        None => Err("nothing-held".to_owned()),
    };
    app.pen.note("ack", &told("tcp", &result));
}

/// GETs over one connection; notes the connection's number and the sum of the response head.
pub(super) async fn beat(app: Arc<Shared>, address: SocketAddr, every: Duration) {
    let mut connections = 0;
    let mut wire = None;
    loop {
        if wire.is_none() {
            connections += 1;
            wire = TcpStream::connect(address).await.ok().map(Wire::new);
        }
        let result = match wire.as_mut() {
            Some(open) => timeout(BOUND, beat_once(open, address)).await.unwrap_or_else(|_| Err("timeout".to_owned())),
            None => Err("refused".to_owned()),
        };
        let (ok, head, keep) = match &result {
            Ok((head, keep)) => (true, head.as_str(), *keep),
            Err(error) => (false, error.as_str(), false),
        };
        app.pen.note("beat", &format!("how=http ok={ok} conn={connections} head={head}"));
        if !keep {
            wire = None;
        }
        tokio::time::sleep(every).await;
    }
}

/// As [`beat`] over HTTP/2; notes what the peer has said about leaving as well.
pub(super) async fn beat_h2c(app: Arc<Shared>, address: SocketAddr, every: Duration) {
    let mut connections = 0;
    let mut open: Option<RawH2> = None;
    loop {
        if open.is_none() {
            connections += 1;
            open = RawH2::open(address).await.ok();
        }
        let result = match open.as_mut() {
            Some(raw) => timeout(BOUND, beat_h2c_once(raw)).await.unwrap_or_else(|_| Err("timeout".to_owned())),
            None => Err("refused".to_owned()),
        };
        let notices = open.as_ref().map_or(0, |raw| raw.seen.notices().len());
        let (ok, head) = match &result {
            Ok(head) => (true, head),
            Err(error) => (false, error),
        };
        app.pen.note("beat", &format!("how=h2c ok={ok} conn={connections} notices={notices} head={head}"));
        if !ok {
            open = None;
        }
        match open.as_mut() {
            Some(raw) => raw.during(tokio::time::sleep(every)).await,
            None => tokio::time::sleep(every).await,
        }
    }
}

async fn beat_h2c_once(raw: &mut RawH2) -> Result<String, String> {
    let stream = raw.get("/outbound").await.map_err(debug)?;
    let answer = raw.answer(stream, BOUND).await.map_err(debug)?;
    if answer.status() != 200 || !answer.is_whole() {
        return Err(format!("status-{}", answer.status()));
    }
    let mut sum = Sum::new();
    for (name, value) in &answer.head {
        // Both differ by nature.
        if name != "date" && name != "x-id" {
            sum.add(format!("{name}:{value}\n").as_bytes());
        }
    }
    Ok(sum.hex())
}

async fn beat_once(wire: &mut Wire<TcpStream>, address: SocketAddr) -> Result<(String, bool), String> {
    send_get(wire, address).await?;
    let head = wire.head().await.map_err(debug)?;
    wire.body(head.response_framing("GET"), |_| {}).await.map_err(debug)?;
    let mut sum = Sum::new();
    sum.add(head.start.as_bytes());
    for (name, value) in &head.headers {
        // The date differs by nature.
        if !name.eq_ignore_ascii_case("date") {
            sum.add(format!("{name}:{value}\n").as_bytes());
        }
    }
    Ok((sum.hex(), head.keeps_alive()))
}

async fn exchange(wire: &mut Wire<TcpStream>, address: SocketAddr) -> Result<u16, String> {
    send_get(wire, address).await?;
    let head = wire.head().await.map_err(debug)?;
    wire.body(head.response_framing("GET"), |_| {}).await.map_err(debug)?;
    head.status().map_err(debug)
}

async fn send_get(wire: &mut Wire<TcpStream>, address: SocketAddr) -> Result<(), String> {
    let request = format!("GET /outbound HTTP/1.1\r\nHost: {address}\r\n\r\n");
    wire.get_mut().write_all(request.as_bytes()).await.map_err(debug)
}

async fn round_trip(stream: &mut TcpStream, bytes: &[u8]) -> Result<u16, String> {
    stream.write_all(bytes).await.map_err(debug)?;
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).await.map_err(debug)?;
    if back == bytes { Ok(200) } else { Err("other-bytes".to_owned()) }
}

fn told(how: &str, result: &Result<u16, String>) -> String {
    match result {
        Ok(status) => format!("how={how} ok={} status={status}", *status == 200),
        Err(error) => format!("how={how} ok=false error={error}"),
    }
}

/// Journal fields hold no spaces.
fn debug(error: impl std::fmt::Debug) -> String {
    format!("{error:?}").replace(' ', "_")
}

const BOUND: Duration = Duration::from_secs(5);
