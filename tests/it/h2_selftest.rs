//! Owns tests of the harness's HTTP/2 toys, straight against the toy app.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::harness::app::{After, AppOptions, Farewell, Speaks};
use crate::harness::client::{Ending, Failure, Raw, Request, send};
use crate::harness::h2::grpc::{self, message, number_of, numbered};
use crate::harness::h2::{
    Call, Control, Frame, H2Client, H2Load, H2Plan, Held, Kind, Loss, NO_LAST, PREFACE, RawH2, Seen, code, request,
    setting,
};
use crate::harness::http::{Sum, pattern};
use crate::harness::stage::app;
use crate::harness::{SOON, fresh_ip};

#[tokio::test]
async fn both_protocols_are_served_on_one_port() {
    let (app, address, _dir) = app(AppOptions::default()).await;
    assert_eq!(send(address, &Request::get("/"), SOON).await.unwrap().status, 200);

    // The preface may come in pieces, and everything else with its last one.
    let mut raw = RawH2::connect(address).await.unwrap();
    raw.bytes(&PREFACE[..10]).await.unwrap();
    let head = request(1, "GET", "/slow?ms=10", &[("x-id", "late")]).end_stream();
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
        let whole = |seen: &Seen| seen.answer(bidi).messages().0.len() as u64;
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
async fn what_is_answered_by_itself_can_be_left_to_the_test() {
    let (_app, address, _dir) = app(AppOptions::default()).await;
    let mut raw = RawH2::connect(address).await.unwrap();
    (raw.opens_windows, raw.acks_settings) = (false, false);
    raw.greet(&[(setting::INITIAL_WINDOW_SIZE, 1000)]).await.unwrap();
    raw.wait("SETTINGS", SOON, Seen::settings).await.unwrap();
    raw.frame(Frame::settings_ack()).await.unwrap();
    let stream = raw.get("/bytes?n=5000").await.unwrap();
    raw.wait("a full window", SOON, |seen| (seen.answer(stream).body.len() == 1000).then_some(())).await.unwrap();
    raw.round_trip().await.unwrap();
    assert_eq!(raw.seen.answer(stream).body.len(), 1000);
    raw.frame(Frame::window_update(stream, 4000)).await.unwrap();
    assert_eq!(raw.answer(stream, SOON).await.unwrap().body, pattern(5000));

    // Read beside a load on other connections, with its pings acknowledged.
    let beside = raw.get("/slow?ms=10").await.unwrap();
    let client = H2Client::new(address, 1);
    let summary =
        raw.during(Held::start(&client, &Call::slow_unary(8, Duration::from_millis(100)), 3).ended(SOON)).await;
    summary.assert_clean();
    assert!(raw.seen.is_over(beside));

    // Many small frames in both directions, more than the sockets hold.
    let mut frames = Vec::new();
    for number in 0..200_000_u64 {
        frames.push(Frame::ping(number.to_be_bytes()));
    }
    let before = raw.seen.control.len();
    raw.frames(&frames).await.unwrap();
    raw.wait("all ACKs", SOON, |seen| (seen.control.len() == before + 200_000).then_some(())).await.unwrap();
    assert_eq!(raw.seen.control.last().unwrap().1, Control::PingAck(199_999_u64.to_be_bytes()));
}

#[tokio::test]
async fn both_sides_can_be_played_frame_by_frame() {
    let listener = TcpListener::bind(SocketAddr::new(fresh_ip(), 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = async {
        let mut raw = RawH2::connect(address).await.unwrap();
        raw.greet(&[(setting::MAX_CONCURRENT_STREAMS, 7)]).await.unwrap();
        let block = request(1, "GET", "/", &[]).end_stream();
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

#[tokio::test]
async fn load_survives_an_app_that_recycles_its_connections() {
    let graceful = AppOptions { goaway: Some((After::Requests(20), Farewell::Graceful)), ..AppOptions::default() };
    let (app, address, _dir) = app(graceful).await;
    let load = H2Load::start(H2Plan::mixed(address, 400.0));
    load.has_done(400, SOON).await;
    let summary = load.stop().await;
    summary.assert_clean();
    summary.assert_at_most_once(&app.journal);
    assert!(summary.connections() > 4 && !summary.endings.is_empty(), "{:?}", summary.endings);
    assert_eq!((0..5).map(|lane| summary.lane(lane).ok()).sum::<usize>(), summary.ok());
    assert!(summary.since(summary.records[0].ended).total() < summary.total());
}

#[tokio::test]
async fn only_what_was_not_processed_is_tried_again() {
    let (app, address, _dir) = app(AppOptions::default()).await;
    let client = H2Client::new(address, 1);
    let plain = |path: &str| Call::plain(Request::get(path));
    let refused = client.call(&plain("/reset?code=7&head=0"), SOON).await;
    assert_eq!((refused.result, refused.retries), (Err(Loss::Unprocessed), 5));
    assert_eq!(app.journal.times_seen(&refused.id), 5);
    for (path, loss) in [
        ("/reset?code=8&head=0", Loss::Reset(code::CANCEL)),
        ("/reset?code=7", Loss::Reset(code::REFUSED_STREAM)),
        ("/goaway?code=2&ms=60000", Loss::Broken),
        ("/die", Loss::Broken),
        ("/status?code=503", Loss::Status(503)),
    ] {
        let record = client.call(&plain(path), SOON).await;
        assert_eq!((record.result, record.retries), (Err(loss), 0), "{path}");
        assert_eq!(app.journal.times_seen(&record.id), 1, "{path}");
    }
    assert_eq!(client.call(&plain("/hang"), Duration::from_millis(50)).await.result, Err(Loss::Timeout));
    app.journal.wait("cancel", 1, SOON).await;
    assert_eq!(client.call(&Call::plain(Request::echo(500_000)), SOON).await.result, Ok(200));
    let dripping = Request::echo(300).drip(100, Duration::from_millis(2));
    assert_eq!(client.call(&Call::plain(dripping), SOON).await.result, Ok(200));

    app.process.signal(rustix::process::Signal::KILL);
    app.process.exit(SOON).await;
    let late = H2Client::new(address, 1);
    let summary = late.summary(vec![late.call(&plain("/"), SOON).await]);
    assert_eq!(summary.losses(), [(Loss::Refused, 1)].into());
}

#[tokio::test]
async fn a_grpc_call_is_judged_by_its_messages_and_its_status() {
    let (_app, address, _dir) = app(AppOptions::default()).await;
    let client = H2Client::new(address, 1);
    let pause = Duration::from_millis(2);
    for (call, result, messages, torn) in [
        (Call::unary(70_000), Ok(0), 1, 0),
        (Call::slow_unary(8, pause), Ok(0), 1, 0),
        (Call::server_stream(Some(4), pause, 20), Ok(0), 4, 0),
        (Call::bidi(4, pause, 20), Ok(0), 4, 0),
        (Call::numbered("/grpc/half?before=2&size=500&sent=100&ms=5"), Ok(0), 3, 0),
        (Call::numbered("/grpc/reset?n=2&code=2"), Err(Loss::Reset(code::INTERNAL_ERROR)), 2, 0),
        (Call::numbered("/grpc/error?status=14&head=1"), Err(Loss::Grpc(14)), 0, 0),
        (Call::numbered("/grpc/unknown"), Err(Loss::Grpc(12)), 0, 0),
        (Call::numbered("/"), Err(Loss::Torn), 0, 3),
        (Call::numbered("/status?code=503"), Err(Loss::Status(503)), 0, 0),
    ] {
        let record = client.call(&call, SOON).await;
        assert_eq!((record.result, record.messages, record.torn), (result, messages, torn), "{call:?}");
    }
    let error = client.call(&Call::numbered("/grpc/error?status=5&bytes=12000"), SOON).await;
    assert_eq!((error.trailers_only, error.grpc_message.map(|text| text.len())), (true, Some(12_000)));
}

#[tokio::test]
async fn held_streams_show_what_they_have_received() {
    let (app, address, _dir) = app(AppOptions::default()).await;
    let client = H2Client::new(address, 2);
    let bidi = Held::start(&client, &Call::bidi(u64::MAX, Duration::from_millis(10), 20), 20);
    bidi.all_have(3, SOON).await;
    assert_eq!(bidi.open(), 20);
    bidi.cancel();
    let cancels = app.journal.wait("cancel", 20, SOON).await;
    assert!(cancels.iter().all(|one| one.get("sent").parse::<u64>().unwrap() >= 3));

    let streams = Held::start(&client, &Call::server_stream(Some(5), Duration::from_millis(5), 20), 10);
    let ended = streams.ended(SOON).await;
    ended.assert_clean();
    assert!(ended.records.iter().all(|one| one.messages == 5));
    assert_eq!((ended.connections(), ended.before(ended.records[0].began).total(), ended.retried()), (2, 0, 0));
}
