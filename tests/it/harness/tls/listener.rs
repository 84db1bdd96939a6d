//! Owns a TLS server in the test's own process, whose certificate may change between two connections.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::{Socket, TlsServer};
use crate::harness::fresh_ip;

#[derive(Debug)]
pub(crate) struct TlsListener {
    tcp: TcpListener,
    server: TlsServer,
}

// === impl TlsListener ===

impl TlsListener {
    pub(crate) async fn bind(server: TlsServer) -> Self {
        let tcp = TcpListener::bind(SocketAddr::new(fresh_ip(), 0)).await.expect("a port is free");
        Self { tcp, server }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.tcp.local_addr().expect("the listener is bound")
    }

    /// For the connections from now on; no session of before is resumed.
    pub(crate) fn serve(&mut self, server: TlsServer) {
        self.server = server;
    }

    /// One connection, of which `Err` is a handshake that failed.
    pub(crate) async fn accept(&self) -> io::Result<Socket> {
        let (tcp, _) = self.tcp.accept().await?;
        tcp.set_nodelay(true)?;
        self.server.accept(&self.server.config(), tcp).await
    }
}
