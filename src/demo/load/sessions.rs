//! WebSocket clients: sessions with messages both ways, opened anew when the server closes them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::super::outcome::{Failure, LoadKind};
use super::super::websocket::{PATH, Session, numbered};
use super::{Client, Left, REOPEN, REQUEST_TIMEOUT, Tally, next, ticker};

/// How many messages each session that was closed in order had sent. Whether the apps have read them all shows only
/// in the end.
#[derive(Debug, Default)]
pub(super) struct Said(Mutex<BTreeMap<u64, u64>>);

// === impl Said ===

impl Said {
    /// Gives the sessions their verdict.
    pub(super) fn compare(&self, heard: &BTreeMap<u64, u64>, tally: &Tally) {
        for (session, sent) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let all = heard.get(session).copied().unwrap_or(0) == *sent;
            tally.record(LoadKind::WebSocket, if all { Ok(()) } else { Err(Failure::Message) });
        }
    }

    pub(super) fn note(&self, session: u64, sent: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(session, sent);
    }
}

/// Keeps one session open as long as the load goes on.
pub(super) async fn talk(client: Client, said: Arc<Said>) {
    let mut stop = client.stop.clone();
    let mut pace = ticker(REOPEN);
    while next(&mut pace, &mut stop).await {
        let number = fastrand::u64(..);
        let mut sent = 0;
        match follow(&client, number, &mut sent, &mut stop).await {
            Ok(left) => {
                if left == Left::Told {
                    client.tally.told(client.kind);
                }
                said.note(number, sent);
            }
            Err(failure) => client.tally.record(client.kind, Err(failure)),
        }
    }
}

/// Follows one session to the end of its close handshake, and closes it when the load is over.
pub(super) async fn follow(
    client: &Client,
    number: u64,
    sent: &mut u64,
    stop: &mut watch::Receiver<bool>,
) -> Result<Left, Failure> {
    let mut session = open(client).await?;
    let mut pace = ticker(MESSAGE_TIME);
    let mut left = Left::Told;
    let mut heard: u64 = 0;
    let mut deadline = Instant::now() + REQUEST_TIMEOUT;
    loop {
        let message = tokio::select! {
            biased;
            message = timeout_at(deadline, session.next()) => message.map_err(|_| Failure::Timeout)?,
            going = next(&mut pace, stop), if left == Left::Told => {
                // If sending fails, reading says why.
                if going {
                    *sent += u64::from(session.say(numbered(number, *sent)).await.is_ok());
                } else {
                    left = Left::Running;
                    session.close(CloseCode::Normal).await.ok();
                }
                continue;
            }
        };
        match message.map_err(|error| failure(&error))? {
            Message::Text(text) if *text == *heard.to_string() => heard += 1,
            Message::Text(_) => return Err(Failure::Message),
            Message::Close(frame) => match frame.map(|frame| frame.code) {
                Some(CloseCode::Normal | CloseCode::Away | CloseCode::Restart) => break,
                _ => return Err(Failure::Other),
            },
            _ => {}
        }
        deadline = Instant::now() + REQUEST_TIMEOUT;
    }
    match timeout_at(Instant::now() + REQUEST_TIMEOUT, session.next()).await {
        Ok(Err(Error::ConnectionClosed)) => Ok(left),
        Ok(Err(error)) => Err(failure(&error)),
        Ok(Ok(_)) => Err(Failure::Other),
        Err(_) => Err(Failure::Timeout),
    }
}

async fn open(client: &Client) -> Result<Session, Failure> {
    let key = generate_key();
    let request = format!(
        "GET {PATH} HTTP/1.1\r\nHost: demo\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    );
    let (stream, head, early) = client.open(&request, 101).await?;
    if head.field("sec-websocket-accept") != Some(derive_accept_key(key.as_bytes()).as_str()) {
        return Err(Failure::Other);
    }
    Ok(Session::new(stream, early, Role::Client))
}

fn failure(error: &Error) -> Failure {
    match error {
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) | Error::Io(_) => Failure::NoClose,
        _ => Failure::Other,
    }
}

/// Between two messages of a client.
const MESSAGE_TIME: Duration = Duration::from_millis(500);
