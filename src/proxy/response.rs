//! Every response that ebbtide makes itself.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use tokio::io::AsyncWriteExt;

use super::body::Body;
use super::headers::{Unacceptable, tell_to_close};
use crate::listener::conn::Conn;
use crate::listener::io::Io;
use crate::listener::linger::linger;
use crate::telemetry::metrics::RequestOutcome;

/// Why ebbtide answers in the app's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The drain is over: nothing is forwarded any more.
    DrainOver,
    /// The app refused the connection during the termination.
    AppGone,
    /// The app did not come back while the request was parked.
    AppDown,
    /// Too many requests are parked already.
    ParkingFull,
    /// The app does not accept, nor refuse.
    AppUnreachable,
    /// The app's connection broke before its answer.
    AppBroke,
    /// As many connections and streams are open as `limits.max_connections` allows.
    TooManyStreams,
    /// The app refused it, again and again, without having looked at it.
    AppRefuses,
    /// A gRPC call to an app that has said nothing when it was asked whether it speaks HTTP/2.
    AppSilent,
    /// A gRPC call, or another HTTP/2 request, to an app that does not speak HTTP/2.
    AppNotHttp2,
    /// The app's answer can't be passed on: a transfer coding, or an upgrade, that nobody asked for.
    AppAnswer,
    /// The client's body is malformed.
    ClientBody,
    /// The client closed in the middle of its body.
    ClientGone,
    /// Out of time, nothing has reached the app.
    CutUnsent,
    /// Out of time, the app has the request and has not answered.
    CutUnanswered,
    /// No new tunnels while draining.
    NoNewTunnel,
    /// CONNECT.
    ConnectMethod,
    /// Host missing, or several.
    BadHost,
    /// No usable target.
    BadTarget,
    /// Content-Length beside Transfer-Encoding.
    AmbiguousFraming,
    /// A transfer coding other than chunked.
    TransferCoding,
}

/// 408, for a head that did not come in time.
pub const HEAD_TIMEOUT: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// 400, in plain text to a client that speaks HTTP where TLS is spoken.
pub const NOT_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n\
    content-length: 44\r\n\r\nebbtide: this port speaks TLS, use https://\n";

// === impl Reason ===

impl Reason {
    /// Status, text for people, outcome for the metric.
    pub const fn parts(self) -> (StatusCode, &'static str, RequestOutcome) {
        use RequestOutcome::{Abandoned, BadGateway, GatewayTimeout, Rejected, Unavailable};
        match self {
            Self::DrainOver => {
                (StatusCode::SERVICE_UNAVAILABLE, "this pod has finished draining, try another one", Unavailable)
            }
            Self::AppGone => (
                StatusCode::SERVICE_UNAVAILABLE,
                "the app of this terminating pod is gone, try another pod",
                Unavailable,
            ),
            Self::AppDown => {
                (StatusCode::SERVICE_UNAVAILABLE, "the app did not accept connections in time", Unavailable)
            }
            Self::ParkingFull => {
                (StatusCode::SERVICE_UNAVAILABLE, "the app is down and too many requests wait for it", Unavailable)
            }
            Self::AppUnreachable => {
                (StatusCode::SERVICE_UNAVAILABLE, "no connection to the app could be made", Unavailable)
            }
            Self::AppBroke => (StatusCode::BAD_GATEWAY, "the app closed the connection without an answer", BadGateway),
            Self::TooManyStreams => {
                (StatusCode::SERVICE_UNAVAILABLE, "too many connections and streams are open here", Unavailable)
            }
            Self::AppRefuses => {
                (StatusCode::SERVICE_UNAVAILABLE, "the app refused the request without looking at it", Unavailable)
            }
            Self::AppSilent => {
                (StatusCode::SERVICE_UNAVAILABLE, "the app has not said whether it speaks HTTP/2", Unavailable)
            }
            Self::AppNotHttp2 => (
                StatusCode::BAD_GATEWAY,
                "the app does not speak HTTP/2; gRPC needs an app that does, and an upstream of h2c://, https:// or \
                 auto://",
                BadGateway,
            ),
            Self::AppAnswer => (StatusCode::BAD_GATEWAY, "the app's answer can't be passed on", BadGateway),
            Self::ClientBody => (StatusCode::BAD_REQUEST, "the request's body is malformed", Rejected),
            Self::ClientGone => (StatusCode::BAD_REQUEST, "the request's body is incomplete", Abandoned),
            Self::CutUnsent => (
                StatusCode::SERVICE_UNAVAILABLE,
                "this pod is out of time, the app has not seen the request",
                Unavailable,
            ),
            Self::CutUnanswered => {
                (StatusCode::GATEWAY_TIMEOUT, "this pod is out of time, the app may have done the work", GatewayTimeout)
            }
            Self::NoNewTunnel => {
                (StatusCode::SERVICE_UNAVAILABLE, "this pod is draining, open the connection elsewhere", Unavailable)
            }
            Self::ConnectMethod => (StatusCode::METHOD_NOT_ALLOWED, "CONNECT is not served", Rejected),
            Self::BadHost => (StatusCode::BAD_REQUEST, "exactly one Host header is needed", Rejected),
            Self::BadTarget => (StatusCode::BAD_REQUEST, "the request target is not usable", Rejected),
            Self::AmbiguousFraming => {
                (StatusCode::BAD_REQUEST, "Content-Length and Transfer-Encoding exclude each other", Rejected)
            }
            Self::TransferCoding => {
                (StatusCode::NOT_IMPLEMENTED, "no transfer coding but chunked is understood", Rejected)
            }
        }
    }

    /// The client's own fault in its body.
    pub const fn of_failed_body(conn: &Conn) -> Self {
        if conn.eof.get() { Self::ClientGone } else { Self::ClientBody }
    }

    /// The client may try again elsewhere, at once.
    const fn invites_retry(self) -> bool {
        matches!(self.parts().0, StatusCode::SERVICE_UNAVAILABLE)
    }

    /// The connection ends with this response, in every phase.
    const fn closes(self) -> bool {
        match self {
            Self::DrainOver
            | Self::AppGone
            | Self::ClientBody
            | Self::ClientGone
            | Self::CutUnsent
            | Self::CutUnanswered
            | Self::NoNewTunnel
            | Self::ConnectMethod
            | Self::BadHost
            | Self::BadTarget
            | Self::AmbiguousFraming
            | Self::TransferCoding => true,
            Self::AppDown
            | Self::ParkingFull
            | Self::AppUnreachable
            | Self::AppBroke
            | Self::TooManyStreams
            | Self::AppRefuses
            | Self::AppSilent
            | Self::AppNotHttp2
            | Self::AppAnswer => false,
        }
    }
}

impl From<Unacceptable> for Reason {
    fn from(why: Unacceptable) -> Self {
        match why {
            Unacceptable::Host => Self::BadHost,
            Unacceptable::Target => Self::BadTarget,
        }
    }
}

/// The response for `reason`, with `Connection: close` where the reason asks for it.
pub fn respond(reason: Reason) -> Response<Body> {
    let (status, text, _) = reason.parts();
    let text = Bytes::from(format!("ebbtide: {text}\n"));
    let length = HeaderValue::from(text.len());
    let mut response = Response::new(Body::own(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CONTENT_LENGTH, length);
    if reason.invites_retry() {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    if reason == Reason::ConnectMethod {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, TRACE"));
    }
    if reason.closes() {
        tell_to_close(headers);
    }
    response
}

/// An empty stream of events in place of a 503, which would end an `EventSource` for good: it connects again, elsewhere
/// (HTML Living Standard §9.2.3).
pub fn come_back() -> Response<Body> {
    const EVENTS: &[u8] = b"retry: 1000\n\n";
    let mut response = Response::new(Body::own(Bytes::from_static(EVENTS)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(EVENTS.len()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    tell_to_close(headers);
    response
}

/// Writes a response past hyper on a connection where nothing is under way, and closes in order.
pub async fn write_and_close(mut io: Box<Io>, conn: &Conn, response: &'static [u8]) {
    // A client that takes no bytes now would not read them later; linger bounds the rest.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(1), io.transport_mut().write_all(response)).await;
    linger(io, conn).await;
}
