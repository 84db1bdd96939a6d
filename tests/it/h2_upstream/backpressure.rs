//! Owns slow readers on either side: the sender blocks, and ebbtide's memory stays bounded (C105).

use std::time::Duration;

use super::script::Script;
use crate::grpc::stage::{LONG, Stage, plain};
use crate::harness::app::AppOptions;
use crate::harness::ebbtide::Ebbtide;
use crate::harness::h2::{Frame, RawH2, Seen, request, setting};
use crate::harness::wait::eventually;
use crate::harness::{SOON, heavy};

const MIB: u64 = 1024 * 1024;

/// Resident memory in bytes.
fn resident(px: &Ebbtide) -> u64 {
    crate::harness::stage::resident(px) * 1024
}

/// A client that takes what the first window allows and nothing more.
async fn stalls(address: std::net::SocketAddr) -> RawH2 {
    let mut raw = RawH2::connect(address).await.unwrap();
    raw.opens_windows = false;
    raw.greet(&[]).await.unwrap();
    raw.wait("SETTINGS", SOON, Seen::settings).await.unwrap();
    raw
}

/// C105: 50 clients that read nothing of large answers, in front of either kind of app; others are served.
#[tokio::test]
async fn stalled_readers_cost_little_memory_and_block_the_app() {
    let _heavy = heavy().await;
    for (options, kind) in [(AppOptions::default().h2c(), "h2c"), (AppOptions::default(), "http/1.1")] {
        let stage = Stage::start(options, plain(LONG)).await;
        let mut beside = stage.open().await;
        let warm = beside.get("/bytes?n=1000000").await.unwrap();
        assert_eq!(beside.answer(warm, SOON).await.unwrap().body.len(), 1_000_000);
        let done = stage.app.journal.wait("done", 1, SOON).await.len();
        let before = resident(&stage.px);
        let mut clients = Vec::new();
        for _ in 0..50 {
            let mut raw = stalls(stage.address).await;
            let stream = raw.get("/bytes?n=8000000").await.unwrap();
            clients.push((raw, stream));
        }
        for (raw, stream) in &mut clients {
            let full = |seen: &Seen| (seen.answer(*stream).body.len() == 65_535).then_some(());
            raw.wait("a full window", SOON, full).await.unwrap();
        }
        let grown = resident(&stage.px).saturating_sub(before);
        assert!(grown < 64 * MIB, "{kind}: {} MiB more", grown / MIB);
        assert_eq!(stage.app.journal.count("done"), done, "{kind}: an app that was not blocked");
        for _ in 0..5 {
            let served = beside.get("/bytes?n=200000").await.unwrap();
            assert_eq!(beside.answer(served, SOON).await.unwrap().body.len(), 200_000, "{kind}");
        }
        // Who reads again gets all of it.
        let (raw, stream) = &mut clients[7];
        raw.opens_windows = true;
        raw.frame(Frame::window_update(*stream, 1_000_000)).await.unwrap();
        assert_eq!(raw.answer(*stream, Duration::from_secs(30)).await.unwrap().body.len(), 8_000_000, "{kind}");
        assert!(resident(&stage.px).saturating_sub(before) < 64 * MIB);
    }
}

/// The other way round: an app that does not read blocks its client, and nobody beside it.
#[tokio::test]
async fn an_app_that_does_not_read_blocks_its_client_alone() {
    let script = Script::start().await;
    let (px, address) = script.front(LONG).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let before = resident(&px);
    let mut stalled = Vec::new();
    for _ in 0..20 {
        stalled.push(raw.begin("/stalled", &[]).await.unwrap());
    }
    let mut app = raw.during(script.accept_with(&[])).await;
    app.opens_windows = false;
    // As much as a client may send: its own windows stay shut when ebbtide can't pass on.
    let mut sent = 0;
    loop {
        let mut any = false;
        for stream in &stalled {
            let room = raw.seen.may_send(*stream).min(16_384);
            if room > 0 {
                raw.data(*stream, &vec![b'x'; room], false).await.unwrap();
                (sent, any) = (sent + room, true);
            }
        }
        raw.during(app.round_trip()).await.unwrap();
        raw.round_trip().await.unwrap();
        if !any {
            break;
        }
    }
    let some = |seen: &Seen| {
        let got: usize = seen.answers.values().map(|one| one.body.len()).sum();
        (got >= 65_535).then_some(())
    };
    raw.during(app.wait("what the app's window allows", SOON, some)).await.unwrap();
    let got: usize = (0..20).map(|number| app.seen.answer(1 + 2 * number).body.len()).sum();
    assert!((65_535..=20 * 65_535).contains(&got), "{got} bytes reached an app that took nothing");
    assert!(sent < 20 * 400_000, "{sent} bytes were taken from the client");
    let grown = resident(&px).saturating_sub(before);
    assert!(grown < 32 * MIB, "{} MiB more", grown / MIB);
    let other = raw.get("/other").await.unwrap();
    app.requests(&[41]).await;
    app.frames(&Script::answer(41, b"served")).await.unwrap();
    assert_eq!(raw.answer(other, SOON).await.unwrap().text(), "served");
}

/// An upload to a slow app is as slow as the app, over either protocol, and comes whole.
#[tokio::test]
async fn an_upload_is_as_slow_as_its_app_and_comes_whole() {
    let stage = Stage::simple().await;
    let mut raw = stage.open().await;
    let stream = raw.begin("/upload?piece=200000&every_ms=50", &[]).await.unwrap();
    raw.upload(stream, &vec![b'x'; 3_000_000], SOON).await.unwrap();
    assert_eq!(raw.answer(stream, SOON).await.unwrap().text(), "received=3000000\n");
}

/// One client connection with a stream that is never read: the others on it, and on the app's connection, go on.
#[tokio::test]
async fn a_stream_that_is_not_read_starves_no_other() {
    let stage = Stage::start(AppOptions::default().h2c(), plain(LONG).env("EBBTIDE_WORKERS", "1")).await;
    let mut raw = RawH2::connect(stage.address).await.unwrap();
    raw.opens_windows = false;
    raw.greet(&[(setting::INITIAL_WINDOW_SIZE, 0)]).await.unwrap();
    raw.wait("SETTINGS", SOON, Seen::settings).await.unwrap();
    let mut stalled = Vec::new();
    for _ in 0..60 {
        stalled.push(raw.get("/bytes?n=1000000").await.unwrap());
    }
    let heads = |seen: &Seen| stalled.iter().all(|stream| seen.answer(*stream).status() == 200).then_some(());
    raw.wait("all heads", SOON, heads).await.unwrap();
    for _ in 0..5 {
        let stream = raw.fresh_stream();
        let head = request(stream, "GET", "/bytes?n=300000", &[]).end_stream();
        raw.frames(&[head, Frame::window_update(stream, 400_000)]).await.unwrap();
        assert_eq!(raw.answer(stream, SOON).await.unwrap().body.len(), 300_000);
    }
    assert_eq!(stage.app.journal.count("done"), 5);
    let opened: Vec<_> = stalled.iter().map(|stream| Frame::window_update(*stream, 2_000_000)).collect();
    raw.frames(&opened).await.unwrap();
    for stream in stalled {
        assert_eq!(raw.answer(stream, SOON).await.unwrap().body.len(), 1_000_000);
    }
    eventually("all done", SOON, || match stage.app.journal.count("done") {
        65 => Ok(()),
        other => Err(other),
    })
    .await;
}
