//! TLS towards clients: which certificate they see, and whose they may show.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::ring::Ticketer;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
    SupportedProtocolVersion,
};

use super::credentials::{Credentials, San, Validity, authorities, sans};
use super::provider;
use super::reload::LoadError;
use crate::config::{ClientCertificates, Protocol, ServerTlsConfig, SubjectName, TlsVersion};

/// Towards HTTP clients, the one we like best first.
const HTTP: [&[u8]; 3] = [b"h2", b"http/1.1", b"http/1.0"];

/// The certificate follows the server name that the client asks for.
#[derive(Debug)]
struct ByName(Vec<Credentials>);

/// Of the clients whose certificates are good only these.
#[derive(Debug)]
struct OnlyNamed {
    good: Arc<dyn ClientCertVerifier>,
    names: Vec<SubjectName>,
}

/// What the files came to.
#[derive(Debug)]
pub struct Served {
    /// For all connections from now on.
    pub config: Arc<ServerConfig>,
    /// Of each certificate, in the order of the configuration.
    pub validities: Vec<Validity>,
}

/// Reads all files as they are now. `before` is what they came to last, whose tickets clients still hold.
///
/// # Errors
/// If a file can't be read or used.
pub fn load(tls: &ServerTlsConfig, protocol: Protocol, before: Option<&Served>) -> Result<Served, LoadError> {
    const ALL: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];
    const NEW: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];
    let versions = match tls.min_version {
        TlsVersion::Tls12 => ALL,
        TlsVersion::Tls13 => NEW,
    };
    let mut faults = Vec::new();
    let mut all = Vec::new();
    for files in &tls.certificates {
        match Credentials::load(files) {
            Ok(credentials) => all.push(credentials),
            Err(wrong) => faults.extend(wrong),
        }
    }
    let roots = tls.clients.as_ref().map(|clients| authorities(&clients.ca)).transpose();
    let roots = roots.unwrap_or_else(|fault| {
        faults.push(fault);
        None
    });
    if !faults.is_empty() {
        return Err(LoadError::Files(faults));
    }
    let validities = all.iter().map(|one| one.validity).collect();
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(versions)?;
    let builder = match (&tls.clients, roots) {
        (Some(clients), Some(roots)) => builder.with_client_cert_verifier(verifier(clients, roots)?),
        _ => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(ByName(all)));
    if protocol == Protocol::Http {
        config.alpn_protocols = HTTP.map(<[u8]>::to_vec).to_vec();
    }
    config.session_storage = Arc::new(NoServerSessionStorage {});
    if tls.clients.is_some() {
        // Who comes with a ticket is not asked for a certificate again, and gets a new ticket: one that has expired, or
        // whose authority is gone, would be good for ever.
        config.send_tls13_tickets = 0;
    } else {
        // Kept by the clients: nothing here grows with their number, and all workers know them.
        config.ticketer = match before {
            Some(before) => Arc::clone(&before.config.ticketer),
            None => Ticketer::new()?,
        };
    }
    Ok(Served { config: Arc::new(config), validities })
}

fn verifier(clients: &ClientCertificates, roots: RootCertStore) -> Result<Arc<dyn ClientCertVerifier>, LoadError> {
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    let builder = if clients.required { builder } else { builder.allow_unauthenticated() };
    let good = builder.build()?;
    if clients.names.is_empty() {
        return Ok(good);
    }
    Ok(Arc::new(OnlyNamed { good, names: clients.names.clone() }))
}

// === impl ByName ===

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let usable = |one: &&Credentials| one.key.key.choose_scheme(hello.signature_schemes()).is_some();
        let named = hello.server_name().and_then(|name| {
            // Of an RSA and an ECDSA certificate for the same name the one that the client understands; a wildcard only
            // where nobody has the name itself.
            let find = |exact| self.0.iter().filter(|one| one.is_for(name, exact)).find(usable);
            find(true).or_else(|| find(false))
        });
        // A client that is shown the wrong name can say so; one that is shown nothing can't.
        let shown = named.or_else(|| self.0.iter().find(usable)).or_else(|| self.0.first())?;
        Some(Arc::clone(&shown.key))
    }
}

// === impl OnlyNamed ===

impl OnlyNamed {
    fn allows(&self, certificate: &[u8]) -> bool {
        sans(certificate).iter().any(|san| {
            self.names.iter().any(|name| match san {
                San::Dns(dns) => name.is_dns(dns),
                San::Uri(uri) => name.is_uri(uri),
                San::Ip(ip) => name.is_ip(*ip),
            })
        })
    }
}

impl ClientCertVerifier for OnlyNamed {
    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.good.verify_client_cert(certificate, intermediates, now)?;
        if self.allows(certificate) {
            return Ok(verified);
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.good.root_hint_subjects()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.good.client_auth_mandatory()
    }

    fn offer_client_auth(&self) -> bool {
        self.good.offer_client_auth()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.good.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.good.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.good.supported_verify_schemes()
    }
}
