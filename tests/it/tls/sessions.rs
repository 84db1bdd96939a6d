//! Owns what outlives a certificate and what does not: sessions of clients, trust in clients, and both towards the app.

use super::front::{Front, NAME, seen_by_app, values};
use super::reload::{comes, has_reloaded, reloads, served};
use super::{BOTH, UNKNOWN_CA};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::{Connection, Failure, Raw, Request, send};
use crate::harness::stage::{LONG, alone, listener, listeners, serving, tls};
use crate::harness::tls::{Authority, Pair, SecretDir, Target, TlsServer};
use crate::harness::wait::eventually_async;

/// A connection with one answer, after which a client has what it needs to resume; whether this one was resumed.
async fn resumed(target: &Target) -> Result<bool, Failure> {
    let mut raw = Raw::connect(target).await?;
    raw.send(Request::get("/").encode("toy", "one")).await?;
    assert_eq!(raw.reply("GET", SOON).await?.status, 200);
    Ok(raw.socket().was_resumed())
}

#[tokio::test]
async fn a_session_outlives_its_certificate() {
    let front = Front::start("", "").await;
    let targets = BOTH.map(|versions| front.plan().versions(versions).to(front.address));
    for target in &targets {
        assert_eq!((resumed(target).await, resumed(target).await), (Ok(false), Ok(true)));
    }
    let next = front.ca.pair(&[NAME]);
    front.secret.swap(&next);
    comes(&front.plan().never_resumes().to(front.address), &next, front.pair.serial).await;
    for target in &targets {
        assert_eq!(resumed(target).await, Ok(true), "nobody has to prove again what is known");
        assert_eq!(served(target).await, Ok(front.pair.serial), "it was proved with the old one");
    }
    let result = [("result", "resumed")];
    front.px.metric_becomes("ebbtide_tls_handshakes_total", &result, SOON, |n| n == 6.0).await;
    let fresh = front.target();
    assert_eq!((resumed(&fresh).await, served(&fresh).await), (Ok(false), Ok(next.serial)));
}

#[tokio::test]
async fn a_client_proves_itself_each_time_to_those_who_are_trusted_now() {
    let (old, new) = (Authority::new("old clients"), Authority::new("new clients"));
    let folder = SecretDir::new(&old.pair(&["nobody"]));
    folder.swap_files(&[("ca.crt", old.pem())]);
    let ca = format!(", client_ca: \"{}\"", folder.file("ca.crt").display());
    let front = Front::start(&ca, "").await;
    let clients = [&old, &new].map(|ca| ca.pair(&["client.example"]));
    let targets = BOTH.map(|versions| {
        clients.each_ref().map(|one| front.plan().versions(versions).certificate(one).to(front.address))
    });
    for [known, unknown] in &targets {
        assert_eq!((resumed(known).await, resumed(known).await), (Ok(false), Ok(false)));
        assert_eq!(resumed(unknown).await, Err(Failure::Alert(UNKNOWN_CA)));
    }
    let mut open = Connection::open(&targets[0][0], SOON).await.unwrap();
    assert!(open.exchange(&Request::get("/"), "before", SOON).await.is_ok());

    folder.swap_files(&[("ca.crt", &format!("{}{}", old.pem(), new.pem()))]);
    has_reloaded(&front.px, "ok", 1).await;
    for [known, other] in &targets {
        assert_eq!((resumed(known).await, resumed(other).await), (Ok(false), Ok(false)));
    }
    // Nonsense changes nothing.
    folder.swap_files(&[("ca.crt", "nonsense")]);
    has_reloaded(&front.px, "refused", 1).await;
    assert_eq!(resumed(&targets[0][0]).await, Ok(false));
    folder.swap_files(&[("ca.crt", new.pem())]);
    has_reloaded(&front.px, "ok", 2).await;
    for [known, other] in &targets {
        assert_eq!(resumed(known).await, Err(Failure::Alert(UNKNOWN_CA)), "nothing of before is a way around");
        assert_eq!(resumed(other).await, Ok(false));
    }
    assert!(open.exchange(&Request::get("/"), "after", SOON).await.is_ok(), "who is in stays");
}

/// An app that closes after each answer, so that each request is a new handshake with it.
fn https(pair: &Pair, clients: &Authority) -> AppOptions {
    AppOptions { close_every: 1, ..AppOptions::default() }.tls(TlsServer::new(pair).client_ca(clients.pem()))
}

#[tokio::test]
async fn towards_the_app_trust_and_our_own_certificate_change_as_well() {
    let (first, second, clients) = (Authority::new("first"), Authority::new("second"), Authority::new("sidecars"));
    let (ours, renewed) = (clients.pair(&["sidecar"]), clients.pair(&["sidecar"]));
    let (own, trusted) = (SecretDir::new(&ours), SecretDir::new(&ours));
    trusted.swap_files(&[("ca.crt", first.pem())]);
    let (app, options, dir) = alone(https(&first.pair(&[NAME]), &clients)).await;
    let ca = trusted.file("ca.crt").display().to_string();
    let own_path = own.path().display().to_string();
    let more = format!(", upstream_tls: {{ca: \"{ca}\", server_name: {NAME}, certificate: \"{own_path}\"}}");
    let (px, address) = serving(listeners(LONG, &listener("web", &options.upstream(), &more))).await;
    let status = || async { send(address, &Request::get("/headers"), SOON).await.map(|reply| reply.status) };
    assert_eq!(status().await, Ok(200));
    let shown = || app.journal.lines("tls").last().map(|line| line.get("client").to_owned());
    assert_eq!(shown(), Some(ours.serial.to_string()));

    own.swap(&renewed);
    has_reloaded(&px, "ok", 1).await;
    assert_eq!(status().await, Ok(200));
    assert_eq!(shown(), Some(renewed.serial.to_string()));
    let labels = [("listener", "web"), ("path", own_path.as_str())];
    let until = px.metrics().await.value("ebbtide_tls_certificate_expiry_timestamp_seconds", &labels);
    assert_eq!(until, Some(renewed.expires as f64));
    own.swap_mismatched(&ours, &renewed);
    has_reloaded(&px, "refused", 1).await;
    assert_eq!((status().await, shown()), (Ok(200), Some(renewed.serial.to_string())));
    own.swap(&renewed);
    has_reloaded(&px, "ok", 2).await;

    // The app comes back with a certificate of somebody else.
    app.process.signal(rustix::process::Signal::KILL);
    app.process.exit(SOON).await;
    let listen = options.listen.clone();
    let other = AppOptions { listen, ..https(&second.pair(&[NAME]), &clients) };
    let app = other.start("other", dir.path()).await;
    let refused = status().await;
    assert!(matches!(refused, Ok(502 | 503)), "{refused:?}");
    assert_eq!(app.journal.count("req"), 0);
    trusted.swap_files(&[("ca.crt", second.pem())]);
    has_reloaded(&px, "ok", 3).await;
    // An upstream that was seen to fail may be left alone for a moment.
    eventually_async("an answer of the other app", SOON, || async {
        match status().await {
            Ok(200) => Ok(()),
            other => Err(other),
        }
    })
    .await;
    assert_eq!(reloads(&px, "refused").await, 1.0);
}

#[tokio::test]
async fn a_client_on_an_open_connection_is_told_as_before() {
    let clients = Authority::new("clients");
    let folder = SecretDir::new(&clients.pair(&["nobody"]));
    folder.swap_files(&[("ca.crt", clients.pem())]);
    let keys = format!(", client_ca: \"{}\"", folder.file("ca.crt").display());
    let front =
        Front::with(AppOptions::default(), |secret, upstream| listener("web", upstream, &tls(secret, &keys))).await;
    let target = front.plan().certificate(&clients.pair(&["client.example"])).to(front.address);
    let mut open = Connection::open(&target, SOON).await.unwrap();
    let next = front.ca.pair(&[NAME]);
    front.secret.swap(&next);
    has_reloaded(&front.px, "ok", 1).await;
    let told = open.exchange(&Request::get("/headers"), "one", SOON).await.unwrap().text();
    assert_eq!(values(&told, "x-forwarded-client-cert").len(), 1, "{told}");
    assert_eq!(seen_by_app(&target, &[]).await.unwrap().status, 200);
}
