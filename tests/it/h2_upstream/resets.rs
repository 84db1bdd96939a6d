//! Owns streams that one side ends before their time: codes in both directions, early answers, and no end that looks clean.

use crate::grpc::stage::{LONG, Stage, plain};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::{Failure, Raw, Request, send};
use crate::harness::h2::grpc::{message, numbered};
use crate::harness::h2::{Answer, Frame, RawH2, Seen, code};
use crate::harness::http::pattern;

async fn get(raw: &mut RawH2, path: &str) -> Answer {
    let stream = raw.get(path).await.unwrap();
    raw.answer(stream, SOON).await.unwrap()
}

/// §7: whatever the app resets a stream with, its client sees a reset, by the same code; but for the one which says that
/// nothing has been looked at, behind an answer that has begun.
#[tokio::test]
async fn a_reset_in_the_middle_of_an_answer_is_passed_on() {
    let stage = Stage::simple().await;
    let mut raw = stage.open().await;
    for code in [code::CANCEL, code::INTERNAL_ERROR, code::REFUSED_STREAM, code::ENHANCE_YOUR_CALM, 0x1234] {
        let answer = get(&mut raw, &format!("/reset?code={code}&sent=10")).await;
        let told = if code == code::REFUSED_STREAM { code::INTERNAL_ERROR } else { code };
        assert_eq!((answer.ended, answer.reset, answer.body.len()), (false, Some(told), 10), "code {code}");
        let call = raw.unary(&format!("/grpc/reset?n=2&code={code}"), b"").await.unwrap();
        let answer = raw.answer(call, SOON).await.unwrap();
        assert_eq!((answer.ended, answer.reset), (false, Some(told)), "code {code}");
        assert_eq!(answer.messages().0.len(), 2);
    }
    // An answer that stops short of its length has no end at all.
    let stream = raw.get("/truncate?n=1000&sent=10").await.unwrap();
    raw.wait("a part", SOON, |seen: &Seen| (seen.answer(stream).body.len() == 10).then_some(())).await.unwrap();
    assert!(!raw.seen.is_over(stream));
    let after = get(&mut raw, "/").await;
    assert_eq!(after.text(), "ok\n", "the connection is of use");
}

/// hyper takes RST_STREAM(NO_ERROR) for an end of the body; to a client it must not look like one.
#[tokio::test]
async fn a_reset_without_error_is_never_a_clean_end() {
    let stage = Stage::simple().await;
    let mut raw = stage.open().await;
    for sent in [1, 5000] {
        let answer = get(&mut raw, &format!("/reset?code=0&sent={sent}")).await;
        assert!(!answer.ended && answer.body.len() == sent, "{answer:?}");
        assert_eq!(answer.reset, Some(code::INTERNAL_ERROR));
    }
    let call = raw.unary("/grpc/reset?n=3&code=0", b"").await.unwrap();
    let answer = raw.answer(call, SOON).await.unwrap();
    assert!(!answer.ended && answer.reset == Some(code::INTERNAL_ERROR) && answer.trailers.is_none(), "{answer:?}");
    // HTTP/1.1: no last chunk; HTTP/1.0: a reset, since a close would be the end.
    let broken = send(stage.address, &Request::get("/reset?code=0&sent=5000"), SOON).await;
    assert_eq!(broken.unwrap_err(), Failure::Truncated);
    let mut old = Raw::connect(stage.address).await.unwrap();
    old.send("GET /reset?code=0&sent=50 HTTP/1.0\r\n\r\n").await.unwrap();
    assert_eq!(old.ending(SOON).await.1, crate::harness::client::Ending::Reset);
    let broken = [("outcome", "broken")];
    stage.px.metric_becomes("ebbtide_requests_total", &broken, SOON, |count| count == 5.0).await;
}

/// A reset before the head is an app that gave no answer.
#[tokio::test]
async fn a_reset_before_the_head_is_no_answer_and_not_repeated() {
    let stage = Stage::simple().await;
    let mut raw = stage.open().await;
    for code in [code::CANCEL, code::INTERNAL_ERROR, code::NO_ERROR, code::ENHANCE_YOUR_CALM] {
        let before = stage.app.journal.count("req");
        let answer = get(&mut raw, &format!("/reset?code={code}&head=0")).await;
        assert_eq!((answer.status(), answer.is_whole()), (502, true), "code {code}");
        let call = raw.unary(&format!("/reset?code={code}&head=0"), b"").await.unwrap();
        assert_eq!(raw.answer(call, SOON).await.unwrap().grpc_status(), Some(14), "code {code}");
        assert_eq!(stage.app.journal.count("req"), before + 2, "code {code}: sent again");
    }
}

/// A client that gives up, at any moment, gives up on the app's side as well.
#[tokio::test]
async fn a_clients_cancel_reaches_the_app() {
    let stage = Stage::simple().await;
    let mut raw = stage.open().await;
    for (number, code) in [code::CANCEL, code::NO_ERROR, code::INTERNAL_ERROR].into_iter().enumerate() {
        let hanging = raw.get("/hang").await.unwrap();
        let streaming = raw.unary("/grpc/stream?every_ms=2", b"").await.unwrap();
        let bidi = raw.begin_grpc("/grpc/bidi").await.unwrap();
        let uploading = raw.begin("/upload", &[]).await.unwrap();
        raw.data(uploading, b"1234", false).await.unwrap();
        raw.wait("a message", SOON, |seen| (!seen.answer(streaming).body.is_empty()).then_some(())).await.unwrap();
        stage.app.journal.wait("req", 4 * (number + 1), SOON).await;
        for stream in [hanging, streaming, bidi, uploading] {
            raw.frame(Frame::reset(stream, code)).await.unwrap();
        }
        let cancels = raw.during(stage.app.journal.wait("cancel", 4 * (number + 1), SOON)).await;
        let own = [code::CANCEL.to_string(), code.to_string()];
        for one in &cancels[4 * number..] {
            assert!(own.iter().any(|code| code == one.get("code")), "after {code}: {one:?}");
        }
    }
    raw.during(stage.px.metric_becomes("ebbtide_in_flight", &[], SOON, |open| open == 0.0)).await;
    let after = get(&mut raw, "/").await;
    assert_eq!(after.status(), 200);
    assert_eq!(stage.app.journal.count("preface"), 1, "the app's connection is kept");
    // Over HTTP/1.1 the client's close says the same as soon as something is written to it.
    let mut http1 = Raw::connect(stage.address).await.unwrap();
    http1.send("GET /chunks?n=100000&every_ms=5 HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    http1.read_until(b"piece 1", SOON).await.unwrap();
    http1.reset();
    stage.app.journal.wait("cancel", 13, SOON).await;
}

/// hyper takes RST_STREAM(NO_ERROR) for the end of a request as well; an app must not act on a part of one.
#[tokio::test]
async fn a_part_of_a_request_is_never_taken_for_the_whole() {
    let stage = Stage::simple().await;
    let mut raw = stage.open().await;
    for (number, code) in [code::NO_ERROR, code::CANCEL].into_iter().enumerate() {
        // Its answer is under way, so that only the request's own body can tell the app.
        let bidi = raw.begin_grpc("/grpc/bidi").await.unwrap();
        raw.data(bidi, &message(&numbered(0, 20)), false).await.unwrap();
        raw.wait("the echo", SOON, |seen: &Seen| (!seen.answer(bidi).body.is_empty()).then_some(())).await.unwrap();
        raw.frame(Frame::reset(bidi, code)).await.unwrap();
        raw.during(stage.app.journal.wait("cancel", number + 1, SOON)).await;
    }
    assert_eq!(stage.app.journal.count("done"), 0, "a part was answered");
}

/// The same in front of an app that speaks HTTP/1.1: there a closed connection is all that can be said.
#[tokio::test]
async fn a_clients_cancel_ends_the_connection_to_an_http1_app() {
    let stage = Stage::start(AppOptions::default(), plain(LONG)).await;
    let mut raw = stage.open().await;
    let hanging = raw.get("/hang").await.unwrap();
    let streaming = raw.get("/chunks?n=100000&every_ms=5").await.unwrap();
    let uploading = raw.begin("/echo", &[]).await.unwrap();
    raw.data(uploading, b"1234", false).await.unwrap();
    raw.wait("a piece", SOON, |seen| (!seen.answer(streaming).body.is_empty()).then_some(())).await.unwrap();
    stage.app.journal.wait("req", 3, SOON).await;
    for stream in [hanging, streaming, uploading] {
        raw.frame(Frame::reset(stream, code::CANCEL)).await.unwrap();
    }
    raw.during(stage.px.metric_becomes("ebbtide_in_flight", &[], SOON, |open| open == 0.0)).await;
    assert_eq!(get(&mut raw, "/").await.text(), "ok\n");
}

/// An answer that comes before the request is through: whole, and the rest of the request is not missed.
#[tokio::test]
async fn an_early_answer_is_whole_while_the_request_goes_on() {
    let http1 = Stage::start(AppOptions::default(), plain(LONG)).await;
    let http2 = Stage::simple().await;
    for (stage, kind) in [(http1, "http/1.1"), (http2, "h2c")] {
        for reads in [0, 1] {
            let mut raw = stage.open().await;
            let stream = raw.begin(&format!("/early?status=413&reads={reads}"), &[]).await.unwrap();
            let body = pattern(2_000_000);
            // Stops by itself where the answer comes first.
            raw.upload(stream, &body, SOON).await.unwrap();
            let answer = raw.answer(stream, SOON).await.unwrap();
            assert_eq!((answer.status(), answer.text().as_str()), (413, "too much\n"), "{kind}, reads {reads}");
            assert!(answer.ended, "{kind}, reads {reads}: {answer:?}");
            assert!(matches!(answer.reset, None | Some(code::NO_ERROR)), "{kind}, reads {reads}: {answer:?}");
            let after = get(&mut raw, "/").await;
            assert_eq!(after.text(), "ok\n", "{kind}, reads {reads}");
        }
        stage.px.metric_becomes("ebbtide_in_flight", &[], SOON, |open| open == 0.0).await;
        let mut http1 = Raw::connect(stage.address).await.unwrap();
        http1.send("POST /early?status=413 HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000\r\n\r\nsome").await.unwrap();
        assert_eq!(http1.reply("POST", SOON).await.unwrap().status, 413, "{kind}");
    }
}
