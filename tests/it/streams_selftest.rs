//! Owns tests of the toys for event streams and raw TCP: the app's side, the clients, and what they notice.

use std::net::SocketAddr;
use std::time::Duration;

use socket2::SockRef;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::app::{After, AppOptions, Farewell, Flow, GREETING, Listen};
use crate::harness::client::{BurstPlan, BurstSummary, Bursts, Ending, Failure, Raw};
use crate::harness::events::{Event, EventSource, Parser, StreamEnd};
use crate::harness::http::{Sum, pattern};
use crate::harness::stage::{LONG, app, tcp, tcp_listener, websocket};
use crate::harness::wait::{Mono, eventually};
use crate::harness::{SOON, fresh_ip};

const QUICK: Duration = Duration::from_millis(5);

#[test]
fn event_streams_are_read_as_the_standard_says() {
    let text = "\u{feff}: comment\nid: 7\nevent: x\ndata: one\ndata:two\n\nid\nretry: 1x\ndata\n\n\
                event: nothing\n\nid: 8\nretry: 25\n\nid: 9\nignored\ndata: half";
    let found = |text: &str, size: usize| {
        let mut parser = Parser::new("5");
        let pieces = text.as_bytes().chunks(size);
        let events: Vec<Event> = pieces.flat_map(|piece| parser.feed(piece, Mono::from_nanos(0))).collect();
        let parts = events.into_iter().map(|one| (one.id, one.kind, one.data)).collect::<Vec<_>>();
        (parts, parser.last_id().to_owned(), parser.retry())
    };
    let one = |id: &str, kind: &str, data: &str| (id.to_owned(), kind.to_owned(), data.to_owned());
    let expected = vec![one("7", "x", "one\ntwo"), one("", "message", "")];
    for end in ["\n", "\r", "\r\n"] {
        for size in [1, 2, 1000] {
            let text = text.replace('\n', end);
            assert_eq!(found(&text, size), (expected.clone(), "8".to_owned(), Some(Duration::from_millis(25))));
        }
    }
}

#[tokio::test]
async fn an_event_source_comes_back_and_misses_nothing() {
    let (app, address, _dir) = app(AppOptions::default()).await;
    for (query, end) in [
        ("", StreamEnd::Clean),
        ("&eol=cr", StreamEnd::Clean),
        ("&eol=crlf&split_ms=2", StreamEnd::Clean),
        ("&end=half", StreamEnd::Clean),
        ("&end=cut", StreamEnd::Broken(Failure::Truncated)),
    ] {
        let before = app.journal.count("events");
        let path = format!("/events?n=3&every_ms=1&retry=5{query}");
        // Without the stream's own word it would not come back in time.
        let source = EventSource::start(address, &path, Duration::from_secs(600));
        source.has_events(9, SOON).await;
        let heard = source.stop().await;
        heard.assert_gapless();
        assert!(heard.ends().len() >= 2 && heard.ends().iter().all(|one| *one == end), "{query}: {heard:?}");
        let asked: Vec<&str> = heard.attempts.iter().map(|one| one.after.as_str()).collect();
        assert_eq!(asked[..3], ["", "3", "6"], "{query}");
        let lines = app.journal.lines("events");
        let got: Vec<&str> = lines[before..].iter().map(|line| line.get("after")).collect();
        assert_eq!(got[..3], ["0", "3", "6"], "{query}");
    }
}

#[tokio::test]
async fn an_event_source_gives_up_where_the_standard_says_so() {
    let (_app, address, _dir) = app(AppOptions::default()).await;
    for (query, end) in [
        ("status=204", StreamEnd::Status(204)),
        ("status=503", StreamEnd::Status(503)),
        ("type=text/plain", StreamEnd::OtherType),
    ] {
        let source = EventSource::start(address, &format!("/events?n=1&{query}"), QUICK);
        let heard = source.has("an end", SOON, |_| source.is_over()).await;
        assert_eq!((heard.ends(), heard.events.len(), heard.attempts.len()), (vec![end], 0, 1));
    }
    let nobody = EventSource::start(SocketAddr::new(fresh_ip(), 9), "/events", QUICK);
    let heard = nobody.has("three attempts", SOON, |heard| heard.attempts.len() > 3).await;
    assert!(heard.ends().iter().all(|end| *end == StreamEnd::Broken(Failure::Refused)));
}

#[tokio::test]
async fn streams_may_be_silent_late_or_opaque() {
    let (app, address, _dir) = app(AppOptions::default()).await;
    let silent = EventSource::start(address, "/events?silent=1", QUICK);
    silent.opened(SOON).await;
    let late = EventSource::start(address, "/events?first_ms=100&every_ms=2", QUICK);
    let opened = late.opened(SOON).await;
    let heard = late.has_events(20, SOON).await;
    assert!(heard.events[0].at.since(opened) >= Duration::from_millis(90), "the head waits for no event");
    assert!(heard.events.iter().all(|event| event.delay().is_some_and(|delay| delay < SOON)));
    let coded = EventSource::start(address, "/events?encoding=gzip&every_ms=2", QUICK);
    coded.has("opaque bytes", SOON, |heard| heard.opaque > 100).await;
    assert!(coded.stop().await.events.is_empty());
    let heard = silent.stop().await;
    assert_eq!((heard.events.len(), heard.attempts.len(), heard.ends()), (0, 1, Vec::new()));
    // The app sees the end of a silent stream as well.
    let asked = app.journal.lines("req").into_iter().find(|one| one.get("path").contains("silent")).unwrap();
    eventually("the end of the silent stream", SOON, || {
        let gone = app.journal.lines("disconnected");
        if gone.iter().any(|one| one.get("conn") == asked.get("conn")) { Ok(()) } else { Err(gone) }
    })
    .await;
}

#[tokio::test]
async fn raw_tcp_flows_as_asked() {
    let reply = Flow::ReplyAfterEnd { after: Duration::from_millis(50), bytes: 300_000 };
    for (flow, sent, back) in [
        (Flow::Echo, b"hello".to_vec(), b"hello".to_vec()),
        (Flow::Greet, b"hello".to_vec(), [GREETING, b"hello"].concat()),
        (reply, pattern(500_000), pattern(300_000)),
        (Flow::EndFirst { bytes: 200_000 }, b"late".to_vec(), pattern(200_000)),
    ] {
        let (app, address, _dir) = app(AppOptions::default().tcp(flow)).await;
        let mut raw = Raw::connect(address).await.unwrap();
        if matches!(flow, Flow::EndFirst { .. }) {
            assert_eq!(raw.ending(SOON).await, (back, Ending::Fin));
            raw.send(&sent).await.unwrap();
            raw.half_close().await.unwrap();
        } else {
            raw.send(&sent).await.unwrap();
            raw.half_close().await.unwrap();
            assert_eq!(raw.ending(SOON).await, (back, Ending::Fin), "{flow:?}");
        }
        let line = app.journal.wait("received", 1, SOON).await.remove(0);
        let (sum, bytes) = (Sum::of(&sent).hex(), sent.len().to_string());
        assert_eq!((line.get("sum"), line.get("bytes"), line.get("how")), (sum.as_str(), bytes.as_str(), "fin"));
    }
    let (app, address, _dir) = app(AppOptions::default().tcp(Flow::Bursts { bytes: 100, every: QUICK })).await;
    let mut raw = Raw::connect(address).await.unwrap();
    assert_eq!(raw.read_exactly(1000, SOON).await.unwrap(), pattern(1000));
    raw.reset();
    assert_eq!(app.journal.wait("received", 1, SOON).await[0].get("how"), "reset");
}

const BURSTS: BurstPlan =
    BurstPlan { every: Duration::from_millis(40), pieces: 5, pause: Duration::from_millis(1), size: 50 };

#[tokio::test]
async fn bursts_come_back_whole() {
    let (app, address, _dir) = app(AppOptions::default().tcp(Flow::Echo)).await;
    let bursts = Bursts::start(address, BURSTS, 50).await;
    bursts.all_have(3, SOON).await;
    assert_eq!(bursts.open(), 50);
    let t0 = Mono::now();
    bursts.stop();
    let summary = bursts.ended(SOON).await;
    assert_eq!(summary.endings(), [(Ending::Fin, 50)].into());
    assert_eq!((summary.in_burst(), summary.lost()), (0, 0), "{:?}", summary.records);
    assert_eq!((summary.ends_since(t0).len(), summary.densest(SOON)), (50, 50));
    assert!(app.journal.lines("received").iter().all(|one| one.get("how") == "fin"));
}

/// One connection to a server that echoes `echoes` bytes and then does what `end` does.
async fn cut(echoes: usize, end: impl FnOnce(&mut [u8], &TcpStream) + Send + 'static) -> BurstSummary {
    let listener = TcpListener::bind(SocketAddr::new(fresh_ip(), 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = vec![0; echoes];
        stream.read_exact(&mut bytes).await.unwrap();
        end(&mut bytes, &stream);
        stream.write_all(&bytes).await.unwrap();
    });
    // Room for the end to be seen before the next burst.
    let plan = BurstPlan { every: Duration::from_millis(400), ..BURSTS };
    Bursts::start(address, plan, 1).await.ended(SOON).await
}

#[tokio::test]
async fn a_cut_inside_a_burst_is_noticed() {
    let whole = cut(250, |_, _| {}).await;
    assert_eq!((whole.in_burst(), whole.lost(), whole.endings()), (0, 0, [(Ending::Fin, 1)].into()));
    // The first of two pieces that belong to one burst.
    let half = cut(50, |_, _| {}).await;
    assert_eq!(half.in_burst(), 1);
    let wrong = cut(250, |bytes, _| bytes[7] ^= 1).await;
    assert_eq!(wrong.lost(), 250);
    let reset = cut(50, |_, stream| SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap()).await;
    assert_eq!((reset.endings(), reset.in_burst()), ([(Ending::Reset, 1)].into(), 1));
}

#[tokio::test]
async fn an_apps_own_http2_calls_are_told_about() {
    let graceful = AppOptions { goaway: Some((After::Requests(3), Farewell::Graceful)), ..AppOptions::default() };
    let (_quiet, quiet, _dir) = app(AppOptions::default()).await;
    let (_leaving, leaving, _dir) = app(graceful).await;
    for (served, told) in [(quiet, false), (leaving, true)] {
        let dir = TempDir::new().unwrap();
        let options = AppOptions { listen: Listen::Nowhere, beat_h2c: Some((served, QUICK)), ..AppOptions::default() };
        let caller = options.start("caller", dir.path()).await;
        let beats = caller.journal.wait("beat", 6, SOON).await;
        assert_eq!(beats[0].get("ok"), "true");
        assert_eq!((beats[0].get("how"), beats[0].get("head")), ("h2c", beats[1].get("head")));
        assert_eq!(beats.iter().any(|beat| beat.get("notices") != "0"), told);
        assert_eq!(beats.iter().all(|beat| beat.get("conn") == "1" && beat.get("ok") == "true"), !told);
    }
}

#[test]
fn configurations_say_what_they_should() {
    let options = AppOptions::at("127.0.0.1:5432".parse().unwrap()).tcp(Flow::Greet);
    assert_eq!(options.upstream(), "tcp://127.0.0.1:5432");
    assert_eq!(
        tcp_listener("127.0.0.1:1", &options.upstream()),
        "  - {name: db, protocol: tcp, bind: \"127.0.0.1:1\", upstream: \"tcp://127.0.0.1:5432\"}\n"
    );
    let config = tcp(LONG, &options.upstream());
    assert!(config.get("EBBTIDE_CONFIG_YAML").unwrap().contains("listeners:\n  - {name: db, protocol: tcp"));
    assert_eq!(config.get("EBBTIDE_LISTEN"), None);
    let config = websocket(LONG, "close_code: 1012");
    assert!(config.get("EBBTIDE_CONFIG_YAML").unwrap().contains("{over_http2: on, close_code: 1012}"));
}
