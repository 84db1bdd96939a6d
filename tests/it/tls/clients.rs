//! Owns clients' certificates: whose are good, who may come, and what the app is told of them.

use super::front::{Front, seen_by_app, values};
use super::{BOTH, UNKNOWN_CA};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, Flow};
use crate::harness::client::{Ending, Failure, Raw, Request};
use crate::harness::h2::RawH2;
use crate::harness::stage::{listener, tls};
use crate::harness::tls::{Authority, Leaf, Pair, SecretDir, Target, Versions, alpn};

const UNSUPPORTED_CERTIFICATE: u8 = 43;
const CERTIFICATE_EXPIRED: u8 = 45;
const ACCESS_DENIED: u8 = 49;
const CERTIFICATE_REQUIRED: u8 = 116;

const SPIFFE: &str = "spiffe://x/ns/a/sa/b";
const FORGED: (&str, &str) = ("X-Forwarded-Client-Cert", "Subject=\"CN=root\"");
const CERT: &str = "x-forwarded-client-cert";

/// Clients' authority, and the folder where it stands.
fn clients() -> (Authority, SecretDir) {
    let ca = Authority::new("clients");
    let folder = SecretDir::new(&ca.pair(&["nobody"]));
    folder.swap_files(&[("ca.crt", ca.pem())]);
    (ca, folder)
}

/// The keys for it, with more.
fn asks(folder: &SecretDir, more: &str) -> String {
    format!(", client_ca: \"{}\"{more}", folder.file("ca.crt").display())
}

/// How a client with this certificate is refused, if it is.
async fn refusal(front: &Front, pair: Option<&Pair>, versions: Versions) -> Option<Failure> {
    let plan = front.plan().versions(versions).never_resumes();
    let target = pair.map_or_else(|| plan.clone(), |pair| plan.clone().certificate(pair)).to(front.address);
    seen_by_app(&target, &[]).await.err()
}

#[tokio::test]
async fn a_client_without_a_good_certificate_is_told_why() {
    let (ca, folder) = clients();
    let leaf = Leaf::new(&["client.example"]);
    let good = ca.issue(&leaf.clone().client_only());
    let below = ca.intermediate("below").issue(&leaf);
    let stranger = Authority::new("strangers").issue(&leaf);
    let (expired, server) = (ca.issue(&leaf.clone().expired()), ca.issue(&leaf.server_only()));
    for (auth, without) in [
        (", client_auth: required", Some(Failure::Alert(CERTIFICATE_REQUIRED))),
        ("", Some(Failure::Alert(CERTIFICATE_REQUIRED))),
        (", client_auth: optional", None),
    ] {
        let front = Front::start(&asks(&folder, auth), "").await;
        let (mut refused, mut served) = (0, 0);
        for versions in BOTH {
            for (pair, failure) in [
                (None, without),
                (Some(&good), None),
                (Some(&below), None),
                (Some(&stranger), Some(Failure::Alert(UNKNOWN_CA))),
                (Some(&expired), Some(Failure::Alert(CERTIFICATE_EXPIRED))),
                (Some(&server), Some(Failure::Alert(UNSUPPORTED_CERTIFICATE))),
            ] {
                let is = refusal(&front, pair, versions).await;
                assert_eq!(is, failure, "{auth:?} {versions:?} {:?}", pair.map(|pair| pair.serial));
                refused += usize::from(failure.is_some());
                served += usize::from(failure.is_none());
            }
        }
        front.has_rejected("tls_handshake", refused).await;
        assert_eq!(front.app.journal.count("req"), served, "nobody else reaches the app");
        let metrics = front.px.metrics().await;
        let handshakes = |result| metrics.sum("ebbtide_tls_handshakes_total", &[("result", result)]);
        assert_eq!((handshakes("failed"), handshakes("full")), (refused as f64, served as f64));
    }
}

#[tokio::test]
async fn of_good_certificates_only_those_with_a_name_on_the_list_may_come() {
    let (ca, folder) = clients();
    let names = format!(", client_names: [\"{SPIFFE}\", client.example, \"*.team.example\", \"spiffe://x/ns/shop/*\"]");
    let front = Front::start(&asks(&folder, &names), "").await;
    for versions in BOTH {
        for allowed in [
            &[SPIFFE][..],
            &["client.example"],
            &["one.team.example"],
            &["spiffe://x/ns/shop/sa/till"],
            &["else.example", "client.example"],
        ] {
            assert_eq!(refusal(&front, Some(&ca.pair(allowed)), versions).await, None, "{allowed:?}");
        }
        for refused in [
            &["else.example"][..],
            &["a.client.example"],
            &["team.example"],
            &["a.b.team.example"],
            &["spiffe://x/ns/a/sa/bb", "spiffe://y/ns/shop/sa/till"],
            &["127.0.0.1"],
            &[],
        ] {
            let failure = refusal(&front, Some(&ca.pair(refused)), versions).await;
            assert_eq!(failure, Some(Failure::Alert(ACCESS_DENIED)), "{refused:?} {versions:?}");
        }
    }
    front.has_rejected("tls_handshake", 14).await;
    let line = &front.px.logged("a connection was not served", 1).await[0];
    assert!(line.to_string().contains("tls_handshake"), "{line}");
}

/// What the app is told over HTTP/1 and over HTTP/2, of a client that has said something itself.
async fn told(target: &Target, said: &[(&str, &str)]) -> [String; 2] {
    let first = seen_by_app(target, said).await.unwrap().text();
    let mut raw = RawH2::open(target).await.unwrap();
    let lower: Vec<_> = said.iter().map(|(name, value)| (name.to_ascii_lowercase(), *value)).collect();
    let lower: Vec<_> = lower.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let stream = raw.begin("/headers", &lower).await.unwrap();
    raw.data(stream, b"", true).await.unwrap();
    let answer = raw.answer(stream, SOON).await.unwrap();
    assert_eq!(answer.status(), 200);
    [first, answer.text()]
}

#[tokio::test]
async fn the_app_learns_who_its_client_is_and_only_from_the_certificate() {
    let (ca, folder) = clients();
    let keys = asks(&folder, ", client_auth: optional");
    let front = Front::with(AppOptions::default(), |secret, upstream| {
        listener("web", upstream, &tls(secret, &keys))
            + &listener("others", upstream, &tls(secret, ""))
            + &listener("plain", upstream, "")
    })
    .await;
    let pair = ca.pair(&["client.example", SPIFFE, "192.0.2.1"]);
    let identity = format!("Subject=\"CN=client.example\";DNS=client.example;URI={SPIFFE}");
    for versions in BOTH {
        let plan = front.plan().versions(versions);
        let known = plan.clone().certificate(&pair).to(front.address);
        // A client shows its certificate each time.
        for _ in 0..2 {
            let mut raw = Raw::connect(&known).await.unwrap();
            assert!(!raw.socket().was_resumed());
            for number in ["one", "two"] {
                let request = Request::get("/headers").header(FORGED.0, FORGED.1).header(FORGED.0, "URI=x");
                raw.send(request.encode("toy", number)).await.unwrap();
                let told = raw.reply("GET", SOON).await.unwrap().text();
                assert_eq!(values(&told, CERT), [&identity[..]], "{told}");
                assert_eq!(values(&told, "x-forwarded-proto"), ["https"], "{told}");
            }
        }
        for told in told(&known, &[FORGED, FORGED]).await {
            assert_eq!(values(&told, CERT), [&identity[..]], "{told}");
            assert_eq!(values(&told, "x-forwarded-proto"), ["https"], "{told}");
            assert_eq!(values(&told, "x-forwarded-for"), ["127.0.0.1"], "{told}");
        }
        // Nor does a listener that asks nobody let somebody say it himself.
        for (target, scheme) in [
            (plan.clone().to(front.address), "https"),
            (plan.to(front.px.address("others").await), "https"),
            (front.px.address("plain").await.into(), "http"),
        ] {
            for said in [&[FORGED, FORGED, ("X_Forwarded_Client_Cert", "URI=x")][..], &[]] {
                for told in told(&target, said).await {
                    assert!(!told.to_ascii_lowercase().replace('_', "-").contains(CERT), "{told}");
                    assert_eq!(values(&told, "x-forwarded-proto"), [scheme], "{told}");
                }
            }
        }
    }
}

#[tokio::test]
async fn the_app_is_told_what_its_client_speaks() {
    let front = Front::with(AppOptions::default(), |secret, upstream| {
        listener("web", upstream, &tls(secret, "")) + &listener("plain", upstream, "")
    })
    .await;
    let plain = Target::from(front.px.address("plain").await);
    for (target, scheme) in [(front.target(), "https"), (plain, "http")] {
        for told in told(&target, &[]).await {
            assert_eq!(values(&told, "x-forwarded-proto"), [scheme], "{told}");
            assert_eq!(values(&told, CERT), Vec::<String>::new(), "{told}");
        }
        // Where nobody is asked for a certificate an earlier hop may tell.
        for told in told(&target, &[FORGED]).await {
            assert_eq!(values(&told, CERT), [FORGED.1], "{told}");
        }
    }
}

#[tokio::test]
async fn bytes_have_the_same_bouncer() {
    let (ca, folder) = clients();
    let options = AppOptions::default().tcp(Flow::Echo);
    let keys = asks(&folder, ", client_names: client.example");
    let front = Front::with(options, |secret, upstream| listener("db", upstream, &tls(secret, &keys))).await;
    for versions in BOTH {
        let plan = front.plan().versions(versions);
        let known = plan.clone().certificate(&ca.pair(&["client.example"])).to(front.address);
        let mut raw = Raw::speaking(known, alpn::NONE).await.unwrap();
        raw.send(b"there and back").await.unwrap();
        assert_eq!(raw.read_exactly(14, SOON).await.unwrap(), b"there and back");
        raw.half_close().await.unwrap();
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
        for (plan, alert) in
            [(plan.clone(), CERTIFICATE_REQUIRED), (plan.certificate(&ca.pair(&["else.example"])), ACCESS_DENIED)]
        {
            let end = match Raw::speaking(plan.to(front.address), alpn::NONE).await {
                Err(Failure::Alert(alert)) => Ending::Alert(alert),
                Err(other) => panic!("{other:?}"),
                // With TLS 1.3 the client learns of it behind its handshake.
                Ok(mut raw) => raw.ending(SOON).await.1,
            };
            assert_eq!(end, Ending::Alert(alert), "{versions:?}");
        }
    }
    front.has_rejected("tls_handshake", 4).await;
    assert_eq!(front.px.metrics().await.sum("ebbtide_in_flight", &[]), 0.0);
}
