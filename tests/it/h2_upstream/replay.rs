//! Owns requests of which the app says that it has not looked at them: they are sent again, whole, and executed once.

use super::script::{AppSide, Script};
use crate::grpc::stage::{LONG, own_refusal};
use crate::harness::SOON;
use crate::harness::h2::grpc::{message, numbered};
use crate::harness::h2::{Frame, NO_LAST, RawH2, Seen, code};
use crate::harness::http::pattern;

/// The largest body that can be said twice.
const KEPT: usize = 64 * 1024;

async fn body(raw: &mut RawH2, path: &str, body: &[u8]) -> u32 {
    let stream = raw.begin(path, &[]).await.unwrap();
    raw.upload(stream, body, SOON).await.unwrap();
    stream
}

/// Waits for a request in full and checks that it is this one.
async fn asked(app: &mut AppSide, stream: u32, path: &str, body: &[u8]) {
    app.requests(&[stream]).await;
    let asked = app.seen.answer(stream);
    assert!(asked.is_whole(), "stream {stream}: {asked:?}");
    assert_eq!((asked.header(":path"), asked.body.len()), (Some(path), body.len()), "stream {stream}");
    assert!(asked.body == body, "stream {stream}: another body");
}

/// C50: above the last id of a GOAWAY: to a new connection, with their bodies; up to it: answered where they are.
#[tokio::test]
async fn streams_above_the_last_id_go_to_a_new_connection() {
    let script = Script::start().await;
    let (px, address) = script.front(LONG).await;
    let mut raw = RawH2::open(address).await.unwrap();
    // What keeping costs beside the bytes counts as well.
    let big = pattern(KEPT - 8192);
    let first = body(&mut raw, "/first", b"1").await;
    let mut app = raw.during(script.accept()).await;
    raw.during(app.requests(&[1])).await;
    let call = raw.unary("/grpc/unary", b"second").await.unwrap();
    let large = body(&mut raw, "/third", &big).await;
    let get = raw.get("/fourth").await.unwrap();
    raw.during(app.requests(&[3, 5, 7])).await;
    app.frame(Frame::goaway(1, code::NO_ERROR, b"")).await.unwrap();
    let mut next = raw.during(script.accept()).await;
    raw.during(next.requests(&[1, 3, 5])).await;
    // Their order on the new connection is nobody's promise.
    let mut answered = Vec::new();
    for stream in [1, 3, 5] {
        let seen = next.seen.answer(stream);
        let path = seen.header(":path").unwrap().to_owned();
        let expected: &[u8] = match path.as_str() {
            "/grpc/unary" => &message(b"second"),
            "/third" => &big,
            _ => b"",
        };
        asked(&mut next, stream, &path, expected).await;
        match path.as_str() {
            "/grpc/unary" => next.frame(Script::grpc_ok(stream)).await.unwrap(),
            _ => next.frames(&Script::answer(stream, path.as_bytes())).await.unwrap(),
        }
        answered.push(path);
    }
    answered.sort();
    assert_eq!(answered, ["/fourth", "/grpc/unary", "/third"]);
    assert_eq!(raw.answer(call, SOON).await.unwrap().grpc_status(), Some(0));
    assert_eq!(raw.answer(large, SOON).await.unwrap().text(), "/third");
    assert_eq!(raw.answer(get, SOON).await.unwrap().text(), "/fourth");
    assert!(!raw.seen.is_over(first));
    app.frames(&Script::answer(1, b"from the old one")).await.unwrap();
    assert_eq!(raw.answer(first, SOON).await.unwrap().text(), "from the old one");
    // With its last stream over the old connection is closed.
    assert_ne!(app.ending(SOON).await, crate::harness::client::Ending::StillOpen);
    assert_eq!(px.metrics().await.sum("ebbtide_upstream_retries_total", &[]), 3.0);
}

/// C50: a graceful GOAWAY with a stream still open: nothing new goes there.
#[tokio::test]
async fn new_requests_go_elsewhere_after_the_first_goaway() {
    let script = Script::start().await;
    let (_px, address) = script.front(LONG).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let open = raw.get("/open").await.unwrap();
    let mut app = raw.during(script.accept()).await;
    app.requests(&[1]).await;
    app.frame(Frame::goaway(NO_LAST, code::NO_ERROR, b"")).await.unwrap();
    app.round_trip().await.unwrap();
    let later = raw.get("/later").await.unwrap();
    let mut next = raw.during(script.accept()).await;
    asked(&mut next, 1, "/later", b"").await;
    next.frames(&Script::answer(1, b"new")).await.unwrap();
    assert_eq!(raw.answer(later, SOON).await.unwrap().text(), "new");
    app.frame(Frame::goaway(1, code::NO_ERROR, b"")).await.unwrap();
    app.frames(&Script::answer(1, b"old")).await.unwrap();
    assert_eq!(raw.answer(open, SOON).await.unwrap().text(), "old");
    assert!(app.seen.answer(3).head.is_empty(), "a second request on a connection that leaves");
}

/// RFC 9113 §8.7: a refused stream was not processed; it is sent again, but not for ever.
#[tokio::test]
async fn refused_streams_are_sent_again_but_not_for_ever() {
    let script = Script::start().await;
    let (px, address) = script.front(LONG).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let posted = body(&mut raw, "/post", b"some bytes").await;
    let mut app = raw.during(script.accept()).await;
    for stream in [1, 3] {
        raw.during(asked(&mut app, stream, "/post", b"some bytes")).await;
        app.frame(Frame::reset(stream, code::REFUSED_STREAM)).await.unwrap();
    }
    raw.during(asked(&mut app, 5, "/post", b"some bytes")).await;
    app.frames(&Script::answer(5, b"at last")).await.unwrap();
    assert_eq!(raw.answer(posted, SOON).await.unwrap().text(), "at last");

    let call = raw.unary("/grpc/unary", b"never").await.unwrap();
    let mut times = 0;
    while !raw.seen.is_over(call) {
        let stream = 7 + 2 * times;
        let refused = async {
            asked(&mut app, stream, "/grpc/unary", &message(b"never")).await;
            app.frame(Frame::reset(stream, code::REFUSED_STREAM)).await.unwrap();
        };
        tokio::select! {
            () = refused => times += 1,
            answer = raw.answer(call, SOON) => { answer.unwrap(); }
        }
    }
    assert_eq!((own_refusal(&raw.seen.answer(call)).0, times), (14, 5));
    assert_eq!(px.metrics().await.sum("ebbtide_upstream_retries_total", &[]), 6.0);
    // Behind a head nothing is sent again, and the client must not take it for unseen either.
    let begun = raw.unary("/grpc/stream", b"").await.unwrap();
    raw.during(app.requests(&[17])).await;
    app.frame(Script::grpc_head(17)).await.unwrap();
    raw.wait("the head", SOON, |seen: &Seen| (seen.answer(begun).status() == 200).then_some(())).await.unwrap();
    app.frame(Frame::reset(17, code::REFUSED_STREAM)).await.unwrap();
    assert_eq!(raw.answer(begun, SOON).await.unwrap().reset, Some(code::INTERNAL_ERROR));
}

/// What was not kept can't be said twice: 503, since the app has not looked at it, and 14 for a call.
#[tokio::test]
async fn a_body_beyond_what_is_kept_is_not_sent_again() {
    let script = Script::start().await;
    let (px, address) = script.front(LONG).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let posted = body(&mut raw, "/post", &pattern(KEPT + 1)).await;
    let mut app = raw.during(script.accept()).await;
    raw.during(asked(&mut app, 1, "/post", &pattern(KEPT + 1))).await;
    let call = raw.begin_grpc("/grpc/collect").await.unwrap();
    raw.upload(call, &message(&numbered(0, 2 * KEPT)), SOON).await.unwrap();
    raw.during(app.requests(&[3])).await;
    app.frame(Frame::reset(1, code::REFUSED_STREAM)).await.unwrap();
    assert_eq!(raw.answer(posted, SOON).await.unwrap().status(), 503);
    app.frame(Frame::goaway(0, code::NO_ERROR, b"")).await.unwrap();
    let answer = raw.answer(call, SOON).await.unwrap();
    assert_eq!(own_refusal(&answer).0, 14);
    assert_eq!(px.metrics().await.sum("ebbtide_upstream_retries_total", &[]), 0.0);
}

/// A body that is still coming: what has been said is said again, and what comes goes on behind it.
#[tokio::test]
async fn a_body_that_is_still_coming_goes_on_behind_its_beginning() {
    let script = Script::start().await;
    let (_px, address) = script.front(LONG).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let bidi = raw.begin_grpc("/grpc/bidi").await.unwrap();
    let messages: Vec<Vec<u8>> = (0..6).map(|number| message(&numbered(number, 3000))).collect();
    let mut app = raw.during(script.accept()).await;
    for one in &messages[..3] {
        raw.data(bidi, one, false).await.unwrap();
    }
    let said = messages[..3].concat();
    let all = |seen: &Seen| (seen.answer(1).body.len() == said.len()).then_some(());
    raw.during(app.wait("the beginning", SOON, all)).await.unwrap();
    app.frame(Frame::goaway(0, code::NO_ERROR, b"")).await.unwrap();
    let mut next = raw.during(script.accept()).await;
    raw.during(next.wait("the beginning again", SOON, all)).await.unwrap();
    for (number, one) in messages[3..].iter().enumerate() {
        raw.data(bidi, one, number == 2).await.unwrap();
    }
    raw.during(asked(&mut next, 1, "/grpc/bidi", &messages.concat())).await;
    next.frame(Script::grpc_ok(1)).await.unwrap();
    assert_eq!(raw.answer(bidi, SOON).await.unwrap().grpc_status(), Some(0));
    assert!(app.seen.answer(1).body == said, "the old connection got more");
}

/// A GOAWAY proves nothing for the streams that it includes: the app may have done the work.
#[tokio::test]
async fn streams_up_to_the_last_id_are_not_sent_again() {
    let script = Script::start().await;
    let (px, address) = script.front(LONG).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let posted = body(&mut raw, "/post", b"x").await;
    let call = raw.unary("/grpc/unary", b"y").await.unwrap();
    let mut app = raw.during(script.accept()).await;
    raw.during(app.requests(&[1, 3])).await;
    app.frame(Frame::goaway(3, code::INTERNAL_ERROR, b"fault")).await.unwrap();
    app.round_trip().await.ok();
    drop(app);
    assert_eq!(raw.answer(posted, SOON).await.unwrap().status(), 502);
    assert_eq!(own_refusal(&raw.answer(call, SOON).await.unwrap()).0, 14);
    assert_eq!(px.metrics().await.sum("ebbtide_upstream_retries_total", &[]), 0.0);
}
