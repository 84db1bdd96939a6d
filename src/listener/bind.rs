//! Binding listening sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

/// A listening socket on `address`; `[::]` takes IPv4 as well and falls back to 0.0.0.0 where there is no IPv6.
///
/// One socket for all workers and without SO_REUSEPORT: a second process must not bind silently, and closing one of
/// several sockets would reset its queue.
///
/// # Errors
/// As the operating system gives them.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match listen(address) {
        Err(error) if address.ip().is_unspecified() && address.is_ipv6() && no_ipv6(&error) => {
            listen(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port()))
        }
        result => result,
    }
}

/// Silence after which a peer is asked whether it is still there.
pub const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(10)).with_retries(3);

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    // Connections in TIME_WAIT must not keep a restarted sidecar from its port.
    socket.set_reuse_address(true)?;
    // Accepted connections inherit it: without it small messages wait for the peer's delayed acknowledgement.
    socket.set_tcp_nodelay(true)?;
    // Inherited as well: a peer whose machine died must not hold its place, nor the drain, for ever.
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    // The kernel caps it at net.core.somaxconn.
    socket.listen(65_535)?;
    Ok(socket.into())
}

fn no_ipv6(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL | Errno::PROTONOSUPPORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unspecified_address_takes_both_families() {
        let listener = bind("[::]:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        listener.set_nonblocking(false).unwrap();
        std::net::TcpStream::connect(("127.0.0.1", port)).expect("IPv4 must reach it");
        let (accepted, _) = listener.accept().unwrap();
        assert!(accepted.nodelay().unwrap(), "inherited from the listening socket");
        assert!(socket2::SockRef::from(&accepted).keepalive().unwrap(), "inherited as well");
    }

    #[test]
    fn a_taken_port_is_an_error() {
        let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let error = bind(first.local_addr().unwrap()).expect_err("no SO_REUSEPORT");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
