//! Owns `tls://`: bytes inside TLS, towards the app of a TCP listener and out of the pod.

use super::closing::assert_both_halves;
use super::upstream::{APP, AppCa, assert_farewells};
use super::{BOTH, Site};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, Flow};
use crate::harness::client::{Ending, Raw};
use crate::harness::ebbtide::Ebbtide;
use crate::harness::http::{Sum, pattern};
use crate::harness::stage::{LONG, alone, listener, listeners, serving, terminate, tls};
use crate::harness::tls::{Authority, Target, TlsServer, alpn};
use crate::harness::wait::eventually;

/// Plaintext inbound and outbound, and TLS of both versions inbound.
pub(super) async fn listens(site: &Site, ca: &AppCa, to: &str) -> (Ebbtide, [Target; 4]) {
    let lines = [
        listener("db", to, &ca.named()),
        listener("safe", to, &(tls(&site.secret, "") + &ca.named())),
        listener("out", to, &format!(", direction: outbound{}", ca.named())),
    ];
    let (px, address) = serving(listeners(LONG, &lines.concat())).await;
    let (safe, out) = (px.address("safe").await, px.address("out").await);
    (px, [address.into(), out.into(), site.target(BOTH[0], safe), site.target(BOTH[1], safe)])
}

/// Plaintext on the one side, TLS on the other; then TLS on both. Each half may end first, before t0 and behind it.
#[tokio::test]
async fn bytes_and_both_ends_pass_into_tls() {
    let (site, ca) = (Site::new(), AppCa::new());
    let (sent, reply) = (pattern(70_000), pattern(100_000));
    for flow in
        [Flow::ReplyAfterEnd { after: super::MILLIS(50), bytes: reply.len() }, Flow::EndFirst { bytes: reply.len() }]
    {
        let server_ends_first = matches!(flow, Flow::EndFirst { .. });
        let (app, options, _dir) = alone(AppOptions::default().tcp(flow).tls(ca.server())).await;
        let (px, targets) = listens(&site, &ca, &options.upstream()).await;
        for terminating in [false, true] {
            if terminating {
                terminate(&px).await;
            }
            for target in &targets {
                let mut raw = Raw::speaking(target, alpn::NONE).await.unwrap();
                assert_both_halves(&mut raw, server_ends_first, &sent, &reply).await;
            }
        }
        eventually("eight whole uploads at the app", SOON, || {
            let lines = app.journal.lines("received");
            let whole = lines.iter().filter(|one| one.get("sum") == Sum::of(&sent).hex() && one.get("how") == "fin");
            if whole.count() == 8 { Ok(()) } else { Err(lines) }
        })
        .await;
        assert_farewells(&app.journal, 8).await;
        let agreed = app.journal.lines("tls");
        assert!(agreed.iter().all(|one| (one.get("alpn"), one.get("name")) == ("", APP)), "{agreed:?}");
    }
}

/// Whoever cuts the network between ebbtide and the app must not make half an answer look whole to who can tell. Others
/// get a FIN: a reset would take away what they have not read yet, and many servers leave the farewell out.
#[tokio::test]
async fn a_stream_that_ends_without_a_close_notify_is_passed_on_without_one() {
    let (site, ca) = (Site::new(), AppCa::new());
    let sloppy = ca.server().sloppy();
    let (_app, options, _dir) = alone(AppOptions::default().tcp(Flow::EndFirst { bytes: 1000 }).tls(sloppy)).await;
    let (_px, targets) = listens(&site, &ca, &options.upstream()).await;
    let expected =
        [("inbound", Ending::Fin), ("outbound", Ending::Fin), ("TLS 1.2", Ending::Bare), ("TLS 1.3", Ending::Bare)];
    for (target, (what, expected)) in targets.into_iter().zip(expected) {
        let mut raw = Raw::speaking(target, alpn::NONE).await.unwrap();
        let (_, ending) = raw.ending(SOON).await;
        assert_eq!(ending, expected, "{what}");
    }
}

/// Of a cluster's hosts, one that is not who it should be is passed over like one that is gone.
#[tokio::test]
async fn an_outbound_host_with_a_wrong_certificate_is_passed_over() {
    let ca = AppCa::new();
    let stranger = TlsServer::new(&Authority::new("stranger").pair(&[APP]));
    let (wrong, wrong_options, _wrong_dir) = alone(AppOptions::default().tcp(Flow::Echo).tls(stranger)).await;
    let (right, right_options, _dir) = alone(AppOptions::default().tcp(Flow::Echo).tls(ca.server())).await;
    let hosts = format!("{},{}", wrong_options.upstream(), right_options.upstream());
    let line = listener("out", &hosts, &format!(", direction: outbound{}", ca.named()));
    let px = listeners(LONG, &line).start().await;
    let address = px.address("out").await;
    for _ in 0..3 {
        let mut raw = Raw::connect(address).await.unwrap();
        raw.send("hello").await.unwrap();
        assert_eq!(raw.read_exactly(5, SOON).await.as_deref(), Ok(&b"hello"[..]));
        raw.half_close().await.unwrap();
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    }
    px.metric_becomes("ebbtide_outbound_connects_total", &[("result", "ok")], SOON, |count| count == 3.0).await;
    wrong.journal.wait("untrusted", 3, SOON).await;
    assert_eq!(wrong.journal.count("tls"), 0);
    assert_farewells(&right.journal, 3).await;
    let told = px.logged("connected, after others had failed", 1).await;
    assert!(told[0].to_string().contains("UnknownIssuer"), "{told:?}");

    // With nobody else to go to, the app sees a connection that does not work.
    let line = listener("out", &wrong_options.upstream(), &format!(", direction: outbound{}", ca.named()));
    let px = listeners(LONG, &line).start().await;
    let mut raw = Raw::connect(px.address("out").await).await.unwrap();
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Reset));
    px.metric_becomes("ebbtide_outbound_connects_total", &[("result", "failed")], SOON, |count| count == 1.0).await;
    let told = px.logged("dialling failed", 1).await;
    assert!(told[0].to_string().contains("UnknownIssuer"), "{told:?}");
}
