//! Owns what is on the wire: the whole space of frames, good and bad, cut anywhere, passes byte by byte.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::harness::SOON;
use crate::harness::client::{Ending, Raw};
use crate::harness::fresh_seed;
use crate::harness::script::Script;
use crate::harness::stage::{LONG, front, plain};

/// One frame of RFC 6455 §5.2, or what only looks like one: any opcode, any reserved bits, masked or not, its length in
/// any of the three encodings, also where a shorter one would do.
fn frame(random: &mut Rng, masked: bool) -> Vec<u8> {
    let opcode = if random.u8(..100) < 3 { random.u8(..16) } else { *random.choice(&[0, 1, 2, 9, 10]).unwrap() };
    let reserved = if random.u8(..4) == 0 { random.u8(..8) << 4 } else { 0 };
    let length = match random.u8(..20) {
        0..12 => random.usize(..126),
        12..18 => random.usize(126..2000),
        _ => random.usize(65_500..66_000),
    };
    let fin = if random.bool() { 0x80 } else { 0 };
    let masked = masked ^ (random.u8(..50) == 0);
    let mask = if masked { 0x80 } else { 0 };
    let mut bytes = vec![fin | reserved | opcode];
    match (length, random.u8(..10)) {
        (..126, 1..) => bytes.push(mask | length as u8),
        (..65_536, 2..) => {
            bytes.push(mask | 126);
            bytes.extend((length as u16).to_be_bytes());
        }
        _ => {
            bytes.push(mask | 127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    if masked {
        bytes.extend(random.u32(..).to_be_bytes());
    }
    bytes.extend((0..length).map(|_| random.u8(..)));
    bytes
}

/// The frames of one direction; the last one is a Close, so that nobody has to be told anything.
fn direction(seed: u64, masked: bool) -> Vec<u8> {
    let mut random = Rng::with_seed(seed);
    let mut bytes: Vec<u8> = (0..random.usize(1..40)).flat_map(|_| frame(&mut random, masked)).collect();
    if masked {
        bytes.extend([0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8]);
    } else {
        bytes.extend([0x88, 2, 0x03, 0xe8]);
    }
    bytes
}

/// The cuts of one direction: most of them inside of heads.
fn pieces(bytes: &[u8], seed: u64) -> Vec<&[u8]> {
    let mut random = Rng::with_seed(seed);
    let mut rest = bytes;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let size = if random.bool() { random.usize(1..20) } else { random.usize(1..20_000) };
        let (piece, next) = rest.split_at(size.min(rest.len()));
        pieces.push(piece);
        rest = next;
    }
    pieces
}

fn upgrade(seed: u64) -> String {
    format!(
        "GET /{seed} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate; x=\"y\"\r\n\
         Sec-WebSocket-Protocol: chat, superchat\r\n\r\n"
    )
}

const AGREED: &str = "HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
                      Sec-WebSocket-Extensions: permessage-deflate; x=\"y\"\r\nSec-WebSocket-Protocol: superchat\r\n\r\n";

#[tokio::test]
async fn every_frame_passes_byte_by_byte_both_ways() {
    let run = fresh_seed();
    let received: Arc<Mutex<HashMap<u64, Vec<u8>>>> = Arc::default();
    let kept = received.clone();
    let script = Script::start(move |_, mut wire| {
        let kept = kept.clone();
        async move {
            let Ok(head) = wire.head().await else { return };
            let Ok((_, target)) = head.request() else { return };
            let Ok(seed) = target.trim_start_matches('/').parse::<u64>() else { return };
            let as_asked = head.get("sec-websocket-extensions") == Some("permessage-deflate; x=\"y\"")
                && head.get("sec-websocket-protocol") == Some("chat, superchat")
                && head.get("sec-websocket-key") == Some("dGhlIHNhbXBsZSBub25jZQ==");
            let (stream, first) = wire.into_parts();
            let (mut read, mut write) = stream.into_split();
            let bytes = direction(seed ^ 1, false);
            let sending = async {
                let _ = write.write_all(if as_asked { AGREED.as_bytes() } else { b"HTTP/1.1 400 No\r\n\r\n" }).await;
                for piece in pieces(&bytes, seed) {
                    let _ = write.write_all(piece).await;
                }
            };
            let mut all = first;
            let (_, _) = tokio::join!(read.read_to_end(&mut all), sending);
            // Only now, so that the app's end takes nothing away from the client's bytes.
            kept.lock().unwrap().insert(seed, all);
            let _ = write.shutdown().await;
        }
    })
    .await;
    let (px, address) = front(plain(LONG), &script.upstream()).await;
    for round in 0..10 {
        let mut sessions = JoinSet::new();
        for number in 0..20 {
            let seed = run.wrapping_add(2 * (round * 20 + number));
            sessions.spawn(async move {
                let mut raw = Raw::connect(address).await.unwrap();
                raw.send(upgrade(seed)).await.unwrap();
                let reply = raw.reply("GET", SOON).await.unwrap();
                assert_eq!((reply.status, reply.head.get("sec-websocket-protocol")), (101, Some("superchat")));
                assert_eq!(reply.head.get("sec-websocket-extensions"), Some("permessage-deflate; x=\"y\""));
                assert_eq!(reply.head.get("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
                let ours = direction(seed, true);
                for piece in pieces(&ours, seed ^ 1) {
                    raw.send(piece).await.unwrap();
                }
                raw.half_close().await.unwrap();
                (seed, ours, raw.ending(SOON).await)
            });
        }
        while let Some(session) = sessions.join_next().await {
            let (seed, ours, (theirs, ending)) = session.unwrap();
            assert_eq!(ending, Ending::Fin, "seed {seed} of run {run}");
            assert!(theirs == direction(seed ^ 1, false), "seed {seed} of run {run}: to the client");
            assert!(received.lock().unwrap().remove(&seed).unwrap() == ours, "seed {seed} of run {run}: to the app");
        }
    }
    // Where both directions hold what can't be a frame, nobody knows of a Close.
    px.metric_becomes("ebbtide_websocket_sessions_total", &[], SOON, |count| count == 200.0).await;
}
