//! The TLS settings of a listener: their texts, and what they come to together.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use rustls::pki_types::ServerName;

use super::error::{ConfigError, Fault};
use super::keys::{
    self, TLS_CERTIFICATES, TLS_CLIENT_AUTH, TLS_CLIENT_CA, TLS_CLIENT_NAMES, TLS_MIN_VERSION, UPSTREAM_CA,
    UPSTREAM_CERTIFICATE, UPSTREAM_NAME, UPSTREAM_SKIP,
};
use super::source::{Item, Setting};
use super::value::Value;
use super::{UpstreamAddr, address};

/// TLS towards clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTlsConfig {
    /// Never empty; the first is for clients that name no server, or another one.
    pub certificates: Vec<CertificateFiles>,
    /// Oldest version that may be spoken.
    pub min_version: TlsVersion,
    /// Whose certificates are asked for, if any.
    pub clients: Option<ClientCertificates>,
}

/// Certificates of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificates {
    /// PEM file of the authorities that vouch for them.
    pub ca: PathBuf,
    /// Whether a client without one is refused.
    pub required: bool,
    /// Who may come; everybody with a good certificate if empty.
    pub names: Vec<SubjectName>,
}

/// Versions of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersion {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// TLS towards an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTlsConfig {
    /// PEM file of the authorities that vouch for it; `None`: whoever answers is believed.
    pub ca: Option<PathBuf>,
    /// The name its certificate must have; `None` is its host.
    pub server_name: Option<String>,
    /// Our own certificate.
    pub certificate: Option<CertificateFiles>,
}

/// Where a certificate's chain and its key stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateFiles {
    /// `tls.crt` and `tls.key` in a folder, as a Secret is mounted.
    Folder(PathBuf),
    /// Two PEM files.
    Pair {
        /// The certificate, and those between it and its authority.
        chain: PathBuf,
        /// Its private key.
        key: PathBuf,
    },
}

/// A subject alternative name, or a pattern for several. Each kind is compared with its own alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubjectName {
    /// A host name.
    Dns(String),
    /// `*.` and this: one label more.
    BelowDns(String),
    /// A URI.
    Uri(String),
    /// This, which ends with a slash, and something behind it.
    BelowUri(String),
    /// An address.
    Ip(IpAddr),
}

/// Settings of TLS towards clients.
pub(super) const SERVER: [&str; 5] =
    [TLS_CERTIFICATES, TLS_MIN_VERSION, TLS_CLIENT_CA, TLS_CLIENT_AUTH, TLS_CLIENT_NAMES];
/// Settings of TLS towards the upstream.
pub(super) const UPSTREAM: [&str; 4] = [UPSTREAM_CA, UPSTREAM_NAME, UPSTREAM_CERTIFICATE, UPSTREAM_SKIP];

/// Reads a folder, or `CHAIN.pem:KEY.pem`.
pub(super) fn parse_certificate(text: &str) -> Result<CertificateFiles, Fault> {
    let path = |part: &str| {
        if part.is_empty() || part.contains('\0') {
            return Err(Fault::new("names no file").hint(CERTIFICATE_HINT));
        }
        Ok(PathBuf::from(part))
    };
    match text.split_once(':') {
        None => path(text).map(CertificateFiles::Folder),
        Some((_, key)) if key.contains(':') => Err(Fault::new("has more than two parts").hint(CERTIFICATE_HINT)),
        Some((chain, key)) => Ok(CertificateFiles::Pair { chain: path(chain.trim())?, key: path(key.trim())? }),
    }
}

/// Reads several, separated by commas.
pub(super) fn parse_certificates(text: &str) -> Result<Vec<CertificateFiles>, Fault> {
    text.split(',').map(|one| parse_certificate(one.trim())).collect()
}

/// Reads subject alternative names, separated by commas.
pub(super) fn parse_names(text: &str) -> Result<Vec<SubjectName>, Fault> {
    let all: Vec<_> = text.split(',').map(str::trim).collect();
    let bad: Vec<_> = all.iter().filter(|one| parse_name(one).is_none()).map(|one| format!("{one:?}")).collect();
    if bad.is_empty() {
        return Ok(all.into_iter().filter_map(parse_name).collect());
    }
    let which = if bad.len() == 1 { "which is no subject alternative name" } else { "which are none" };
    Err(Fault::new(format!("has {}, {which}", bad.join(" and ")))
        .hint("write it like client.example, *.example, spiffe://cluster.local/ns/shop/* or 192.0.2.1"))
}

fn parse_name(text: &str) -> Option<SubjectName> {
    let is_uri = |text: &str| text.contains(':') && !text.contains(['*', ' ', '\t']);
    // Not everything below a scheme alone.
    let is_start = |start: &&str| is_uri(start) && start.ends_with('/') && !start.trim_end_matches('/').ends_with(':');
    if let Ok(ip) = text.parse() {
        return Some(SubjectName::Ip(ip));
    }
    if let Some(parent) = text.strip_prefix("*.").filter(|parent| address::is_host_name(parent)) {
        return Some(SubjectName::BelowDns(parent.to_owned()));
    }
    if let Some(start) = text.strip_suffix('*').filter(is_start) {
        return Some(SubjectName::BelowUri(start.to_owned()));
    }
    if is_uri(text) {
        return Some(SubjectName::Uri(text.to_owned()));
    }
    address::is_host_name(text).then(|| SubjectName::Dns(text.to_owned()))
}

/// Reads the name that a certificate must have.
pub(super) fn parse_server_name(text: &str) -> Result<String, Fault> {
    if is_server_name(text) {
        return Ok(text.to_owned());
    }
    Err(Fault::new("is no host name or IP address").hint("write it like app.example, without scheme or port"))
}

/// A certificate can have this name.
fn is_server_name(text: &str) -> bool {
    ServerName::try_from(text).is_ok()
}

/// TLS towards clients; `None` without certificates, or with a fault, which has been reported then.
pub(super) fn server(item: &Item, errors: &mut Vec<ConfigError>) -> Option<ServerTlsConfig> {
    let field = |path: &str| item.fields.get(path);
    let needs = |paths: &[&str], needed: &str, errors: &mut Vec<ConfigError>| {
        for setting in paths.iter().filter_map(|path| field(path)) {
            let fault = Fault::new(format!("has no effect without {needed}")).hint("set both, or remove this one");
            errors.push(setting.error(fault));
        }
    };
    if field(TLS_CLIENT_CA).is_none() {
        needs(&[TLS_CLIENT_AUTH, TLS_CLIENT_NAMES], "tls.client_ca", errors);
    }
    if field(TLS_CERTIFICATES).is_none() {
        needs(&[TLS_MIN_VERSION, TLS_CLIENT_CA], "tls.certificates", errors);
    }
    let Some(Value::Certificates(certificates)) = given(field(TLS_CERTIFICATES)) else { return None };
    let word = |path: &str| if let Some(Value::Word(word)) = given(field(path)) { Some(word) } else { None };
    let clients = match given(field(TLS_CLIENT_CA)) {
        Some(Value::Path(ca)) => Some(ClientCertificates {
            ca,
            required: word(TLS_CLIENT_AUTH) != Some("optional"),
            names: match given(field(TLS_CLIENT_NAMES)) {
                Some(Value::SubjectNames(names)) => names,
                _ => Vec::new(),
            },
        }),
        _ => None,
    };
    let min_version = if word(TLS_MIN_VERSION) == Some("1.3") { TlsVersion::Tls13 } else { TlsVersion::Tls12 };
    Some(ServerTlsConfig { certificates, min_version, clients })
}

/// TLS towards the upstream, if its scheme asks for it.
pub(super) fn upstream(
    item: &Item,
    upstream: Option<&Setting>,
    errors: &mut Vec<ConfigError>,
) -> Option<UpstreamTlsConfig> {
    let field = |path: &str| item.fields.get(path);
    let setting = upstream?;
    let Some(Value::Upstream(address)) = &setting.value else { return None };
    if !address.is_tls() {
        for setting in UPSTREAM.iter().filter_map(|path| field(path)) {
            let hint = match address {
                UpstreamAddr::Tcp(_) => "write the upstream as tls://, or remove this",
                _ => "write the upstream as https://, or remove this",
            };
            errors.push(setting.error(Fault::new(format!("has no effect on {address}, which has no TLS")).hint(hint)));
        }
        return None;
    }
    let skip = matches!(given(field(UPSTREAM_SKIP)), Some(Value::Switch(true)));
    match (field(UPSTREAM_CA), field(UPSTREAM_SKIP)) {
        // A switch that is none has been reported.
        (None, given) if !skip && given.is_none_or(|setting| setting.value.is_some()) => {
            errors.push(setting.error(Fault::new("needs an authority to trust").hint(
                "set upstream_tls.ca (or EBBTIDE_UPSTREAM_CA) to a PEM file; where nobody else can answer, \
             upstream_tls.insecure_skip_verify: on does without",
            )))
        }
        (Some(ca), Some(_)) if skip => errors.push(
            ca.error(Fault::new("has no effect with upstream_tls.insecure_skip_verify").hint("remove one of the two")),
        ),
        _ => {}
    }
    let bad = address.hosts().iter().find(|host| !is_server_name(&host.host));
    if let Some(host) = bad.filter(|_| field(UPSTREAM_NAME).is_none()) {
        let fault = Fault::new(format!("has the host {:?}, which no certificate can name", host.host));
        errors.push(setting.error(fault.hint("set upstream_tls.server_name")));
    }
    let certificate = match given(field(UPSTREAM_CERTIFICATE)) {
        Some(Value::Certificates(files)) => files.into_iter().next(),
        _ => None,
    };
    let server_name = if let Some(Value::Name(name)) = given(field(UPSTREAM_NAME)) { Some(name) } else { None };
    let ca = if let Some(Value::Path(ca)) = given(field(UPSTREAM_CA)) { Some(ca) } else { None };
    Some(UpstreamTlsConfig { ca, server_name, certificate })
}

/// A setting as `ebbtide config show` has it: its own text, else the default.
pub(super) fn shown(item: &Item, path: &str) -> String {
    let default = keys::find(path).map_or("", |key| key.default);
    match item.fields.get(path).and_then(|setting| setting.value.as_ref()) {
        Some(value) => value.to_string(),
        None if default.is_empty() => "(not set)".to_owned(),
        None => default.to_owned(),
    }
}

fn given(setting: Option<&Setting>) -> Option<Value> {
    setting.and_then(|setting| setting.value.clone())
}

const CERTIFICATE_HINT: &str = "give a folder with tls.crt and tls.key, or CHAIN.pem:KEY.pem";

// === impl CertificateFiles ===

impl fmt::Display for CertificateFiles {
    /// As it stands in the configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "{}", folder.display()),
            Self::Pair { chain, key } => write!(f, "{}:{}", chain.display(), key.display()),
        }
    }
}

// === impl SubjectName ===

impl SubjectName {
    /// A DNS name as it stands in a server's certificate.
    pub fn of_server(name: String) -> Self {
        match name.strip_prefix("*.") {
            Some(parent) => Self::BelowDns(parent.to_owned()),
            None => Self::Dns(name),
        }
    }

    /// It stands for several.
    pub const fn is_pattern(&self) -> bool {
        matches!(self, Self::BelowDns(_) | Self::BelowUri(_))
    }

    /// It is, or covers, this DNS name.
    pub fn is_dns(&self, name: &str) -> bool {
        match self {
            Self::Dns(own) => own.eq_ignore_ascii_case(name),
            Self::BelowDns(parent) => name
                .split_once('.')
                .is_some_and(|(label, rest)| !label.is_empty() && label != "*" && rest.eq_ignore_ascii_case(parent)),
            Self::Uri(_) | Self::BelowUri(_) | Self::Ip(_) => false,
        }
    }

    /// It is, or covers, this URI.
    pub fn is_uri(&self, uri: &str) -> bool {
        match self {
            Self::Uri(own) => own == uri,
            // Dots may lead out of it again.
            Self::BelowUri(start) => uri.strip_prefix(start.as_str()).is_some_and(|rest| {
                !rest.is_empty() && rest.split('/').all(|segment| segment != "." && segment != "..")
            }),
            Self::Dns(_) | Self::BelowDns(_) | Self::Ip(_) => false,
        }
    }

    /// It is this address.
    pub fn is_ip(&self, ip: IpAddr) -> bool {
        matches!(self, Self::Ip(own) if *own == ip)
    }
}

impl fmt::Display for SubjectName {
    /// As it stands in the configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) | Self::Uri(name) => f.write_str(name),
            Self::BelowDns(parent) => write!(f, "*.{parent}"),
            Self::BelowUri(start) => write!(f, "{start}*"),
            Self::Ip(ip) => write!(f, "{ip}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<SubjectName> {
        parse_names(text).unwrap()
    }

    #[test]
    fn a_certificate_is_a_folder_or_two_files() {
        assert_eq!(parse_certificate("/etc/tls"), Ok(CertificateFiles::Folder("/etc/tls".into())));
        let pair = CertificateFiles::Pair { chain: "/a/chain.pem".into(), key: "/a/key.pem".into() };
        assert_eq!(parse_certificate("/a/chain.pem:/a/key.pem"), Ok(pair.clone()));
        assert_eq!(parse_certificate(&pair.to_string()), Ok(pair));
        for bad in [":/a/key.pem", "/a/chain.pem:", "a:b:c", "/a\0b"] {
            assert!(parse_certificate(bad).is_err(), "{bad:?}");
        }
        assert!(parse_certificates("/a,,/b").is_err());
    }

    #[test]
    fn a_name_allows_what_it_says_and_no_more() {
        let [dns, wild, uri, below, ip] =
            &names("client.example, *.example, spiffe://x/a, spiffe://x/ns/shop/*, 192.0.2.1")[..]
        else {
            panic!("five names")
        };
        assert!(dns.is_dns("Client.example") && !dns.is_dns("a.client.example") && !dns.is_uri("client.example"));
        assert!(wild.is_dns("a.EXAMPLE") && !wild.is_dns("a.b.example"));
        assert!(!wild.is_dns(".example") && !wild.is_dns("example") && !wild.is_dns("*.example"));
        assert!(uri.is_uri("spiffe://x/a") && !uri.is_uri("spiffe://x/a/b") && !uri.is_uri("spiffe://x/"));
        assert!(below.is_uri("spiffe://x/ns/shop/sa/b") && !below.is_uri("spiffe://x/ns/shop/"));
        assert!(!below.is_uri("spiffe://x/ns/shopping") && !below.is_uri("spiffe://x/ns/shop/../evil"));
        assert!(ip.is_ip("192.0.2.1".parse().unwrap()) && !ip.is_ip("192.0.2.10".parse().unwrap()));
        assert!(!ip.is_dns("192.0.2.1") && !uri.is_dns("spiffe://x/a") && !dns.is_uri("client.example"));
        for name in [dns, wild, uri, below, ip] {
            assert_eq!(names(&name.to_string()), std::slice::from_ref(name));
        }
    }

    #[test]
    fn stars_in_other_places_are_refused() {
        for bad in ["*", "a.*", "a*.example", "*.*.example", "spiffe://*/a", "spiffe://*", "a b", "", "a,,b"] {
            assert!(parse_names(bad).is_err(), "{bad:?}");
        }
    }
}
