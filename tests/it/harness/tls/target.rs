//! Owns where clients connect, with TLS or without, and the server's side of the same handshake.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustix::net::{SendFlags, send};
use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion,
};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;

use super::authority::Pair;
use super::{Socket, alpn};
use crate::harness::client::Failure;

/// Any client takes one; a plain address is one. Clones share their TLS sessions.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    tls: Option<Arc<Tls>>,
    /// Bytes before everything else, and whether they share the first segment with what follows.
    ahead: Option<(Vec<u8>, bool)>,
}

#[derive(Debug)]
struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    alpn: Option<Vec<&'static str>>,
}

/// How a client speaks TLS.
#[derive(Clone, Debug)]
#[must_use]
pub(crate) struct TlsPlan {
    ca: String,
    name: String,
    alpn: Option<Vec<&'static str>>,
    versions: Versions,
    certificate: Option<Pair>,
    resumes: bool,
}

/// How the app speaks TLS.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[must_use]
pub(crate) struct TlsServer {
    pair: Pair,
    client_ca: Option<String>,
    alpn: Vec<String>,
    versions: Versions,
    pub(super) sloppy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Versions {
    Both,
    Only12,
    Only13,
}

// === impl Versions ===

impl Versions {
    const fn list(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            Self::Both => rustls::ALL_VERSIONS,
            Self::Only12 => ONLY_12,
            Self::Only13 => ONLY_13,
        }
    }
}

// === impl TlsPlan ===

impl TlsPlan {
    /// Trusts this authority, and wants this name (or address) of the server; each client offers what it speaks.
    pub(crate) fn new(ca: &str, name: &str) -> Self {
        let (ca, name) = (ca.to_owned(), name.to_owned());
        Self { ca, name, alpn: None, versions: Versions::Both, certificate: None, resumes: true }
    }

    /// Offers these whatever the client speaks, and takes any answer.
    pub(crate) fn alpn(mut self, names: &[&'static str]) -> Self {
        self.alpn = Some(names.to_vec());
        self
    }

    pub(crate) const fn versions(mut self, versions: Versions) -> Self {
        self.versions = versions;
        self
    }

    pub(crate) fn certificate(mut self, pair: &Pair) -> Self {
        self.certificate = Some(pair.clone());
        self
    }

    /// Every handshake is a whole one.
    pub(crate) const fn never_resumes(mut self) -> Self {
        self.resumes = false;
        self
    }

    pub(crate) fn to(self, address: SocketAddr) -> Target {
        let builder = ClientConfig::builder_with_provider(default_provider().into());
        let builder = builder.with_protocol_versions(self.versions.list()).expect("known versions");
        let builder = builder.with_root_certificates(roots(&self.ca));
        let mut config = match &self.certificate {
            Some(pair) => builder
                .with_client_auth_cert(chain(&pair.chain), key(&pair.key))
                .expect("chain and key belong together"),
            None => builder.with_no_client_auth(),
        };
        if !self.resumes {
            config.resumption = Resumption::disabled();
        }
        let name = ServerName::try_from(self.name).expect("a name or an address");
        Target { address, tls: Some(Arc::new(Tls { config: Arc::new(config), name, alpn: self.alpn })), ahead: None }
    }
}

// === impl Target ===

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self { address, tls: None, ahead: None }
    }
}

impl From<&Self> for Target {
    fn from(target: &Self) -> Self {
        target.clone()
    }
}

impl Target {
    pub(crate) const fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Comes by way of a balancer, which says this first: in one segment with the handshake, or in one of its own.
    #[must_use]
    pub(crate) fn behind(mut self, header: &[u8], together: bool) -> Self {
        self.ahead = Some((header.to_vec(), together));
        self
    }

    /// The first bytes of a handshake, to be sent by hand; nothing can come of it.
    pub(crate) fn client_hello(&self, speaks: &'static str) -> Vec<u8> {
        let tls = self.tls.as_ref().expect("a target with TLS");
        let mut hello = Vec::new();
        tls.session(speaks).expect("a valid offer").write_tls(&mut hello).expect("memory takes everything");
        hello
    }

    /// One connection for a protocol, of which the server must not choose another.
    pub(crate) async fn connect(&self, speaks: &'static str) -> Result<Socket, Failure> {
        let tcp = TcpStream::connect(self.address).await?;
        tcp.set_nodelay(true)?;
        if let Some((header, together)) = &self.ahead {
            tcp.writable().await?;
            let flags = if *together { SendFlags::MORE } else { SendFlags::empty() };
            send(&tcp, header, flags).map_err(io::Error::from)?;
        }
        let Some(tls) = &self.tls else { return Ok(tcp.into()) };
        let session = tls.session(speaks).map_err(|_| Failure::Tls)?;
        let socket = Socket::handshake(tcp, Connection::Client(session), false).await?;
        let agreed = socket.alpn();
        let fits = match agreed.as_deref() {
            _ if tls.alpn.is_some() => true,
            // Nothing said is HTTP/1, or no HTTP.
            None => speaks != alpn::H2,
            Some(agreed) => agreed == speaks,
        };
        if fits { Ok(socket) } else { Err(Failure::Tls) }
    }
}

// === impl Tls ===

impl Tls {
    fn session(&self, speaks: &'static str) -> Result<ClientConnection, rustls::Error> {
        let offer = self.alpn.clone().unwrap_or_else(|| vec![speaks]);
        let names = offer.iter().filter(|name| **name != alpn::NONE).map(|name| name.as_bytes().to_vec());
        ClientConnection::new_with_alpn(self.config.clone(), self.name.clone(), names.collect())
    }
}

// === impl TlsServer ===

impl TlsServer {
    /// Chooses HTTP/2 before HTTP/1.1; any client may come.
    pub(crate) fn new(pair: &Pair) -> Self {
        let alpn = [alpn::H2, alpn::HTTP1].map(str::to_owned).to_vec();
        Self { pair: pair.clone(), client_ca: None, alpn, versions: Versions::Both, sloppy: false }
    }

    /// None is a server that knows nothing of ALPN.
    pub(crate) fn alpn(mut self, names: &[&str]) -> Self {
        self.alpn = names.iter().copied().map(str::to_owned).collect();
        self
    }

    pub(crate) const fn versions(mut self, versions: Versions) -> Self {
        self.versions = versions;
        self
    }

    /// Only clients with a certificate of this authority may come.
    pub(crate) fn client_ca(mut self, pem: &str) -> Self {
        self.client_ca = Some(pem.to_owned());
        self
    }

    /// Ends its connections without a `close_notify`.
    pub(crate) const fn sloppy(mut self) -> Self {
        self.sloppy = true;
        self
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_protocol_versions(self.versions.list()).expect("known versions");
        let builder = match &self.client_ca {
            Some(ca) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots(ca).into(), provider);
                builder.with_client_cert_verifier(verifier.build().expect("an authority"))
            }
            None => builder.with_no_client_auth(),
        };
        let pair = (chain(&self.pair.chain), key(&self.pair.key));
        let mut config = builder.with_single_cert(pair.0, pair.1).expect("chain and key belong together");
        config.alpn_protocols = self.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// The handshake on a connection that was accepted.
    pub(crate) async fn accept(&self, config: &Arc<ServerConfig>, tcp: TcpStream) -> io::Result<Socket> {
        let session = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
        Socket::handshake(tcp, Connection::Server(session), self.sloppy).await
    }
}

const ONLY_12: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];
const ONLY_13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

fn roots(pem: &str) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for certificate in chain(pem) {
        roots.add(certificate).expect("an authority");
    }
    roots
}

fn chain(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().expect("PEM")
}

fn key(pem: &str) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("a key")
}
