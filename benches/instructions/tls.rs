//! Owns TLS of the client: a certificate for ebbtide, and connections that never resume a session.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use socket2::{Domain, Socket, Type};

use crate::ebbtide::{Outcome, SOON};

pub(crate) type Stream = StreamOwned<ClientConnection, TcpStream>;

/// A certificate that vouches for itself, with its key, and who believes it.
pub(crate) struct Tls {
    pub(crate) chain: String,
    pub(crate) key: String,
    client: Arc<ClientConfig>,
}

// === impl Tls ===

impl Tls {
    /// For clients that offer this protocol.
    pub(crate) fn new(protocol: &str) -> Outcome<Self> {
        // P-256, as most certificates today.
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(vec![NAME.to_owned()])?.self_signed(&key)?;
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = vec![protocol.into()];
        client.resumption = Resumption::disabled();
        Ok(Self { chain: certificate.pem(), key: key.serialize_pem(), client: Arc::new(client) })
    }

    /// The handshake comes with the first write.
    pub(crate) fn connect(&self, address: SocketAddr) -> Outcome<Stream> {
        let connection = ClientConnection::new(Arc::clone(&self.client), ServerName::try_from(NAME)?)?;
        Ok(StreamOwned::new(connection, connect(address)?))
    }
}

/// Without TLS.
pub(crate) fn connect(address: SocketAddr) -> Outcome<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // Room for a whole large answer: how fast it is read must make no difference.
    socket.set_recv_buffer_size(1 << 20)?;
    socket.connect(&address.into())?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SOON))?;
    Ok(stream)
}

const NAME: &str = "app.example";
