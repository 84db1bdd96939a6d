//! Owns the PROXY protocol: believed from sources that are configured, from nobody else, and passed on if asked for.

use std::net::SocketAddr;

use super::{MILLIS, echo};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, Flow};
use crate::harness::client::{Ending, Raw, Request};
use crate::harness::ebbtide::Ebbtide;
use crate::harness::h2::RawH2;
use crate::harness::script::ByHand;
use crate::harness::stage::{LONG, alone, listener, listeners, serving};

const FROM_HERE: &str = ", proxy_protocol_from: [\"127.0.0.0/8\", \"10.0.0.0/8\"]";
const FROM_ELSEWHERE: &str = ", proxy_protocol_from: \"192.0.2.0/24\"";
const V1: &[u8] = b"PROXY TCP4 203.0.113.7 198.51.100.1 56324 443\r\n";
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Version 2 for IPv4, with something behind the addresses that nobody has to know.
fn version2(command: u8, source: [u8; 4]) -> Vec<u8> {
    let addresses = [&source[..], &[198, 51, 100, 1], &56324_u16.to_be_bytes(), &443_u16.to_be_bytes()].concat();
    let more = [0x04, 0, 3, 1, 2, 3];
    let length = (addresses.len() + more.len()) as u16;
    [&SIGNATURE[..], &[0x20 | command, 0x11], &length.to_be_bytes(), &addresses, &more].concat()
}

/// Every header and the client that it names.
fn headers() -> Vec<(Vec<u8>, &'static str)> {
    vec![
        (V1.to_vec(), "203.0.113.7"),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 1 2\r\n".to_vec(), "2001:db8::7"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        (version2(1, [203, 0, 113, 8]), "203.0.113.8"),
        (version2(0, [203, 0, 113, 8]), "127.0.0.1"),
    ]
}

async fn rejected(px: &Ebbtide, reason: &str) -> f64 {
    px.metrics().await.sum("ebbtide_connections_rejected_total", &[("reason", reason)])
}

#[tokio::test]
async fn the_named_client_is_told_to_the_app_over_http1_and_http2() {
    let (_app, options, _dir) = alone(AppOptions::default()).await;
    let lines = listener("web", &options.upstream(), FROM_HERE);
    let (_px, address) = serving(listeners(LONG, &lines)).await;
    for (header, client) in headers() {
        // Whole with the request, cut in two, and byte by byte.
        for size in [header.len() + 1000, header.len() / 2, 1] {
            let mut raw = Raw::connect(address).await.unwrap();
            let request = Request::get("/headers").encode("toy", "one");
            raw.drip([header.clone(), request].concat(), size, MILLIS(1)).await.unwrap();
            let reply = raw.reply("GET", SOON).await.unwrap();
            let told = String::from_utf8_lossy(&reply.body).to_ascii_lowercase();
            assert!(told.contains(&format!("x-forwarded-for: {client}\r\n")), "{header:?}: {told}");
            // The header stands once; the next request is of the same client.
            raw.send(Request::get("/headers").encode("toy", "two")).await.unwrap();
            let reply = raw.reply("GET", SOON).await.unwrap();
            assert!(String::from_utf8_lossy(&reply.body).to_ascii_lowercase().contains(client));
        }
        let mut raw = RawH2::connect(address).await.unwrap();
        raw.bytes(&header).await.unwrap();
        raw.greet(&[]).await.unwrap();
        let stream = raw.get("/headers").await.unwrap();
        let told = raw.answer(stream, SOON).await.unwrap().text().to_ascii_lowercase();
        assert!(told.contains(&format!("x-forwarded-for: {client}")), "{header:?}: {told}");
    }
}

/// `send_proxy_protocol`: the app reads one header, and it names the client that the balancer has named.
#[tokio::test]
async fn bytes_follow_the_header_and_a_new_one_names_the_client() {
    for (accepts, sends) in [(true, false), (true, true), (false, true)] {
        let mut app = ByHand::connections().await;
        let more = format!("{}, send_proxy_protocol: {sends}", if accepts { FROM_HERE } else { "" });
        let lines = listener("db", &format!("tcp://{}", app.address()), &more);
        let (_px, address) = serving(listeners(LONG, &lines)).await;
        for (header, client) in headers() {
            let header = if accepts { header } else { Vec::new() };
            let mut raw = Raw::connect(address).await.unwrap();
            raw.drip([&header[..], b"hello"].concat(), 7, MILLIS(1)).await.unwrap();
            let mut asked = app.next().await;
            let mut expected = b"hello".to_vec();
            if sends {
                let ipv6 = accepts && client.contains(':');
                let (family, length) = if ipv6 { (0x21, 36_u16) } else { (0x11, 12) };
                expected = [&SIGNATURE[..], &[0x21, family], &length.to_be_bytes()].concat();
                let named: SocketAddr = if accepts && client != "127.0.0.1" {
                    SocketAddr::new(client.parse().unwrap(), if ipv6 { 1 } else { 56324 })
                } else {
                    raw.local_addr()
                };
                match (named.ip(), address.ip()) {
                    (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => {
                        expected.extend([from.octets(), to.octets()].concat());
                        expected.extend([named.port().to_be_bytes(), address.port().to_be_bytes()].concat());
                    }
                    (std::net::IpAddr::V6(from), _) => {
                        // The destination is of another family, and can't be named beside it.
                        expected.extend([from.octets(), [0; 16]].concat());
                        expected.extend([named.port().to_be_bytes(), [0; 2]].concat());
                    }
                    (std::net::IpAddr::V4(_), std::net::IpAddr::V6(_)) => unreachable!("it listens on 127.0.0.1"),
                }
                expected.extend(b"hello");
            }
            while asked.wire.unread().len() < expected.len() {
                assert!(asked.wire.more().await.unwrap() > 0, "{:?} and no more", asked.wire.unread());
            }
            assert_eq!(asked.wire.unread(), expected, "accepts {accepts}, sends {sends}, {client}");
        }
    }
}

/// A server that speaks first learns of its client before the client has said a word.
#[tokio::test]
async fn the_header_goes_out_before_anybody_has_spoken() {
    let mut app = ByHand::connections().await;
    let lines = listener("db", &format!("tcp://{}", app.address()), ", send_proxy_protocol: true");
    let (_px, address) = serving(listeners(LONG, &lines)).await;
    let mut raw = Raw::connect(address).await.unwrap();
    let mut asked = app.next().await;
    assert!(asked.wire.unread().starts_with(SIGNATURE));
    asked.write("welcome").await;
    assert_eq!(raw.read_until(b"welcome", SOON).await.as_deref(), Ok(&b"welcome"[..]));
}

#[tokio::test]
async fn without_its_header_a_balancers_connection_is_closed() {
    for (name, more) in [("web", ""), ("db", ", protocol: tcp")] {
        let app = ByHand::connections().await;
        let scheme = if name == "db" { "tcp" } else { "http" };
        let lines = listener(name, &format!("{scheme}://{}", app.address()), &format!("{FROM_HERE}{more}"))
            + "limits: {header_timeout: 500ms}\n";
        let (px, address) = serving(listeners(LONG, &lines)).await;
        let mut count = 0.0;
        for wrong in
            [&b"GET / HTTP/1.1\r\nHost: toy\r\n\r\n"[..], b"PROXY TCP4 a b c d\r\n", b"hello", b"\r\n\r\n\0\r\nQUIP"]
        {
            let mut raw = Raw::connect(address).await.unwrap();
            raw.send(wrong).await.unwrap();
            assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin), "{wrong:?}");
            count += 1.0;
            assert_eq!(rejected(&px, "proxy_header").await, count, "{wrong:?}");
        }
        // One that never ends.
        for half in [&V1[..20], &SIGNATURE[..], &version2(1, [1, 2, 3, 4])[..20]] {
            let mut raw = Raw::connect(address).await.unwrap();
            raw.send(half).await.unwrap();
            assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin), "{half:?}");
        }
        assert_eq!(rejected(&px, "header_timeout").await, 3.0);
        assert_eq!(px.metrics().await.sum("ebbtide_upstream_connects_total", &[]), 0.0, "the app was reached");
    }
}

#[tokio::test]
async fn nobody_elses_header_is_believed() {
    let (_app, options, _dir) = alone(AppOptions::default()).await;
    let (_echo, echoes, _dir2) = alone(AppOptions::default().tcp(Flow::Echo)).await;
    let lines =
        listener("web", &options.upstream(), FROM_ELSEWHERE) + &listener("db", &echoes.upstream(), FROM_ELSEWHERE);
    let (px, address) = serving(listeners(LONG, &lines)).await;
    for header in [V1.to_vec(), version2(1, [203, 0, 113, 8])] {
        let mut raw = Raw::connect(address).await.unwrap();
        raw.send([&header[..], &Request::get("/headers").encode("toy", "one")].concat()).await.unwrap();
        assert_eq!(raw.reply("GET", SOON).await.map(|reply| reply.status), Ok(400), "{header:?}");
        let mut raw = Raw::connect(px.address("db").await).await.unwrap();
        echo(&mut raw, &header).await;
    }
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send(Request::get("/headers").encode("toy", "one")).await.unwrap();
    assert_eq!(raw.reply("GET", SOON).await.map(|reply| reply.status), Ok(200), "and none is expected of it");
}
