//! Owns tests of the TLS toys, straight against each other: that they work, and notice every fault.

use std::net::SocketAddr;
use std::time::Duration;

use rustls::ProtocolVersion::{TLSv1_2, TLSv1_3};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::harness::app::{AppOptions, Flow};
use crate::harness::client::{
    BurstPlan, Bursts, Connection, Ending, Failure, Idle, IdleHolder, Load, Plan, Raw, Request, send,
};
use crate::harness::h2::{Call, H2Client, H2Load, H2Plan, Loss, RawH2};
use crate::harness::stage::app;
use crate::harness::tls::{Authority, Leaf, Pair, SecretDir, Socket, TlsEnd, TlsPlan, TlsServer, Versions, alpn};
use crate::harness::ws::{Over, Sessions, WsFault, WsPlan};
use crate::harness::{SOON, fresh_ip};

const NAME: &str = "toy.example";
const CERTIFICATE_REQUIRED: u8 = 116;
const UNKNOWN_CA: u8 = 48;
const NO_APPLICATION_PROTOCOL: u8 = 120;

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
    let listener = TcpListener::bind(SocketAddr::new(fresh_ip(), 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = tls.config();
    tokio::spawn(async move {
        let tcp = listener.accept().await.unwrap().0;
        script(tls.accept(&config, tcp).await.unwrap()).await;
    });
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
async fn what_was_agreed_is_known() {
    let (ca, tls) = server();
    let pair = ca.issue(&Leaf::new(&[NAME]).serial(4711));
    let (app, address, _dir) = app(AppOptions::default().tls(TlsServer::new(&pair))).await;
    for (versions, version) in [(Versions::Only12, TLSv1_2), (Versions::Only13, TLSv1_3)] {
        let target = TlsPlan::new(ca.pem(), NAME).versions(versions).to(address);
        for resumed in [false, true] {
            let mut raw = Raw::connect(&target).await.unwrap();
            let socket = raw.socket();
            assert_eq!((socket.version(), socket.was_resumed()), (Some(version), resumed));
            assert_eq!((socket.peer_serial(), socket.alpn().as_deref()), (Some(4711), Some(alpn::HTTP1)));
            // Tickets come with the first answer.
            raw.send("GET / HTTP/1.1\r\nHost: toy\r\n\r\n").await.unwrap();
            assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 200);
        }
        let whole = TlsPlan::new(ca.pem(), NAME).versions(versions).never_resumes().to(address);
        for _ in 0..2 {
            let mut raw = Raw::connect(&whole).await.unwrap();
            assert!(!raw.socket().was_resumed());
            raw.send("GET / HTTP/1.1\r\nHost: toy\r\n\r\n").await.unwrap();
            assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 200);
        }
    }
    let resumed = app.journal.lines("tls").iter().filter(|line| line.get("resumed") == "true").count();
    assert_eq!((resumed, app.journal.count("tls")), (2, 8));

    let offers = |names: &[&'static str]| TlsPlan::new(ca.pem(), NAME).alpn(names).to(address);
    for (names, agreed) in
        [(&[][..], None), (&["h2", "http/1.1"], Some("h2")), (&["nothing", "http/1.1"], Some("http/1.1"))]
    {
        assert_eq!(Raw::connect(&offers(names)).await.unwrap().socket().alpn().as_deref(), agreed);
    }
    assert_eq!(Raw::connect(&offers(&["nothing"])).await.unwrap_err(), Failure::Alert(NO_APPLICATION_PROTOCOL));
    drop(tls);
    // A client of HTTP/2 takes nothing else.
    let (_app, address, _dir) = self::app(AppOptions::default().tls(TlsServer::new(&pair).alpn(&[]))).await;
    let target = TlsPlan::new(ca.pem(), NAME).to(address);
    assert_eq!(RawH2::open(&target).await.unwrap_err(), Failure::Tls);
    assert_eq!(H2Client::new(&target, 1).call(&Call::unary(1), SOON).await.result, Err(Loss::Tls));
    assert_eq!(send(&target, &Request::get("/"), SOON).await.unwrap().status, 200);
}

/// What a client makes of this certificate.
async fn judged(pair: &Pair, plan: TlsPlan) -> Result<(), Failure> {
    let (_app, address, _dir) = app(AppOptions::default().tls(TlsServer::new(pair))).await;
    send(plan.to(address), &Request::get("/"), SOON).await.map(drop)
}

#[tokio::test]
async fn good_certificates_are_taken_and_bad_ones_noticed() {
    let ca = Authority::new("toys");
    let plan = TlsPlan::new(ca.pem(), NAME);
    let below = ca.intermediate("below");
    let leaf = Leaf::new(&[NAME]);
    for good in
        [ca.issue(&leaf), below.issue(&leaf), ca.issue(&leaf.clone().rsa()), ca.issue(&leaf.clone().server_only())]
    {
        assert_eq!(judged(&good, plan.clone()).await, Ok(()));
    }
    let address = ca.pair(&["other.example", "127.0.0.1", "spiffe://toy/a"]);
    assert_eq!(judged(&address, TlsPlan::new(ca.pem(), "127.0.0.1")).await, Ok(()));
    let stranger = Authority::new("toys").pair(&[NAME]);
    for bad in [
        ca.issue(&leaf.clone().expired()),
        ca.issue(&leaf.clone().not_yet()),
        ca.issue(&leaf.client_only()),
        address,
        stranger,
    ] {
        assert_eq!(judged(&bad, plan.clone()).await, Err(Failure::BadCertificate));
    }
}

#[tokio::test]
async fn clients_without_the_certificate_asked_for_are_refused() {
    let (ca, tls) = server();
    let clients = Authority::new("clients");
    let (app, address, _dir) = app(AppOptions::default().tls(tls.client_ca(clients.pem()))).await;
    let plan = TlsPlan::new(ca.pem(), NAME);
    let known = clients.issue(&Leaf::new(&["spiffe://toy/ns/a/sa/b"]).serial(99).client_only());
    let target = plan.clone().certificate(&known).to(address);
    assert_eq!(send(&target, &Request::get("/"), SOON).await.unwrap().status, 200);
    assert_eq!(app.journal.wait("tls", 1, SOON).await[0].get("client"), "99");

    // With TLS 1.3 the client believes in the connection until it reads.
    let mut raw = Raw::connect(plan.clone().to(address)).await.unwrap();
    let end = raw.socket().tls_ended(SOON).await;
    assert_eq!((end.alert, end.close_notify), (Some(CERTIFICATE_REQUIRED), false));
    assert_eq!(raw.ending(SOON).await.1, Ending::Alert(CERTIFICATE_REQUIRED));
    let stranger = plan.certificate(&Authority::new("strangers").pair(&["client.example"]));
    let refused = send(stranger.to(address), &Request::get("/"), SOON).await.unwrap_err();
    assert_eq!(refused, Failure::Alert(UNKNOWN_CA));
    assert_eq!(app.journal.wait("untrusted", 2, SOON).await.len(), 2);
}

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
        for over in [Over::Http1] {
            let plan = WsPlan { over, ..WsPlan::new("/ws?after_ms=50&then=drop") };
            let summary = Sessions::start(&target, &plan, 2).await.ended(SOON).await;
            assert_eq!(summary.endings().into_keys().collect::<Vec<_>>(), [ending], "{summary:?}");
            assert!(summary.faults().keys().all(|fault| matches!(fault, WsFault::Ended(_))));
        }
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

    let (app, address, _dir) = self::app(AppOptions::default().tcp(Flow::Echo).tls(tls)).await;
    let mut raw = Raw::speaking(TlsPlan::new(ca.pem(), NAME).to(address), alpn::NONE).await.unwrap();
    raw.send(b"there and back").await.unwrap();
    assert_eq!(raw.read_exactly(14, SOON).await.unwrap(), b"there and back");
    raw.half_close().await.unwrap();
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    assert_eq!(app.journal.wait("received", 1, SOON).await[0].get("how"), "fin");
    assert_eq!(app.journal.wait("tls_end", 1, SOON).await[0].get("how"), "Fin");
}

#[test]
fn a_secret_is_swapped_as_a_whole() {
    let ca = Authority::new("toys");
    let (old, new) = (ca.pair(&[NAME]), ca.pair(&[NAME]));
    let secret = SecretDir::new(&old);
    let read = |name| std::fs::read_to_string(secret.file(name)).unwrap();
    let data = || std::fs::read_link(secret.file("..data")).unwrap();
    assert_eq!((read("tls.crt"), read("tls.key")), (old.chain.clone(), old.key.clone()));
    assert_eq!(std::fs::read_link(secret.file("tls.crt")).unwrap().to_str(), Some("..data/tls.crt"));
    let first = data();
    secret.swap_with_ca(&new, ca.pem());
    assert_eq!(
        (read("tls.crt"), read("tls.key"), read("ca.crt").as_str()),
        (new.chain.clone(), new.key.clone(), ca.pem())
    );
    assert!(first != data() && !secret.path().join(first).exists());
    secret.swap_mismatched(&old, &new);
    assert_eq!((read("tls.crt"), read("tls.key")), (old.chain.clone(), new.key));
    assert!(!secret.file("ca.crt").is_symlink());
    secret.overwrite("tls.crt", &old.chain, 100);
    assert_eq!(read("tls.crt"), old.chain[..100]);
    assert_eq!(std::fs::read_dir(secret.path()).unwrap().count(), 4);
    let today = std::process::Command::new("date").args(["-u", "+..%Y_%m_%d"]).output().unwrap();
    let today = String::from_utf8(today.stdout).unwrap();
    assert!(data().to_str().unwrap().starts_with(today.trim()), "{:?} {today}", data());
}
