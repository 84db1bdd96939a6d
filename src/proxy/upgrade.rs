//! Upgrades: the handshake with the app on a connection of its own, untouched but for what a proxy must change.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::tungstenite::handshake::{client::generate_key, derive_accept_key};

use super::body::{Body, Exchange, RequestBody, Upstream};
use super::forward::{Asked, answer, broke, out_of_time, unless_forced};
use super::headers::{self, Ends, Found};
use super::relay::{Direction, Relay, Side};
use super::response::Reason;
use super::websocket::session;
use super::{Inbound, tunnel, way};
use crate::lifecycle::in_flight::Work;
use crate::lifecycle::phase::Phase;
use crate::listener::conn::{Active, Conn, Upgrade};
use crate::listener::io::Io;
use crate::telemetry::logging::chain;
use crate::telemetry::metrics::{RequestOutcome, Spoken};
use crate::tls::client::Offer;
use crate::upstream::connect::UpstreamIo;
use crate::upstream::speaks::Speaks;

/// What the app says to an upgrade.
enum Answer {
    /// 101, and its connection.
    Agreed(Response<Incoming>, Upgrade),
    /// Anything else is an ordinary answer.
    Refused(Response<Body>),
}

/// An HTTP/1.1 upgrade, prepared for the app. A 101 reaches the client untouched, in every phase: with `Connection:
/// close` it is no handshake (C68).
pub async fn open(
    request: &mut Option<Request<Incoming>>,
    asked: &Asked,
    active: &Active,
    inbound: &Rc<Inbound>,
) -> Result<Response<Body>, Reason> {
    let Some(request) = request.take() else { return Err(Reason::BadTarget) };
    may_open(inbound)?;
    let work = if headers::is_websocket(request.headers()) { Work::Session } else { Work::Tunnel };
    let request = request.map(|inner| RequestBody::new(inner, active));
    match ask(request, asked, active, inbound, work).await? {
        Answer::Refused(response) => Ok(response),
        Answer::Agreed(response, upgrade) => {
            active.conn().upgrade.replace(Some(Box::new(upgrade)));
            count(inbound, Spoken::Http1);
            let mut response = response.map(|_| Body::empty());
            *response.version_mut() = asked.version;
            Ok(response)
        }
    }
}

/// WebSocket over HTTP/2 (RFC 8441): extended CONNECT on the client's side, HTTP/1.1 on the app's.
pub async fn open_stream(
    request: &mut Option<Request<Incoming>>,
    asked: &Asked,
    active: &Active,
    inbound: &Rc<Inbound>,
) -> Result<Response<Body>, Reason> {
    let Some(mut request) = request.take() else { return Err(Reason::BadTarget) };
    may_open(inbound)?;
    let upgraded = hyper::upgrade::on(&mut request);
    *request.method_mut() = Method::GET;
    headers::prepare(&mut request, &asked.found, Speaks::Http1, &Ends::of(active.conn(), inbound))?;
    let key = generate_key();
    let fields = request.headers_mut();
    fields.insert(UPGRADE, HeaderValue::from_static("websocket"));
    fields.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    fields.insert(SEC_WEBSOCKET_KEY, HeaderValue::try_from(&key).map_err(|_| Reason::BadTarget)?);
    fields.entry(SEC_WEBSOCKET_VERSION).or_insert(HeaderValue::from_static("13"));
    let request = request.map(|_| RequestBody::empty());
    let (response, upgrade) = match ask(request, asked, active, inbound, Work::Session).await? {
        Answer::Refused(response) => return Ok(response),
        Answer::Agreed(response, upgrade) => (response, upgrade),
    };
    let accept = derive_accept_key(key.as_bytes());
    if response.headers().get(SEC_WEBSOCKET_ACCEPT).is_none_or(|value| value.as_bytes() != accept.as_bytes()) {
        broke(inbound, &"a 101 to another WebSocket handshake");
        return Err(Reason::AppAnswer);
    }
    count(inbound, Spoken::Http2);
    let active = active.again();
    drop(tokio::task::spawn_local(async move {
        // The client may have gone before the answer reached it.
        let Ok(upgraded) = upgraded.await else { return };
        let Upgrade { transport, read, permit, .. } = upgrade;
        let side = Side::Http2(Box::new(TokioIo::new(upgraded)));
        let down = Direction::framed(&read, true);
        // Empty it would still hold a large buffer.
        drop(read);
        let relay = Relay::new(side, transport, Direction::framed(&[], false), down);
        session::run(relay, &active, permit).await;
    }));
    let (parts, _) = response.into_parts();
    let mut response = Response::new(Body::empty());
    *response.version_mut() = Version::HTTP_2;
    *response.headers_mut() = parts.headers;
    for name in [CONNECTION, UPGRADE, SEC_WEBSOCKET_ACCEPT] {
        response.headers_mut().remove(name);
    }
    let found = Found::in_headers(response.headers());
    headers::prepare_response(&mut response, &found, Version::HTTP_2);
    Ok(response)
}

/// The client's 101 is out.
pub async fn relay(io: Box<Io>, conn: &Rc<Conn>) {
    let Some(upgrade) = conn.upgrade.take() else { return };
    let Upgrade { transport: upstream, read, permit, websocket } = *upgrade;
    let active = conn.relay();
    let (stream, ahead) = io.into_parts();
    let (up, down) = if websocket {
        (Direction::framed(&ahead, false), Direction::framed(&read, true))
    } else {
        (Direction::opaque(&ahead), Direction::opaque(&read))
    };
    // Empty they would still hold large buffers, for as long as the session lasts.
    drop((ahead, read));
    let relay = Relay::new(stream, upstream, up, down);
    if websocket {
        session::run(relay, &active, permit).await;
    } else {
        let _ = tunnel::run(relay, &active, permit).await;
    }
}

/// After the hold no tunnel or session begins (contract §5).
fn may_open(inbound: &Inbound) -> Result<(), Reason> {
    if inbound.worker.phase() > Phase::Holding {
        inbound.worker.metrics.late_refusals.add(0);
        return Err(Reason::NoNewTunnel);
    }
    Ok(())
}

fn count(inbound: &Inbound, spoken: Spoken) {
    inbound.worker.metrics.requests.add_pair(spoken as usize, RequestOutcome::Upgraded as usize);
}

async fn ask(
    request: Request<RequestBody>,
    asked: &Asked,
    active: &Active,
    inbound: &Rc<Inbound>,
    work: Work,
) -> Result<Answer, Reason> {
    let (permit, stream) = way::single(active, inbound, work, Offer::Http1).await?;
    let client = inbound.pool.client();
    let io = TokioIo::new(UpstreamIo::new(stream));
    let (mut sender, connection) = client.handshake(io).await.map_err(|_| Reason::AppBroke)?;
    let mut connection = Some(connection);
    let upload = request.body().upload();
    let mut sending = pin!(sender.send_request(request));
    let answered = unless_forced(
        active,
        pin!(poll_fn(|cx| {
            if let Some(driven) = &mut connection
                && let Poll::Ready(result) = driven.poll_without_shutdown(cx)
                && result.is_err()
            {
                connection = None;
            }
            sending.as_mut().poll(cx)
        })),
    )
    .await;
    let Some(answered) = answered else { return Err(out_of_time(inbound, true)) };
    let response = answered.map_err(|error| {
        if upload.is_some_and(|upload| upload.has_failed()) {
            return Reason::of_failed_body(active.conn());
        }
        broke(inbound, &chain(&error));
        Reason::AppBroke
    })?;
    if headers::has_other_coding(response.headers()) {
        return Err(Reason::AppAnswer);
    }
    let Some(connection) = connection else { return Err(Reason::AppBroke) };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let parts = connection.into_parts();
        let Some(transport) = parts.io.into_inner().into_transport() else { return Err(Reason::AppBroke) };
        let websocket = headers::is_websocket(response.headers());
        return Ok(Answer::Agreed(response, Upgrade { transport, read: parts.read_buf, permit, websocket }));
    }
    if asked.method == Method::CONNECT && response.status().is_success() {
        // To the client it would be a session.
        broke(inbound, &"no 101 to a WebSocket handshake");
        return Err(Reason::AppAnswer);
    }
    let task = tokio::task::spawn_local(async move {
        // How it ended shows in the body.
        let _ = connection.await;
    });
    let upstream = Upstream::Single(task.abort_handle());
    let exchange = Exchange::new(active, inbound, permit, upstream, None, asked.spoken());
    Ok(Answer::Refused(answer(response, asked.version, exchange)))
}
