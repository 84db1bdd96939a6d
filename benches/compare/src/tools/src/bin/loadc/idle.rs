//! Owns the many idle connections, plain and TLS, for the memory of one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use crate::net::{answer, connect, exchange, request, stdin, stdin_line};

/// Believes any certificate.
#[derive(Debug)]
struct Any;

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::RSA_PSS_SHA256]
    }
}

fn connector() -> TlsConnector {
    let builder = ClientConfig::builder().dangerous().with_custom_certificate_verifier(Arc::new(Any));
    let mut config = builder.with_no_client_auth();
    config.resumption = Resumption::disabled();
    Arc::new(config).into()
}

pub async fn run(to: SocketAddr, count: usize, tls: bool) {
    let mut open: Vec<Box<dyn std::any::Any>> = Vec::new();
    let mut buffer = Vec::with_capacity(4096);
    let mut bad = 0;
    let connector = connector();
    for _ in 0..count {
        let Ok(mut stream) = connect(to).await else {
            bad += 1;
            continue;
        };
        if !tls {
            bad += usize::from(exchange(&mut stream, "/small", &mut buffer).await.is_err());
            open.push(Box::new(stream));
            continue;
        }
        let name = ServerName::try_from("app.local").expect("a name");
        let Ok(mut stream) = connector.connect(name, stream).await else {
            bad += 1;
            continue;
        };
        let sent = stream.write_all(&request("/small")).await;
        bad += usize::from(sent.is_err() || answer(&mut stream, &mut buffer).await.is_err());
        open.push(Box::new(stream));
    }
    println!("READY {} bad={bad}", open.len());
    let _ = timeout(Duration::from_secs(120), stdin_line(&mut stdin())).await;
}
