//! TLS towards an upstream.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsConnector;

use super::credentials::{Credentials, Validity, authorities};
use super::provider;
use super::reload::LoadError;
use super::stream::{TlsStream, Wire};
use super::turns::{AT_ONCE, in_turns};
use crate::config::UpstreamTlsConfig;

/// How connections to one upstream are made safe.
#[derive(Debug, Clone)]
pub struct ClientTls {
    latest: watch::Receiver<Arc<ClientConfig>>,
    server_name: Option<String>,
    /// After a pause everybody wants a connection in the same moment.
    turns: Arc<Semaphore>,
}

/// What is offered by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// Bytes are bytes.
    Nothing,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/2, or else HTTP/1.1.
    Either,
}

/// Whoever answers is believed.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

/// A configuration for all connections from now on, from files as they are now.
///
/// # Errors
/// If a file can't be read or used.
pub fn config(tls: &UpstreamTlsConfig) -> Result<(ClientConfig, Option<Validity>), LoadError> {
    let provider = provider();
    let roots = tls.ca.as_deref().map(authorities).transpose();
    let own = tls.certificate.as_ref().map(Credentials::load).transpose();
    let (roots, own) = match (roots, own) {
        (Ok(roots), Ok(own)) => (roots, own),
        (roots, own) => {
            return Err(LoadError::Files(roots.err().into_iter().chain(own.err().into_iter().flatten()).collect()));
        }
    };
    let builder =
        ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?.dangerous();
    let builder = match roots {
        Some(roots) => {
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
            builder.with_custom_certificate_verifier(verifier)
        }
        None => builder.with_custom_certificate_verifier(Arc::new(Anybody(provider))),
    };
    let Some(own) = own else { return Ok((builder.with_no_client_auth(), None)) };
    let resolver = Arc::new(rustls::sign::SingleCertAndKey::from(own.key));
    Ok((builder.with_client_cert_resolver(resolver), Some(own.validity)))
}

// === impl ClientTls ===

impl ClientTls {
    /// Of the latest configuration, whose files [`super::reload`] looks after.
    pub fn new(latest: watch::Receiver<Arc<ClientConfig>>, tls: &UpstreamTlsConfig) -> Self {
        Self { latest, server_name: tls.server_name.clone(), turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// The same, with turns of its own.
    pub fn for_worker(&self) -> Self {
        Self { turns: Arc::new(Semaphore::new(AT_ONCE)), ..self.clone() }
    }

    /// The handshake with `host` on a connection just made.
    ///
    /// # Errors
    /// If the two sides don't agree, or the upstream is not who it should be.
    pub async fn connect(&self, socket: TcpStream, host: &str, offer: Offer) -> io::Result<TlsStream> {
        let name = self.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::clone(&self.latest.borrow()));
        let alpn = offer.protocols().iter().map(|one| one.to_vec()).collect();
        let connecting = pin!(connector.with_alpn(alpn).connect(name, Wire::new(socket, Bytes::new())));
        match in_turns(&self.turns, connecting, |_| false).await {
            Some(stream) => Ok(TlsStream::new(stream?)),
            None => Err(io::ErrorKind::Interrupted.into()),
        }
    }
}

// === impl Offer ===

impl Offer {
    const fn protocols(self) -> &'static [&'static [u8]] {
        match self {
            Self::Nothing => &[],
            Self::Http1 => &[b"http/1.1"],
            Self::Http2 => &[b"h2"],
            Self::Either => &[b"h2", b"http/1.1"],
        }
    }
}

// === impl Anybody ===

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
