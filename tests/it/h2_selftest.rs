//! Owns tests of the harness's HTTP/2 toys, straight against the toy app.

use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::harness::app::{After, App, AppOptions, Farewell, Listen, Speaks};
use crate::harness::client::{Ending, Failure, Raw, Request, send};
use crate::harness::h2::grpc::{self, message, number_of, numbered};
use crate::harness::h2::{Control, Frame, Kind, NO_LAST, PREFACE, RawH2, code, setting};
use crate::harness::http::{Sum, pattern};
use crate::harness::{SOON, fresh_ip};

/// An app outside any pod, with its address and its directory.
async fn app(options: AppOptions) -> (App, SocketAddr, TempDir) {
    let dir = TempDir::new().unwrap();
    let address = SocketAddr::new(fresh_ip(), 8080);
    let options = AppOptions { listen: Listen::Tcp(address), ..options };
    (options.start("app", dir.path()).await, address, dir)
}

#[tokio::test]
async fn both_protocols_are_served_on_one_port() {
    let (app, address, _dir) = app(AppOptions::default()).await;
    assert_eq!(send(address, &Request::get("/"), SOON).await.unwrap().status, 200);

    // The preface may come in pieces, and everything else with its last one.
    let mut raw = RawH2::connect(address).await.unwrap();
    raw.bytes(&PREFACE[..10]).await.unwrap();
    let head = crate::harness::h2::request(1, "GET", "/slow?ms=10", &[("x-id", "late")]).end_stream();
    let rest = [&PREFACE[10..], &Frame::settings(&[]).encode(), &head.encode()].concat();
    raw.bytes(rest).await.unwrap();
    let answer = raw.answer(1, SOON).await.unwrap();
    assert_eq!((answer.status(), answer.text().as_str(), answer.is_whole()), (200, "slow\n", true));
    assert_eq!(answer.header("x-id"), Some("late"));
    let seen = app.journal.wait("req", 2, SOON).await;
    assert_eq!((seen[1].get("stream"), seen[1].get("proto")), ("1", "h2"));
    assert_eq!(app.journal.times_seen("late"), 1);
}

#[tokio::test]
async fn answers_are_read_as_the_paths_ask() {
    let (app, address, _dir) = app(AppOptions::default().h2c()).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let wanted = [
        ("/", 200, "ok\n", None),
        ("/status?code=404", 404, "as asked\n", None),
        ("/chunks?n=2&every_ms=2", 200, "piece 0\npiece 1\n", None),
        ("/trailers?n=12000", 200, "ok\n", None),
        ("/reset?code=8&sent=3", 200, "\0\u{1}\u{2}", Some(code::CANCEL)),
        ("/reset?code=0&sent=3", 200, "\0\u{1}\u{2}", Some(code::NO_ERROR)),
        ("/reset?code=7&head=0", 0, "", Some(code::REFUSED_STREAM)),
    ];
    // All at once: the answers mix on the wire.
    let mut streams = Vec::new();
    for (path, ..) in &wanted {
        streams.push(raw.get(path).await.unwrap());
    }
    for (stream, (path, status, text, reset)) in streams.iter().zip(&wanted) {
        let answer = raw.answer(*stream, SOON).await.unwrap();
        assert_eq!((answer.status(), answer.text().as_str(), answer.reset), (*status, *text, *reset), "{path}");
        assert_eq!(answer.is_whole(), reset.is_none(), "{path}");
    }
    let trailers = raw.seen.answer(streams[3]);
    assert_eq!((trailers.trailer("x-end"), trailers.trailer("x-big").map(str::len)), (Some("yes"), Some(12_000)));

    let download = raw.get("/bytes?n=300000&piece=100000&every_ms=1").await.unwrap();
    assert_eq!(raw.answer(download, SOON).await.unwrap().body, pattern(300_000));
    let body = pattern(1_000_000);
    let echo = raw.begin("/echo", &[]).await.unwrap();
    raw.upload(echo, &body, SOON).await.unwrap();
    assert_eq!(raw.answer(echo, SOON).await.unwrap().header("x-sum"), Some(Sum::of(&body).hex().as_str()));
    let slow = raw.begin("/upload?piece=50000&every_ms=1", &[]).await.unwrap();
    raw.upload(slow, &body, SOON).await.unwrap();
    assert_eq!(raw.answer(slow, SOON).await.unwrap().text(), "received=1000000\n");
    assert_eq!(app.journal.wait("done", 10, SOON).await.len(), 10);
}

#[tokio::test]
async fn an_early_answer_resets_the_rest_of_the_request_or_reads_it() {
    let (_app, address, _dir) = app(AppOptions::default()).await;
    let mut raw = RawH2::open(address).await.unwrap();
    for (path, reset) in [("/early?status=413", Some(code::NO_ERROR)), ("/early?status=401&reads=1", None)] {
        let stream = raw.begin(path, &[]).await.unwrap();
        let answer = raw.answer(stream, SOON).await.unwrap();
        assert!(answer.is_whole() && answer.status() > 400, "{path}");
        if reset.is_some() {
            raw.wait("reset of the rest", SOON, |seen| seen.answer(stream).reset).await.unwrap();
        } else {
            raw.data(stream, b"the rest", true).await.unwrap();
        }
        raw.round_trip().await.unwrap();
        assert_eq!(raw.seen.answer(stream).reset, reset, "{path}");
        assert!(raw.seen.answer(stream).ended);
    }
}

#[tokio::test]
async fn grpc_methods_frame_and_end_as_asked() {
    let (_app, address, _dir) = app(AppOptions::default()).await;
    let mut raw = RawH2::open(address).await.unwrap();

    let unary = raw.unary("/grpc/unary", b"hello").await.unwrap();
    let answer = raw.answer(unary, SOON).await.unwrap();
    assert_eq!((answer.messages(), answer.grpc_status()), ((vec![b"hello".to_vec()], 0), Some(0)));
    assert!(!answer.is_trailers_only());

    let stream = raw.unary("/grpc/stream?n=5&every_ms=2&size=3000", b"").await.unwrap();
    let (messages, left) = raw.answer(stream, SOON).await.unwrap().messages();
    let numbers: Vec<_> = messages.iter().map(|one| number_of(one)).collect();
    assert_eq!((numbers, left), ((0..5).map(Some).collect(), 0));

    let bidi = raw.begin_grpc("/grpc/bidi").await.unwrap();
    for number in 0..3 {
        raw.data(bidi, &message(&numbered(number, 20)), false).await.unwrap();
        let whole = |seen: &crate::harness::h2::Seen| seen.answer(bidi).messages().0.len() as u64;
        raw.wait("the echo", SOON, |seen| (whole(seen) > number).then_some(())).await.unwrap();
    }
    raw.data(bidi, &message(b"last"), true).await.unwrap();
    let answer = raw.answer(bidi, SOON).await.unwrap();
    assert_eq!((answer.messages().0.len(), answer.grpc_status()), (4, Some(0)));

    let error = raw.unary("/grpc/error?status=5&bytes=12000", b"").await.unwrap();
    let answer = raw.answer(error, SOON).await.unwrap();
    assert!(answer.is_trailers_only());
    assert_eq!((answer.grpc_status(), answer.grpc_message().map(str::len)), (Some(5), Some(12_000)));
    let error = raw.unary("/grpc/error?status=9&head=1", b"").await.unwrap();
    let answer = raw.answer(error, SOON).await.unwrap();
    assert!(!answer.is_trailers_only());
    assert_eq!(answer.trailer("grpc-status"), Some("9"));

    let half = raw.unary("/grpc/half?before=1&size=1000&sent=300", b"").await.unwrap();
    let seen = raw.wait("half a message", SOON, |seen| Some(seen.answer(half)).filter(|one| one.messages().1 == 300));
    assert!(!seen.await.unwrap().is_over());
    let late = raw.unary("/grpc/half?size=1000&sent=300&ms=20", b"").await.unwrap();
    let (messages, left) = raw.answer(late, SOON).await.unwrap().messages();
    assert_eq!((messages, left), (vec![numbered(0, 1000)], 0));
    assert_eq!(grpc::split(b"\0\0\0\0\x01ab"), (vec![b"a".to_vec()], 1));
}

#[tokio::test]
async fn the_app_tells_what_was_cancelled_and_what_was_lost() {
    let (app, address, _dir) = app(AppOptions::default()).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let hanging = raw.get("/hang").await.unwrap();
    let streaming = raw.unary("/grpc/stream?every_ms=2", b"").await.unwrap();
    let uploading = raw.begin("/upload", &[]).await.unwrap();
    raw.data(uploading, b"1234", false).await.unwrap();
    raw.wait("a message", SOON, |seen| (!seen.answer(streaming).body.is_empty()).then_some(())).await.unwrap();
    for stream in [hanging, streaming, uploading] {
        raw.frame(Frame::reset(stream, code::CANCEL)).await.unwrap();
    }
    let cancels = app.journal.wait("cancel", 3, SOON).await;
    assert!(cancels.iter().all(|one| one.get("code") == "8"));
    let upload = cancels.iter().find(|one| one.get("stream") == uploading.to_string()).unwrap();
    assert_eq!(upload.get("received"), "4");
    let lost = raw.get("/hang").await.unwrap();
    app.journal.wait("req", 4, SOON).await;
    raw.reset();
    let line = app.journal.wait("lost", 1, SOON).await.remove(0);
    assert_eq!(line.get("stream"), lost.to_string());

    let mut raw = RawH2::open(address).await.unwrap();
    let cut = raw.get("/die?sent=5").await.unwrap();
    raw.ending(SOON).await;
    assert_eq!((raw.seen.answer(cut).body.len(), raw.seen.is_over(cut)), (5, false));
}

#[tokio::test]
async fn the_app_lets_go_of_connections_as_asked() {
    let graceful = AppOptions { goaway: Some((After::Requests(2), Farewell::Graceful)), ..AppOptions::default() };
    let (first, address, _dir) = app(graceful).await;
    let mut raw = RawH2::open(address).await.unwrap();
    raw.acks_pings = false;
    raw.get("/").await.unwrap();
    raw.get("/slow?ms=50").await.unwrap();
    raw.goaways(1, SOON).await.unwrap();
    let between = raw.get("/").await.unwrap();
    assert_eq!(raw.answer(between, SOON).await.unwrap().status(), 200);
    let [Control::Goaway { last: NO_LAST, code: code::NO_ERROR, .. }, Control::Ping(payload)] = raw.seen.notices()[..]
    else {
        panic!("{:?}", raw.seen)
    };
    raw.frame(Frame::ping_ack(&payload)).await.unwrap();
    assert_eq!(raw.goaways(2, SOON).await.unwrap()[1], (between, code::NO_ERROR));
    assert_eq!(raw.ending(SOON).await, Ending::Fin);
    assert!(raw.seen.goaway_at(0) < raw.seen.goaway_at(1));
    assert_eq!(raw.seen.answers.len(), 3);
    assert_eq!(first.journal.lines("goaway")[0].get("how"), "graceful");

    let aged = (After::Age(Duration::from_millis(100)), Farewell::GracefulThenGone(Duration::from_millis(50)));
    let (_second, address, _dir) = app(AppOptions { goaway: Some(aged), ..AppOptions::default() }).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let open = raw.get("/hang").await.unwrap();
    assert_ne!(raw.ending(SOON).await, Ending::StillOpen);
    assert_eq!((raw.seen.goaways()[0], raw.seen.is_over(open)), ((NO_LAST, code::NO_ERROR), false));

    let mut raw = RawH2::open(address).await.unwrap();
    let open = raw.get("/goaway?code=11&ms=60000").await.unwrap();
    assert_ne!(raw.ending(SOON).await, Ending::StillOpen);
    assert_eq!(raw.seen.goaways(), [(open, code::ENHANCE_YOUR_CALM)]);
}

#[tokio::test]
async fn a_preface_may_be_refused_or_met_with_silence() {
    let speaking = |speaks| AppOptions { speaks, ..AppOptions::default() };
    let (_app, address, _dir) = app(speaking(Speaks::Http1Refusing(505))).await;
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send(PREFACE).await.unwrap();
    assert_eq!(raw.reply("PRI", SOON).await.unwrap().status, 505);
    assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    assert_eq!(send(address, &Request::get("/"), SOON).await.unwrap().status, 200);

    let (app_silent, address, _dir) = app(speaking(Speaks::SilentAfterPreface)).await;
    let mut raw = RawH2::connect(address).await.unwrap();
    raw.greet(&[]).await.unwrap();
    app_silent.journal.wait("preface", 1, SOON).await;
    assert_eq!(raw.next(Duration::from_millis(50)).await.unwrap_err(), Failure::Timeout);

    let (_app, address, _dir) = app(speaking(Speaks::Http1)).await;
    let mut raw = RawH2::connect(address).await.unwrap();
    raw.greet(&[]).await.unwrap();
    assert_ne!(raw.ending(SOON).await, Ending::StillOpen);
    assert_eq!(raw.seen.frames, 0);
}

#[tokio::test]
async fn both_sides_can_be_played_frame_by_frame() {
    let listener = TcpListener::bind(SocketAddr::new(fresh_ip(), 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = async {
        let mut raw = RawH2::connect(address).await.unwrap();
        raw.greet(&[(setting::MAX_CONCURRENT_STREAMS, 7)]).await.unwrap();
        let block = crate::harness::h2::request(1, "GET", "/", &[]).end_stream();
        let (front, back) = block.payload.split_at(9);
        let head = Frame::new(Kind::Headers, block.flags, 1, front.to_vec()).open_ended();
        raw.frames(&[head, Frame::continuation(1, back.to_vec())]).await.unwrap();
        raw.answer(1, SOON).await.unwrap()
    };
    let server = async {
        let mut raw = RawH2::accept(&listener).await.unwrap();
        raw.frame(Frame::settings(&[])).await.unwrap();
        // Whoever asks is an answer too, seen from here.
        let asked = raw.wait("the request", SOON, |seen| seen.is_over(1).then(|| seen.answer(1))).await.unwrap();
        let answer = Frame::headers(1, &[(":status", "204")]).end_stream();
        raw.frames(&[Frame::headers(1, &[(":status", "103")]), answer]).await.unwrap();
        raw.wait("ACK of our SETTINGS", SOON, |seen| {
            seen.control.iter().any(|(_, one)| *one == Control::SettingsAck).then_some(())
        })
        .await
        .unwrap();
        (asked, raw.seen.settings().unwrap())
    };
    let (answer, (asked, settings)) = tokio::join!(client, server);
    assert_eq!((answer.status(), answer.interim), (204, vec![103]));
    assert_eq!((asked.header(":method"), asked.header(":path")), (Some("GET"), Some("/")));
    assert_eq!(settings[&setting::MAX_CONCURRENT_STREAMS], 7);
}
