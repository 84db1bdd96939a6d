//! What a proxy does to headers. Pure.

mod found;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
    UPGRADE,
};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Response, Uri, Version};

pub use self::found::Found;
use super::Inbound;
use crate::listener::conn::Conn;
use crate::tls::identity::Identity;
use crate::upstream::speaks::Speaks;

/// Names that hyper's http crate has no constant for.
static KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
static FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
static FORWARDED_CERTIFICATE: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
const OTHER_HOP_BY_HOP: [&str; 3] = ["keep-alive", "proxy-connection", "http2-settings"];

/// Who speaks to whom, as far as headers tell.
#[derive(Debug, Clone, Copy)]
pub struct Ends<'a> {
    /// The client's address, for `X-Forwarded-For`.
    pub client: &'a HeaderValue,
    /// Over TLS.
    pub identity: Option<&'a Identity>,
    /// Some listener of this pod asks for certificates: nobody else may say who a client is, on whatever listener.
    pub vouched_here: bool,
    /// The app speaks TLS.
    pub app_over_tls: bool,
}

/// Why a request can't be forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unacceptable {
    /// HTTP/1.1 without Host, or with several (RFC 9112 §3.2).
    Host,
    /// A target that has neither a path nor is `*`.
    Target,
}

/// The kind of upgrade that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpgradeRequest {
    /// None that is passed on.
    No,
    /// To what the header says.
    To(HeaderValue),
}

/// Prepares a request for an app that `speaks` one of the two: hop-by-hop headers gone, `X-Forwarded-*` set; origin form
/// and Host for HTTP/1.1, absolute form and no Host for HTTP/2, where hyper makes `:authority` of it. `found` is what its
/// headers have shown.
///
/// # Errors
/// If the request has no usable target or Host.
pub fn prepare<B>(
    request: &mut Request<B>,
    found: &Found,
    speaks: Speaks,
    ends: &Ends<'_>,
) -> Result<UpgradeRequest, Unacceptable> {
    let version = request.version();
    // HTTP/1.0 has no upgrade (RFC 9110 §7.8), and HTTP/2 none that looks like this.
    let may_upgrade = found.hop_by_hop && version == Version::HTTP_11;
    let upgrade = if may_upgrade { upgrade_of(request.headers()) } else { UpgradeRequest::No };
    let authority = to_origin_form(request)?;
    let host = host_of(request.headers(), authority.as_ref(), version, found)?;
    // An upgrade is asked for in HTTP/1.1, whatever else the app speaks.
    if speaks == Speaks::Http2 && upgrade == UpgradeRequest::No {
        to_absolute_form(request, if ends.app_over_tls { Scheme::HTTPS } else { Scheme::HTTP }, authority, &host)?;
    } else {
        *request.version_mut() = Version::HTTP_11;
        if authority.is_some() || found.hosts == 0 {
            request.headers_mut().insert(HOST, host.clone());
        }
        if found.cookies > 1 && version == Version::HTTP_2 {
            join_cookies(request.headers_mut());
        }
    }
    let headers = request.headers_mut();
    if found.hop_by_hop {
        remove_hop_by_hop(headers);
    }
    if let UpgradeRequest::To(protocol) = &upgrade {
        headers.insert(UPGRADE, protocol.clone());
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    add_forwarded(headers, ends, host, found.forwarded);
    Ok(upgrade)
}

/// Prepares the app's response for the client: hop-by-hop headers gone, the client's version. `found` is what its
/// headers have shown.
pub fn prepare_response<B>(response: &mut Response<B>, found: &Found, version: Version) {
    // A version taken over from the app would contradict what is put on the wire.
    *response.version_mut() = version;
    if found.hop_by_hop {
        let headers = response.headers_mut();
        if found.coded {
            // It overrides a length (RFC 9112 §6.3); hyper's client leaves both in.
            headers.remove(CONTENT_LENGTH);
        }
        remove_hop_by_hop(headers);
    }
}

// === impl Ends ===

impl<'a> Ends<'a> {
    /// The client of a connection, and the app behind its listener.
    pub fn of(conn: &'a Conn, inbound: &Inbound) -> Self {
        Self {
            client: conn.forwarded_for(),
            identity: conn.secure.get().map(|identity| &**identity),
            vouched_here: conn.worker().vouches_for_clients,
            app_over_tls: inbound.pool.upstream().address.is_tls(),
        }
    }
}

/// Tells the client that this is the last response on the connection.
pub fn tell_to_close(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
}

/// Tells an HTTP/1.0 client that the connection stays, unless it has been told otherwise.
pub fn tell_to_stay(headers: &mut HeaderMap) {
    headers.entry(CONNECTION).or_insert(HeaderValue::from_static("keep-alive"));
}

/// `Transfer-Encoding` says anything but `chunked`, once: the body would reach the app without the rest of its codings.
pub fn has_other_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let chunked = codings.next().is_none_or(|only| only.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"));
    !chunked || codings.next().is_some()
}

/// `timeout` of a `Keep-Alive` header, in seconds.
pub fn keep_alive_timeout(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(&KEEP_ALIVE)?.to_str().ok()?;
    value.split(',').find_map(|part| part.trim().strip_prefix("timeout=")?.trim().parse().ok())
}

/// Probes and health checks do not count as arrivals.
pub fn is_probe(headers: &HeaderMap) -> bool {
    const AGENTS: [&str; 3] = ["kube-probe/", "ELB-HealthChecker/", "GoogleHC/"];
    headers
        .get(http::header::USER_AGENT)
        .and_then(|agent| agent.to_str().ok())
        .is_some_and(|agent| AGENTS.iter().any(|probe| agent.starts_with(probe)))
}

/// The upgrade that is asked for, or agreed to, is WebSocket and nothing else.
pub fn is_websocket(headers: &HeaderMap) -> bool {
    headers.get(UPGRADE).is_some_and(|protocol| protocol.as_bytes().trim_ascii().eq_ignore_ascii_case(b"websocket"))
}

/// Extended CONNECT to a WebSocket (RFC 8441 §5).
pub fn is_websocket_stream<B>(request: &Request<B>) -> bool {
    request.extensions().get::<hyper::ext::Protocol>().is_some_and(|protocol| protocol.as_str() == "websocket")
}

/// RFC 9110 §9.2.2.
pub fn is_idempotent(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE)
}

/// `Upgrade` is passed on as it is, but for h2c: it would smuggle requests past the proxy.
fn upgrade_of(headers: &HeaderMap) -> UpgradeRequest {
    if !has_token(headers, &CONNECTION, "upgrade") {
        return UpgradeRequest::No;
    }
    let mut protocols = Vec::new();
    for value in headers.get_all(UPGRADE) {
        let Ok(text) = value.to_str() else { return UpgradeRequest::No };
        protocols.extend(text.split(',').map(str::trim).filter(|p| !p.is_empty() && !is_h2c(p)));
    }
    match HeaderValue::try_from(protocols.join(", ")) {
        Ok(value) if !value.is_empty() => UpgradeRequest::To(value),
        _ => UpgradeRequest::No,
    }
}

fn is_h2c(protocol: &str) -> bool {
    protocol.eq_ignore_ascii_case("h2c") || protocol.eq_ignore_ascii_case("h2")
}

/// Absolute form becomes origin form; its authority stands in for Host (RFC 9112 §3.2.2).
fn to_origin_form<B>(request: &mut Request<B>) -> Result<Option<Authority>, Unacceptable> {
    let uri = request.uri();
    if uri.scheme().is_none() && uri.authority().is_none() {
        return if uri.path().is_empty() { Err(Unacceptable::Target) } else { Ok(None) };
    }
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    // An authority alone is the form of CONNECT, and of no other method (RFC 9112 §3.2.3).
    let authority = parts.scheme.take().and_then(|_| parts.authority.take()).ok_or(Unacceptable::Target)?;
    // An empty path with OPTIONS means the server as a whole (RFC 9112 §3.2.4).
    let path = parts.path_and_query.take().filter(|path| !path.as_str().is_empty());
    parts.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    parts.authority = None;
    *request.uri_mut() = Uri::from_parts(parts).map_err(|_| Unacceptable::Target)?;
    Ok(Some(authority))
}

/// The other way round, for hyper's HTTP/2 client.
fn to_absolute_form<B>(
    request: &mut Request<B>,
    scheme: Scheme,
    authority: Option<Authority>,
    host: &HeaderValue,
) -> Result<(), Unacceptable> {
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(HOST);
    let authority = match authority {
        Some(authority) if !authority.as_str().contains('@') => authority,
        _ => Authority::try_from(host.as_bytes()).map_err(|_| Unacceptable::Host)?,
    };
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(scheme);
    parts.authority = Some(authority);
    *request.uri_mut() = Uri::from_parts(parts).map_err(|_| Unacceptable::Target)?;
    Ok(())
}

/// HTTP/2 may cut the cookies apart, HTTP/1 has one field for them (RFC 9113 §8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// What the client calls the app; the authority of the target goes before Host.
fn host_of(
    headers: &HeaderMap,
    authority: Option<&Authority>,
    version: Version,
    found: &Found,
) -> Result<HeaderValue, Unacceptable> {
    match (found.hosts, version) {
        (1, _) => {}
        // HTTP/1.0 knows no Host, but the app is spoken to in HTTP/1.1.
        (0, Version::HTTP_10) if authority.is_none() => return Ok(HeaderValue::from_static("localhost")),
        (0, Version::HTTP_10) => {}
        // Sent as `:authority`.
        (0, Version::HTTP_2) if authority.is_some() => {}
        _ => return Err(Unacceptable::Host),
    }
    match authority {
        Some(authority) => {
            let host = authority.as_str().rsplit('@').next().unwrap_or_default();
            HeaderValue::try_from(host).map_err(|_| Unacceptable::Target)
        }
        None => headers.get(HOST).cloned().ok_or(Unacceptable::Host),
    }
}

/// RFC 9110 §7.6.1. hyper frames the message anew, so Transfer-Encoding goes and Content-Length stays; a client's 100
/// is ours to send, so the app need not wait for one.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    remove_named_by_connection(headers);
    let trailers = has_token(headers, &TE, "trailers");
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE, EXPECT, TE] {
        headers.remove(name);
    }
    for name in OTHER_HOP_BY_HOP {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

fn remove_named_by_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        // These decide what the message is; a sender can't have them taken away behind the app's back.
        .filter(|name| ![HOST, CONTENT_LENGTH, TE].contains(name))
        .collect();
    for name in named {
        headers.remove(name);
    }
}

fn add_forwarded(headers: &mut HeaderMap, ends: &Ends<'_>, host: HeaderValue, forwarded: bool) {
    let Ends { client: address, identity, vouched_here, .. } = ends;
    let scheme = HeaderValue::from_static(if identity.is_some() { "https" } else { "http" });
    if *vouched_here {
        remove_look_alikes(headers);
        if let Some(certificate) = identity.and_then(|identity| identity.certificate.clone()) {
            headers.insert(&FORWARDED_CERTIFICATE, certificate);
        }
    }
    if !forwarded {
        headers.reserve(3);
        headers.insert(&FORWARDED_HOST, host);
        headers.insert(&FORWARDED_FOR, (*address).clone());
        headers.insert(&FORWARDED_PROTO, scheme);
        return;
    }
    let chain = headers.get(&FORWARDED_FOR).map(|_| {
        let mut chain: Vec<u8> = Vec::new();
        for value in headers.get_all(&FORWARDED_FOR) {
            chain.extend_from_slice(value.as_bytes());
            chain.extend_from_slice(b", ");
        }
        chain.extend_from_slice(address.as_bytes());
        HeaderValue::from_bytes(&chain).unwrap_or_else(|_| (*address).clone())
    });
    headers.insert(&FORWARDED_FOR, chain.unwrap_or_else(|| (*address).clone()));
    if !headers.contains_key(&FORWARDED_PROTO) {
        headers.insert(&FORWARDED_PROTO, scheme);
    }
    if !headers.contains_key(&FORWARDED_HOST) {
        headers.insert(&FORWARDED_HOST, host);
    }
}

/// App servers that hand headers on as variables take `_` for `-`.
fn remove_look_alikes(headers: &mut HeaderMap) {
    let own = FORWARDED_CERTIFICATE.as_str();
    let is_alike = |name: &&HeaderName| name.as_str().len() == own.len() && name.as_str().replace('_', "-") == own;
    let alike: Vec<_> = headers.keys().filter(is_alike).cloned().collect();
    for name in alike {
        headers.remove(name);
    }
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers.get_all(name).iter().flat_map(tokens).any(|one| one.eq_ignore_ascii_case(token))
}

/// The parts of a list; none if it is no text.
fn tokens(value: &HeaderValue) -> impl Iterator<Item = &str> {
    value.to_str().unwrap_or_default().split(',').map(str::trim)
}

#[cfg(test)]
mod tests;
