//! The PROXY protocol's header, versions 1 and 2, with which a balancer says who its client is.
//!
//! Source: HAProxy's document `proxy-protocol.txt`. Whether a connection begins with one is configured, never guessed:
//! anybody could write one.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use ppp::{HeaderResult, PartialResult, v1, v2};

/// What the first bytes of a connection are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHeader {
    /// Read on.
    Incomplete,
    /// No such header.
    Invalid,
    /// A header of this many bytes, and the client it names; none for a connection of the balancer's own.
    Whole(usize, Option<SocketAddr>),
}

/// Longest header: the fixed part of version 2, and as much behind it as real senders need.
const LONGEST: usize = 16 + 4096;

/// Longest header of version 1, with its CR LF.
const LONGEST_LINE: usize = 107;

/// Reads the header at the beginning of `bytes`.
pub fn parse(bytes: &[u8]) -> ProxyHeader {
    // The parser takes half an address for a whole one.
    let line = &bytes[..bytes.len().min(LONGEST_LINE)];
    let version_1 = line.starts_with(&b"PROXY "[..line.len().min(6)]);
    if version_1 && !line.contains(&b'\n') && bytes.len() < LONGEST_LINE {
        return ProxyHeader::Incomplete;
    }
    match HeaderResult::parse(bytes) {
        result if result.is_incomplete() && !version_1 && bytes.len() < LONGEST => ProxyHeader::Incomplete,
        HeaderResult::V1(Ok(header)) => {
            let source = match header.addresses {
                v1::Addresses::Tcp4(ip) => Some((ip.source_address, ip.source_port).into()),
                v1::Addresses::Tcp6(ip) => Some((ip.source_address, ip.source_port).into()),
                v1::Addresses::Unknown => None,
            };
            ProxyHeader::Whole(header.header.len(), source)
        }
        HeaderResult::V2(Ok(header)) => {
            let source = match (header.command, &header.addresses) {
                (v2::Command::Local, _) => None,
                (v2::Command::Proxy, v2::Addresses::IPv4(ip)) => Some((ip.source_address, ip.source_port).into()),
                (v2::Command::Proxy, v2::Addresses::IPv6(ip)) => Some((ip.source_address, ip.source_port).into()),
                (v2::Command::Proxy, v2::Addresses::Unspecified | v2::Addresses::Unix(_)) => None,
            };
            ProxyHeader::Whole(header.len(), source)
        }
        HeaderResult::V1(Err(_)) | HeaderResult::V2(Err(_)) => ProxyHeader::Invalid,
    }
}

/// A header of version 2 for a connection of `client` to `destination`.
pub fn version2(client: SocketAddr, destination: Option<SocketAddr>) -> Vec<u8> {
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let client = canonical(client);
    let addresses = match (client, destination.map(canonical)) {
        (SocketAddr::V4(from), Some(SocketAddr::V4(to))) => {
            v2::Addresses::from(v2::IPv4::new(*from.ip(), *to.ip(), from.port(), to.port()))
        }
        // Two families don't fit into one header: the client's address is what matters.
        (SocketAddr::V4(from), _) => {
            v2::Addresses::from(v2::IPv4::new(*from.ip(), Ipv4Addr::UNSPECIFIED, from.port(), 0))
        }
        (SocketAddr::V6(from), Some(SocketAddr::V6(to))) => {
            v2::Addresses::from(v2::IPv6::new(*from.ip(), *to.ip(), from.port(), to.port()))
        }
        (SocketAddr::V6(from), _) => {
            v2::Addresses::from(v2::IPv6::new(*from.ip(), Ipv6Addr::UNSPECIFIED, from.port(), 0))
        }
    };
    let command = v2::Version::Two | v2::Command::Proxy;
    // Fails only beyond 64 KiB.
    v2::Builder::with_addresses(command, v2::Protocol::Stream, addresses).build().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n";

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn version_1_names_the_client_and_every_shorter_part_is_incomplete() {
        let with_more = [V1, b"GET / HTTP/1.1\r\n"].concat();
        assert_eq!(parse(&with_more), ProxyHeader::Whole(V1.len(), Some(address("192.0.2.7:56324"))));
        for cut in 0..V1.len() {
            assert_eq!(parse(&V1[..cut]), ProxyHeader::Incomplete, "{cut} bytes");
        }
        let v6 = b"PROXY TCP6 2001:db8::7 2001:db8::1 1 2\r\n";
        assert_eq!(parse(v6), ProxyHeader::Whole(v6.len(), Some(address("[2001:db8::7]:1"))));
        let unknown = b"PROXY UNKNOWN\r\n";
        assert_eq!(parse(unknown), ProxyHeader::Whole(unknown.len(), None));
    }

    #[test]
    fn what_we_send_in_version_2_reads_back_with_every_cut() {
        for (client, destination) in [
            ("192.0.2.7:56324", Some("198.51.100.1:443")),
            ("[::ffff:192.0.2.7]:56324", Some("[::ffff:198.51.100.1]:443")),
            ("[2001:db8::7]:1", Some("[2001:db8::1]:2")),
            ("[2001:db8::7]:1", None),
            ("192.0.2.7:1", Some("[2001:db8::1]:2")),
        ] {
            let header = version2(address(client), destination.map(address));
            let expected = address(client);
            let expected = SocketAddr::new(expected.ip().to_canonical(), expected.port());
            assert_eq!(parse(&[&header[..], b"SSH-2.0"].concat()), ProxyHeader::Whole(header.len(), Some(expected)));
            for cut in 0..header.len() {
                assert_eq!(parse(&header[..cut]), ProxyHeader::Incomplete, "{cut} bytes");
            }
        }
    }

    #[test]
    fn a_balancers_own_connection_names_nobody() {
        let mut local = version2(address("192.0.2.7:1"), Some(address("192.0.2.8:2")));
        local[12] = 0x20;
        assert_eq!(parse(&local), ProxyHeader::Whole(local.len(), None));
    }

    #[test]
    fn anything_else_is_refused_and_endless_headers_too() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"PROXY TCP9 a b 1 2\r\n",
            b"PROXY TCP4 192.0.2.7\r\nGET /",
            b"PROXX ",
            b"\r\n\r\n\0\r\nQUIU",
        ] {
            assert_eq!(parse(bytes), ProxyHeader::Invalid, "{bytes:?}");
        }
        assert_eq!(parse(&[b"PROXY TCP4 ", &[b'1'; 200][..]].concat()), ProxyHeader::Invalid);
        let mut header = version2(address("192.0.2.7:1"), None);
        header[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
        header.resize(LONGEST, 0);
        assert_eq!(parse(&header), ProxyHeader::Invalid);
    }
}
