//! Owns `https://` towards the app: what is agreed, whom ebbtide believes, and that no end looks like another one.

use std::fs;
use std::net::SocketAddr;

use tempfile::TempDir;

use super::deletion::{delete_under_http1, delete_under_http2};
use super::{BOTH, CLEAN, MILLIS, Site, short_pod};
use crate::harness::SOON;
use crate::harness::app::journal::Journal;
use crate::harness::app::{App, AppOptions, Listen};
use crate::harness::client::{Connection, Ending, Failure, Raw, Request, fresh_id, send};
use crate::harness::ebbtide::Ebbtide;
use crate::harness::ebbtide::surface::field;
use crate::harness::h2::{Call, H2Client, Loss, RawH2};
use crate::harness::http::Sum;
use crate::harness::stage::{DRAINS, LONG, alone, listener, listeners, serving, terminate, tls};
use crate::harness::tls::{Authority, Leaf, SecretDir, TlsServer, Versions, alpn};
use crate::harness::wait::eventually;
use crate::harness::ws::{Sessions, WsPlan};

/// What the app's certificate is for.
pub(super) const APP: &str = "app.example";

/// Who vouches for the app, as ebbtide is told.
pub(super) struct AppCa {
    pub(super) ca: Authority,
    dir: TempDir,
}

/// An app that speaks TLS, and an ebbtide in front of it that does so towards the app alone.
struct Stage {
    app: App,
    px: Ebbtide,
    address: SocketAddr,
    _dir: TempDir,
    _ca: AppCa,
}

// === impl AppCa ===

impl AppCa {
    pub(super) fn new() -> Self {
        let (ca, dir) = (Authority::new(&fresh_id()), TempDir::new().unwrap());
        fs::write(dir.path().join("ca.crt"), ca.pem()).unwrap();
        Self { ca, dir }
    }

    /// The app's side.
    pub(super) fn server(&self) -> TlsServer {
        TlsServer::new(&self.ca.pair(&[APP]))
    }

    /// The key `upstream_tls` of a listener, with more keys inside.
    pub(super) fn key(&self, more: &str) -> String {
        format!(", upstream_tls: {{ca: \"{}/ca.crt\"{more}}}", self.dir.path().display())
    }

    /// The same, believing what the app's certificate says of its name.
    pub(super) fn named(&self) -> String {
        self.key(&format!(", server_name: {APP}"))
    }
}

// === impl Stage ===

impl Stage {
    async fn start(ca: AppCa, options: AppOptions, drain: &str, key: &str) -> Self {
        let (app, options, dir) = alone(options).await;
        let (px, address) = serving(listeners(drain, &listener("web", &options.upstream(), key))).await;
        Self { app, px, address, _dir: dir, _ca: ca }
    }

    /// What was agreed on the connection that this request has come by.
    fn agreed(&self, id: &str) -> String {
        let line = |kind: &str, key: &str, value: &str| {
            let lines = self.app.journal.lines(kind);
            lines
                .into_iter()
                .find(|one| one.get(key) == value)
                .unwrap_or_else(|| panic!("no {kind} with {key}={value}"))
        };
        let request = line("req", "id", id);
        line("tls", "conn", request.get("conn")).get("alpn").to_owned()
    }

    /// Of an HTTP/1 client's request.
    async fn http1_agrees(&self) -> String {
        let (id, request) = (fresh_id(), Request::echo(20_000));
        let mut connection = Connection::open(self.address, SOON).await.unwrap();
        let reply = connection.exchange(&request, &id, SOON).await.unwrap();
        assert_eq!(reply.verdict(), Ok(200));
        self.agreed(&id)
    }

    async fn http2_agrees(&self, call: Call) -> String {
        let record = H2Client::new(self.address, 1).call(&call, SOON).await;
        assert!(record.result.is_ok(), "{record:?}");
        self.agreed(&record.id)
    }
}

/// Every connection on which both sides have agreed has come to its end, and ebbtide's end was as it should be.
pub(super) async fn assert_farewells(journal: &Journal, at_least: usize) {
    let ends = eventually("the ends of all connections", SOON, || {
        let (begun, ends) = (journal.count("tls"), journal.lines("tls_end"));
        if begun >= at_least && ends.len() == begun { Ok(ends) } else { Err((begun, ends.len())) }
    })
    .await;
    assert!(ends.iter().all(|one| one.get("notify") == "true"), "{ends:?}");
}

#[tokio::test]
async fn the_protocol_is_agreed_as_the_client_speaks() {
    for versions in BOTH {
        let ca = AppCa::new();
        let (server, key) = (ca.server().versions(versions), ca.named());
        let stage = Stage::start(ca, AppOptions::default().tls(server), DRAINS, &key).await;
        assert_eq!(stage.http1_agrees().await, alpn::HTTP1);
        assert_eq!(stage.http2_agrees(Call::plain(Request::echo(20_000))).await, alpn::H2);
        assert_eq!(stage.http2_agrees(Call::unary(100)).await, alpn::H2);
        assert_eq!(stage.http2_agrees(Call::server_stream(Some(5), MILLIS(5), 100)).await, alpn::H2);
        assert_eq!(stage.http1_agrees().await, alpn::HTTP1);
        let lines = stage.app.journal.lines("tls");
        let version = if versions == Versions::Only12 { "TLSv1_2" } else { "TLSv1_3" };
        assert!(lines.iter().all(|one| (one.get("name"), one.get("version")) == (APP, version)), "{lines:?}");
        // All of these are ended by ebbtide, and each with a close_notify.
        terminate(&stage.px).await;
        assert_eq!(stage.px.exit(SOON).await, CLEAN);
        assert_farewells(&stage.app.journal, 2).await;
    }
}

#[tokio::test]
async fn an_app_that_does_not_agree_to_http2_is_spoken_to_in_http1() {
    for names in [&[alpn::HTTP1][..], &[]] {
        let ca = AppCa::new();
        let (server, key) = (ca.server().alpn(names), ca.named());
        let stage = Stage::start(ca, AppOptions::default().tls(server), LONG, &key).await;
        let agreed = names.first().copied().unwrap_or_default();
        assert_eq!(stage.http2_agrees(Call::plain(Request::echo(20_000))).await, agreed);
        assert_eq!(stage.http1_agrees().await, agreed);
        assert_eq!(stage.app.journal.count("preface"), 0);
    }
}

/// The failures that are counted of dials, and what the log says of the first.
async fn refused(px: &Ebbtide, address: SocketAddr) -> String {
    let reply = send(address, &Request::get("/"), SOON).await.unwrap();
    assert_eq!(reply.status, 503, "{}", reply.head.text);
    let call = H2Client::new(address, 1).call(&Call::plain(Request::get("/")), SOON).await;
    assert_eq!(call.result, Err(Loss::Status(503)));
    let mut raw = RawH2::open(address).await.unwrap();
    let stream = raw.unary("/grpc/unary", b"hello").await.unwrap();
    let answer = raw.answer(stream, SOON).await.unwrap();
    assert_eq!((answer.grpc_status(), answer.is_trailers_only()), (Some(14), true), "{answer:?}");
    px.metric_becomes("ebbtide_upstream_connects_total", &[("result", "failed")], SOON, |count| count >= 3.0).await;
    let events = px.logged("dialling the app failed", 1).await;
    field(&events[0], "error").unwrap().as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_app_that_is_not_who_it_should_be_gets_no_request() {
    let (ca, other) = (AppCa::new(), AppCa::new());
    let expired = TlsServer::new(&ca.ca.issue(&Leaf::new(&[APP]).expired()));
    for (server, key, why) in [
        (ca.server(), other.named(), "UnknownIssuer"),
        (ca.server(), ca.key(", server_name: other.example"), "other.example"),
        // Its host is its address.
        (ca.server(), ca.key(""), "127."),
        (expired, ca.named(), "expired"),
    ] {
        let (app, options, _dir) = alone(AppOptions::default().tls(server)).await;
        let (px, address) = serving(listeners(LONG, &listener("web", &options.upstream(), &key))).await;
        let error = refused(&px, address).await;
        assert!(error.contains("handshake failed") && error.contains(why), "{why}: {error}");
        assert_eq!(app.journal.count("req"), 0, "{why}");
    }
}

#[tokio::test]
async fn the_apps_name_is_its_host_unless_another_is_given() {
    let ca = AppCa::new();
    let (app, options, _dir) = alone(AppOptions::default()).await;
    drop(app);
    let Listen::Tcp(address) = options.listen else { panic!("an address") };
    let server = TlsServer::new(&ca.ca.pair(&[&address.ip().to_string()]));
    let key = ca.key("");
    let stage = Stage::start(ca, AppOptions::at(address).tls(server), LONG, &key).await;
    assert_eq!(stage.http1_agrees().await, alpn::HTTP1);
}

#[tokio::test]
async fn ebbtide_shows_its_certificate_to_the_app() {
    let clients = Authority::new("clients");
    for versions in BOTH {
        let own = clients.issue(&Leaf::new(&["spiffe://shop/ns/a/sa/ebbtide"]).serial(77).client_only());
        let secret = SecretDir::new(&own);
        let ca = AppCa::new();
        let server = ca.server().versions(versions).client_ca(clients.pem());
        let certificate = format!(", server_name: {APP}, certificate: \"{}\"", secret.path().display());
        let (key, without) = (ca.key(&certificate), ca.named());
        let stage = Stage::start(ca, AppOptions::default().tls(server), LONG, &key).await;
        assert_eq!(stage.http1_agrees().await, alpn::HTTP1);
        assert_eq!(stage.http2_agrees(Call::unary(10)).await, alpn::H2);
        let lines = stage.app.journal.lines("tls");
        assert!(lines.iter().all(|one| one.get("client") == "77"), "{lines:?}");
        let (served, upstream) = (stage.app.journal.count("req"), stage.app.journal.lines("listening"));
        let upstream = format!("https://{}", upstream[0].get("at"));

        // One without is told so by the app; with TLS 1.3 only behind the handshake.
        let (px, address) = serving(listeners(LONG, &listener("web", &upstream, &without))).await;
        let reply = send(address, &Request::get("/"), SOON).await.unwrap();
        assert!(matches!(reply.status, 502 | 503), "{}", reply.head.text);
        eventually("the reason in the log", SOON, || {
            let log = px.log_text();
            if log.contains("CertificateRequired") || log.contains("HandshakeFailure") { Ok(()) } else { Err(log) }
        })
        .await;
        assert_eq!(stage.app.journal.count("req"), served);
    }
}

#[tokio::test]
async fn whoever_answers_is_believed_only_where_that_is_said_and_warned_of() {
    let stranger = TlsServer::new(&Authority::new("stranger").issue(&Leaf::new(&["nobody.example"]).expired()));
    let key = ", upstream_tls: {insecure_skip_verify: on}";
    let stage = Stage::start(AppCa::new(), AppOptions::default().tls(stranger), LONG, key).await;
    assert_eq!(stage.http1_agrees().await, alpn::HTTP1);
    assert_eq!(stage.http2_agrees(Call::unary(10)).await, alpn::H2);
    let log = stage.px.log_text();
    let warned = log.lines().any(|line| line.contains("WARN") && line.contains("insecure_skip_verify"));
    assert!(warned, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_app_speaks_tls_is_deleted_without_a_loss() {
    let http1 = async {
        let (site, ca) = (Site::new(), AppCa::new());
        let pod = site.pod(short_pod(AppOptions::default().tls(ca.server())), "https", &ca.named()).start().await;
        delete_under_http1(&pod, &site.target(BOTH[1], pod.address())).await;
        assert_good_ends(&pod.journal(0));
    };
    let http2 = async {
        let (site, ca) = (Site::new(), AppCa::new());
        let pod = site.pod(short_pod(AppOptions::default().tls(ca.server())), "https", &ca.named()).start().await;
        delete_under_http2(&pod, &site.target(BOTH[1], pod.address())).await;
        assert_good_ends(&pod.journal(0));
    };
    tokio::join!(http1, http2);
}

/// Of the connections that have ended before the app.
fn assert_good_ends(journal: &Journal) {
    let ends = journal.lines("tls_end");
    assert!(ends.iter().all(|one| one.get("notify") == "true"), "{ends:?}");
}

/// §7 inside TLS: an app that closes without saying so is never met on a connection that it has closed, whatever TLS has
/// said last on it.
#[tokio::test]
async fn connections_that_the_app_has_ended_cost_no_request() {
    let ca = AppCa::new();
    for server in [ca.server(), ca.server().sloppy(), ca.server().versions(Versions::Only12)] {
        let options = AppOptions { drop_every: 2, close_every: 7, ..AppOptions::default() };
        let (app, options, _dir) = alone(options.tls(server)).await;
        let (_px, address) = serving(listeners(LONG, &listener("web", &options.upstream(), &ca.named()))).await;
        let mut connection = Connection::open(address, SOON).await.unwrap();
        for number in 0..40 {
            let request = if number % 2 == 0 { Request::get("/") } else { Request::echo(30) };
            let reply = connection.exchange(&request, &fresh_id(), SOON).await.unwrap();
            assert_eq!((reply.status, reply.intact), (200, true), "request {number}");
            // The end is on its way; a POST that meets it could not be sent again.
            tokio::time::sleep(MILLIS(10)).await;
        }
        assert!(app.journal.seen().values().all(|times| *times == 1));
        assert!(app.journal.count("tls") < 40, "no connection was used again");
    }
}

/// RFC 9112 §9.8: an answer that ends with its connection is whole only behind a `close_notify`.
#[tokio::test]
async fn an_answer_without_a_length_that_ends_without_a_close_notify_is_broken() {
    let (site, ca) = (Site::new(), AppCa::new());
    for (server, whole) in [(ca.server(), true), (ca.server().sloppy(), false)] {
        let server = server.alpn(&[alpn::HTTP1]);
        let (_app, options, _dir) = alone(AppOptions::default().tls(server)).await;
        let lines = [
            listener("web", &options.upstream(), &ca.named()),
            listener("safe", &options.upstream(), &(tls(&site.secret, "") + &ca.named())),
        ];
        let (px, address) = serving(listeners(LONG, &lines.concat())).await;
        let safe = px.address("safe").await;
        let request = Request { expect: Some(Sum::of(b"old times\n")), ..Request::get("/http10") };
        let expected = if whole { Ok(Ok(200)) } else { Err(Failure::Truncated) };
        assert_eq!(send(address, &request, SOON).await.map(|reply| reply.verdict()), expected);
        let record = H2Client::new(address, 1).call(&Call::plain(request), SOON).await;
        assert_eq!(record.result.is_ok(), whole, "{record:?}");
        let plain = Raw::connect(address).await.unwrap();
        let secure = Raw::connect(site.target(BOTH[1], safe)).await.unwrap();
        for mut raw in [plain, secure] {
            raw.send("GET /http10 HTTP/1.0\r\n\r\n").await.unwrap();
            let (_, ending) = raw.ending(SOON).await;
            assert_eq!(ending == Ending::Fin, whole, "{ending:?}");
        }
        // What has a length needs no other end.
        assert_eq!(send(address, &Request::get("/close"), SOON).await.unwrap().verdict(), Ok(200));
        assert_eq!(send(address, &Request::bytes(300_000, true), SOON).await.unwrap().verdict(), Ok(200));
    }
}

#[tokio::test]
async fn websocket_sessions_pass_through_tls_on_both_sides() {
    let (site, ca) = (Site::new(), AppCa::new());
    let (app, options, _dir) = alone(AppOptions::default().tls(ca.server())).await;
    let (px, address) = serving(site.config(DRAINS, &options.upstream(), &ca.named())).await;
    let plan = WsPlan { size: 20_000, ..WsPlan::talking(MILLIS(10)) };
    let target = site.target(BOTH[1], address);
    let (ours, theirs) = (Sessions::start(&target, &plan, 5).await, Sessions::start(&target, &plan, 5).await);
    for sessions in [&ours, &theirs] {
        sessions.all_have(20, SOON).await;
    }
    theirs.close(1000);
    let summary = theirs.ended(SOON).await;
    summary.assert_closed(1000);
    summary.seen_by(&app.journal).await;
    summary.assert_none_lost(&app.journal);
    terminate(&px).await;
    let summary = ours.ended(SOON).await;
    summary.assert_closed(1001);
    summary.seen_by(&app.journal).await;
    summary.assert_none_lost(&app.journal);
    assert_eq!(px.exit(SOON).await, CLEAN);
    let lines = app.journal.lines("tls");
    assert!(lines.iter().all(|one| one.get("alpn") == alpn::HTTP1), "{lines:?}");
    let over = app.journal.lines("over");
    assert!(over.len() == 10 && over.iter().all(|one| one.get("how") == "fin"), "{over:?}");
    assert_farewells(&app.journal, 10).await;
}
