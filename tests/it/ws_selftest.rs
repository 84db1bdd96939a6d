//! Owns tests of the WebSocket toys: the app's sessions, the strict client, and that it notices every fault.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::harness::app::AppOptions;
use crate::harness::client::{Ending, Failure};
use crate::harness::h2::{Frame, RawH2, setting};
use crate::harness::http::Wire;
use crate::harness::process::Exit;
use crate::harness::stage::app;
use crate::harness::wait::Mono;
use crate::harness::ws::{
    Answer, Close, NO_CLOSE, NO_STATUS, Over, Reader, Refusal, Said, Sessions, Side, Violation, WsClient, WsFault,
    WsFrame, WsPlan, WsRecord, number_of, numbered, opcode,
};
use crate::harness::{SOON, fresh_ip};

const QUICK: Duration = Duration::from_millis(2);

async fn open(address: SocketAddr, path: &str) -> WsClient {
    WsClient::open(address, &WsPlan::new(path), "one").await.unwrap()
}

/// One session to its end.
async fn session(address: SocketAddr, plan: &WsPlan) -> WsRecord {
    Sessions::start(address, plan, 1).await.ended(SOON).await.records.remove(0)
}

/// What one reader makes of these bytes, at once and byte by byte.
fn read(side: Side, extended: bool, bytes: &[u8]) -> Result<Vec<Said>, Violation> {
    let all = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut reader, mut said) = (Reader::new(side, extended), Vec::new());
        for piece in pieces {
            reader.feed(piece);
            while let Some(one) = reader.next()? {
                said.push(one);
            }
        }
        Ok(said)
    };
    let at_once = all(&mut std::iter::once(bytes));
    assert_eq!(at_once, all(&mut bytes.chunks(1)), "{bytes:x?}");
    at_once
}

#[test]
fn the_reader_notices_every_fault() {
    let text = |payload: &str| WsFrame::new(opcode::TEXT, payload.into());
    let close = |payload: &[u8]| WsFrame::new(opcode::CLOSE, payload.to_vec()).encode();
    let after = |frames: &[WsFrame]| frames.iter().flat_map(WsFrame::encode).collect::<Vec<u8>>();
    let long = [vec![0x82, 126, 0, 5], vec![0; 5]].concat();
    for (bytes, violation) in [
        (text("a").reserved(4).encode(), Violation::ReservedBits),
        (text("a").reserved(1).encode(), Violation::ReservedBits),
        (WsFrame::new(3, Vec::new()).encode(), Violation::ReservedOpcode),
        (WsFrame::new(0xb, Vec::new()).encode(), Violation::ReservedOpcode),
        (text("a").masked().encode(), Violation::Masked),
        (WsFrame::new(opcode::PING, vec![0; 126]).encode(), Violation::LongControl),
        (WsFrame::new(opcode::PING, Vec::new()).open_ended().encode(), Violation::FragmentedControl),
        (long, Violation::LengthEncoding),
        ([vec![0x82, 127], vec![0; 7], vec![1, 0]].concat(), Violation::LengthEncoding),
        ([vec![0x82, 127], vec![0x80; 8]].concat(), Violation::LengthEncoding),
        (after(&[text("a").open_ended(), text("b")]), Violation::Interleaved),
        (WsFrame::new(opcode::CONTINUATION, Vec::new()).encode(), Violation::StrayContinuation),
        (after(&[WsFrame::close(1000, ""), text("late")]), Violation::AfterClose),
        (after(&[WsFrame::close(1001, ""), WsFrame::close(1001, "")]), Violation::AfterClose),
        ([WsFrame::close(1000, "").encode(), vec![0x81]].concat(), Violation::AfterClose),
        (close(&[3]), Violation::CloseLength),
        (WsFrame::close(NO_STATUS, "").encode(), Violation::CloseCode(NO_STATUS)),
        (WsFrame::close(NO_CLOSE, "").encode(), Violation::CloseCode(NO_CLOSE)),
        (WsFrame::close(999, "").encode(), Violation::CloseCode(999)),
        (WsFrame::close(5000, "").encode(), Violation::CloseCode(5000)),
        (close(&[3, 0xe8, 0xff]), Violation::NotUtf8),
        (WsFrame::new(opcode::TEXT, vec![0xff]).encode(), Violation::NotUtf8),
    ] {
        assert_eq!(read(Side::Server, false, &bytes), Err(violation), "{bytes:x?}");
    }
    assert_eq!(read(Side::Client, false, &text("a").encode()), Err(Violation::Unmasked));
    let compressed_close = WsFrame::close(1001, "").reserved(4).encode();
    assert_eq!(read(Side::Server, true, &compressed_close), Err(Violation::ReservedBits));
}

#[test]
fn the_reader_takes_what_is_right() {
    let frames = [
        WsFrame::new(opcode::TEXT, b"one ".to_vec()).open_ended(),
        WsFrame::new(opcode::PING, b"between".to_vec()),
        WsFrame::new(opcode::CONTINUATION, "zwölf".into()),
        WsFrame::new(opcode::BINARY, vec![0xff; 126]).reserved(4),
        WsFrame::new(opcode::BINARY, vec![7; 70_000]),
        WsFrame::close(1012, "see you"),
    ];
    let message = |text, compressed, payload: &[u8]| Said::Message { text, compressed, payload: payload.to_vec() };
    let said = vec![
        Said::Ping(b"between".to_vec()),
        message(true, false, "one zwölf".as_bytes()),
        message(false, true, &[0xff; 126]),
        message(false, false, &[7; 70_000]),
        Said::Close(Close { code: 1012, reason: "see you".to_owned() }),
    ];
    let masked: Vec<u8> = frames.iter().flat_map(|frame| frame.clone().masked().encode()).collect();
    assert_eq!(read(Side::Client, true, &masked), Ok(said));
    let empty = Said::Close(Close { code: NO_STATUS, reason: String::new() });
    assert_eq!(read(Side::Server, false, &[0x88, 0]), Ok(vec![empty]));
    let mut reader = Reader::new(Side::Server, false);
    reader.feed(&[0x81, 5, b'h']);
    assert_eq!((reader.next(), reader.is_torn()), (Ok(None), true));
    reader.feed(b"ello");
    assert!(reader.next().unwrap().is_some() && !reader.is_torn());
    assert_eq!(number_of(&numbered('c', 12, 100)), Some(('c', 12)));
    assert_eq!(number_of(b"c12 ...x"), None);
}

/// A server that answers one handshake with `head`, then says `bytes` and ends.
async fn scripted(head: &'static str, bytes: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind(SocketAddr::new(fresh_ip(), 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut wire = Wire::new(listener.accept().await.unwrap().0);
        let request = wire.head().await.unwrap();
        let accept = derive_accept_key(request.get("sec-websocket-key").unwrap().as_bytes());
        let text = head.replace("ACCEPT", &accept);
        wire.get_mut().write_all(&[text.as_bytes(), b"\r\n\r\n", &bytes].concat()).await.unwrap();
        wire.get_mut().shutdown().await.unwrap();
        while matches!(wire.more().await, Ok(1..)) {}
    });
    address
}

const GOOD: &str = "HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Accept: ACCEPT";

#[tokio::test]
async fn the_client_refuses_a_bad_handshake() {
    let status = |status, retry_after, closes| Refusal::Status { status, retry_after, closes };
    for (head, refusal) in [
        (
            "HTTP/1.1 101 Go\r\nConnection: close\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ACCEPT",
            Refusal::Bad("Connection is not Upgrade"),
        ),
        (
            "HTTP/1.1 101 Go\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ACCEPT",
            Refusal::Bad("Connection is not Upgrade"),
        ),
        (
            "HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: toy\r\nSec-WebSocket-Accept: ACCEPT",
            Refusal::Bad("Upgrade is not websocket"),
        ),
        (
            "HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
            Refusal::Bad("Sec-WebSocket-Accept belongs to another key"),
        ),
        (
            "HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ACCEPT\r\nContent-Length: 0",
            Refusal::Bad("a 101 with a body"),
        ),
        (
            "HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ACCEPT\r\nSec-WebSocket-Protocol: c",
            Refusal::Bad("a subprotocol that was not offered"),
        ),
        (
            "HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ACCEPT\r\nSec-WebSocket-Extensions: z",
            Refusal::Bad("an extension that was not offered"),
        ),
        ("HTTP/1.1 503 No\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0", status(503, true, true)),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0", status(200, false, false)),
    ] {
        let plan = WsPlan { protocols: Some("a, b".to_owned()), ..WsPlan::new("/ws") };
        let address = scripted(head, Vec::new()).await;
        assert_eq!(WsClient::open(address, &plan, "one").await.unwrap_err(), refusal, "{head}");
    }
    let nobody = SocketAddr::new(fresh_ip(), 9);
    let refused = session(nobody, &WsPlan::new("/ws")).await;
    assert_eq!(refused.fault, Some(WsFault::Refused(Refusal::Connection(Failure::Refused))));
}

#[tokio::test]
async fn a_session_tells_its_first_fault_and_its_end() {
    let pushed = |number| WsFrame::new(opcode::TEXT, numbered('p', number, 0)).encode();
    let close = || WsFrame::close(1001, "").encode();
    let (fin, torn) = (Ending::Fin, WsFault::Torn(Ending::Fin));
    let after = WsFault::Protocol(Violation::AfterClose);
    let not_utf8 = WsFault::Protocol(Violation::NotUtf8);
    for (bytes, code, fault, ending) in [
        ([pushed(0), close()].concat(), 1001, None, fin),
        (pushed(0), NO_CLOSE, None, fin),
        (vec![0x88, 0], NO_STATUS, None, fin),
        (pushed(0)[..3].to_vec(), NO_CLOSE, Some(torn), fin),
        ([&pushed(0)[..2], &close()].concat(), NO_CLOSE, Some(not_utf8), Ending::StillOpen),
        ([pushed(0), pushed(2), close()].concat(), 1001, Some(WsFault::OutOfOrder), fin),
        ([pushed(0), pushed(0), close()].concat(), 1001, Some(WsFault::OutOfOrder), fin),
        ([close(), pushed(0)].concat(), 1001, Some(after), Ending::StillOpen),
    ] {
        let record = session(scripted(GOOD, bytes.clone()).await, &WsPlan::new("/ws")).await;
        assert_eq!((record.code(), record.fault, record.ending), (code, fault, ending), "{bytes:x?}");
        assert_eq!(record.is_complete(), code != NO_CLOSE && fault.is_none(), "{bytes:x?}");
    }
}

#[tokio::test]
async fn many_sessions_talk_and_close_without_a_loss() {
    let (app, address, _dir) = app(AppOptions::default()).await;
    let plan = WsPlan { size: 200, path: "/ws?push_ms=5".to_owned(), ..WsPlan::talking(QUICK) };
    let sessions = Sessions::start(address, &plan, 100).await;
    sessions.all_have(20, SOON).await;
    assert_eq!(sessions.open(), 100);
    let t0 = Mono::now();
    sessions.close(1000);
    let summary = sessions.ended(SOON).await;
    summary.assert_closed(1000);
    summary.assert_none_lost(&app.journal);
    assert_eq!((summary.unechoed(), summary.codes()), (0, [(1000, 100)].into()));
    assert!(summary.records.iter().all(|one| one.sent > 0 && one.pushed > 0));
    assert_eq!((summary.closes_since(t0).len(), summary.densest(SOON)), (100, 100));
    app.journal.wait("over", 100, SOON).await;
    let closes = app.journal.lines("close");
    assert!(closes.iter().all(|one| one.get("first") == "client" && one.get("code") == "1000"));
    assert_eq!((closes.len(), app.journal.count("violation")), (100, 0));
    assert!(app.journal.lines("over").iter().all(|one| one.get("how") == "fin"));
}

#[tokio::test]
async fn a_loss_is_noticed() {
    let (app, address, _dir) = app(AppOptions::default()).await;
    let plan = WsPlan { count: 3, ..WsPlan::talking(QUICK) };
    let sessions = Sessions::start(address, &plan, 1).await;
    sessions.all_have(3, SOON).await;
    sessions.close(1000);
    let mut summary = sessions.ended(SOON).await;
    summary.assert_none_lost(&app.journal);
    summary.records[0].sent += 1;
    let journal = app.journal.clone();
    let lost = tokio::spawn(async move { summary.assert_none_lost(&journal) });
    assert!(lost.await.unwrap_err().is_panic());
}

#[tokio::test]
async fn the_app_ends_sessions_as_asked() {
    let (app, address, _dir) = app(AppOptions::default()).await;
    let three = WsPlan::talking(QUICK);
    let closing = WsPlan { path: "/ws?after=3&then=close&code=4001&reason=bye".to_owned(), ..three.clone() };
    let record = session(address, &closing).await;
    let close = record.close.clone().unwrap().1;
    assert_eq!((close.code, close.reason.as_str(), record.is_complete()), (4001, "bye", true), "{record:?}");
    let line = app.journal.wait("close", 1, SOON).await.remove(0);
    assert_eq!((line.get("code"), line.get("first")), ("4001", "app"));

    // Everything that the client says before its own Close arrives.
    let late = WsPlan { answer: Answer::After(5), path: "/ws?after_ms=30&then=close&code=1001".to_owned(), ..three };
    let summary = Sessions::start(address, &late, 10).await.ended(SOON).await;
    summary.assert_closed(1001);
    summary.assert_none_lost(&app.journal);
    assert!(summary.records.iter().all(|one| one.sent >= 5));

    let dropping = WsPlan { path: "/ws?after=2&then=drop".to_owned(), ..WsPlan::talking(SOON) };
    let record = session(address, &WsPlan { every: Some(QUICK), count: 2, ..dropping }).await;
    assert_eq!((record.code(), record.is_complete(), record.fault), (NO_CLOSE, false, None));
    assert_eq!(app.journal.lines("over").iter().filter(|one| one.get("how") == "dropped").count(), 1);
    let dying = WsPlan { path: "/ws?after=1&then=exit".to_owned(), ..WsPlan::talking(QUICK) };
    let record = session(address, &dying).await;
    assert_eq!((record.code(), record.is_complete()), (NO_CLOSE, false));
    assert_eq!(app.process.exit(SOON).await, Exit::Code(1));
}

#[tokio::test]
async fn a_close_may_stay_without_an_answer() {
    let (app, address, _dir) = app(AppOptions::default()).await;
    let mut client = open(address, "/ws?ignore_close=1").await;
    client.send(WsFrame::close(1000, "leaving now")).await.unwrap();
    let line = app.journal.wait("close", 1, SOON).await.remove(0);
    assert_eq!(line.get("reason"), "leaving_now");
    assert_eq!(client.ended(Duration::from_millis(100)).await, WsFault::Ended(Ending::StillOpen));

    let silent = WsPlan { answer: Answer::Never, ..WsPlan::new("/ws?after_ms=1&then=close") };
    let sessions = Sessions::start(address, &silent, 1).await;
    app.journal.wait("ws", 2, SOON).await;
    assert!(timeout(Duration::from_millis(100), sessions.ended(SOON)).await.is_err());

    // The app is as strict as the client.
    let mut client = open(address, "/ws").await;
    client.send_raw(&WsFrame::new(opcode::TEXT, b"bare".to_vec()).encode()).await.unwrap();
    let line = app.journal.wait("violation", 1, SOON).await.remove(0);
    assert_eq!(line.get("what"), "Unmasked");
}

#[tokio::test]
async fn the_app_answers_handshakes_as_asked() {
    let (_app, address, _dir) = app(AppOptions::default()).await;
    let offer = WsPlan {
        protocols: Some("soap, chat".to_owned()),
        extensions: Some("permessage-deflate; client_max_window_bits, other".to_owned()),
        compressed: true,
        every: Some(QUICK),
        ..WsPlan::new("/ws?ms=20")
    };
    let client = WsClient::open(address, &offer, "one").await.unwrap();
    assert_eq!(client.protocol.as_deref(), Some("soap"));
    assert_eq!(client.extensions.as_deref(), Some("permessage-deflate; client_max_window_bits"));
    let sessions = Sessions::start(address, &offer, 1).await;
    sessions.all_have(3, SOON).await;
    sessions.close(3000);
    sessions.ended(SOON).await.assert_closed(3000);

    let none = WsPlan { path: "/ws?agree=0".to_owned(), ..offer.clone() };
    let client = WsClient::open(address, &none, "one").await.unwrap();
    assert_eq!((client.protocol, client.extensions), (None, None));
    let refused = WsPlan { path: "/ws?refuse=401".to_owned(), ..offer };
    let refused = session(address, &refused).await;
    let status = Refusal::Status { status: 401, retry_after: false, closes: false };
    assert_eq!(refused.fault, Some(WsFault::Refused(status)));
    let mut early = open(address, "/ws?early=1&push_ms=1&push_n=3").await;
    for number in 0..3 {
        let Said::Message { payload, .. } = early.next().await.unwrap() else { panic!("a message was expected") };
        assert_eq!(number_of(&payload), Some(('p', number)));
    }
}

#[tokio::test]
async fn a_large_message_comes_in_one_frame_or_in_many() {
    const SIZE: usize = 3_000_000;
    let (_app, address, _dir) = app(AppOptions::default()).await;
    for (fragmented, slow) in [(0, false), (1, false), (0, true), (1, true)] {
        let path = format!("/ws?push_ms=0&push_n=1&size={SIZE}&piece=65536&fragmented={fragmented}");
        let reads = slow.then_some((32_768, Duration::from_millis(1)));
        let mut client = WsClient::open(address, &WsPlan { reads, ..WsPlan::new(&path) }, "one").await.unwrap();
        client.send(WsFrame::new(opcode::PING, b"now".to_vec())).await.unwrap();
        let (mut pong_first, mut message) = (None, None);
        while pong_first.is_none() || message.is_none() {
            match client.next().await.unwrap() {
                Said::Pong(payload) if payload == b"now" => pong_first = Some(message.is_none()),
                Said::Message { payload, .. } => message = Some((payload.len(), number_of(&payload))),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(message, Some((SIZE, Some(('p', 0)))));
        // Control frames may stand between fragments, and nowhere else.
        assert!(pong_first == Some(true) || fragmented == 0, "the PONG came behind all fragments");
    }
    let path = format!("/ws?push_ms=0&push_n=1&size={SIZE}&piece=1000&pause_ms=1");
    let mut paced = open(address, &path).await;
    assert!(timeout(Duration::from_millis(50), paced.next()).await.is_err(), "3,000 pauses are not over");
    let end = paced.ended(Duration::from_millis(1)).await;
    assert_eq!(end, WsFault::Ended(Ending::StillOpen));
}

#[tokio::test]
async fn a_session_runs_on_a_stream_of_http2() {
    let listener = TcpListener::bind(SocketAddr::new(fresh_ip(), 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let mut raw = RawH2::accept(&listener).await.unwrap();
        raw.frame(Frame::settings(&[(setting::ENABLE_CONNECT_PROTOCOL, 1)])).await.unwrap();
        let asked = raw.wait("a CONNECT", SOON, |seen| seen.answers.get(&1).cloned()).await.unwrap();
        assert_eq!((asked.header(":method"), asked.header(":protocol")), (Some("CONNECT"), Some("websocket")));
        assert_eq!((asked.header(":path"), asked.header("sec-websocket-version")), (Some("/ws"), Some("13")));
        raw.frame(Frame::headers(1, &[(":status", "200")])).await.unwrap();
        let mut bytes = WsFrame::new(opcode::TEXT, numbered('p', 0, 20_000)).encode();
        bytes.extend(WsFrame::close(1012, "moving").encode());
        for piece in bytes.chunks(7000) {
            raw.data(1, piece, false).await.unwrap();
        }
        let closed = |body: &[u8]| {
            let said = read(Side::Client, false, body).unwrap();
            matches!(said.last(), Some(Said::Close(_))).then_some(said)
        };
        let said = raw.wait("a Close", SOON, |seen| closed(&seen.answer(1).body)).await.unwrap();
        raw.data(1, b"", true).await.unwrap();
        raw.wait("END_STREAM", SOON, |seen| seen.is_over(1).then_some(())).await.unwrap();
        said
    });
    let plan = WsPlan { over: Over::Http2, answer: Answer::After(2), ..WsPlan::new("/ws") };
    let record = session(address, &plan).await;
    assert_eq!((record.code(), record.pushed, record.is_complete()), (1012, 1, true), "{record:?}");
    let said = server.await.unwrap();
    assert_eq!(said.len(), 3, "{said:?}");

    let (_app, address, _dir) = app(AppOptions::default()).await;
    let refused = session(address, &plan).await.fault;
    let missing = Refusal::Bad("SETTINGS_ENABLE_CONNECT_PROTOCOL was not sent");
    assert_eq!(refused, Some(WsFault::Refused(missing)));
}
