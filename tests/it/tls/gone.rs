//! Owns clients that vanish in the middle of an upload into TLS: the app must not take for the whole what it has got.

use rustix::process::Signal;

use super::tunnels::listens;
use super::upstream::AppCa;
use super::{MILLIS, Site};
use crate::harness::SOON;
use crate::harness::app::journal::Journal;
use crate::harness::app::{AppOptions, Flow};
use crate::harness::client::Raw;
use crate::harness::stage::alone;
use crate::harness::tls::alpn;

/// As much as there is room for on the way, and at most so many bytes.
async fn upload(raw: &mut Raw, most: usize) -> usize {
    const PIECE: usize = 50_000;
    let mut sent = 0;
    while sent < most {
        // Nobody takes more.
        let Ok(done) = tokio::time::timeout(MILLIS(500), raw.send(&[b'x'; PIECE][..PIECE.min(most)])).await else {
            break;
        };
        done.unwrap();
        sent += PIECE;
    }
    sent
}

/// So many uploads have come to an end, and none to a good one.
async fn assert_cut(journal: &Journal, count: usize, what: &str) {
    let ends = journal.wait("tls_end", count, SOON).await;
    assert!(ends.iter().all(|one| one.get("notify") == "false"), "{what}: {ends:?}");
    let received = journal.lines("received");
    assert!(received.iter().all(|one| one.get("how") != "fin"), "{what}: {received:?}");
}

#[tokio::test]
async fn a_client_that_vanishes_while_the_app_is_slow_leaves_no_whole_upload() {
    const FULL: usize = 200_000_000;
    let (site, ca) = (Site::new(), AppCa::new());
    let reads = Flow::ReplyAfterEnd { after: MILLIS(0), bytes: 10 };
    let (app, options, _dir) = alone(AppOptions::default().tcp(reads).tls(ca.server())).await;
    let (px, targets) = listens(&site, &ca, &options.upstream()).await;
    // All of it is on its way to the app; and more than there is room for.
    for (round, most) in [100_000, FULL].into_iter().enumerate() {
        let before = round * targets.len();
        let mut raws = Vec::new();
        for target in &targets {
            let mut raw = Raw::speaking(target, alpn::NONE).await.unwrap();
            raw.send("begun").await.unwrap();
            raws.push(raw);
        }
        app.journal.wait("tls", before + targets.len(), SOON).await;
        app.process.stop().await;
        for mut raw in raws {
            let sent = upload(&mut raw, most).await;
            assert!(sent < FULL, "somewhere it stops");
            raw.reset();
        }
        if most < FULL {
            // What has been passed on keeps nobody, though the app stands still.
            px.metric_becomes("ebbtide_connections", &[], SOON, |open| open == 0.0).await;
        }
        app.process.signal(Signal::CONT);
        assert_cut(&app.journal, before + targets.len(), &format!("of at most {most} bytes")).await;
    }
}

/// What the app says meanwhile meets nobody, and that is noticed before the client's end is read.
#[tokio::test]
async fn a_client_that_vanishes_while_the_app_speaks_leaves_no_whole_upload() {
    let (site, ca) = (Site::new(), AppCa::new());
    let speaks = Flow::Bursts { bytes: 100, every: MILLIS(5) };
    let (app, options, _dir) = alone(AppOptions::default().tcp(speaks).tls(ca.server())).await;
    let (px, targets) = listens(&site, &ca, &options.upstream()).await;
    // Little and much waits to be passed on.
    for (round, most) in [1, 200_000_000].into_iter().enumerate() {
        let all = (round + 1) * targets.len();
        let mut raws = Vec::new();
        for target in &targets {
            let mut raw = Raw::speaking(target, alpn::NONE).await.unwrap();
            raw.send("begun").await.unwrap();
            raw.read_exactly(10, SOON).await.unwrap();
            raws.push(raw);
        }
        px.process.stop().await;
        for raw in &mut raws {
            upload(raw, most).await;
        }
        // So that the app has spoken again, which proves more than silence would.
        tokio::time::sleep(MILLIS(100)).await;
        raws.into_iter().for_each(Raw::reset);
        px.signal(Signal::CONT);
        assert_cut(&app.journal, all, &format!("of at most {most} bytes")).await;
    }
}
