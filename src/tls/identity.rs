//! Who a client is by its certificate, as the app is told: the header that Envoy sets as well.

use http::HeaderValue;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::credentials::{San, sans};

/// What a TLS connection says of its client.
#[derive(Debug)]
pub struct Identity {
    /// Its verified certificate, for the app; if it was asked for one and has shown it.
    pub certificate: Option<HeaderValue>,
}

/// The value of `X-Forwarded-Client-Cert`: subject and names of a certificate that has been verified.
pub fn header(certificate: &[u8]) -> Option<HeaderValue> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let subject = parsed.subject().to_string();
    let mut parts = Vec::new();
    // The names count, and a subject may hold what no header can.
    if HeaderValue::try_from(&subject).is_ok() {
        parts.push(format!("Subject={}", quoted(&subject)));
    }
    for san in sans(certificate) {
        match san {
            San::Uri(uri) => parts.push(format!("URI={}", quoted(&uri))),
            San::Dns(name) => parts.push(format!("DNS={}", quoted(&name))),
            San::Ip(_) => {}
        }
    }
    HeaderValue::try_from(parts.join(";")).ok()
}

/// As it is where nothing in it could be taken for a separator.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/@*".contains(c);
    if text.chars().all(plain) {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
