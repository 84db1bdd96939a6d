//! Owns what a handshake agrees on: the certificate for a name and a client's algorithms, the version, and the client that a
//! balancer names before it.

use rustls::ProtocolVersion::{TLSv1_2, TLSv1_3};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::BOTH;
use super::front::{Front, NAME, seen_by_app, values};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::{Ending, Failure, Raw, Request, send};
use crate::harness::h2::RawH2;
use crate::harness::stage::{LONG, alone, listener, listeners, serving, tls};
use crate::harness::tls::{Authority, Leaf, Pair, SecretDir, Target, TlsPlan, Versions, alpn};

const PROTOCOL_VERSION: u8 = 70;

/// The key `tls` with several certificates, more keys inside.
fn several(secrets: &[&SecretDir], more: &str) -> String {
    let folders: Vec<_> = secrets.iter().map(|secret| format!("\"{}\"", secret.path().display())).collect();
    format!(", tls: {{certificates: [{}]{more}}}", folders.join(", "))
}

/// TLS 1.2 shows the certificate before anything is encrypted: which of these it is.
async fn shown<'a>(target: &Target, hello: &[u8], pairs: &[&'a Pair]) -> &'a Pair {
    let mut raw = Raw::connect(target.address).await.unwrap();
    raw.send(hello).await.unwrap();
    let leaf = |pair: &Pair| CertificateDer::from_pem_slice(pair.chain.as_bytes()).unwrap();
    // ServerHelloDone: nothing more comes without an answer.
    let flight = raw.read_until(&[14, 0, 0, 0], SOON).await.unwrap();
    let is_in = |pair: &&&Pair| {
        let leaf = leaf(pair);
        flight.windows(leaf.len()).any(|part| part == leaf.as_ref())
    };
    pairs.iter().find(is_in).expect("one of the certificates")
}

async fn serial(target: Target) -> Option<u64> {
    Raw::connect(target).await.unwrap().socket().peer_serial()
}

#[tokio::test]
async fn the_certificate_follows_the_name_that_is_asked_for() {
    let ca = Authority::new("names");
    let first = ca.pair(&["first.example", "127.0.0.1"]);
    let (exact, wild) = (ca.pair(&["api.shop.example", "other.example"]), ca.pair(&["*.shop.example"]));
    let secrets = [&first, &wild, &exact].map(SecretDir::new);
    let (_app, options, _dir) = alone(AppOptions::default()).await;
    let lines = listener("web", &options.upstream(), &several(&secrets.each_ref(), ""));
    let (_px, address) = serving(listeners(LONG, &lines)).await;
    for (name, pair) in [
        ("first.example", &first),
        ("api.shop.example", &exact),
        ("other.example", &exact),
        ("OTHER.example", &exact),
        ("www.shop.example", &wild),
        // No name is asked for where there is but an address.
        ("127.0.0.1", &first),
    ] {
        for versions in BOTH {
            let target = TlsPlan::new(ca.pem(), name).versions(versions).to(address);
            assert_eq!(serial(target.clone()).await, Some(pair.serial), "{name} {versions:?}");
            assert_eq!(seen_by_app(&target, &[]).await.unwrap().status, 200, "{name} {versions:?}");
        }
    }
    for unknown in ["unknown.example", "shop.example", "a.b.shop.example"] {
        let target = TlsPlan::new(ca.pem(), unknown).versions(Versions::Only12).to(address);
        let hello = target.client_hello(alpn::HTTP1);
        assert_eq!(shown(&target, &hello, &[&first, &exact, &wild]).await, &first, "{unknown}");
        assert_eq!(Raw::connect(target).await.unwrap_err(), Failure::BadCertificate, "{unknown}");
    }
}

/// The hello of a client that knows no other signatures than these; the others become repetitions.
fn with_signatures(hello: &[u8], wanted: impl Fn(u16) -> bool) -> Vec<u8> {
    let mut hello = hello.to_vec();
    let number = |hello: &[u8], at: usize| u16::from_be_bytes([hello[at], hello[at + 1]]);
    // Record, handshake, version, random; then session, suites, compressions, extensions.
    let mut at = 5 + 4 + 2 + 32;
    at += 1 + usize::from(hello[at]);
    at += 2 + usize::from(number(&hello, at));
    at += 1 + usize::from(hello[at]) + 2;
    while number(&hello, at) != 13 {
        at += 4 + usize::from(number(&hello, at + 2));
    }
    let list = at + 6..at + 6 + usize::from(number(&hello, at + 4));
    let schemes: Vec<u16> = hello[list.clone()].chunks(2).map(|two| number(two, 0)).collect();
    let known = schemes.iter().copied().find(|scheme| wanted(*scheme)).expect("a scheme that is wanted");
    let kept = schemes.into_iter().map(|scheme| if wanted(scheme) { scheme } else { known });
    let bytes: Vec<u8> = kept.flat_map(u16::to_be_bytes).collect();
    hello[list].copy_from_slice(&bytes);
    hello
}

/// RFC 8446 §4.2.3.
const fn is_rsa(scheme: u16) -> bool {
    matches!(scheme, 0x0401 | 0x0501 | 0x0601 | 0x0804..=0x0806)
}

#[tokio::test]
async fn of_two_certificates_for_a_name_a_client_gets_the_one_that_it_understands() {
    let ca = Authority::new("names");
    let (rsa, ecdsa) = (ca.issue(&Leaf::new(&[NAME]).rsa()), ca.pair(&[NAME]));
    let (of_rsa, of_ecdsa) = (SecretDir::new(&rsa), SecretDir::new(&ecdsa));
    let (_app, options, _dir) = alone(AppOptions::default()).await;
    for (secrets, first) in [([&of_rsa, &of_ecdsa], &rsa), ([&of_ecdsa, &of_rsa], &ecdsa)] {
        let lines = listener("web", &options.upstream(), &several(&secrets, ""));
        let (_px, address) = serving(listeners(LONG, &lines)).await;
        for versions in BOTH {
            let target = TlsPlan::new(ca.pem(), NAME).versions(versions).to(address);
            assert_eq!(serial(target.clone()).await, Some(first.serial), "who understands both gets the first");
            assert_eq!(seen_by_app(&target, &[]).await.unwrap().status, 200);
        }
        let target = TlsPlan::new(ca.pem(), NAME).versions(Versions::Only12).to(address);
        let hello = target.client_hello(alpn::HTTP1);
        assert_eq!(shown(&target, &with_signatures(&hello, is_rsa), &[&rsa, &ecdsa]).await, &rsa);
        assert_eq!(shown(&target, &with_signatures(&hello, |scheme| !is_rsa(scheme)), &[&rsa, &ecdsa]).await, &ecdsa);
    }
}

#[tokio::test]
async fn an_old_version_is_spoken_where_it_is_allowed() {
    let front = Front::start("", "").await;
    for (versions, version) in [(Versions::Only12, TLSv1_2), (Versions::Only13, TLSv1_3), (Versions::Both, TLSv1_3)] {
        let raw = Raw::connect(front.plan().versions(versions).to(front.address)).await.unwrap();
        assert_eq!(raw.socket().version(), Some(version));
    }
    let front = Front::start(", min_version: \"1.3\"", "").await;
    let old = Raw::connect(front.plan().versions(Versions::Only12).to(front.address)).await;
    assert_eq!(old.unwrap_err(), Failure::Alert(PROTOCOL_VERSION));
    front.has_rejected("tls_handshake", 1).await;
    assert_eq!(send(front.target(), &Request::get("/"), SOON).await.unwrap().status, 200);
}

const FROM_HERE: &str = ", proxy_protocol_from: \"127.0.0.0/8\"";

/// Both versions of the header, each with the client that it names.
fn headers() -> [(Vec<u8>, &'static str); 2] {
    let version2 = [
        &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..],
        &[203, 0, 113, 8, 198, 51, 100, 1],
        &56324_u16.to_be_bytes(),
        &443_u16.to_be_bytes(),
    ];
    let version1 = b"PROXY TCP4 203.0.113.7 198.51.100.1 56324 443\r\n";
    [(version1.to_vec(), "203.0.113.7"), (version2.concat(), "203.0.113.8")]
}

#[tokio::test]
async fn a_balancers_header_may_come_before_the_handshake() {
    let front = Front::with(AppOptions::default(), |secret, upstream| {
        listener("web", upstream, &format!("{}{FROM_HERE}", tls(secret, "")))
    })
    .await;
    for (header, client) in headers() {
        for together in [true, false] {
            let target = front.target().behind(&header, together);
            let told = seen_by_app(&target, &[]).await.unwrap().text();
            assert_eq!(values(&told, "x-forwarded-for"), [client], "{together}: {told}");
            assert_eq!(values(&told, "x-forwarded-proto"), ["https"], "{told}");
            let mut raw = RawH2::open(&target).await.unwrap();
            let stream = raw.get("/headers").await.unwrap();
            let told = raw.answer(stream, SOON).await.unwrap().text();
            assert_eq!(values(&told, "x-forwarded-for"), [client], "{together}: {told}");
        }
        // Every byte in a segment of its own.
        let hello = front.target().client_hello(alpn::HTTP1);
        let mut raw = Raw::connect(front.address).await.unwrap();
        raw.drip([&header[..], &hello].concat(), 1, std::time::Duration::from_millis(1)).await.unwrap();
        assert_eq!(raw.read_exactly(1, SOON).await.unwrap(), [22], "a handshake answers");
    }
    // Whoever has no header, or has it inside, is closed.
    assert_eq!(Raw::connect(front.target()).await.unwrap_err(), Failure::Eof);
    front.has_rejected("proxy_header", 1).await;
    let mut raw = Raw::connect(front.address).await.unwrap();
    raw.send([&headers()[0].0[..], b"GET / HTTP/1.1\r\nHost: toy\r\n\r\n"].concat()).await.unwrap();
    let (told, ending) = raw.ending(SOON).await;
    assert!(told.starts_with(b"HTTP/1.1 400 ") && ending == Ending::Fin, "{told:?} {ending:?}");
    front.has_rejected("not_tls", 1).await;
}
