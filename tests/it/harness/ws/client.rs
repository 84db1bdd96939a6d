//! Owns one WebSocket from the client's side: the handshake, checked as browsers do, and whole frames.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::frame::WsFrame;
use super::reader::{Reader, Said, Side};
use super::session::{Over, WsPlan};
use super::summary::WsFault;
use super::transport::{Http2, Tcp, Transport};
use crate::harness::SOON;
use crate::harness::client::{Ending, Failure};
use crate::harness::h2::{Frame, RawH2, Seen, setting};
use crate::harness::http::{Head, Wire};
use crate::harness::tls::{Target, alpn};

#[derive(Debug)]
pub(crate) struct WsClient {
    transport: Transport,
    reader: Reader,
    /// As agreed in the handshake.
    pub(crate) protocol: Option<String>,
    pub(crate) extensions: Option<String>,
}

/// Why a handshake did not end in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Refusal {
    Connection(Failure),
    /// An answer like any other; over HTTP/2 nothing can say that the connection closes.
    Status {
        status: u16,
        retry_after: bool,
        closes: bool,
    },
    /// An acceptance that a client must not take for one.
    Bad(&'static str),
}

// === impl WsClient ===

impl WsClient {
    pub(crate) async fn open(to: impl Into<Target>, plan: &WsPlan, id: &str) -> Result<Self, Refusal> {
        let to = to.into();
        let work = async {
            match plan.over {
                Over::Http1 => Self::upgrade(&to, plan, id).await,
                Over::Http2 => Self::over_http2(to, plan, id).await,
            }
        };
        timeout(SOON, work).await.unwrap_or(Err(Refusal::Connection(Failure::Timeout)))
    }

    async fn upgrade(to: &Target, plan: &WsPlan, id: &str) -> Result<Self, Refusal> {
        let stream = to.connect(alpn::HTTP1).await.map_err(failure)?;
        if let Some((bytes, _)) = plan.reads {
            stream.options().set_recv_buffer_size(bytes).map_err(failure)?;
        }
        let key = generate_key();
        let mut head = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nx-id: {id}\r\n",
            plan.path, to.address
        );
        for (name, value) in plan.offers() {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let mut wire = Wire::new(stream);
        wire.get_mut().write_all(head.as_bytes()).await.map_err(failure)?;
        let head = wire.head().await.map_err(failure)?;
        let status = head.status().map_err(failure)?;
        if status != 101 {
            let (retry_after, closes) = (head.get("retry-after").is_some(), !head.keeps_alive());
            return Err(Refusal::Status { status, retry_after, closes });
        }
        check_101(&head, &key)?;
        let (protocol, extensions) = agreed(plan, |name| head.get(name))?;
        let (stream, early) = wire.into_parts();
        let mut reader = Reader::new(Side::Server, extensions.is_some());
        reader.feed(&early);
        Ok(Self { transport: Transport::Tcp(Tcp::new(stream, plan.reads)), reader, protocol, extensions })
    }

    /// On a connection of its own.
    async fn over_http2(to: Target, plan: &WsPlan, id: &str) -> Result<Self, Refusal> {
        let mut raw = RawH2::open(to).await.map_err(Refusal::Connection)?;
        if let Some((bytes, _)) = plan.reads {
            raw.receive_buffer(bytes);
        }
        let settings = raw.seen.settings().unwrap_or_default();
        if settings.get(&setting::ENABLE_CONNECT_PROTOCOL) != Some(&1) {
            return Err(Refusal::Bad("SETTINGS_ENABLE_CONNECT_PROTOCOL was not sent"));
        }
        let stream = raw.fresh_stream();
        raw.frame(connect_over(raw.scheme(), stream, plan, id)).await.map_err(Refusal::Connection)?;
        let came = |seen: &Seen| {
            let answer = seen.answers.get(&stream)?;
            (answer.status() != 0 || answer.is_over()).then(|| answer.clone())
        };
        let answer = raw.wait("the answer to an extended CONNECT", SOON, came).await.map_err(Refusal::Connection)?;
        match answer.status() {
            0 => return Err(Refusal::Connection(Failure::Reset)),
            200 => {}
            status => {
                let retry_after = answer.header("retry-after").is_some();
                return Err(Refusal::Status { status, retry_after, closes: false });
            }
        }
        if ["connection", "upgrade", "sec-websocket-accept"].iter().any(|name| answer.header(name).is_some()) {
            return Err(Refusal::Bad("a field of HTTP/1"));
        }
        let (protocol, extensions) = agreed(plan, |name| answer.header(name))?;
        let reader = Reader::new(Side::Server, extensions.is_some());
        Ok(Self { transport: Transport::Http2(Http2::new(raw, stream)), reader, protocol, extensions })
    }

    /// Masked, whatever it is.
    pub(crate) async fn send(&mut self, frame: WsFrame) -> Result<(), Failure> {
        self.transport.send(&frame.masked().encode()).await
    }

    /// Bytes as they are, right or wrong.
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.transport.send(bytes).await
    }

    /// The next thing said, or `Err` with the first fault or the end; may be abandoned and called again.
    pub(crate) async fn next(&mut self) -> Result<Said, WsFault> {
        loop {
            if let Some(said) = self.reader.next().map_err(WsFault::Protocol)? {
                return Ok(said);
            }
            let mut bytes = Vec::new();
            let read = self.transport.read(&mut bytes).await;
            if !matches!(read, Ok(1..)) {
                let ending = self.transport.ending(&read);
                return Err(if self.reader.is_torn() { WsFault::Torn(ending) } else { WsFault::Ended(ending) });
            }
            self.reader.feed(&bytes);
        }
    }

    /// Our end, after the peer's.
    pub(super) async fn finish(&mut self) {
        self.transport.finish().await;
    }

    /// What ended the session, with everything before it thrown away; our end follows the peer's.
    pub(crate) async fn ended(&mut self, deadline: Duration) -> WsFault {
        let work = async {
            loop {
                if let Err(fault) = self.next().await {
                    return fault;
                }
            }
        };
        let fault = timeout(deadline, work).await.unwrap_or(WsFault::Ended(Ending::StillOpen));
        if fault == WsFault::Ended(Ending::Fin) {
            self.finish().await;
        }
        fault
    }
}

/// The head of a session on a stream of HTTP/2, RFC 8441 §4.
pub(crate) fn extended_connect(stream: u32, plan: &WsPlan, id: &str) -> Frame {
    connect_over("http", stream, plan, id)
}

fn connect_over(scheme: &str, stream: u32, plan: &WsPlan, id: &str) -> Frame {
    let mut fields = vec![
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", scheme),
        (":path", plan.path.as_str()),
        (":authority", "toy"),
        ("sec-websocket-version", "13"),
        ("x-id", id),
    ];
    let offers: Vec<(String, &str)> = plan.offers().map(|(name, value)| (name.to_lowercase(), value)).collect();
    fields.extend(offers.iter().map(|(name, value)| (name.as_str(), *value)));
    Frame::headers(stream, &fields)
}

fn check_101(head: &Head, key: &str) -> Result<(), Refusal> {
    let closes = head.has_token("connection", "close");
    let bad = if !head.has_token("connection", "upgrade") || closes {
        "Connection is not Upgrade"
    } else if !head.get("upgrade").is_some_and(|name| name.eq_ignore_ascii_case("websocket")) {
        "Upgrade is not websocket"
    } else if head.get("sec-websocket-accept") != Some(derive_accept_key(key.as_bytes()).as_str()) {
        "Sec-WebSocket-Accept belongs to another key"
    } else if head.get("content-length").is_some() || head.get("transfer-encoding").is_some() {
        "a 101 with a body"
    } else {
        return Ok(());
    };
    Err(Refusal::Bad(bad))
}

type Agreed = (Option<String>, Option<String>);

/// Nothing may be agreed that was not offered.
fn agreed<'a>(plan: &WsPlan, get: impl Fn(&'static str) -> Option<&'a str>) -> Result<Agreed, Refusal> {
    let offered = |offer: &Option<String>, chosen: &str| {
        offer.as_ref().is_some_and(|offer| offer.split(',').any(|one| one.trim() == chosen))
    };
    let protocol = get("sec-websocket-protocol");
    if protocol.is_some_and(|chosen| !offered(&plan.protocols, chosen)) {
        return Err(Refusal::Bad("a subprotocol that was not offered"));
    }
    let extensions = get("sec-websocket-extensions");
    if extensions.is_some_and(|chosen| !chosen.split(',').all(|one| offered(&plan.extensions, one.trim()))) {
        return Err(Refusal::Bad("an extension that was not offered"));
    }
    Ok((protocol.map(str::to_owned), extensions.map(str::to_owned)))
}

fn failure(error: impl Into<Failure>) -> Refusal {
    Refusal::Connection(error.into())
}
