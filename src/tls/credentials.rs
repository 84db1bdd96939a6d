//! Certificates, keys and authorities as they stand in files: read whole, checked against each other, or refused.

use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::provider;
use crate::config::{CertificateFiles, SubjectName};

/// A certificate with its chain and key.
#[derive(Debug)]
pub struct Credentials {
    /// As rustls shows it.
    pub key: Arc<CertifiedKey>,
    /// Until when it is good.
    pub validity: Validity,
    names: Vec<SubjectName>,
}

/// How long a certificate is good; Unix times in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// When it was issued.
    pub from: i64,
    /// When it, or the first of its chain, is no longer good.
    pub until: i64,
}

/// How a certificate stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It is good for some time.
    Good,
    /// A fifth of its time is left, and nobody has renewed it.
    NearlyOver,
    /// It is good no longer.
    Over,
}

/// What is wrong with a file, or with two of them together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct FileError {
    path: String,
    reason: String,
}

/// A subject alternative name of a certificate.
#[derive(Debug, PartialEq, Eq)]
pub enum San {
    /// A host's name.
    Dns(String),
    /// Such as a SPIFFE identity.
    Uri(String),
    /// An address.
    Ip(IpAddr),
}

/// No chain or bundle is longer, in bytes: a path may lead anywhere.
const LARGEST: u64 = 4 << 20;

// === impl Credentials ===

impl Credentials {
    /// Reads both files, of one moment: the kubelet swaps a mounted Secret as a whole, by a link in its folder.
    ///
    /// # Errors
    /// If one can't be read, is no PEM, or they don't belong together.
    pub fn load(files: &CertificateFiles) -> Result<Self, Vec<FileError>> {
        let [chain_path, key_path] = at_this_moment(files);
        let chain = chain(&chain_path);
        let ((chain, validity), key) = match (chain, private_key(&key_path)) {
            (Ok(chain), Ok(key)) => (chain, key),
            (chain, key) => return Err(chain.err().into_iter().chain(key.err()).collect()),
        };
        let own = chain.first().map(|own| sans(own)).unwrap_or_default();
        let names = own.into_iter().filter_map(|san| if let San::Dns(name) = san { Some(name) } else { None });
        let names = names.map(SubjectName::of_server).collect();
        let key = CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                let reason = format!("is not the key of the certificate in {}", chain_path.display());
                vec![FileError::new(&key_path, reason)]
            }
            _ => vec![FileError::new(
                &key_path,
                "holds a key of a kind that is not supported; take ECDSA on P-256 or \
                 P-384, Ed25519, or RSA of 2048 bits or more",
            )],
        })?;
        Ok(Self { key: Arc::new(key), validity, names })
    }

    /// The certificate is for a server of this name: for that name and no other if `exact`, by a wildcard if not.
    pub fn is_for(&self, server: &str, exact: bool) -> bool {
        self.names.iter().any(|name| name.is_pattern() != exact && name.is_dns(server))
    }
}

/// Chain and key. Their change may bring other credentials.
pub fn paths(files: &CertificateFiles) -> [PathBuf; 2] {
    match files {
        CertificateFiles::Pair { chain, key } => [chain.clone(), key.clone()],
        CertificateFiles::Folder(folder) => [folder.join("tls.crt"), folder.join("tls.key")],
    }
}

/// The same where a mounted Secret's link leads now.
fn at_this_moment(files: &CertificateFiles) -> [PathBuf; 2] {
    if let CertificateFiles::Folder(folder) = files
        && let Ok(data) = std::fs::canonicalize(folder.join("..data"))
    {
        return paths(&CertificateFiles::Folder(data));
    }
    paths(files)
}

// === impl Validity ===

impl Validity {
    /// Time until it is over; negative behind that.
    pub const fn hours_left(self, now: i64) -> i64 {
        (self.until - now) / 3600
    }

    /// How it stands at `now`.
    pub const fn standing(self, now: i64) -> Standing {
        if now >= self.until {
            Standing::Over
        } else if now >= self.until - (self.until - self.from) / 5 {
            Standing::NearlyOver
        } else {
            Standing::Good
        }
    }
}

/// The authorities in a PEM file.
///
/// # Errors
/// If it can't be read, or holds none.
pub fn authorities(path: &Path) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        parse(path, &certificate)?;
        // System bundles hold one or two that no verifier can use.
        let _ = roots.add(certificate);
    }
    if roots.is_empty() {
        return Err(FileError::new(path, "holds no authority that can be used"));
    }
    Ok(roots)
}

/// A certificate with those above it, and how long they are good.
fn chain(path: &Path) -> Result<(Vec<CertificateDer<'static>>, Validity), FileError> {
    let chain = certificates(path)?;
    let mut validity = Validity { from: 0, until: i64::MAX };
    for (order, certificate) in chain.iter().enumerate() {
        let parsed = parse(path, certificate)?;
        if order == 0 {
            validity.from = parsed.validity().not_before.timestamp();
        } else if parsed.subject() == parsed.issuer() {
            // An authority that stands in the file for completeness; clients look into their own store.
            continue;
        }
        validity.until = validity.until.min(parsed.validity().not_after.timestamp());
    }
    Ok((chain, validity))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let bytes = read(path)?;
    let all = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| FileError::new(path, "is no whole PEM file"))?;
    if all.is_empty() {
        return Err(FileError::new(path, NO_CERTIFICATE));
    }
    Ok(all)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    let bytes = read(path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
        let is_encrypted = bytes.windows(9).any(|part| part == b"ENCRYPTED");
        let reason = match is_encrypted {
            true => "is encrypted; write the key without a passphrase",
            false => "holds no private key in PEM (PKCS #8, PKCS #1 or SEC 1)",
        };
        FileError::new(path, reason)
    })
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let read = || -> io::Result<bool> {
        File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
        Ok(bytes.len() as u64 <= LARGEST)
    };
    match { read }() {
        Ok(true) => Ok(bytes),
        Ok(false) => Err(FileError::new(path, format!("is larger than {} MiB", LARGEST >> 20))),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(FileError::new(path, "is below a file; give a folder with tls.crt and tls.key, or CHAIN.pem:KEY.pem"))
        }
        Err(error) => Err(FileError::new(path, format!("can't be read: {error}"))),
    }
}

fn parse<'a>(path: &Path, certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, FileError> {
    let (_, parsed) = X509Certificate::from_der(certificate)
        .map_err(|error| FileError::new(path, format!("holds a certificate that can't be understood: {error}")))?;
    Ok(parsed)
}

/// The names that a certificate has; none if it can't be understood.
pub fn sans(certificate: &[u8]) -> Vec<San> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = parsed.subject_alternative_name() else { return Vec::new() };
    let ip = |bytes: &[u8]| match *bytes {
        [a, b, c, d] => Some(IpAddr::from([a, b, c, d])),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    };
    let names = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(San::Dns((*name).to_owned())),
        GeneralName::URI(uri) => Some(San::Uri((*uri).to_owned())),
        GeneralName::IPAddress(bytes) => ip(bytes).map(San::Ip),
        _ => None,
    });
    names.collect()
}

const NO_CERTIFICATE: &str = "holds no certificate in PEM";

// === impl FileError ===

impl FileError {
    fn new(path: &Path, reason: impl Into<String>) -> Self {
        Self { path: path.display().to_string(), reason: reason.into() }
    }
}
