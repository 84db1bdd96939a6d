//! Addresses to listen on and upstream URLs as text.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use super::error::Fault;
use super::{HostPort, UpstreamAddr};

/// Reads `0.0.0.0:14080`, `[::]:14080` or `:14080`, which is `[::]:14080`.
pub(super) fn parse_bind(text: &str) -> Result<SocketAddr, Fault> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    if let Some(port) = text.strip_prefix(':').and_then(parse_port) {
        return Ok(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port));
    }
    if parse_port(text).is_some() {
        return Err(
            Fault::new("is a port without an address").hint(format!("write :{text} to listen on all addresses"))
        );
    }
    if text.parse::<IpAddr>().is_ok() || text.strip_prefix('[').is_some_and(|rest| rest.ends_with(']')) {
        return Err(Fault::new("has no port").hint("write it like 0.0.0.0:14080 or [::]:14080"));
    }
    let port = text.rsplit_once(':').map_or(text, |(_, port)| port);
    if is_too_large_a_port(port) {
        return Err(Fault::new("has no valid port").hint("the port must be 0 to 65535"));
    }
    if let Some((host, port)) = text.rsplit_once(':')
        && parse_port(port).is_some()
        && is_host_name(host)
    {
        let address = if host == "localhost" { "127.0.0.1" } else { "0.0.0.0" };
        return Err(Fault::new("needs an IP address, not a name").hint(format!("write {address}:{port}")));
    }
    Err(Fault::new("is not an address to listen on").hint("write it like 0.0.0.0:14080, [::]:14080 or :14080"))
}

/// Reads `http://HOST[:PORT]` (`h2c`, `auto`, `https` likewise), `unix:///PATH` or `tcp://HOST:PORT[,HOST:PORT...]`
/// (`tls` likewise).
pub(super) fn parse_upstream(text: &str) -> Result<UpstreamAddr, Fault> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(without_scheme(text));
    };
    match scheme.to_ascii_lowercase().as_str() {
        "http" => parse_authority(rest, Some(80)).map(UpstreamAddr::Http),
        "h2c" => parse_authority(rest, Some(80)).map(UpstreamAddr::H2c),
        "auto" => parse_authority(rest, Some(80)).map(UpstreamAddr::Auto),
        "https" => parse_authority(rest, Some(443)).map(UpstreamAddr::Https),
        "tcp" => parse_hosts(rest, "tcp://").map(UpstreamAddr::Tcp),
        "tls" => parse_hosts(rest, "tls://").map(UpstreamAddr::Tls),
        "unix" => {
            let path = Path::new(rest);
            if !path.is_absolute() {
                return Err(
                    Fault::new("needs an absolute path").hint(format!("write unix:///{rest}, with three slashes"))
                );
            }
            parse_socket_path(rest).map(UpstreamAddr::Unix)
        }
        _ => Err(Fault::new("has an unknown scheme")
            .hint("use http://, https://, h2c://, auto://, unix://, tcp:// or tls://")),
    }
}

/// The scheme may stand before each host.
fn parse_hosts(text: &str, scheme: &str) -> Result<Vec<HostPort>, Fault> {
    text.split(',').map(|one| parse_authority(one.trim().trim_start_matches(scheme), None)).collect()
}

/// Reads the absolute path of a Unix socket.
pub(super) fn parse_socket_path(text: &str) -> Result<PathBuf, Fault> {
    if !Path::new(text).is_absolute() {
        return Err(Fault::new("is not an absolute path").hint("write it like /run/app/app.sock"));
    }
    if text.ends_with('/') {
        return Err(Fault::new("names a directory, not a socket"));
    }
    if text.contains('\0') {
        return Err(Fault::new("holds a NUL byte"));
    }
    if text.len() > LONGEST_SOCKET_PATH {
        return Err(Fault::new(format!(
            "is longer than the {LONGEST_SOCKET_PATH} bytes a Unix socket's path can have"
        )));
    }
    Ok(PathBuf::from(text))
}

fn without_scheme(text: &str) -> Fault {
    let hint = match text.strip_prefix("unix:") {
        Some(path) => format!("write unix:///{}, with three slashes", path.trim_start_matches('/')),
        None if text.starts_with('/') => format!("write unix://{text}"),
        None if parse_port(text).is_some() => format!("write http://127.0.0.1:{text}"),
        None if parse_authority(text, Some(80)).is_ok() => format!("write http://{text}"),
        None => "write it like http://127.0.0.1:8080, unix:///run/app.sock or tcp://db.example:5432".to_owned(),
    };
    Fault::new("has no scheme").hint(hint)
}

/// Reads `HOST:PORT`; without a default the port must be there.
fn parse_authority(text: &str, default_port: Option<u16>) -> Result<HostPort, Fault> {
    let text = text.strip_suffix('/').unwrap_or(text);
    if text.contains(['/', '?', '#']) {
        return Err(Fault::new("has a path or query").hint("give host and port only; requests keep their own path"));
    }
    if text.contains('@') {
        return Err(Fault::new("has a user name").hint("give host and port only"));
    }
    let (host, port) = split_host(text)?;
    let port = match (port, default_port) {
        (Some(port), _) => parse_port(port)
            .filter(|port| *port != 0)
            .ok_or_else(|| Fault::new("has no valid port").hint("give a port from 1 to 65535"))?,
        (None, Some(port)) => port,
        (None, None) => return Err(Fault::new("has no port").hint(format!("add it, like {text}:5432"))),
    };
    Ok(HostPort { host: host.to_owned(), port })
}

fn split_host(text: &str) -> Result<(&str, Option<&str>), Fault> {
    if let Some(inner) = text.strip_prefix('[') {
        let bad = || Fault::new("has no valid IPv6 address").hint("write it like [::1]:8080");
        let (host, rest) = inner.split_once(']').ok_or_else(bad)?;
        host.parse::<Ipv6Addr>().map_err(|_| bad())?;
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(bad()),
        };
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(Fault::new("has an IPv6 address without brackets").hint(format!("write [{text}]")));
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    if !is_host_name(host) {
        return Err(Fault::new("has no valid host").hint("give a host name or an IP address"));
    }
    Ok((host, port))
}

/// Digits only: `u16::from_str` would take a plus sign too.
fn parse_port(text: &str) -> Option<u16> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn is_too_large_a_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && parse_port(text).is_none()
}

pub(super) fn is_host_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    (1..=253).contains(&text.len()) && text.bytes().all(allowed)
}

fn joined(hosts: &[HostPort]) -> String {
    hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

// === impl UpstreamAddr ===

impl UpstreamAddr {
    /// Its hosts, in their order; none for a Unix socket.
    pub fn hosts(&self) -> &[HostPort] {
        match self {
            Self::Http(host) | Self::H2c(host) | Self::Auto(host) | Self::Https(host) => std::slice::from_ref(host),
            Self::Tcp(hosts) | Self::Tls(hosts) => hosts,
            Self::Unix(_) => &[],
        }
    }

    /// TLS is spoken there.
    pub const fn is_tls(&self) -> bool {
        matches!(self, Self::Https(_) | Self::Tls(_))
    }
}

impl fmt::Display for UpstreamAddr {
    /// The URL that [`Config`](super::Config) was given, with its port.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(at) => write!(f, "http://{at}"),
            Self::H2c(at) => write!(f, "h2c://{at}"),
            Self::Auto(at) => write!(f, "auto://{at}"),
            Self::Https(at) => write!(f, "https://{at}"),
            Self::Tcp(all) => write!(f, "tcp://{}", joined(all)),
            Self::Tls(all) => write!(f, "tls://{}", joined(all)),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

// === impl HostPort ===

impl fmt::Display for HostPort {
    /// `HOST:PORT`, an IPv6 address in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// `sun_path` has 108 bytes with its closing NUL.
const LONGEST_SOCKET_PATH: usize = 107;
