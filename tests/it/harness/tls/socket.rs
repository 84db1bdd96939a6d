//! Owns a connected socket as clients and the app use it, with TLS on it or without, and the judgement of its end.

use std::io::{self, ErrorKind, IoSlice, Write};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::{Connection, HandshakeKind, ProtocolVersion};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use x509_parser::parse_x509_certificate;

use super::session::{Session, TlsEnd};
use crate::harness::client::Ending;

/// Clones are handles of the same socket, which closes with the last one; one may read while another writes.
#[derive(Clone, Debug)]
pub(crate) struct Socket(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tcp: TcpStream,
    tls: Option<Mutex<Session>>,
    /// FIN or RST, once it has been read.
    end: Mutex<Option<Ending>>,
    /// Ends with a bare FIN, as sloppy peers do.
    sloppy: bool,
}

impl From<TcpStream> for Socket {
    fn from(tcp: TcpStream) -> Self {
        Self(Arc::new(Inner { tcp, tls: None, end: Mutex::default(), sloppy: false }))
    }
}

// === impl Socket ===

impl Socket {
    /// Returns when the handshake is over as far as this side can tell.
    pub(super) async fn handshake(tcp: TcpStream, tls: Connection, sloppy: bool) -> io::Result<Self> {
        let socket =
            Self(Arc::new(Inner { tcp, tls: Some(Mutex::new(Session::new(tls))), end: Mutex::default(), sloppy }));
        socket.shake_hands().await?;
        Ok(socket)
    }

    async fn shake_hands(&self) -> io::Result<()> {
        let tcp = &self.0.tcp;
        loop {
            let (writes, reads) = {
                let Some(mut session) = self.session() else { return Ok(()) };
                match session.flush(tcp) {
                    Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                    _ => (session.tls.wants_write(), session.tls.is_handshaking()),
                }
            };
            if writes {
                tcp.writable().await?;
            } else if reads {
                tcp.readable().await?;
                match self.session().map_or(Ok(()), |mut session| {
                    self.fill(&mut session)?;
                    session.take(&mut []).map_or(Ok(()), |taken| taken.map(drop))
                }) {
                    Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                    _ => {}
                }
            } else {
                return Ok(());
            }
        }
    }

    // --- as a TcpStream has them ---

    pub(crate) async fn readable(&self) -> io::Result<()> {
        if self.session().is_some_and(|session| session.has_more()) {
            return Ok(());
        }
        self.0.tcp.readable().await
    }

    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.0.tcp.writable().await
    }

    /// 0 is a FIN, or a `close_notify`; a bare FIN is `UnexpectedEof`, as TLS clients have it.
    pub(crate) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        let Some(mut session) = self.session() else {
            return self.noted(self.0.tcp.try_read(into));
        };
        loop {
            if let Some(taken) = session.take(into) {
                return taken;
            }
            self.fill(&mut session)?;
        }
    }

    pub(crate) fn try_read_buf(&self, into: &mut Vec<u8>) -> io::Result<usize> {
        if self.0.tls.is_none() {
            return self.noted(self.0.tcp.try_read_buf(into));
        }
        let mut piece = [0; PIECE];
        let read = self.try_read(&mut piece)?;
        into.extend_from_slice(&piece[..read]);
        Ok(read)
    }

    /// Over TLS bytes that would block must be offered again as they were.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.session() {
            None => self.0.tcp.try_write(bytes),
            Some(mut session) => session.write(&self.0.tcp, bytes),
        }
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.0.tcp.local_addr().expect("it is connected")
    }

    pub(crate) fn options(&self) -> SockRef<'_> {
        SockRef::from(&self.0.tcp)
    }

    // --- parts of an end ---

    /// `close_notify` alone; the socket stays as it is.
    pub(crate) async fn close_notify(&self) -> io::Result<()> {
        if let Some(mut session) = self.session() {
            session.tls.send_close_notify();
        }
        std::future::poll_fn(|cx| self.poll_flushed(cx)).await
    }

    /// New keys, TLS 1.3; the peer is told with the next bytes.
    pub(crate) fn refresh_keys(&self) {
        let mut session = self.session().expect("TLS");
        session.tls.refresh_traffic_keys().expect("TLS 1.3");
    }

    // --- records that are cut ---

    /// These bytes as they stand on the wire; they must be written before anything else is.
    pub(crate) fn encrypt(&self, bytes: &[u8]) -> Vec<u8> {
        let mut session = self.session().expect("TLS");
        session.tls.writer().write_all(bytes).expect("memory takes everything");
        let mut wire = Vec::new();
        while session.tls.wants_write() {
            session.tls.write_tls(&mut wire).expect("memory takes everything");
        }
        wire
    }

    /// Some of what [`Self::encrypt`] gave.
    pub(crate) async fn write_encrypted(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.0.tcp.writable().await?;
            match self.0.tcp.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// FIN alone, whatever TLS would say.
    pub(crate) fn fin(&self) -> io::Result<()> {
        match self.options().shutdown(Shutdown::Write) {
            Err(error) if error.kind() != ErrorKind::NotConnected => Err(error),
            _ => Ok(()),
        }
    }

    // --- what there is to know ---

    pub(crate) fn is_tls(&self) -> bool {
        self.0.tls.is_some()
    }

    /// How the peer has ended it so far.
    pub(crate) fn ending(&self) -> Ending {
        self.tls_end().word()
    }

    /// Reads to the peer's FIN or RST, throwing away what comes; nothing is sent or closed by us.
    pub(crate) async fn ended(&self, deadline: Duration) -> Ending {
        match self.tls_ended(deadline).await {
            TlsEnd { socket: Ending::StillOpen, .. } => Ending::StillOpen,
            end => end.word(),
        }
    }

    /// The same, step by step.
    pub(crate) async fn tls_ended(&self, deadline: Duration) -> TlsEnd {
        let work = async {
            let mut away = [0; PIECE];
            while self.end().is_none() {
                let read = match self.session() {
                    // Behind an end of the session the socket's own is still to come.
                    Some(mut session) => {
                        session.discard();
                        self.fill(&mut session)
                    }
                    None => self.try_read(&mut away).map(drop),
                };
                if read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
                    let _ = self.0.tcp.readable().await;
                }
            }
        };
        let _ = timeout(deadline, work).await;
        self.tls_end()
    }

    fn tls_end(&self) -> TlsEnd {
        if let Ok(Some(_)) = self.0.tcp.take_error() {
            *self.0.end.lock().expect("no holder panics") = Some(Ending::Reset);
        }
        let socket = self.end().unwrap_or(Ending::StillOpen);
        match self.session() {
            Some(session) => session.end(socket),
            // A plain FIN is a good end.
            None => TlsEnd { close_notify: socket == Ending::Fin, socket, ..TlsEnd::good() },
        }
    }

    pub(crate) fn alpn(&self) -> Option<String> {
        self.session()?.tls.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned())
    }

    pub(crate) fn version(&self) -> Option<ProtocolVersion> {
        self.session()?.tls.protocol_version()
    }

    pub(crate) fn was_resumed(&self) -> bool {
        self.session().is_some_and(|session| session.tls.handshake_kind() == Some(HandshakeKind::Resumed))
    }

    /// Of the peer's certificate; after a resumption the one that it had in the first handshake.
    pub(crate) fn peer_serial(&self) -> Option<u64> {
        let session = self.session()?;
        let (_, certificate) = parse_x509_certificate(session.tls.peer_certificates()?.first()?).expect("X.509");
        certificate.raw_serial().iter().try_fold(0_u64, |sum, byte| Some(sum.checked_mul(256)? + u64::from(*byte)))
    }

    /// Of a server: the name that was asked for.
    pub(crate) fn asked_name(&self) -> Option<String> {
        match &self.session()?.tls {
            Connection::Server(server) => server.server_name().map(str::to_owned),
            Connection::Client(_) => None,
        }
    }

    fn session(&self) -> Option<MutexGuard<'_, Session>> {
        self.0.tls.as_ref().map(|tls| tls.lock().expect("no holder panics"))
    }

    fn end(&self) -> Option<Ending> {
        *self.0.end.lock().expect("no holder panics")
    }

    fn fill(&self, session: &mut Session) -> io::Result<()> {
        let mut piece = [0; PIECE];
        match self.noted(self.0.tcp.try_read(&mut piece))? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            read => {
                session.feed(&piece[..read]);
                // An answer to a key update, or the alert for a fault.
                let _ = session.flush(&self.0.tcp);
                Ok(())
            }
        }
    }

    fn noted(&self, read: io::Result<usize>) -> io::Result<usize> {
        let end = match &read {
            Ok(0) if matches!(self.0.tcp.take_error(), Ok(Some(_))) => Ending::Reset,
            Ok(0) => Ending::Fin,
            Err(error) if error.kind() != ErrorKind::WouldBlock => Ending::Reset,
            _ => return read,
        };
        // The first one counts: a reset is told only once.
        self.0.end.lock().expect("no holder panics").get_or_insert(end);
        read
    }

    fn poll_flushed(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let flushed = self.session().map_or(Ok(()), |mut session| session.flush(&self.0.tcp));
            match flushed {
                Err(error) if error.kind() == ErrorKind::WouldBlock => ready!(self.0.tcp.poll_write_ready(cx))?,
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_written(
        &self,
        cx: &mut Context<'_>,
        mut write: impl FnMut() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match write() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => ready!(self.0.tcp.poll_write_ready(cx))?,
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.try_read(buffer.initialize_unfilled()) {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => ready!(self.0.tcp.poll_read_ready(cx))?,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_written(cx, || self.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = bytes.iter().find(|one| !one.is_empty()).map_or(&[][..], |one| one);
        self.poll_written(
            cx,
            || if self.is_tls() { self.try_write(first) } else { self.0.tcp.try_write_vectored(bytes) },
        )
    }

    fn is_write_vectored(&self) -> bool {
        !self.is_tls()
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// `close_notify`, then FIN.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(mut session) = self.session().filter(|_| !self.0.sloppy) {
            session.tls.send_close_notify();
        }
        ready!(self.poll_flushed(cx))?;
        Poll::Ready(self.fin())
    }
}

const PIECE: usize = 16 * 1024;
