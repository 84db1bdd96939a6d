//! The embedded app's WebSocket sessions: it writes down what it hears, and talks at a pace of its own.

use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::interval;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::super::websocket::{Session, note};

/// Serves one session to its end; `key` is the client's, and `early` has come behind its handshake.
pub(super) async fn serve(mut stream: TcpStream, early: Vec<u8>, key: &str) -> io::Result<()> {
    let accept = derive_accept_key(key.as_bytes());
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let mut session = Session::new(stream, early, Role::Server);
    let mut pace = interval(TALK_TIME);
    let mut said: u64 = 0;
    loop {
        tokio::select! {
            message = session.next() => match message {
                Ok(Message::Text(text)) => note(&mut io::stdout(), &text)?,
                Ok(_) => {}
                // Whether it ended in order is for the client to say.
                Err(_) => return Ok(()),
            },
            _ = pace.tick() => {
                // If this fails, so does reading.
                session.say(said.to_string()).await.ok();
                said += 1;
            }
        }
    }
}

/// Between two messages of the app.
const TALK_TIME: Duration = Duration::from_millis(500);
