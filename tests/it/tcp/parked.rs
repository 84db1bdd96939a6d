//! Owns connections while the app is away: they wait unread and are served when it is back; and that nobody dials an app
//! that is spoken to in bytes without a reason.

use super::{MILLIS, SECONDS, Stage, echo};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, Flow, Listen};
use crate::harness::client::{Ending, Raw};
use crate::harness::script::ByHand;
use crate::harness::stage::{LONG, alone, listener, listeners, serving, tcp};
use crate::harness::wait::{eventually, eventually_async};
use rustix::process::Signal;

#[tokio::test]
async fn connections_wait_for_an_app_that_comes_back() {
    let (app, options, dir) = alone(AppOptions::default().tcp(Flow::Greet)).await;
    let (px, address) = serving(tcp(LONG, &options.upstream())).await;
    app.process.signal(Signal::KILL);
    app.process.exit(SOON).await;
    let mut raws = Vec::new();
    for _ in 0..20 {
        let mut raw = Raw::connect(address).await.expect("it is taken");
        raw.send("from before").await.unwrap();
        raws.push(raw);
    }
    px.metric_becomes("ebbtide_parked_requests", &[], SOON, |parked| parked == 20.0).await;
    assert_eq!(px.code("/readyz").await, 503);
    let _app = options.start("app", dir.path()).await;
    for raw in &mut raws {
        assert_eq!(raw.read_until(b"from before", SOON).await.as_deref(), Ok(&b"toy ready\nfrom before"[..]));
    }
    let forwarded = px.metrics().await.sum("ebbtide_parked_requests_total", &[("outcome", "forwarded")]);
    assert_eq!(forwarded, 20.0);
}

#[tokio::test]
async fn connections_that_waited_in_vain_see_a_fin() {
    let (app, options, _dir) = alone(AppOptions::default().tcp(Flow::Echo)).await;
    let lines = listener("db", &options.upstream(), "") + "parking: {wait_timeout: 2s, max_requests: 3}\n";
    let (px, address) = serving(listeners(LONG, &lines)).await;
    app.process.signal(Signal::KILL);
    app.process.exit(SOON).await;
    let mut raws = Vec::new();
    for _ in 0..4 {
        let mut raw = Raw::connect(address).await.expect("it is taken");
        raw.send("hello").await.unwrap();
        raws.push(raw);
    }
    for raw in &mut raws {
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    }
    let metrics = px.metrics().await;
    let parked = |outcome: &str| metrics.sum("ebbtide_parked_requests_total", &[("outcome", outcome)]);
    assert_eq!((parked("timed_out"), parked("full")), (3.0, 1.0));
}

/// From t0 on there is nothing to wait for.
#[tokio::test]
async fn the_termination_ends_the_waiting() {
    let (app, options, _dir) = alone(AppOptions::default().tcp(Flow::Echo)).await;
    let (px, address) = serving(tcp(LONG, &options.upstream())).await;
    app.process.signal(Signal::KILL);
    app.process.exit(SOON).await;
    let mut raw = Raw::connect(address).await.expect("it is taken");
    raw.send("hello").await.unwrap();
    px.metric_becomes("ebbtide_parked_requests", &[], SOON, |parked| parked == 1.0).await;
    px.signal(Signal::TERM);
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    assert_eq!(px.report_at_exit(SOON).await["outcome"], "drained");
}

#[tokio::test]
async fn an_app_behind_a_unix_socket_is_spoken_to_in_bytes() {
    let dir = tempfile::TempDir::new().unwrap();
    let listen = Listen::Unix(dir.path().join("app.sock"));
    let options = AppOptions { listen, ..AppOptions::default().tcp(Flow::Greet) };
    let stage = Stage::with(options, |upstream| listeners(LONG, &listener("db", upstream, ", protocol: tcp"))).await;
    let mut raw = stage.raw().await;
    raw.read_until(b"toy ready\n", SOON).await.unwrap();
    echo(&mut raw, &crate::harness::http::pattern(100_000)).await;
    raw.half_close().await.unwrap();
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
}

/// Contract §2. An HTTP app beside it, which is dialled every second, tells that time has gone by.
#[tokio::test]
async fn an_app_of_bytes_is_dialled_only_where_a_client_found_it_away() {
    let (bytes, http) = (ByHand::connections().await, ByHand::requests().await);
    let upstream = format!("tcp://{}", bytes.address());
    let lines = listener("db", &upstream, "") + &listener("web", &http.upstream(), "");
    let (px, _) = serving(listeners(LONG, &lines)).await;
    let (dialled, before) = (bytes.accepted(), http.accepted());
    eventually("three dials of the HTTP app", SECONDS(20), || {
        let since = http.accepted() - before;
        if since >= 3 { Ok(()) } else { Err(since) }
    })
    .await;
    assert_eq!(bytes.accepted(), dialled, "dials without a client");
    drop(bytes);
    let address = px.address("db").await;
    let parked = eventually_async("a client that waits", SOON, || async {
        // A listener that is being closed may still take one, and drop it.
        let mut raw = Raw::connect(address).await.unwrap();
        raw.send("hello").await.map_err(|failure| format!("{failure:?}"))?;
        match raw.ending(MILLIS(100)).await.1 {
            Ending::StillOpen => Ok(raw),
            ending => Err(format!("{ending:?}")),
        }
    })
    .await;
    px.metric_becomes("ebbtide_upstream_up", &[("listener", "db")], SOON, |up| up == 0.0).await;
    px.metric_becomes("ebbtide_parked_requests", &[], SOON, |parked| parked == 1.0).await;
    drop(parked);
}
