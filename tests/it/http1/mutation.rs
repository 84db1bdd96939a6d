//! Owns a seeded test of mutated heads: whatever comes, a connection ends with an answer or a plain close, in time.

use std::time::Duration;

use tokio::task::JoinSet;

use super::stage::{LONG, Stage};
use crate::harness::app::AppOptions;
use crate::harness::client::{Ending, Failure, Raw, Request, fresh_id};
use crate::harness::ebbtide::Config;
use crate::harness::{SOON, fresh_seed, heavy};

const SEEDS: [&str; 6] = [
    "GET /headers HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
    "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "GET http://b/c?d HTTP/1.1\r\nHost: a\r\nConnection: x, close\r\nX: y\r\n\r\n",
    "GET /upgrade?refuse=1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: toy\r\n\r\n",
    "HEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
];

const PIECES: [&str; 16] = [
    "\r\n",
    "\n",
    "\r",
    "\0",
    " ",
    "\t",
    ":",
    "Content-Length: 3\r\n",
    "Transfer-Encoding: chunked\r\n",
    "HTTP/1.0",
    "PRI * HTTP/2.0\r\n\r\n",
    "0\r\n\r\n",
    "\u{ff}",
    "Host: b\r\n",
    "Connection: close\r\n",
    "-1",
];

fn mutate(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = SEEDS[random.usize(..SEEDS.len())].as_bytes().to_vec();
    for _ in 0..random.usize(1..=3) {
        let at = random.usize(..bytes.len());
        match random.u8(0..5) {
            0 => bytes[at] = random.u8(..),
            1 => bytes[at] ^= 1 << random.u8(0..8),
            2 => {
                bytes.remove(at);
            }
            3 => {
                let piece = PIECES[random.usize(..PIECES.len())];
                bytes.splice(at..at, piece.bytes());
            }
            _ => {
                let end = random.usize(at..bytes.len());
                let copy = bytes[at..=end].to_vec();
                bytes.splice(at..at, copy);
            }
        }
    }
    bytes
}

/// C100: mutated heads, each on a connection of its own that the client then half-closes.
#[tokio::test]
async fn mutated_heads_end_with_an_answer_or_a_close() {
    const BATCHES: usize = 30;
    const BATCH: usize = 100;
    let _heavy = heavy().await;
    let seed = fresh_seed();
    eprintln!("EBBTIDE_TEST_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let yaml = format!("drain: {{{LONG}}}\nlimits: {{header_timeout: 2s}}");
    let stage = Stage::start(AppOptions::default(), Config::new().yaml(&yaml)).await;
    let mut honest = stage.used().await;
    let (mut answered, mut closed) = (0, 0);
    for _ in 0..BATCHES {
        let mut connections = JoinSet::new();
        for _ in 0..BATCH {
            let bytes = mutate(&mut random);
            let half_closes = random.bool();
            let address = stage.address;
            connections.spawn(async move {
                let mut raw = Raw::connect(address).await.expect("accepted");
                let _ = raw.send(&bytes).await;
                if half_closes {
                    let _ = raw.half_close().await;
                }
                let reply = raw.reply("GET", SOON).await;
                let answered = match &reply {
                    Ok(_) => true,
                    Err(Failure::Eof | Failure::Reset | Failure::Truncated) => false,
                    // A body that never comes waits for as long as the client does, as does a silent connection.
                    Err(Failure::Timeout) if !half_closes => false,
                    // HEAD's answer, read as if it were GET's, may lack its body.
                    Err(Failure::Garbage) => true,
                    Err(why) => panic!("{why:?} after {:?}", String::from_utf8_lossy(&bytes)),
                };
                if half_closes {
                    let ending = raw.ending(SOON).await.1;
                    assert_ne!(ending, Ending::StillOpen, "after {:?}", String::from_utf8_lossy(&bytes));
                }
                answered
            });
        }
        // Those that wait for a body are not waited for.
        let mut waited = tokio::time::interval(Duration::from_millis(50));
        let mut left = 80;
        while !connections.is_empty() && left > 0 {
            tokio::select! {
                one = connections.join_next() => match one {
                    Some(Ok(true)) => answered += 1,
                    Some(Ok(false)) => closed += 1,
                    Some(Err(why)) => std::panic::resume_unwind(why.into_panic()),
                    None => break,
                },
                _ = waited.tick() => left -= 1,
            }
        }
        connections.abort_all();
        let reply = honest.exchange(&Request::echo(50), &fresh_id(), SOON).await.expect("the honest client is served");
        assert_eq!((reply.status, reply.intact), (200, true));
    }
    eprintln!("{answered} answered, {closed} closed of {}", BATCHES * BATCH);
    assert!(answered > BATCHES * BATCH / 3, "{answered} answered, {closed} closed");
    stage.assert_no_panic();
}
