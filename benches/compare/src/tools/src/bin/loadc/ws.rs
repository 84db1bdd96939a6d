//! Owns WebSocket: the upgrade, frames, and the echo load.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::net::{Fail, PATIENCE, connect, percentile};

const UPGRADE: &[u8] = b"GET /ws HTTP/1.1\r\nHost: app.local\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

pub async fn upgrade(to: SocketAddr) -> Result<TcpStream, Fail> {
    let mut stream = connect(to).await?;
    stream.write_all(UPGRADE).await.map_err(|_| Fail::Reset)?;
    let mut head = Vec::with_capacity(1024);
    // Byte by byte behind the first part, so that nothing of the first frame is taken.
    while !head.ends_with(b"\r\n\r\n") {
        let byte = timeout(PATIENCE, stream.read_u8()).await.map_err(|_| Fail::Timeout)?;
        match byte {
            Ok(byte) => head.push(byte),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(Fail::Eof),
            Err(_) => return Err(Fail::Reset),
        }
    }
    if head.starts_with(b"HTTP/1.1 101") { Ok(stream) } else { Err(Fail::Status) }
}

/// A frame of a client. Masked with zeros: legal, and the payload needs no work here.
pub fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len();
    let mut frame = vec![0x80 | opcode];
    if length < 126 {
        frame.push(0x80 | length as u8);
    } else {
        frame.extend_from_slice(&[0x80 | 126, (length >> 8) as u8, length as u8]);
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(payload);
    frame
}

/// The length of a server's frame at the front of these bytes, its opcode and where its payload begins; none if the
/// frame is not complete.
pub fn parse(bytes: &[u8]) -> Option<(usize, u8, usize)> {
    let (first, second) = (*bytes.first()?, *bytes.get(1)?);
    let (start, length) = match second & 0x7f {
        126 => (4, usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]))),
        short => (2, usize::from(short)),
    };
    (bytes.len() >= start + length).then_some((start + length, first & 0x0f, start))
}

async fn echo(to: SocketAddr, size: usize, end: Instant, latencies: &RefCell<Vec<u32>>) -> Result<(), Fail> {
    let mut stream = upgrade(to).await?;
    let message = frame(2, &vec![b'w'; size]);
    // What comes back has no mask.
    let mut back = vec![0; message.len() - 4];
    while Instant::now() < end {
        let began = Instant::now();
        stream.write_all(&message).await.map_err(|_| Fail::Reset)?;
        let read = timeout(Duration::from_secs(3), stream.read_exact(&mut back)).await.map_err(|_| Fail::Timeout)?;
        read.map_err(|_| Fail::Truncated)?;
        latencies.borrow_mut().push(began.elapsed().as_micros() as u32);
    }
    Ok(())
}

pub async fn run(to: SocketAddr, conns: usize, secs: u64, size: usize) {
    let latencies = Rc::new(RefCell::new(Vec::with_capacity(1 << 20)));
    let end = Instant::now() + Duration::from_secs(secs);
    let sessions: Vec<_> = (0..conns)
        .map(|_| {
            let latencies = latencies.clone();
            tokio::task::spawn_local(async move { echo(to, size, end, &latencies).await })
        })
        .collect();
    let mut errors = 0;
    for session in sessions {
        errors += u32::from(!matches!(session.await, Ok(Ok(()))));
    }
    let mut latencies = latencies.borrow_mut();
    let done = latencies.len();
    let (p50, p99) = (percentile(&mut latencies, 0.5), percentile(&mut latencies, 0.99));
    println!(r#"{{"done":{done},"secs":{secs},"p50":{p50},"p99":{p99},"errors":{errors}}}"#);
}
