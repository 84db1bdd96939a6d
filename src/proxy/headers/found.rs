//! What one pass over a message's headers shows: looking each name up would cost more than all else that is done to them.

use http::header::{ACCEPT, CONNECTION, COOKIE, EXPECT, HOST, HeaderMap, TE, TRANSFER_ENCODING, UPGRADE};

use super::{OTHER_HOP_BY_HOP, tokens};

/// What the headers of a message are about.
#[derive(Debug, Clone, Copy, Default)]
pub struct Found {
    /// Something that concerns one connection only.
    pub hop_by_hop: bool,
    /// `Transfer-Encoding`.
    pub coded: bool,
    /// `Connection: close`: the sender itself ends the connection after this message.
    pub closes: bool,
    /// `Connection: keep-alive`.
    pub stays: bool,
    /// `Keep-Alive`.
    pub keep_alive: bool,
    /// An `EventSource` asks, or something like it.
    pub wants_events: bool,
    /// How many there are of `Host`.
    pub hosts: u32,
    /// How many there are of `Cookie`.
    pub cookies: u32,
    /// Another proxy's `X-Forwarded-*`.
    pub forwarded: bool,
}

// === impl Found ===

impl Found {
    /// Looks at them all.
    pub fn in_headers(headers: &HeaderMap) -> Self {
        let mut found = Self::default();
        for (name, value) in headers {
            match *name {
                HOST => found.hosts += 1,
                COOKIE => found.cookies += 1,
                ACCEPT => found.wants_events |= tokens(value).any(|token| is(token, "text/event-stream")),
                // What every gRPC call says, and what is said to the app as well.
                TE => found.hop_by_hop |= value != "trailers",
                CONNECTION => {
                    found.hop_by_hop = true;
                    for token in tokens(value) {
                        found.closes |= is(token, "close");
                        found.stays |= is(token, "keep-alive");
                    }
                }
                TRANSFER_ENCODING => {
                    found.hop_by_hop = true;
                    found.coded = true;
                }
                UPGRADE | EXPECT => found.hop_by_hop = true,
                _ => {
                    let text = name.as_str();
                    found.keep_alive |= text == "keep-alive";
                    found.hop_by_hop |= OTHER_HOP_BY_HOP.contains(&text);
                    found.forwarded |= text.starts_with("x-forwarded-");
                }
            }
        }
        found
    }
}

fn is(token: &str, name: &str) -> bool {
    token.eq_ignore_ascii_case(name)
}
