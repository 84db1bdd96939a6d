//! The clients of WebSocket, server-sent events and raw TCP.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::super::super::app;
use super::super::super::app::events::event;
use super::super::super::app::lines::{PING, PONG, answer};
use super::super::super::http::parse_head;
use super::super::super::websocket::Session;
use super::*;

async fn request(stream: &mut TcpStream) -> Head {
    let mut buffer = Vec::new();
    loop {
        stream.read_buf(&mut buffer).await.unwrap();
        if let Ok(Some(head)) = parse_head(&buffer) {
            return head;
        }
    }
}

async fn take_session(mut stream: TcpStream) -> Session {
    let head = request(&mut stream).await;
    let accept = derive_accept_key(head.field("sec-websocket-key").unwrap().as_bytes());
    let answer = format!("HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: {accept}\r\n\r\n");
    stream.write_all(answer.as_bytes()).await.unwrap();
    Session::new(stream, Vec::new(), Role::Server)
}

/// Reads on until the session ends.
async fn end(mut session: Session) {
    while session.next().await.is_ok() {}
}

async fn read_line(stream: &mut TcpStream) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        line.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(line).unwrap()
}

#[tokio::test]
async fn a_session_without_a_close_handshake_is_lost() {
    const EXPECTED: [Result<Left, Failure>; 8] = [
        Ok(Left::Told),
        Ok(Left::Told),
        Err(Failure::Other),
        Err(Failure::NoClose),
        Err(Failure::NoClose),
        Err(Failure::Message),
        Err(Failure::ServerError),
        Err(Failure::Other),
    ];
    let mut tasks = JoinSet::new();
    let (client, _balancer) = tcp_client(&mut tasks, LoadKind::WebSocket, |number, mut stream| async move {
        match number {
            0..=2 => {
                let mut session = take_session(stream).await;
                session.say("0".to_owned()).await.unwrap();
                session.close([CloseCode::Away, CloseCode::Restart, CloseCode::Error][number]).await.unwrap();
                end(session).await;
            }
            3 => drop(take_session(stream).await),
            4 => {
                stream.set_zero_linger().unwrap();
                drop(take_session(stream).await);
            }
            5 => {
                let mut session = take_session(stream).await;
                session.say("0".to_owned()).await.unwrap();
                session.say("2".to_owned()).await.unwrap();
                end(session).await;
            }
            6 => stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\n").await.unwrap(),
            _ => stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").await.unwrap(),
        }
    })
    .await;
    let (_going, mut stop) = watch::channel(false);
    for (number, expected) in EXPECTED.into_iter().enumerate() {
        assert_eq!(sessions::follow(&client, 1, &mut 0, &mut stop).await, expected, "session {number}");
    }
}

#[tokio::test]
async fn a_session_is_closed_by_its_client_when_the_load_ends() {
    let mut tasks = JoinSet::new();
    let (client, _balancer) =
        tcp_client(&mut tasks, LoadKind::WebSocket, |_, stream| async move { end(take_session(stream).await).await })
            .await;
    let (_stop, mut stopped) = watch::channel(true);
    assert_eq!(sessions::follow(&client, 1, &mut 0, &mut stopped).await, Ok(Left::Running));
}

#[test]
fn a_session_that_was_not_heard_to_its_end_has_lost_a_message() {
    let (said, tally) = (Said::default(), Tally::default());
    for (session, sent) in [(1, 5), (2, 5), (3, 5), (4, 0)] {
        said.note(session, sent);
    }
    said.compare(&BTreeMap::from([(1, 5), (2, 4), (9, 1)]), &tally);
    let counts = tally.lock()[&LoadKind::WebSocket].clone();
    assert_eq!((counts.requests, counts.failures), (4, BTreeMap::from([(Failure::Message, 2)])));
}

#[tokio::test]
async fn events_go_on_from_the_last_one_or_are_lost() {
    /// What the client must ask for, the parts of the answer's body, whether it ends in order, and the verdict.
    type Script = (Option<u64>, &'static [&'static str], bool, Result<Left, Failure>);
    const SCRIPTS: [Script; 8] = [
        (None, &["id: 7\ndata: news 7\n\n", "id: 8\ndata: ne", "ws 8\n\n"], true, Ok(Left::Told)),
        (Some(8), &["retry: 1000\n\n"], true, Ok(Left::Told)),
        (Some(8), &["id: 9\ndata: news 9\n\nid: 10\ndata: news 10\n\n"], false, Err(Failure::CutShort)),
        (Some(10), &["id: 12\ndata: news 12\n\n"], true, Err(Failure::Message)),
        (Some(12), &["id: 12\ndata: news 12\n\n"], true, Err(Failure::Message)),
        (Some(12), &["id: 13\ndata: news 1\n\n"], true, Err(Failure::Other)),
        (Some(13), &["id: 14\ndata: news 14\n\n", "id: 15\n"], true, Err(Failure::CutShort)),
        (Some(14), &[], true, Ok(Left::Told)),
    ];
    let mut tasks = JoinSet::new();
    let (client, _balancer) = tcp_client(&mut tasks, LoadKind::EventStream, |number, mut stream| async move {
        let head = request(&mut stream).await;
        let Some((last, parts, in_order, _)) = SCRIPTS.get(number) else {
            return stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\n").await.unwrap();
        };
        assert_eq!(head.field("last-event-id"), last.map(|id| id.to_string()).as_deref());
        let mut answer =
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned();
        for part in *parts {
            answer += &format!("{:x}\r\n{part}\r\n", part.len());
        }
        if *in_order {
            answer += "0\r\n\r\n";
        }
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    assert_eq!(event(7), SCRIPTS[0].1[0]);
    let (_going, mut stop) = watch::channel(false);
    let mut last = None;
    for (number, (_, _, _, expected)) in SCRIPTS.iter().enumerate() {
        assert_eq!(events::follow(&client, &mut last, &mut stop).await, *expected, "script {number}");
    }
    let failed = events::follow(&client, &mut last, &mut stop).await;
    assert_eq!((failed, last), (Err(Failure::ServerError), Some(14)));
}

/// Answers a ping, and returns the burst behind it.
async fn take_burst(stream: &mut TcpStream) -> Vec<String> {
    assert_eq!(read_line(stream).await, PING);
    stream.write_all(PONG.as_bytes()).await.unwrap();
    let mut orders = Vec::new();
    while orders.len() < lines::BURST {
        orders.push(read_line(stream).await);
    }
    orders
}

async fn answer_all(stream: &mut TcpStream, orders: &[String]) {
    for order in orders {
        stream.write_all(answer(order).as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn a_fin_between_two_bursts_is_no_loss_and_a_reset_is() {
    let mut tasks = JoinSet::new();
    // A reset takes back what has not been read.
    let read = Arc::new(Notify::new());
    let reading = Arc::clone(&read);
    let (client, _balancer) = tcp_client(&mut tasks, LoadKind::RawTcp, move |number, mut stream| {
        let read = Arc::clone(&reading);
        async move {
            if number == 2 {
                return app::lines::serve(stream).await.unwrap();
            }
            let orders = take_burst(&mut stream).await;
            answer_all(&mut stream, &orders).await;
            read.notified().await;
            if number == 1 {
                stream.set_zero_linger().unwrap();
            }
        }
    })
    .await;
    let burst = lines::BURST as u64;
    for (told, failures) in [(1, BTreeMap::new()), (1, BTreeMap::from([(Failure::Reset, 1)]))] {
        let mut connection = lines::burst(&client, None).await;
        assert!(connection.is_some());
        read.notify_one();
        let broken = timeout(REQUEST_TIMEOUT, lines::idle(&mut connection)).await.unwrap();
        lines::closed(&client, &broken);
        let counts = client.tally.lock()[&LoadKind::RawTcp].clone();
        assert_eq!((counts.told, counts.failures), (told, failures), "{broken:?}");
    }
    let connection = lines::burst(&client, None).await;
    assert!(lines::burst(&client, connection).await.is_some(), "a connection is used again");
    assert_eq!(client.tally.totals(), (4 * burst + 1, 1));
}

#[tokio::test]
async fn a_burst_without_all_its_answers_is_lost() {
    let mut tasks = JoinSet::new();
    let (client, _balancer) = tcp_client(&mut tasks, LoadKind::RawTcp, |number, mut stream| async move {
        match number {
            0 => {
                let orders = take_burst(&mut stream).await;
                answer_all(&mut stream, &orders[..1]).await;
                stream.write_all(orders[1].as_bytes()).await.unwrap();
            }
            1 => {
                let mut orders = take_burst(&mut stream).await;
                orders.swap(2, 3);
                answer_all(&mut stream, &orders).await;
            }
            // A new connection that is closed at once is as good as refused.
            _ => drop(read_line(&mut stream).await),
        }
    })
    .await;
    let expected = [
        BTreeMap::from([(Failure::NoAnswer, 2), (Failure::CutShort, 1)]),
        BTreeMap::from([(Failure::NoAnswer, 2), (Failure::CutShort, 1), (Failure::Other, 2)]),
        BTreeMap::from([(Failure::NoAnswer, 3), (Failure::CutShort, 1), (Failure::Other, 2)]),
    ];
    for failures in expected {
        assert!(lines::burst(&client, None).await.is_none());
        assert_eq!(client.tally.lock()[&LoadKind::RawTcp].failures, failures);
    }
}
