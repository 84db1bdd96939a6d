//! Owns tests of how each client tells an end.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::{NAME, scripted, server};
use crate::harness::app::{AppOptions, Flow};
use crate::harness::client::{
    BurstPlan, Bursts, Connection, Ending, Failure, Idle, IdleHolder, Load, Plan, Raw, Request,
};
use crate::harness::h2::{H2Load, H2Plan, RawH2};
use crate::harness::stage::app;
use crate::harness::tls::{Socket, TlsEnd, TlsPlan};
use crate::harness::ws::{Sessions, WsPlan};
use crate::harness::{SOON, fresh_ip};

#[tokio::test]
async fn every_end_is_told_from_the_others() {
    let (ca, tls) = server();
    let target = |address| TlsPlan::new(ca.pem(), NAME).to(address);

    let address = scripted(tls.clone(), |mut socket| async move { socket.shutdown().await.unwrap() }).await;
    let mut raw = Raw::connect(target(address)).await.unwrap();
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    assert_eq!(raw.socket().tls_ended(SOON).await, TlsEnd::good());

    let address = scripted(tls.clone(), |mut socket| async move {
        socket.write_all(b"bye").await.unwrap();
        socket.fin().unwrap();
    })
    .await;
    let mut raw = Raw::connect(target(address)).await.unwrap();
    assert_eq!(raw.ending(SOON).await, (b"bye".to_vec(), Ending::Bare));
    assert_eq!(raw.socket().tls_ended(SOON).await, TlsEnd { close_notify: false, ..TlsEnd::good() });

    let reset = |socket: Socket| socket.options().set_linger(Some(Duration::ZERO)).unwrap();
    let address = scripted(tls.clone(), move |socket| async move { reset(socket) }).await;
    let mut raw = Raw::connect(target(address)).await.unwrap();
    assert_eq!(raw.ending(SOON).await.1, Ending::Reset);

    // A reset behind a close_notify is still one.
    let address = scripted(tls.clone(), move |mut socket| async move {
        socket.close_notify().await.unwrap();
        assert_eq!(socket.ended(SOON).await, Ending::Bare);
        let _ = socket.flush().await;
        reset(socket);
    })
    .await;
    let raw = Raw::connect(target(address)).await.unwrap();
    let read = |raw: &Raw| raw.socket().try_read(&mut [0; 9]).map_err(|error| error.kind());
    crate::harness::wait::eventually("close_notify", SOON, || match read(&raw) {
        Ok(0) => Ok(()),
        other => Err(other),
    })
    .await;
    assert_eq!(raw.socket().ending(), Ending::Fin, "the session has ended, the socket has not");
    assert_eq!(raw.socket().ended(Duration::from_millis(10)).await, Ending::StillOpen);
    raw.socket().fin().unwrap();
    let end = raw.socket().tls_ended(SOON).await;
    assert_eq!((end.close_notify, end.socket, end.word()), (true, Ending::Reset, Ending::Reset));

    let address = scripted(tls.clone(), |socket| async move {
        let _ = socket.ended(SOON).await;
    })
    .await;
    let mut raw = Raw::connect(target(address)).await.unwrap();
    assert_eq!(raw.ending(Duration::from_millis(10)).await.1, Ending::StillOpen);
    // Our own end goes its way meanwhile.
    raw.half_close().await.unwrap();

    // Something else than TLS.
    let listener = TcpListener::bind(SocketAddr::new(fresh_ip(), 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut tcp = listener.accept().await.unwrap().0;
        tcp.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let _ = tokio::io::copy(&mut tcp, &mut tokio::io::sink()).await;
    });
    assert_eq!(Raw::connect(target(address)).await.unwrap_err(), Failure::Tls);
}

#[tokio::test]
async fn a_missing_close_notify_is_noticed_by_every_client() {
    let (ca, tls) = server();
    let target = |address| TlsPlan::new(ca.pem(), NAME).to(address);
    for (tls, ending) in [(tls.clone(), Ending::Fin), (tls.sloppy(), Ending::Bare)] {
        let idle_close = Some(Duration::from_millis(300));
        let options = AppOptions { idle_close, ..AppOptions::default() };
        let (app, address, _dir) = app(options.tls(tls.clone())).await;
        let target = target(address);
        let holder = IdleHolder::open(&target, 3, Some(Request::get("/"))).await;
        assert!(holder.all_closed(SOON).await.iter().all(|one| one.ending == ending && one.bytes == 0));
        let mut connection = Connection::open(&target, SOON).await.unwrap();
        connection.exchange(&Request::get("/close"), "-", SOON).await.unwrap();
        assert_eq!(connection.ending(SOON).await, ending);
        let mut connection = Connection::open(&target, SOON).await.unwrap();
        connection.exchange(&Request::get("/"), "-", SOON).await.unwrap();
        crate::harness::wait::eventually("end of an idle connection", SOON, || match connection.idle() {
            Idle::Ended(ending) => Ok(ending),
            other => Err(other),
        })
        .await;
        assert_eq!(connection.idle(), Idle::Ended(ending));
        let mut raw = RawH2::open(&target).await.unwrap();
        let stream = raw.get("/goaway").await.unwrap();
        let _ = raw.answer(stream, SOON).await;
        assert_eq!(raw.ending(SOON).await, ending);
        let plan = WsPlan::new("/ws?after_ms=50&then=drop");
        let summary = Sessions::start(&target, &plan, 2).await.ended(SOON).await;
        assert_eq!(summary.endings().into_keys().collect::<Vec<_>>(), [ending], "{summary:?}");
        drop(app);

        let (_app, address, _dir) = self::app(AppOptions::default().tcp(Flow::Echo).tls(tls)).await;
        let bursts = Bursts::start(TlsPlan::new(ca.pem(), NAME).to(address), burst(), 5).await;
        bursts.all_have(2, SOON).await;
        bursts.stop();
        let summary = bursts.ended(SOON).await;
        assert_eq!((summary.endings().into_keys().collect::<Vec<_>>(), summary.lost()), (vec![ending], 0));
    }
}

fn burst() -> BurstPlan {
    BurstPlan { every: Duration::from_millis(40), pieces: 5, pause: Duration::from_millis(1), size: 50 }
}

#[tokio::test]
async fn load_over_tls_is_clean_only_with_every_close_notify() {
    let (ca, tls) = server();
    for (tls, clean) in [(tls.clone(), true), (tls.sloppy(), false)] {
        let (app, address, _dir) = app(AppOptions { close_every: 5, ..AppOptions::default() }.tls(tls)).await;
        let target = TlsPlan::new(ca.pem(), NAME).to(address);
        let load = Load::start(Plan::mixed(&target, 200.0));
        load.has_done(60, SOON).await;
        let summary = load.stop().await;
        summary.assert_at_most_once(&app.journal);
        let ending = if clean { Ending::Fin } else { Ending::Bare };
        assert_eq!(summary.endings().into_keys().collect::<Vec<_>>(), [ending]);
        assert_eq!(summary.ok(), summary.total());
        assert_eq!(std::panic::catch_unwind(|| summary.assert_clean()).is_ok(), clean);
    }
    let (ca, tls) = server();
    let goaway = Some((crate::harness::app::After::Requests(10), crate::harness::app::Farewell::Graceful));
    for (tls, clean) in [(tls.clone(), true), (tls.sloppy(), false)] {
        let (app, address, _dir) = app(AppOptions { goaway, ..AppOptions::default() }.tls(tls)).await;
        let load = H2Load::start(H2Plan::mixed(TlsPlan::new(ca.pem(), NAME).to(address), 100.0));
        load.has_done(100, SOON).await;
        let summary = load.stop().await;
        summary.assert_at_most_once(&app.journal);
        assert_eq!(summary.ok(), summary.total(), "{:?}", summary.losses());
        assert!(!summary.endings.is_empty());
        assert_eq!(std::panic::catch_unwind(|| summary.assert_clean()).is_ok(), clean, "{:?}", summary.endings);
    }
}
