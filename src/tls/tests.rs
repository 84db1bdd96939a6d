//! Files in, handshakes out: without sockets, byte by byte from one side to the other.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, Error, HandshakeKind, RootCertStore, ServerConfig, ServerConnection,
    SupportedProtocolVersion,
};
use tempfile::TempDir;

use super::credentials::Credentials;
use super::server::{self, Served};
use super::{client, identity, provider};
use crate::config::{CertificateFiles, Protocol, ServerTlsConfig, UpstreamTlsConfig, check_text};

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
    pem: String,
}

struct Pair {
    chain: String,
    key: String,
    der: CertificateDer<'static>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { der: certificate.der().clone(), pem: certificate.pem(), issuer: Issuer::new(params, key) }
    }

    fn issue(&self, names: &[&str]) -> Pair {
        let of = |name: &&str| match name.contains("://") {
            true => SanType::URI((*name).try_into().unwrap()),
            false => SanType::DnsName((*name).try_into().unwrap()),
        };
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = names.iter().map(of).collect();
        params.distinguished_name.push(DnType::OrganizationName, "a \"b\", c");
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Pair { chain: certificate.pem(), key: key.serialize_pem(), der: certificate.der().clone() }
    }
}

/// As `tls.crt` and `tls.key` in a folder.
fn write(folder: &Path, pair: &Pair) -> CertificateFiles {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("tls.crt"), &pair.chain).unwrap();
    fs::write(folder.join("tls.key"), &pair.key).unwrap();
    CertificateFiles::Folder(folder.to_owned())
}

/// TLS settings of a listener, as the configuration has them.
fn settings(tls: &str) -> ServerTlsConfig {
    let text = format!("listeners: [{{name: a, upstream: 'http://a', tls: {{{tls}}}}}]");
    check_text("test.yaml", &text).unwrap().config.listeners[0].tls.clone().unwrap()
}

fn load(tls: &ServerTlsConfig, before: Option<&Served>) -> Served {
    server::load(tls, Protocol::Http, before).unwrap()
}

/// A client that trusts the authority, and shows this.
fn a_client(trusted: &Authority, shown: Option<&CertificateFiles>) -> ClientConfig {
    a_client_of(trusted, shown, rustls::ALL_VERSIONS)
}

fn a_client_of(
    trusted: &Authority,
    shown: Option<&CertificateFiles>,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.der.clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(versions).unwrap();
    let builder = builder.with_root_certificates(roots);
    match shown {
        None => builder.with_no_client_auth(),
        Some(files) => {
            let own = Credentials::load(files).unwrap();
            builder.with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(own.key)))
        }
    }
}

struct Shaken {
    shown: CertificateDer<'static>,
    alpn: Option<Vec<u8>>,
    resumed: bool,
}

/// A handshake in memory; an error is the server's, or else the client's.
fn shake(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>, name: &'static str) -> Result<Shaken, Error> {
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), ServerName::try_from(name).unwrap()).unwrap();
    let mut refusal = None;
    for _ in 0..10 {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut &bytes[..]).unwrap();
        server.process_new_packets()?;
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        client.read_tls(&mut &bytes[..]).unwrap();
        refusal = client.process_new_packets().err().or(refusal);
    }
    if let Some(error) = refusal {
        return Err(error);
    }
    Ok(Shaken {
        shown: client.peer_certificates().unwrap()[0].clone().into_owned(),
        alpn: client.alpn_protocol().map(<[u8]>::to_vec),
        resumed: client.handshake_kind() == Some(HandshakeKind::Resumed),
    })
}

#[test]
fn the_server_name_decides_and_the_first_is_for_everybody_else() {
    let (home, authority) = (TempDir::new().unwrap(), Authority::new());
    let first = authority.issue(&["one.example", "*.two.example"]);
    let second = authority.issue(&["two.example", "b.two.example"]);
    let (one, two) = (write(&home.path().join("1"), &first), write(&home.path().join("2"), &second));
    let served = load(&settings(&format!("certificates: ['{one}', '{two}']")), None);
    assert_eq!(served.validities.len(), 2);
    let client = Arc::new(a_client(&authority, None));
    for (name, expected) in
        [("one.example", &first), ("two.example", &second), ("a.two.example", &first), ("b.two.example", &second)]
    {
        assert_eq!(shake(&served.config, &client, name).unwrap().shown, expected.der, "{name}");
    }
    // It is shown the first, and can say what it dislikes.
    let error = shake(&served.config, &client, "three.example").err().unwrap();
    assert!(matches!(error, Error::InvalidCertificate(_) | Error::AlertReceived(_)), "{error}");
}

#[test]
fn http_offers_both_versions_and_refuses_what_it_does_not_speak() {
    let (home, authority) = (TempDir::new().unwrap(), Authority::new());
    let files = write(home.path(), &authority.issue(&["a.example"]));
    let tls = settings(&format!("certificates: '{files}'"));
    let served = load(&tls, None);
    let offering = |alpn: &[&[u8]]| {
        let mut client = a_client(&authority, None);
        client.alpn_protocols = alpn.iter().map(|one| one.to_vec()).collect();
        Arc::new(client)
    };
    for (offer, agreed) in [
        (&[b"http/1.1".as_slice(), b"h2"][..], Some(b"h2".to_vec())),
        (&[b"http/1.1"], Some(b"http/1.1".to_vec())),
        (&[], None),
    ] {
        assert_eq!(shake(&served.config, &offering(offer), "a.example").unwrap().alpn, agreed);
    }
    let error = shake(&served.config, &offering(&[b"foo"]), "a.example").err().unwrap();
    assert_eq!(error, Error::NoApplicationProtocol);
    let bytes = server::load(&tls, Protocol::Tcp, None).unwrap();
    assert_eq!(shake(&bytes.config, &offering(&[b"foo"]), "a.example").unwrap().alpn, None);
}

#[test]
fn a_clients_certificate_must_be_good_and_have_a_name_that_may_come() {
    let (home, authority, stranger) = (TempDir::new().unwrap(), Authority::new(), Authority::new());
    let at = |name: &str| home.path().join(name);
    let files = write(&at("server"), &authority.issue(&["a.example"]));
    let good = write(&at("good"), &authority.issue(&["spiffe://x/ns/shop/sa/b", "c.example"]));
    let unnamed = write(&at("unnamed"), &authority.issue(&["spiffe://x/ns/other/sa/b"]));
    let forged = write(&at("forged"), &stranger.issue(&["spiffe://x/ns/shop/sa/b"]));
    fs::write(at("ca.crt"), &authority.pem).unwrap();
    let rest = format!("certificates: '{files}', client_ca: '{}'", at("ca.crt").display());
    let comes = |tls: &str, shown: Option<&CertificateFiles>| {
        let served = load(&settings(&format!("{rest}{tls}")), None);
        shake(&served.config, &Arc::new(a_client(&authority, shown)), "a.example").is_ok()
    };
    let named = ", client_names: ['spiffe://x/ns/shop/*']";
    assert!(comes("", Some(&good)) && comes("", Some(&unnamed)) && comes(named, Some(&good)));
    assert!(!comes("", None) && !comes("", Some(&forged)));
    assert!(!comes(named, Some(&unnamed)) && !comes(named, Some(&forged)) && !comes(named, None));
    let optional = format!("{named}, client_auth: optional");
    assert!(comes(&optional, None) && comes(&optional, Some(&good)));
    assert!(!comes(&optional, Some(&unnamed)) && !comes(&optional, Some(&forged)), "optional, not unchecked");
}

#[test]
fn tickets_outlive_a_new_certificate() {
    let (home, authority) = (TempDir::new().unwrap(), Authority::new());
    let files = write(home.path(), &authority.issue(&["a.example"]));
    let tls = settings(&format!("certificates: '{files}'"));
    let first = load(&tls, None);
    let client = Arc::new(a_client(&authority, None));
    assert!(!shake(&first.config, &client, "a.example").unwrap().resumed);
    write(home.path(), &authority.issue(&["a.example"]));
    assert!(shake(&load(&tls, Some(&first)).config, &client, "a.example").unwrap().resumed);
}

/// A ticket spares the question for a certificate, and brings a new ticket: it would be good for ever.
#[test]
fn who_must_show_a_certificate_must_show_it_each_time() {
    let (home, authority) = (TempDir::new().unwrap(), Authority::new());
    let files = write(&home.path().join("server"), &authority.issue(&["a.example"]));
    let own = write(&home.path().join("client"), &authority.issue(&["c.example"]));
    let ca = home.path().join("ca.crt");
    fs::write(&ca, &authority.pem).unwrap();
    for auth in ["required", "optional"] {
        let tls = settings(&format!("certificates: '{files}', client_ca: '{}', client_auth: {auth}", ca.display()));
        let served = load(&tls, None);
        for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
            let mut client = a_client_of(&authority, Some(&own), &[version]);
            client.resumption = rustls::client::Resumption::in_memory_sessions(8);
            let client = Arc::new(client);
            for _ in 0..2 {
                assert!(!shake(&served.config, &client, "a.example").unwrap().resumed, "{auth} {version:?}");
            }
        }
    }
}

#[test]
fn a_pair_is_of_one_moment_or_refused_with_the_reason() {
    let (home, authority) = (TempDir::new().unwrap(), Authority::new());
    let (old, new) = (authority.issue(&["old.example"]), authority.issue(&["new.example"]));
    let (first, second) = (home.path().join("..1"), home.path().join("..2"));
    write(&first, &old);
    write(&second, &new);
    symlink("..1", home.path().join("..data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        symlink(format!("..data/{name}"), home.path().join(name)).unwrap();
    }
    let files = CertificateFiles::Folder(home.path().to_owned());
    assert!(Credentials::load(&files).unwrap().is_for("old.example", true));
    symlink("..2", home.path().join("..new")).unwrap();
    fs::rename(home.path().join("..new"), home.path().join("..data")).unwrap();
    assert!(Credentials::load(&files).unwrap().is_for("new.example", true));

    let refused = |what: &str, expected: &str| {
        let errors = Credentials::load(&files).expect_err(what);
        let told: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert!(told.iter().any(|error| error.contains(expected)), "{what}: {told:?}");
    };
    fs::write(second.join("tls.key"), &old.key).unwrap();
    refused("another key", "..2/tls.key: is not the key of the certificate in ");
    fs::write(second.join("tls.key"), &new.key[..new.key.len() / 2]).unwrap();
    refused("half a key", "tls.key: holds no private key in PEM");
    fs::write(second.join("tls.crt"), "nothing").unwrap();
    refused("no PEM", "tls.crt: holds no certificate in PEM");
    fs::write(second.join("tls.crt"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    refused("no certificate", "tls.crt: holds a certificate that can't be understood");
    assert_eq!(Credentials::load(&files).expect_err("both").len(), 2, "both files are told");
    fs::write(second.join("tls.crt"), vec![b'a'; 5 << 20]).unwrap();
    refused("too large", "tls.crt: is larger than 4 MiB");
    fs::remove_file(second.join("tls.crt")).unwrap();
    refused("no file", "tls.crt: can't be read: No such file or directory");
}

#[test]
fn towards_an_upstream_its_authority_or_an_explicit_word_is_needed() {
    let (home, authority, other) = (TempDir::new().unwrap(), Authority::new(), Authority::new());
    let files = write(home.path(), &authority.issue(&["app.example"]));
    let app = load(&settings(&format!("certificates: '{files}'")), None);
    let (good, bad) = (home.path().join("good.crt"), home.path().join("bad.crt"));
    fs::write(&good, &authority.pem).unwrap();
    fs::write(&bad, &other.pem).unwrap();
    let connects = |ca: Option<&Path>, name| {
        let tls = UpstreamTlsConfig { ca: ca.map(Path::to_owned), server_name: None, certificate: None };
        let (config, _) = client::config(&tls).unwrap();
        shake(&app.config, &Arc::new(config), name).is_ok()
    };
    assert!(connects(Some(&good), "app.example"));
    assert!(!connects(Some(&good), "other.example") && !connects(Some(&bad), "app.example"));
    assert!(connects(None, "other.example"));
}

#[test]
fn the_app_is_told_subject_and_names() {
    let pair = Authority::new().issue(&["spiffe://x/ns/a", "c.example"]);
    let header = identity::header(&pair.der).unwrap();
    let text = header.to_str().unwrap();
    assert!(text.starts_with("Subject=\"") && text.contains("O=a \\\"b\\\", c"), "{text}");
    assert!(text.ends_with("\";URI=spiffe://x/ns/a;DNS=c.example"), "{text}");
    assert!(identity::header(b"nonsense").is_none());
}
