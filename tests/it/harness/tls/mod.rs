//! Owns TLS for toys: an authority, a mounted Secret, sockets with or without TLS, and how each was ended.

mod authority;

mod listener;

mod secret;

mod session;

mod socket;

mod target;

pub(crate) use self::authority::{Authority, Leaf, Pair};
pub(crate) use self::listener::TlsListener;
pub(crate) use self::secret::SecretDir;
pub(crate) use self::session::TlsEnd;
pub(crate) use self::socket::Socket;
pub(crate) use self::target::{Target, TlsPlan, TlsServer, Versions};

/// Names of protocols, RFC 7301; the empty one offers nothing.
pub(crate) mod alpn {
    pub(crate) const HTTP1: &str = "http/1.1";
    pub(crate) const H2: &str = "h2";
    pub(crate) const NONE: &str = "";
}
