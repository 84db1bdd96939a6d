//! Owns certificates: an authority of the test's own, and what it issues.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};
use serde::{Deserialize, Serialize};

/// Nobody else trusts it.
#[derive(Debug)]
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    /// The authorities between a leaf and the root, as PEM.
    between: String,
}

/// What a certificate is to say.
#[derive(Clone, Debug)]
#[must_use]
pub(crate) struct Leaf {
    /// SANs: IP addresses, URIs, all else is DNS.
    names: Vec<String>,
    serial: u64,
    from: SystemTime,
    until: SystemTime,
    usages: Vec<ExtendedKeyUsagePurpose>,
    rsa: bool,
}

/// A certificate chain, the leaf first, and its key, both as PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pair {
    pub(crate) chain: String,
    pub(crate) key: String,
    pub(crate) serial: u64,
    /// Unix seconds.
    pub(crate) expires: u64,
}

// === impl Leaf ===

impl Leaf {
    /// For servers and clients alike, valid for a day.
    pub(crate) fn new(names: &[&str]) -> Self {
        let now = SystemTime::now();
        Self {
            names: names.iter().copied().map(str::to_owned).collect(),
            serial: fastrand::u64(1..1 << 62),
            from: now - DAY,
            until: now + DAY,
            usages: vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            rsa: false,
        }
    }

    pub(crate) const fn serial(mut self, serial: u64) -> Self {
        self.serial = serial;
        self
    }

    pub(crate) const fn valid(mut self, from: SystemTime, until: SystemTime) -> Self {
        self.from = from;
        self.until = until;
        self
    }

    /// Since an hour.
    pub(crate) fn expired(self) -> Self {
        let now = SystemTime::now();
        self.valid(now - DAY, now - HOUR)
    }

    /// In an hour.
    pub(crate) fn not_yet(self) -> Self {
        let now = SystemTime::now();
        self.valid(now + HOUR, now + DAY)
    }

    pub(crate) fn server_only(mut self) -> Self {
        self.usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self
    }

    pub(crate) fn client_only(mut self) -> Self {
        self.usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self
    }

    /// Always the same RSA key of 2048 bits: making one takes long.
    pub(crate) const fn rsa(mut self) -> Self {
        self.rsa = true;
        self
    }
}

// === impl Authority ===

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let (params, key) = Self::params(name);
        let pem = params.self_signed(&key).expect("the parameters are valid").pem();
        Self { issuer: Issuer::new(params, key), pem, between: String::new() }
    }

    /// One that this one vouches for; its leaves bring its certificate along.
    pub(crate) fn intermediate(&self, name: &str) -> Self {
        let (params, key) = Self::params(name);
        let own = params.signed_by(&key, &self.issuer).expect("the parameters are valid").pem();
        Self { issuer: Issuer::new(params, key), pem: self.pem.clone(), between: own + &self.between }
    }

    /// The root, as in a `ca.crt`.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// With a new key.
    pub(crate) fn issue(&self, leaf: &Leaf) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, leaf.names.first().map_or("nobody", String::as_str));
        params.subject_alt_names = leaf.names.iter().map(|name| san(name)).collect();
        params.serial_number = Some(leaf.serial.into());
        let expires = unix(leaf.until);
        params.not_before = date_time_ymd(1970, 1, 1) + Duration::from_secs(unix(leaf.from));
        params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(expires);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages.clone_from(&leaf.usages);
        let key = if leaf.rsa { KeyPair::from_pem(RSA_KEY) } else { KeyPair::generate() };
        let key = key.expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("the parameters are valid");
        Pair { chain: certificate.pem() + &self.between, key: key.serialize_pem(), serial: leaf.serial, expires }
    }

    /// A valid certificate for these names.
    pub(crate) fn pair(&self, names: &[&str]) -> Pair {
        self.issue(&Leaf::new(names))
    }

    fn params(name: &str) -> (CertificateParams, KeyPair) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params, KeyPair::generate().expect("a key"))
    }
}

fn san(name: &str) -> SanType {
    if let Ok(address) = name.parse() {
        return SanType::IpAddress(address);
    }
    let text = name.try_into().expect("ASCII");
    if name.contains("://") { SanType::URI(text) } else { SanType::DnsName(text) }
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).expect("not long ago").as_secs()
}

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const RSA_KEY: &str = include_str!("rsa.pem");
