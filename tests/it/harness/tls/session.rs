//! Owns one TLS session of either side without any waiting: bytes in, bytes out, and what the peer said last.

use std::io::{self, Read, Write};

use rustls::{Connection, Error};
use tokio::net::TcpStream;

use crate::harness::client::Ending;

#[derive(Debug)]
pub(super) struct Session {
    pub(super) tls: Connection,
    plain: Vec<u8>,
    /// How much of it has been read.
    read: usize,
    /// Bytes of the writer that are encrypted, and not yet all in the socket.
    taken: usize,
    close_notify: bool,
    beyond: usize,
    fault: Option<Error>,
}

/// How the peer ended a TLS connection, step by step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsEnd {
    pub(crate) close_notify: bool,
    /// Bytes on the wire behind the `close_notify`: there must be none.
    pub(crate) beyond: usize,
    /// A fatal alert.
    pub(crate) alert: Option<u8>,
    /// A fault that we found ourselves.
    pub(crate) fault: Option<String>,
    /// FIN, RST, or neither so far.
    pub(crate) socket: Ending,
}

// === impl Session ===

impl Session {
    pub(super) const fn new(tls: Connection) -> Self {
        Self { tls, plain: Vec::new(), read: 0, taken: 0, close_notify: false, beyond: 0, fault: None }
    }

    /// Whether a read needs nothing more from the socket.
    pub(super) const fn has_more(&self) -> bool {
        self.read < self.plain.len() || self.close_notify || self.fault.is_some()
    }

    /// `None` if the socket must be asked first; 0 is the peer's `close_notify`.
    pub(super) fn take(&mut self, into: &mut [u8]) -> Option<io::Result<usize>> {
        let unread = &self.plain[self.read..];
        if !unread.is_empty() {
            let length = unread.len().min(into.len());
            into[..length].copy_from_slice(&unread[..length]);
            self.read += length;
            return Some(Ok(length));
        }
        match &self.fault {
            Some(fault) => Some(Err(io::Error::new(io::ErrorKind::InvalidData, fault.clone()))),
            None => self.close_notify.then_some(Ok(0)),
        }
    }

    pub(super) fn discard(&mut self) {
        self.read = self.plain.len();
    }

    /// What the socket had.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        self.plain.drain(..std::mem::take(&mut self.read));
        while !bytes.is_empty() && self.fault.is_none() {
            if self.close_notify {
                self.beyond += bytes.len();
                return;
            }
            self.tls.read_tls(&mut bytes).expect("all that came before has been taken");
            let state = self.tls.process_new_packets();
            // What came before a fault is still good.
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = self.tls.reader().read(&mut piece) {
                self.plain.extend_from_slice(&piece[..length]);
            }
            match state {
                Ok(state) => self.close_notify = state.peer_has_closed(),
                Err(fault) => self.fault = Some(fault),
            }
        }
    }

    /// Answers a length only when so many bytes have left us as a whole; until then the same bytes must come again.
    pub(super) fn write(&mut self, tcp: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        self.flush(tcp)?;
        if self.taken == 0 {
            self.taken = self.tls.writer().write(&bytes[..bytes.len().min(RECORD)])?;
            self.flush(tcp)?;
        }
        Ok(std::mem::take(&mut self.taken))
    }

    pub(super) fn flush(&mut self, tcp: &TcpStream) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Out(tcp))?;
        }
        Ok(())
    }

    pub(super) fn end(&self, socket: Ending) -> TlsEnd {
        let alert = match self.fault {
            Some(Error::AlertReceived(alert)) => Some(u8::from(alert)),
            _ => None,
        };
        let fault = self.fault.as_ref().filter(|_| alert.is_none()).map(ToString::to_string);
        TlsEnd { close_notify: self.close_notify, beyond: self.beyond, alert, fault, socket }
    }
}

// === impl TlsEnd ===

impl TlsEnd {
    /// As every connection should end: `close_notify`, and nothing but the FIN behind it.
    pub(crate) const fn good() -> Self {
        Self { close_notify: true, beyond: 0, alert: None, fault: None, socket: Ending::Fin }
    }

    /// In one word; a `close_notify` is an end though the FIN is still on its way.
    pub(crate) fn word(&self) -> Ending {
        match (self.alert, self.socket) {
            (Some(alert), _) => Ending::Alert(alert),
            _ if self.fault.is_some() || self.beyond > 0 => Ending::BadTls,
            (None, Ending::Reset) => Ending::Reset,
            _ if self.close_notify => Ending::Fin,
            (None, Ending::Fin) => Ending::Bare,
            (None, other) => other,
        }
    }
}

/// The socket as far as it takes something at once.
struct Out<'a>(&'a TcpStream);

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const RECORD: usize = 16 * 1024;
