//! Owns requests whose records come in parts: half a record is the beginning of a request, though nothing of it can be read.

use super::front::Front;
use super::{BOTH, GET, MILLIS, SECONDS, Stage};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::{Ending, IdleHolder, Raw, Request};
use crate::harness::h2::PREFACE;
use crate::harness::stage::terminate;
use crate::harness::tls::{TlsEnd, alpn};
use crate::harness::wait::eventually;

/// Idle connections are closed over ten seconds, one after the other.
const LONG_SPREAD: &str = "grace_period: 40s, hold: 300ms, close: 1s, close_spread: 10s, quiet: 300ms, margin: 500ms";

/// A record up to its type, up to its header's last byte but one, to its middle, and without its last byte.
fn cuts(record: &[u8]) -> [usize; 4] {
    [1, 4, record.len() / 2, record.len() - 1]
}

/// Sends a request up to a cut of its record; the rest of it.
async fn send_in_part(raw: &Raw, cut: usize) -> Vec<u8> {
    let record = raw.socket().encrypt(GET.as_bytes());
    let (now, later) = record.split_at(cuts(&record)[cut]);
    raw.socket().write_encrypted(now).await.unwrap();
    later.to_vec()
}

/// A connection that has had an answer.
async fn used(mut raw: Raw) -> Raw {
    raw.send(GET).await.unwrap();
    assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 200);
    raw
}

#[tokio::test]
async fn half_a_record_keeps_a_connection_from_being_closed_as_idle() {
    const IDLE: usize = 30;
    let stage = Stage::start(AppOptions::default(), LONG_SPREAD).await;
    let idle = IdleHolder::open(stage.target(BOTH[1]), IDLE, Some(Request::get("/"))).await;
    let mut begun = Vec::new();
    for number in 0..IDLE {
        let raw = used(Raw::connect(stage.target(BOTH[number % 2])).await.unwrap()).await;
        let rest = send_in_part(&raw, number / 2 % 4).await;
        begun.push((raw, rest));
    }
    terminate(&stage.px).await;
    // Of so many others as many would have been closed by now.
    eventually("the end of a third of the idle connections", SOON, || {
        let open = idle.open_count();
        if open <= IDLE * 2 / 3 { Ok(()) } else { Err(open) }
    })
    .await;
    for (raw, rest) in &begun {
        raw.socket().write_encrypted(rest).await.expect("it is open");
    }
    for (raw, _) in &mut begun {
        let reply = raw.reply("GET", SOON).await.expect("an answer");
        assert_eq!((reply.status, reply.closes()), (200, 1));
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
        assert_eq!(raw.socket().tls_ended(SOON).await, TlsEnd::good());
    }
    assert!(idle.all_closed(SECONDS(20)).await.iter().all(|one| one.ending == Ending::Fin && one.bytes == 0));
    let report = stage.px.report_at_exit(SOON).await;
    assert_eq!(report["outcome"], "drained", "{report}");
}

#[tokio::test]
async fn what_does_not_come_to_its_end_inside_tls_is_given_up_after_the_timeout() {
    let front = Front::start("", "limits: {header_timeout: 1s}\n").await;
    let idle = IdleHolder::open(front.target(), 4, Some(Request::get("/"))).await;
    let mut late = Vec::new();
    for versions in BOTH {
        let target = front.plan().versions(versions).to(front.address);
        for cut in 0..4 {
            let fresh = Raw::connect(&target).await.unwrap();
            let used = used(Raw::connect(&target).await.unwrap()).await;
            for (raw, what) in [(fresh, "a record of a first request"), (used, "a record of a second one")] {
                send_in_part(&raw, cut).await;
                late.push((raw, what, false));
            }
        }
        for (speaks, already, begin, what) in [
            (alpn::HTTP1, false, &b"GET / HTTP/1.1\r\nHost: a\r\n"[..], "a head"),
            (alpn::HTTP1, true, b"G", "one letter"),
            (alpn::H2, false, &PREFACE[..12], "half a preface"),
            (alpn::H2, false, &PREFACE[..23], "a preface without its last byte"),
            (alpn::NONE, false, &PREFACE[..12], "half a preface of a client that agreed to nothing"),
        ] {
            let mut raw = Raw::speaking(&target, speaks).await.unwrap();
            if already {
                raw = used(raw).await;
            }
            raw.send(begin).await.unwrap();
            late.push((raw, what, speaks == alpn::HTTP1));
        }
        // Progress wins no time.
        let mut raw = Raw::connect(&target).await.unwrap();
        let _ = raw.drip("GET / HTTP/1.1\r\nHost: slow\r\nX-Header: yes\r\n", 1, MILLIS(50)).await;
        late.push((raw, "a head in many records", true));
    }
    let count = late.len();
    for (mut raw, what, answered) in late {
        let (told, ending) = raw.ending(SOON).await;
        let told = String::from_utf8_lossy(&told);
        assert_eq!(ending, Ending::Fin, "{what}: {told:?}");
        assert!(told.starts_with("HTTP/1.1 408 ") || (told.is_empty() && !answered), "{what}: {told:?}");
        assert_eq!(raw.socket().tls_ended(SOON).await, TlsEnd::good(), "{what}");
    }
    front.has_rejected("header_timeout", count).await;
    assert_eq!(front.px.metrics().await.sum("ebbtide_connections_rejected_total", &[]), count as f64);
    assert_eq!(idle.open_count(), 4, "silence is no offence");
}

/// TLS has records of its own, and a connection on which one came in parts is as idle as before.
#[tokio::test]
async fn half_a_key_update_is_no_request() {
    let front = Front::start("", "limits: {header_timeout: 1s}\n").await;
    let target = front.plan().versions(BOTH[1]).to(front.address);
    let mut raw = used(Raw::connect(target).await.unwrap()).await;
    raw.socket().refresh_keys();
    let wire = raw.socket().encrypt(GET.as_bytes());
    let (update, request) = wire.split_at(5 + usize::from(u16::from_be_bytes([wire[3], wire[4]])));
    let (first, second) = update.split_at(update.len() / 2);
    raw.socket().write_encrypted(first).await.unwrap();
    // So that ebbtide sees both parts; together they would prove nothing, and harm nothing.
    tokio::time::sleep(MILLIS(200)).await;
    raw.socket().write_encrypted(second).await.unwrap();
    assert_eq!(raw.ending(SECONDS(3)).await, (Vec::new(), Ending::StillOpen));
    raw.socket().write_encrypted(request).await.unwrap();
    assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 200);
    assert_eq!(front.rejected("header_timeout").await, 0.0);
}
