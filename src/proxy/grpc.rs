//! What ebbtide knows of gRPC over HTTP/2: its status codes, its answers, its message boundaries. Mostly pure.
//!
//! Source: the gRPC documents "gRPC over HTTP2" and "HTTP to gRPC Status Code Mapping".

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, Version};

use super::body::Body;
use super::boundary::Boundary;
use super::response::Reason;

static STATUS: HeaderName = HeaderName::from_static("grpc-status");
static MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// A status that ebbtide gives by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// The app can't serve gRPC at all: trying again is no use.
    Unimplemented = 12,
    /// An answer that can't be passed on, or a request that is no gRPC.
    Internal = 13,
    /// Clients try again, elsewhere.
    Unavailable = 14,
}

/// Follows the messages of one direction: five bytes of prefix, then as many bytes as the last four of them say.
#[derive(Debug, Clone, Copy, Default)]
pub struct Messages {
    prefix: [u8; PREFIX],
    filled: u8,
    left: u32,
}

/// Compressed flag and length.
const PREFIX: usize = 5;

/// The content type of a call over HTTP/2. `application/grpc-web` is another protocol: its errors are plain HTTP.
pub fn call_type<B>(request: &Request<B>) -> Option<&HeaderValue> {
    let may_be = request.version() == Version::HTTP_2 && request.method() == Method::POST;
    if may_be { request.headers().get(CONTENT_TYPE).filter(|content_type| is_grpc(content_type)) } else { None }
}

/// `application/grpc`, alone or with a subtype (`+proto`) or parameters.
fn is_grpc(content_type: &HeaderValue) -> bool {
    const NAME: &[u8] = b"application/grpc";
    let text = content_type.as_bytes();
    text.get(..NAME.len()).is_some_and(|start| start.eq_ignore_ascii_case(NAME))
        && matches!(text.get(NAME.len()), None | Some(b'+' | b';' | b' '))
}

/// The number in `grpc-status`, if there is one.
pub fn status_in(headers: &HeaderMap) -> Option<usize> {
    headers.get(&STATUS)?.to_str().ok()?.trim().parse().ok()
}

/// The status that a reason stands for.
pub const fn status_of(reason: Reason) -> Status {
    match reason {
        Reason::DrainOver
        | Reason::AppGone
        | Reason::AppDown
        | Reason::ParkingFull
        | Reason::AppUnreachable
        | Reason::AppBroke
        | Reason::TooManyStreams
        | Reason::AppRefuses
        | Reason::AppSilent
        | Reason::CutUnsent
        | Reason::CutUnanswered
        | Reason::NoNewTunnel => Status::Unavailable,
        Reason::AppNotHttp2 => Status::Unimplemented,
        Reason::AppAnswer
        | Reason::ClientBody
        | Reason::ClientGone
        | Reason::ConnectMethod
        | Reason::BadHost
        | Reason::BadTarget
        | Reason::AmbiguousFraming
        | Reason::TransferCoding => Status::Internal,
    }
}

/// The whole answer in one block of headers ("Trailers-Only"), in the content type that was asked in.
pub fn refusal(reason: Reason, content_type: &HeaderValue) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    response.headers_mut().insert(CONTENT_TYPE, content_type.clone());
    put(response.headers_mut(), status_of(reason), reason.parts().1);
    response
}

/// The end of a call that has begun to be answered.
pub fn unavailable_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    put(&mut trailers, Status::Unavailable, "this pod is out of time, call again elsewhere");
    trailers
}

fn put(headers: &mut HeaderMap, status: Status, text: &'static str) {
    headers.insert(&STATUS, HeaderValue::from(status as u16));
    // All texts are ASCII without control characters and per cent signs, so there is nothing to encode.
    if let Ok(text) = HeaderValue::try_from(format!("ebbtide: {text}")) {
        headers.insert(&MESSAGE, text);
    }
}

// === impl Messages ===

impl Boundary for Messages {
    fn step(&mut self, bytes: &[u8]) -> usize {
        if self.left > 0 {
            let taken = bytes.len().min(self.left as usize);
            self.left -= taken as u32;
            return taken;
        }
        let filled = usize::from(self.filled);
        let taken = bytes.len().min(PREFIX - filled);
        self.prefix[filled..filled + taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken as u8;
        if usize::from(self.filled) == PREFIX {
            let [_, a, b, c, d] = self.prefix;
            self.filled = 0;
            self.left = u32::from_be_bytes([a, b, c, d]);
        }
        taken
    }

    fn at_boundary(&self) -> bool {
        self.filled == 0 && self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend((length as u32).to_be_bytes());
        bytes.extend(vec![b'x'; length]);
        bytes
    }

    #[test]
    fn boundaries_are_found_wherever_the_stream_is_cut() {
        let messages = [message(0), message(1), message(300), message(0), message(7)];
        let bytes = messages.concat();
        let mut ends = vec![0];
        for message in &messages {
            ends.push(ends.last().unwrap() + message.len());
        }
        for cut in 0..=bytes.len() {
            let mut seen = Messages::default();
            seen.advance(&bytes[..cut]);
            assert_eq!(seen.at_boundary(), ends.contains(&cut), "after {cut} bytes");
            seen.advance(&bytes[cut..]);
            assert!(seen.at_boundary(), "cut at {cut}");
            if !ends.contains(&cut) {
                let mut seen = Messages::default();
                seen.advance(&bytes[..cut]);
                let next = ends.iter().find(|end| **end > cut).unwrap();
                assert_eq!(seen.advance_to_boundary(&bytes[cut..]), Some(next - cut), "from {cut}");
            }
        }
    }

    #[test]
    fn a_message_that_does_not_end_in_the_bytes_has_no_boundary_there() {
        let mut seen = Messages::default();
        assert_eq!(seen.advance_to_boundary(&message(100)[..50]), None);
        assert!(!seen.at_boundary());
    }

    #[test]
    fn grpc_web_and_longer_names_are_not_grpc() {
        for (text, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("Application/gRPC+json", true),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/grpcx", false),
            ("application/json", false),
        ] {
            assert_eq!(is_grpc(&HeaderValue::from_static(text)), expected, "{text}");
        }
    }

    #[test]
    fn a_refusal_answers_in_the_subtype_that_was_asked_in() {
        let asked = HeaderValue::from_static("application/grpc+json");
        let response = refusal(Reason::AppDown, &asked);
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/grpc+json");
        assert_eq!(response.headers()["grpc-status"], "14");
        assert_eq!(response.headers()["grpc-message"], "ebbtide: the app did not accept connections in time");
    }
}
