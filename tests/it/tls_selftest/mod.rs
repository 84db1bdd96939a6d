//! Owns tests of the TLS toys, straight against each other: that they work, and notice every fault.

mod ends;

mod handshakes;

use std::net::SocketAddr;
use std::time::Duration;

use crate::harness::SOON;
use crate::harness::app::{AppOptions, Flow};
use crate::harness::client::{Ending, Raw, Request, send};
use crate::harness::events::EventSource;
use crate::harness::h2::{Call, Frame, H2Client, RawH2, Seen};
use crate::harness::stage::app;
use crate::harness::tls::{Authority, Socket, TlsListener, TlsPlan, TlsServer, alpn};
use crate::harness::ws::{Sessions, WsPlan};

const NAME: &str = "toy.example";

fn server() -> (Authority, TlsServer) {
    let ca = Authority::new("toys");
    let server = TlsServer::new(&ca.pair(&[NAME]));
    (ca, server)
}

/// A server that takes one connection and does with it as it likes.
async fn scripted<F: Future<Output = ()> + Send>(
    tls: TlsServer,
    script: impl FnOnce(Socket) -> F + Send + 'static,
) -> SocketAddr {
    let listener = TlsListener::bind(tls).await;
    let address = listener.address();
    tokio::spawn(async move { script(listener.accept().await.unwrap()).await });
    address
}

#[tokio::test]
async fn the_app_serves_both_protocols_over_tls() {
    let (ca, tls) = server();
    let (app, address, _dir) = app(AppOptions::default().tls(tls)).await;
    let plan = TlsPlan::new(ca.pem(), NAME);
    let target = plan.clone().to(address);
    assert_eq!(send(&target, &Request::echo(300_000), SOON).await.unwrap().status, 200);
    let mut raw = RawH2::open(&target).await.unwrap();
    assert_eq!(raw.socket().alpn().as_deref(), Some(alpn::H2));
    let stream = raw.get("/bytes?n=300000").await.unwrap();
    assert_eq!(raw.answer(stream, SOON).await.unwrap().body.len(), 300_000);
    let lines = app.journal.wait("tls", 2, SOON).await;
    let agreed = lines.iter().map(|line| (line.get("alpn"), line.get("name"), line.get("client"))).collect::<Vec<_>>();
    assert_eq!(agreed, [(alpn::HTTP1, NAME, ""), (alpn::H2, NAME, "")]);

    let record = H2Client::new(&target, 1).call(&Call::unary(20_000), SOON).await;
    assert_eq!(record.result, Ok(0));
    drop(raw);
    let ends = app.journal.wait("tls_end", 3, SOON).await;
    let mut ends: Vec<_> = ends.iter().map(|line| (line.get("conn"), line.get("how"))).collect();
    ends.sort_unstable();
    // Only the client from a library says a farewell.
    assert_eq!(ends, [("1", "Bare"), ("2", "Bare"), ("3", "Fin")]);
}

#[tokio::test]
async fn an_app_may_be_played_frame_by_frame_over_tls() {
    let (ca, tls) = server();
    let address = scripted(tls, |socket| async move {
        let mut raw = RawH2::accepted(socket).await.unwrap();
        raw.frame(Frame::settings(&[])).await.unwrap();
        let scheme = |seen: &Seen| seen.answers.get(&1)?.header(":scheme").map(str::to_owned);
        assert_eq!(raw.wait("a request", SOON, scheme).await.unwrap(), "https");
        raw.frame(Frame::headers(1, &[(":status", "204")]).end_stream()).await.unwrap();
        assert_eq!(raw.ending(SOON).await, Ending::Fin);
    })
    .await;
    let client = H2Client::new(TlsPlan::new(ca.pem(), NAME).to(address), 1);
    let record = client.call(&Call::plain(Request::get("/")), SOON).await;
    assert_eq!(record.result, Ok(204));
}

#[tokio::test]
async fn websockets_and_echoes_work_over_tls() {
    let (ca, tls) = server();
    let (app, address, _dir) = app(AppOptions::default().tls(tls.clone())).await;
    let plan = WsPlan { size: 40_000, count: 20, ..WsPlan::talking(Duration::from_millis(2)) };
    let sessions = Sessions::start(TlsPlan::new(ca.pem(), NAME).to(address), &plan, 3).await;
    sessions.all_have(20, SOON).await;
    sessions.close(1000);
    let summary = sessions.ended(SOON).await;
    summary.assert_closed(1000);
    assert_eq!(summary.unechoed(), 0);
    summary.seen_by(&app.journal).await;
    let events = EventSource::start(TlsPlan::new(ca.pem(), NAME).to(address), "/events?every_ms=2", SOON);
    events.has_events(5, SOON).await.assert_gapless();
    events.stop().await;

    let (app, address, _dir) = self::app(AppOptions::default().tcp(Flow::Echo).tls(tls)).await;
    let mut raw = Raw::speaking(TlsPlan::new(ca.pem(), NAME).to(address), alpn::NONE).await.unwrap();
    raw.send(b"there and back").await.unwrap();
    assert_eq!(raw.read_exactly(14, SOON).await.unwrap(), b"there and back");
    raw.half_close().await.unwrap();
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    assert_eq!(app.journal.wait("received", 1, SOON).await[0].get("how"), "fin");
    assert_eq!(app.journal.wait("tls_end", 1, SOON).await[0].get("how"), "Fin");
}
