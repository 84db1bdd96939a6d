//! Owns apps of which only they themselves know what they speak: `auto://` and `unix://`.

use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

use super::script::Script;
use crate::grpc::stage::{LONG, Stage, front, plain};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, Listen, Scheme, Speaks};
use crate::harness::client::{Request, send};
use crate::harness::h2::RawH2;
use crate::harness::http::Wire;
use crate::harness::wait::eventually;

async fn start(speaks: Speaks) -> Stage {
    let options = AppOptions { speaks, scheme: Scheme::Auto, ..AppOptions::default() };
    // What is learned is learned by a worker.
    Stage::start(options, plain(LONG).env("EBBTIDE_WORKERS", "1")).await
}

/// What ebbtide says that apps have answered, in order.
fn answers(stage: &Stage) -> Vec<String> {
    let events = stage.px.log_events("asked which protocol the app speaks");
    let answer = |event| crate::harness::ebbtide::surface::field(event, "answer").map(ToString::to_string);
    events.iter().filter_map(answer).map(|text| text.replace('"', "")).collect()
}

/// Waits until the log says so: it is written a moment later.
async fn have_answered(stage: &Stage, expected: &[&str]) {
    eventually("what apps have answered", SOON, || match answers(stage) {
        all if all == expected => Ok(()),
        other => Err(other),
    })
    .await;
}

/// Status 200 for `/`, and the status of a unary call.
async fn both(raw: &mut RawH2) -> Option<u16> {
    let get = raw.get("/").await.unwrap();
    let call = raw.unary("/grpc/unary", b"x").await.unwrap();
    assert_eq!(raw.answer(get, SOON).await.unwrap().status(), 200);
    raw.answer(call, SOON).await.unwrap().grpc_status()
}

/// §7: asked once per life of the app; HTTP/1 clients ask nothing and are passed on as they are.
#[tokio::test]
async fn an_app_is_asked_once_and_by_http2_clients_alone() {
    let stage = start(Speaks::Both).await;
    for _ in 0..3 {
        assert_eq!(send(stage.address, &Request::get("/"), SOON).await.unwrap().status, 200);
    }
    assert_eq!((stage.app.journal.count("preface"), answers(&stage).len()), (0, 0));
    let mut first = stage.open().await;
    let mut second = stage.open().await;
    // Both at once: one asks, the other hears.
    let (one, other) = tokio::join!(both(&mut first), both(&mut second));
    assert_eq!((one, other), (Some(0), Some(0)));
    for _ in 0..3 {
        assert_eq!(both(&mut first).await, Some(0));
    }
    have_answered(&stage, &["Settings"]).await;
    assert_eq!(stage.app.journal.count("preface"), 2, "the question, and the connection");
    let protocols = |proto: &str| stage.app.journal.lines("req").iter().filter(|one| one.get("proto") == proto).count();
    assert_eq!(protocols("h2"), 10);
}

/// §7: an app that answers otherwise, or closes, or says nothing for a second, speaks HTTP/1.1.
#[tokio::test]
async fn an_app_that_does_not_answer_in_http2_is_spoken_to_in_http1() {
    // An app that says nothing may only be slow: its calls get a status that is tried again.
    for (speaks, answer, status) in [
        (Speaks::Http1, "End", 12),
        (Speaks::Http1Refusing(400), "Other", 12),
        (Speaks::Http1Refusing(505), "Other", 12),
        (Speaks::SilentAfterPreface, "Silence", 14),
    ] {
        let stage = start(speaks).await;
        let mut raw = stage.open().await;
        assert_eq!(both(&mut raw).await, Some(status), "{speaks:?}");
        assert_eq!(both(&mut raw).await, Some(status), "{speaks:?}");
        let echo = raw.begin("/echo", &[]).await.unwrap();
        raw.data(echo, b"hello", true).await.unwrap();
        assert_eq!(raw.answer(echo, SOON).await.unwrap().text(), "hello", "{speaks:?}");
        have_answered(&stage, &[answer]).await;
        assert_eq!(stage.app.journal.count("preface"), 1, "{speaks:?}");
    }
}

/// §7: an app that comes back may be another one.
#[tokio::test]
async fn an_app_that_comes_back_with_another_protocol_is_asked_anew() {
    let mut stage = start(Speaks::Http1Refusing(505)).await;
    let mut raw = stage.open().await;
    assert_eq!(both(&mut raw).await, Some(12));
    for (speaks, status) in [(Speaks::Both, 0), (Speaks::Http1Refusing(400), 12), (Speaks::Both, 0)] {
        stage.kill_app().await;
        raw.during(stage.px.metric_becomes("ebbtide_upstream_up", &[], SOON, |up| up == 0.0)).await;
        raw.during(stage.restart_app(|options| options.speaks = speaks)).await;
        raw.during(stage.px.metric_becomes("ebbtide_upstream_up", &[], SOON, |up| up == 1.0)).await;
        assert_eq!(both(&mut raw).await, Some(status), "{speaks:?}");
    }
    have_answered(&stage, &["Other", "Settings", "Other", "Settings"]).await;
}

/// §7: one that came back so quickly that no dial was refused is found out by what it says.
#[tokio::test]
async fn an_app_that_was_replaced_unnoticed_costs_one_answer() {
    let script = Script::start().await;
    let config = plain(LONG).env("EBBTIDE_WORKERS", "1");
    let (_px, address) = front(config, &format!("auto://{}", script.address())).await;
    let mut raw = RawH2::open(address).await.unwrap();
    let first = raw.get("/").await.unwrap();
    let asked = raw.during(script.accept()).await;
    let mut app = raw.during(script.accept()).await;
    raw.during(app.requests(&[1])).await;
    app.frames(&Script::answer(1, b"new")).await.unwrap();
    assert_eq!(raw.answer(first, SOON).await.unwrap().text(), "new");
    drop((asked, app));
    let listener = script.into_listener();
    let old = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("the listener stays");
            let mut wire = Wire::new(stream);
            // ebbtide's own dials say nothing.
            while wire.more().await.is_ok_and(|more| more > 0) {
                let preface = wire.unread().starts_with(b"PRI");
                let answer = if preface { "400 Bad Request" } else { "200 OK" };
                let _ = wire.head().await;
                let text = format!("HTTP/1.1 {answer}\r\nContent-Length: 3\r\n\r\nold");
                let _ = wire.get_mut().write_all(text.as_bytes()).await;
                if preface {
                    let _ = wire.get_mut().shutdown().await;
                }
            }
        }
    });
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let get = raw.get("/").await.unwrap();
        statuses.push(raw.answer(get, SOON).await.unwrap().status());
    }
    assert_eq!(statuses, [502, 200, 200]);
    old.abort();
}

/// §7: a Unix socket is asked like `auto://`.
#[tokio::test]
async fn a_unix_socket_may_speak_either() {
    let dir = TempDir::new().unwrap();
    for (name, speaks, status) in [("both", Speaks::Both, 0), ("old", Speaks::Http1, 12)] {
        let listen = Listen::Unix(dir.path().join(format!("{name}.sock")));
        let stage = Stage::start(AppOptions { listen, speaks, ..AppOptions::default() }, plain(LONG)).await;
        let mut raw = stage.open().await;
        assert_eq!(both(&mut raw).await, Some(status), "{name}");
        assert_eq!(send(stage.address, &Request::echo(100_000), SOON).await.unwrap().status, 200);
        let echo = raw.begin("/echo", &[]).await.unwrap();
        raw.upload(echo, &crate::harness::http::pattern(300_000), SOON).await.unwrap();
        assert_eq!(raw.answer(echo, SOON).await.unwrap().body.len(), 300_000, "{name}");
        eventually("protocols", SOON, || {
            let protos: Vec<_> = stage.app.journal.lines("req").iter().map(|one| one.get("proto").to_owned()).collect();
            let http2 = protos.iter().filter(|proto| *proto == "h2").count();
            if (http2, protos.len()) == (if status == 0 { 3 } else { 0 }, if status == 0 { 4 } else { 3 }) {
                Ok(())
            } else {
                Err(protos)
            }
        })
        .await;
    }
}
