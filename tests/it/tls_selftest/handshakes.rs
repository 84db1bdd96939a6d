//! Owns tests of handshakes: what they agree, whom they refuse, and the Secret behind them.

use std::net::SocketAddr;

use rustls::ProtocolVersion::{TLSv1_2, TLSv1_3};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{NAME, server};
use crate::harness::app::AppOptions;
use crate::harness::client::{Ending, Failure, Raw, Request, send};
use crate::harness::h2::{Call, H2Client, Loss, RawH2};
use crate::harness::http::Wire;
use crate::harness::stage::app;
use crate::harness::tls::{Authority, Leaf, Pair, SecretDir, TlsListener, TlsPlan, TlsServer, Versions, alpn};
use crate::harness::{SOON, fresh_ip};

const CERTIFICATE_REQUIRED: u8 = 116;
const UNEXPECTED_MESSAGE: u8 = 10;
const UNKNOWN_CA: u8 = 48;
const NO_APPLICATION_PROTOCOL: u8 = 120;

#[tokio::test]
async fn what_was_agreed_is_known() {
    let ca = Authority::new("toys");
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
async fn a_plaintext_port_may_say_so_with_an_alert() {
    let ca = Authority::new("toys");
    for (alert, failure) in [(Some(UNEXPECTED_MESSAGE), Failure::Alert(UNEXPECTED_MESSAGE)), (None, Failure::Eof)] {
        let listener = TcpListener::bind(SocketAddr::new(fresh_ip(), 0)).await.unwrap();
        let target = TlsPlan::new(ca.pem(), NAME).to(listener.local_addr().unwrap());
        let length = target.client_hello(alpn::HTTP1).len();
        tokio::spawn(async move {
            let mut wire = Wire::new(listener.accept().await.unwrap().0);
            while wire.unread().len() < length {
                wire.more().await.unwrap();
            }
            // A handshake of TLS, and a hello inside.
            assert_eq!((wire.unread()[0], wire.unread()[5]), (22, 1));
            if let Some(alert) = alert {
                wire.get_mut().write_all(&[21, 3, 3, 0, 2, 2, alert]).await.unwrap();
            }
            wire.get_mut().shutdown().await.unwrap();
        });
        assert_eq!(Raw::connect(target).await.unwrap_err(), failure);
    }
}

#[tokio::test]
async fn a_swapped_certificate_is_seen_by_new_connections_only() {
    let ca = Authority::new("toys");
    let (old, new) = (ca.pair(&[NAME]), ca.pair(&[NAME]));
    let mut listener = TlsListener::bind(TlsServer::new(&old)).await;
    let target = TlsPlan::new(ca.pem(), NAME).to(listener.address());
    let (before, mut app_side) = tokio::join!(Raw::connect(&target), listener.accept());
    let mut before = before.unwrap();
    listener.serve(TlsServer::new(&new));
    let (after, _app_side) = tokio::join!(Raw::connect(&target), listener.accept());
    assert_eq!(before.socket().peer_serial(), Some(old.serial));
    assert_eq!(after.unwrap().socket().peer_serial(), Some(new.serial));
    assert_ne!(old.serial, new.serial);

    // New keys, both ways, change nothing.
    let app_side = app_side.as_mut().unwrap();
    app_side.refresh_keys();
    app_side.write_all(b"still").await.unwrap();
    assert_eq!(before.read_exactly(5, SOON).await.unwrap(), b"still");
    before.socket().refresh_keys();
    before.send(b"here").await.unwrap();
    let mut got = [0; 4];
    app_side.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"here");
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
