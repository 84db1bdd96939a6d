//! A WebSocket session of the demo's app or clients, behind its handshake.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};

use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocket};
use tokio_tungstenite::tungstenite::{Error, Message};

/// Where the app takes sessions.
pub(super) const PATH: &str = "/chat";

/// What the app writes into its log before each message that it has read.
const HEARD: &str = "heard ";

/// A session. Its reading can be abandoned and taken up again.
#[derive(Debug)]
pub(super) struct Session(WebSocket<Socket>);

/// For tungstenite, which wants to be told where it would block.
#[derive(Debug)]
struct Socket(TcpStream);

// === impl Session ===

impl Session {
    /// Takes over a connection after its handshake, behind which `early` bytes have already come.
    pub(super) fn new(stream: TcpStream, early: Vec<u8>, role: Role) -> Self {
        Self(WebSocket::from_partially_read(Socket(stream), early, role, None))
    }

    /// The next message. A Close is answered by the call that follows it, which ends with
    /// [`Error::ConnectionClosed`] if the other end has closed in order too.
    pub(super) async fn next(&mut self) -> Result<Message, Error> {
        loop {
            match self.0.read() {
                Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => {
                    self.0.get_ref().0.readable().await?;
                }
                read => return read,
            }
        }
    }

    /// Sends a text.
    pub(super) async fn say(&mut self, text: String) -> Result<(), Error> {
        let sent = self.0.send(Message::text(text));
        self.sent(sent).await
    }

    /// Begins the close handshake.
    pub(super) async fn close(&mut self, code: CloseCode) -> Result<(), Error> {
        let sent = self.0.close(Some(CloseFrame { code, reason: "".into() }));
        self.sent(sent).await
    }

    async fn sent(&mut self, mut result: Result<(), Error>) -> Result<(), Error> {
        loop {
            match result {
                Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => {
                    self.0.get_ref().0.writable().await?;
                    result = self.0.flush();
                }
                result => return result,
            }
        }
    }
}

// === impl Socket ===

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A client's message: which session, and which of its messages.
pub(super) fn numbered(session: u64, number: u64) -> String {
    format!("{session} {number}")
}

/// The app has read a message: a line of its log.
pub(super) fn note(out: &mut dyn Write, message: &str) -> io::Result<()> {
    writeln!(out, "{HEARD}{message}")
}

/// How many messages of each session an app has read, by its log; without those of which one came out of turn.
pub(super) fn heard(log: &str) -> BTreeMap<u64, u64> {
    let mut sessions: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
    for message in log.lines().filter_map(|line| line.strip_prefix(HEARD)) {
        let Some((session, number)) = message.split_once(' ') else { continue };
        let (Ok(session), Ok(number)) = (session.parse(), number.parse::<u64>()) else { continue };
        let (count, in_turn) = sessions.entry(session).or_insert((0, true));
        *in_turn &= number == *count;
        *count += u64::from(*in_turn);
    }
    sessions.into_iter().filter(|(_, (_, in_turn))| *in_turn).map(|(session, (count, _))| (session, count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_what_was_heard() {
        let mut log = b"another line\n".to_vec();
        for (session, number) in [(1, 0), (2, 0), (1, 1), (3, 0), (3, 0), (4, 1)] {
            note(&mut log, &numbered(session, number)).expect("must write");
        }
        let log = String::from_utf8(log).expect("must be text");
        assert_eq!(heard(&log), BTreeMap::from([(1, 2), (2, 1)]), "3 came twice, and 4 without its first");
    }
}
