//! Owns much at once: bulk data both ways beside readers that do not read, and what it leaves behind in the process.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{MILLIS, SECONDS, descriptors, echo};
use crate::harness::app::{AppOptions, Flow};
use crate::harness::client::Raw;
use crate::harness::http::pattern;
use crate::harness::stage::{LONG, alone, listener, listeners, resident, serving};
use crate::harness::wait::{eventually, within};
use crate::harness::{SOON, heavy};

const MEGABYTE: u64 = 1_000_000;
const STUCK: usize = 200;

/// So many megabytes to the echo and back at the same time; panics unless they are the same.
async fn there_and_back(address: std::net::SocketAddr, megabytes: u64) {
    let (mut read, mut write) = TcpStream::connect(address).await.unwrap().into_split();
    let piece = pattern(MEGABYTE as usize);
    let sent = piece.clone();
    let writing = async move {
        for _ in 0..megabytes {
            write.write_all(&sent).await.unwrap();
        }
        write.shutdown().await.unwrap();
    };
    let reading = async move {
        let mut back = vec![0; piece.len()];
        for megabyte in 0..megabytes {
            read.read_exact(&mut back).await.unwrap();
            assert!(back == piece, "megabyte {megabyte} came back as another one");
        }
        assert_eq!(read.read(&mut back).await.unwrap(), 0, "and nothing more");
    };
    tokio::join!(writing, reading);
}

#[tokio::test]
async fn bulk_passes_whole_beside_readers_that_do_not_read() {
    let _heavy = heavy().await;
    let (app, echoes, _dir) = alone(AppOptions::default().tcp(Flow::Echo)).await;
    let floods = Flow::Bursts { bytes: 300_000, every: MILLIS(1) };
    let (_floods, floods, _dir2) = alone(AppOptions::default().tcp(floods)).await;
    let lines = listener("db", &echoes.upstream(), "") + &listener("flood", &floods.upstream(), "");
    // One worker has all of them, and as many pipes as one worker may have.
    let (px, address) = serving(listeners(LONG, &lines).env("EBBTIDE_WORKERS", "1")).await;
    there_and_back(address, 1).await;
    px.metric_becomes("ebbtide_connections", &[], SOON, |n| n == 0.0).await;
    let (before, memory) = (descriptors(&px), resident(&px));

    let flood = px.address("flood").await;
    let mut stuck = Vec::new();
    for _ in 0..STUCK {
        stuck.push(Raw::connect(flood).await.unwrap());
    }
    px.metric_becomes("ebbtide_in_flight", &[("kind", "tunnel")], SOON, |n| n == STUCK as f64).await;
    within("bulk both ways", SECONDS(60), there_and_back(address, 100)).await;
    // A buffer of 64 KiB for each would be 13 MB; the app would have sent that in a moment.
    let grown = resident(&px).saturating_sub(memory);
    assert!(grown < 40 * 1024, "{STUCK} clients that do not read cost {grown} KiB");
    let pipes = descriptors(&px).1;
    assert!(pipes <= before.1 + 2 * 64, "{pipes} ends of pipes after {}", before.1);

    // One of them reads on, and has lost nothing.
    let bytes = stuck[0].read_exactly(3 * MEGABYTE as usize, SECONDS(30)).await.expect("it goes on");
    assert!(bytes == pattern(bytes.len()));
    stuck.into_iter().for_each(Raw::reset);
    let mut raw = Raw::connect(address).await.unwrap();
    echo(&mut raw, b"alive").await;
    drop(raw);
    // Pipes that held something are closed, those that were empty are kept for others.
    eventually("descriptors as before", SOON, || {
        let now = descriptors(&px);
        if now.0 <= before.0 && now.1 < pipes.max(before.1 + 32) { Ok(()) } else { Err((before, pipes, now)) }
    })
    .await;
    assert!(app.process.is_running());
}
