//! Owns C78: every end that ebbtide makes says `close_notify` before its FIN, except where a cut answer has no other end.

use std::net::SocketAddr;

use rustix::process::Signal;

use super::{BOTH, CLEAN, GET, MILLIS, SECONDS, Site, Stage};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, Flow};
use crate::harness::client::{Ending, IdleHolder, Raw, Request};
use crate::harness::ebbtide::Ebbtide;
use crate::harness::h2::RawH2;
use crate::harness::http::{Sum, pattern};
use crate::harness::script::{Asked, ByHand};
use crate::harness::stage::{DRAINS, LONG, TOLD, serving, terminate};
use crate::harness::tls::{Target, TlsEnd, Versions, alpn};
use crate::harness::wait::eventually;
use crate::harness::ws::{Sessions, WsPlan};

/// Deadlines soon after t0: at 2.2 s, and what is forced is over 0.3 s later.
pub(super) const SHORT: &str =
    "grace_period: 3s, hold: 200ms, close: 300ms, close_spread: 500ms, quiet: 200ms, margin: 500ms";

/// An app by hand with an ebbtide in front of it, and a way to connect with each version.
pub(super) struct Hand {
    app: ByHand,
    pub(super) px: Ebbtide,
    address: SocketAddr,
    site: Site,
}

// === impl Hand ===

impl Hand {
    async fn start(app: ByHand, scheme: &str, drain: &str) -> Self {
        let site = Site::new();
        let (px, address) = serving(site.config(drain, &format!("{scheme}://{}", app.address()), "")).await;
        Self { app, px, address, site }
    }

    pub(super) async fn http(drain: &str) -> Self {
        Self::start(ByHand::requests().await, "http", drain).await
    }

    async fn tcp(drain: &str) -> Self {
        Self::start(ByHand::connections().await, "tcp", drain).await
    }

    fn target(&self, versions: Versions) -> Target {
        self.site.target(versions, self.address)
    }

    /// A request of this version of HTTP, and the app's side of it.
    pub(super) async fn ask(&mut self, versions: Versions, http: &str) -> (Raw, Asked) {
        let mut raw = Raw::connect(self.target(versions)).await.unwrap();
        raw.send(format!("GET / HTTP/{http}\r\nHost: a\r\n\r\n")).await.unwrap();
        (raw, self.app.next().await)
    }

    async fn ask_raw(&mut self, versions: Versions) -> (Raw, Asked) {
        let mut raw = Raw::speaking(self.target(versions), alpn::NONE).await.unwrap();
        raw.send("a question").await.unwrap();
        (raw, self.app.next().await)
    }

    /// No time is left.
    pub(super) async fn hurry(&self) {
        terminate(&self.px).await;
        self.px.signal(Signal::TERM);
    }
}

/// Nothing more comes, and the end is `close_notify`, FIN, and no byte between them or behind.
pub(super) async fn assert_ends_well(raw: &mut Raw, what: &str) {
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin), "{what}");
    assert_eq!(raw.socket().tls_ended(SOON).await, TlsEnd::good(), "{what}");
}

#[tokio::test]
async fn idle_connections_are_closed_with_a_close_notify() {
    let stage = Stage::start(AppOptions::default(), DRAINS).await;
    let (mut held, mut streams) = (Vec::new(), Vec::new());
    for versions in BOTH {
        let target = stage.target(versions);
        for first in [None, Some(Request::get("/"))] {
            held.push(IdleHolder::open(&target, 10, first).await);
        }
        let mut raw = RawH2::open(&target).await.unwrap();
        let stream = raw.get("/").await.unwrap();
        raw.answer(stream, SOON).await.unwrap();
        streams.push(tokio::spawn(async move { (raw.ending(SOON).await, raw.socket().tls_ended(SOON).await) }));
    }
    terminate(&stage.px).await;
    for holder in held {
        let closed = holder.all_closed(SOON).await;
        assert!(closed.iter().all(|one| one.ending == Ending::Fin && one.bytes == 0), "{closed:?}");
    }
    for one in streams {
        assert_eq!(one.await.unwrap(), (Ending::Fin, TlsEnd::good()));
    }
    assert_eq!(stage.px.exit(SOON).await, CLEAN);
}

#[tokio::test]
async fn a_marked_answer_is_followed_by_a_close_notify() {
    let stage = Stage::start(AppOptions::default(), TOLD).await;
    for told in [false, true] {
        if told {
            terminate(&stage.px).await;
            let marked = || async {
                let reply = crate::harness::client::send(stage.target(BOTH[0]), &Request::get("/"), SOON).await;
                if reply.unwrap().closes() == 1 { Ok(()) } else { Err("not told yet") }
            };
            crate::harness::wait::eventually_async("the notices", SOON, marked).await;
        }
        for versions in BOTH {
            let connection = if told { "" } else { "Connection: close\r\n" };
            for head in [
                format!("GET / HTTP/1.1\r\nHost: a\r\n{connection}\r\n"),
                format!("POST /echo HTTP/1.1\r\nHost: a\r\n{connection}Content-Length: 5\r\n\r\nhello"),
                format!("GET /bytes?n=300000&chunked=1 HTTP/1.1\r\nHost: a\r\n{connection}\r\n"),
            ] {
                let mut raw = Raw::connect(stage.target(versions)).await.unwrap();
                raw.send(&head).await.unwrap();
                let reply = raw.reply("GET", SOON).await.unwrap();
                assert_eq!((reply.status, reply.closes()), (200, 1), "{head}");
                assert_ends_well(&mut raw, &head).await;
            }
            // A fault of the client's is answered, and that is the end.
            let mut raw = Raw::connect(stage.target(versions)).await.unwrap();
            raw.send("no HTTP at all\r\n\r\n").await.unwrap();
            assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 400);
            assert_ends_well(&mut raw, "400").await;
        }
    }
}

#[tokio::test]
async fn both_ends_of_a_websocket_session_say_close_notify() {
    let stage = Stage::start(AppOptions::default(), DRAINS).await;
    let mut running = Vec::new();
    for versions in BOTH {
        let target = stage.target(versions);
        // The app ends these.
        let plan = WsPlan::new("/ws?after_ms=50&then=close");
        let summary = Sessions::start(&target, &plan, 3).await.ended(SOON).await;
        assert_eq!(summary.endings().into_keys().collect::<Vec<_>>(), [Ending::Fin], "{summary:?}");
        running.push(Sessions::start(&target, &WsPlan::new("/ws"), 5).await);
    }
    terminate(&stage.px).await;
    for sessions in running {
        let summary = sessions.ended(SOON).await;
        summary.assert_closed(1001);
        assert_eq!(summary.endings().into_keys().collect::<Vec<_>>(), [Ending::Fin]);
    }
    assert_eq!(stage.px.exit(SOON).await, CLEAN);
}

/// All bytes come both ways, whoever ends first, and each half ends well.
pub(super) async fn assert_both_halves(raw: &mut Raw, server_ends_first: bool, sent: &[u8], reply: &[u8]) {
    if server_ends_first {
        assert_eq!(raw.ending(SOON).await, (reply.to_vec(), Ending::Fin));
    }
    raw.send(sent).await.unwrap();
    raw.half_close().await.unwrap();
    if !server_ends_first {
        let (came, ending) = raw.ending(SOON).await;
        assert_eq!((came == reply, ending), (true, Ending::Fin), "{} bytes came", came.len());
    }
}

/// C75 inside TLS: each `close_notify` is passed on as a FIN, each FIN as a `close_notify`, and the other direction goes on.
#[tokio::test]
async fn either_half_of_a_tcp_connection_may_end_first() {
    let (sent, reply) = (pattern(70_000), pattern(100_000));
    for server_ends_first in [false, true] {
        let flow = if server_ends_first {
            Flow::EndFirst { bytes: reply.len() }
        } else {
            Flow::ReplyAfterEnd { after: MILLIS(50), bytes: reply.len() }
        };
        let stage = Stage::start(AppOptions::default().tcp(flow), LONG).await;
        for versions in BOTH {
            let mut raw = Raw::speaking(stage.target(versions), alpn::NONE).await.unwrap();
            assert_both_halves(&mut raw, server_ends_first, &sent, &reply).await;
            assert_eq!(raw.socket().tls_ended(SOON).await, TlsEnd::good());
        }
        eventually("two whole uploads at the app", SOON, || {
            let lines = stage.app.journal.lines("received");
            let whole = lines.iter().filter(|one| one.get("sum") == Sum::of(&sent).hex() && one.get("how") == "fin");
            if whole.count() == 2 { Ok(()) } else { Err(lines) }
        })
        .await;
    }
}

#[tokio::test]
async fn tcp_connections_closed_at_a_quiet_moment_or_by_force_end_with_a_close_notify() {
    let mut hand = Hand::tcp(SHORT).await;
    let mut raws = Vec::new();
    for versions in BOTH {
        let (mut answered, mut asked) = hand.ask_raw(versions).await;
        asked.write("an answer").await;
        assert_eq!(answered.read_exactly(9, SOON).await.as_deref(), Ok(&b"an answer"[..]));
        raws.push((answered, asked));
        raws.push(hand.ask_raw(versions).await);
    }
    terminate(&hand.px).await;
    for (raw, asked) in &mut raws {
        assert_ends_well(raw, "a connection").await;
        assert_eq!(asked.wire.more().await.unwrap_or(0), 0, "the app sees the end as well");
    }
    drop(raws);
    let report = hand.px.report_at_exit(SOON).await;
    assert_eq!((&report["notices"]["tunnel_close"], &report["forced"]["tunnel"]), (&2.into(), &2.into()), "{report}");
}

/// The process ends while clients still hold their connections: none of these ends without a word.
#[tokio::test]
async fn the_exit_of_the_process_leaves_no_connection_without_a_close_notify() {
    let stage = Stage::start(AppOptions::default(), LONG).await;
    let mut raws = Vec::new();
    let mut streams = Vec::new();
    for versions in BOTH {
        for request in ["", GET, "GET /hang HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.1\r\nContent-Le"] {
            let mut raw = Raw::connect(stage.target(versions)).await.unwrap();
            raw.send(request).await.unwrap();
            if request == GET {
                assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 200);
            }
            raws.push((raw, request));
        }
        let mut raw = RawH2::open(stage.target(versions)).await.unwrap();
        raw.get("/hang").await.unwrap();
        streams.push(raw);
    }
    stage.app.journal.wait("req", 6, SOON).await;
    terminate(&stage.px).await;
    stage.px.signal(Signal::TERM);
    // Nobody reads before the process is gone.
    assert_eq!(stage.px.exit(SOON).await, CLEAN);
    for (mut raw, request) in raws {
        let (rest, ending) = raw.ending(SOON).await;
        assert_eq!(ending, Ending::Fin, "{request:?}: {}", String::from_utf8_lossy(&rest));
    }
    for mut raw in streams {
        assert_eq!(raw.ending(SOON).await, Ending::Fin, "{:?}", raw.seen);
    }
}

/// C46 inside TLS: what comes behind our `close_notify` is read away, so that no reset takes the answer from the client.
#[tokio::test]
async fn bytes_behind_our_close_notify_are_read_away() {
    let site = Site::new();
    let hand = ByHand::requests().await;
    let drain = "grace_period: 30s, hold: 200ms, close: 1s, close_spread: 200ms, quiet: 100ms";
    let config = site.config(drain, &hand.upstream(), "").env("EBBTIDE_MODE", "sidecar");
    let (px, address) = serving(config).await;
    assert!(px.drain().await.status.success());
    px.phase_becomes("lingering", SOON).await;
    for versions in BOTH {
        let mut raw = Raw::connect(site.target(versions, address)).await.unwrap();
        raw.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n").await.unwrap();
        let refused = raw.socket().clone();
        // Ours has come, and is left unread with the answer: a reset would take both away.
        refused.readable().await.unwrap();
        for _ in 0..40 {
            raw.send(vec![b'x'; 100_000]).await.unwrap();
        }
        let reply = raw.reply("POST", SOON).await.unwrap();
        assert_eq!((reply.status, reply.closes()), (503, 1));
        assert_ends_well(&mut raw, "an upload that was refused").await;
        drop(raw);
        drop(refused);
    }
    // Counted when the reading away is over, which the client does not wait for.
    px.metric_becomes("ebbtide_late_bytes_total", &[], SOON, |bytes| bytes > 4_000_000.0).await;
    px.signal(Signal::TERM);
    assert_eq!(px.exit(SECONDS(10)).await, CLEAN);
}
