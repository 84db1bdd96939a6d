//! TLS settings of listeners: what they come to, and what is told where they don't fit.

use std::path::PathBuf;

use super::{faults, good};
use crate::config::{CertificateFiles, ClientCertificates, Protocol, TlsVersion, UpstreamAddr, UpstreamTlsConfig};

/// One listener with these settings in one line.
fn listener(rest: &str) -> String {
    format!("listeners: [{{name: a, bind: ':1', {rest}}}]")
}

#[test]
fn everything_that_can_be_set_arrives() {
    let loaded = good(&listener(
        "upstream: 'https://app.example', tls: {certificates: [/a, '/b.crt:/b.key'], min_version: '1.3', client_ca: /ca, \
         client_auth: optional, client_names: [a.example, 'spiffe://x/*']}, upstream_tls: {ca: /up, server_name: b, \
         certificate: /c}",
    ));
    let listener = &loaded.config.listeners[0];
    let tls = listener.tls.as_ref().unwrap();
    let pair = CertificateFiles::Pair { chain: "/b.crt".into(), key: "/b.key".into() };
    assert_eq!(tls.certificates, [CertificateFiles::Folder("/a".into()), pair]);
    assert_eq!(tls.min_version, TlsVersion::Tls13);
    let Some(ClientCertificates { ca, required, names }) = &tls.clients else { panic!("clients are asked") };
    assert_eq!((ca, *required, names.len()), (&PathBuf::from("/ca"), false, 2));
    let certificate = Some(CertificateFiles::Folder("/c".into()));
    let wanted = UpstreamTlsConfig { ca: Some("/up".into()), server_name: Some("b".into()), certificate };
    assert_eq!(listener.upstream_tls, Some(wanted));
    assert_eq!(listener.upstream.to_string(), "https://app.example:443");
    assert!(loaded.warnings.is_empty());
}

#[test]
fn without_tls_there_is_none_and_defaults_are_safe() {
    let plain = good(&listener("upstream: 'http://a'"));
    assert_eq!((&plain.config.listeners[0].tls, &plain.config.listeners[0].upstream_tls), (&None, &None));
    let loaded =
        good(&listener("upstream: 'tls://a:1', tls: {certificates: /a, client_ca: /b}, upstream_tls: {ca: /c}"));
    let listener = &loaded.config.listeners[0];
    assert!(matches!(&listener.upstream, UpstreamAddr::Tls(hosts) if hosts.len() == 1));
    assert_eq!(listener.protocol, Protocol::Tcp);
    let tls = listener.tls.as_ref().unwrap();
    assert_eq!((tls.min_version, tls.clients.as_ref().unwrap().required), (TlsVersion::Tls12, true));
}

#[test]
fn believing_anybody_is_warned_about() {
    let loaded = good(&listener("upstream: 'https://a', upstream_tls: {insecure_skip_verify: on}"));
    assert_eq!(loaded.config.listeners[0].upstream_tls.as_ref().unwrap().ca, None);
    assert_eq!(
        loaded.warnings,
        ["test.yaml:1:45: listener a: whoever answers at https://a:443 is believed to be the upstream \
          (upstream_tls.insecure_skip_verify): give upstream_tls.ca instead"]
    );
}

#[test]
fn what_does_not_fit_is_told() {
    for (rest, message) in [
        (
            "upstream: 'https://a'",
            "test.yaml:1:45: listeners[0].upstream = \"https://a\": needs an authority to trust\n  help: set upstream_tls.ca (or EBBTIDE_UPSTREAM_CA) to a PEM file; where nobody else can answer, upstream_tls.insecure_skip_verify: on does without",
        ),
        (
            "upstream: 'https://a', upstream_tls: {ca: /a, insecure_skip_verify: on}",
            "test.yaml:1:73: listeners[0].upstream_tls.ca = \"/a\": has no effect with upstream_tls.insecure_skip_verify\n  help: remove one of the two",
        ),
        (
            "upstream: 'http://a', upstream_tls: {ca: /a}",
            "test.yaml:1:72: listeners[0].upstream_tls.ca = \"/a\": has no effect on http://a:80, which has no TLS\n  help: write the upstream as https://, or remove this",
        ),
        (
            "upstream: 'tcp://a:1', upstream_tls: {server_name: b}",
            "test.yaml:1:82: listeners[0].upstream_tls.server_name = \"b\": has no effect on tcp://a:1, which has no TLS\n  help: write the upstream as tls://, or remove this",
        ),
        (
            "upstream: 'https://a', upstream_tls: {ca: /a, server_name: 'https://b'}",
            "test.yaml:1:90: listeners[0].upstream_tls.server_name = \"https://b\": is no host name or IP address\n  help: write it like app.example, without scheme or port",
        ),
        (
            "upstream: 'http://a', tls: {client_auth: optional}",
            "test.yaml:1:72: listeners[0].tls.client_auth = \"optional\": has no effect without tls.client_ca\n  help: set both, or remove this one",
        ),
        (
            "upstream: 'http://a', tls: {min_version: '1.3'}",
            "test.yaml:1:72: listeners[0].tls.min_version = \"1.3\": has no effect without tls.certificates\n  help: set both, or remove this one",
        ),
        (
            "upstream: 'http://a', tls: {certificates: '/a:/b:/c'}",
            "test.yaml:1:73: listeners[0].tls.certificates = \"/a:/b:/c\": has more than two parts\n  help: give a folder with tls.crt and tls.key, or CHAIN.pem:KEY.pem",
        ),
        (
            "upstream: 'http://a', tls: {certificates: /a, min_version: 1.1}",
            "test.yaml:1:90: listeners[0].tls.min_version = \"1.1\": is not one of the possible values\n  help: write 1.2 or 1.3",
        ),
        (
            "upstream: 'http://a', tls: {certificates: /a, certificate: /b}",
            "test.yaml:1:77: listeners[0].tls.certificate: unknown key\n  help: did you mean listeners[0].tls.certificates?",
        ),
        (
            "upstream: 'tls://a:1', upstream_tls: {ca: /a}, send_proxy_protocol: on",
            "test.yaml:1:112: listeners[0].send_proxy_protocol = \"on\": does not go with an upstream of tls://\n  help: use tcp://, or remove this",
        ),
        (
            "direction: outbound, upstream: 'tcp://a:1', tls: {certificates: /a}",
            "test.yaml:1:94: listeners[0].tls.certificates = \"/a\": is for an inbound listener only\n  help: remove it here; TLS towards the service is upstream: tls://",
        ),
        (
            "direction: outbound, upstream: 'https://a:1', upstream_tls: {ca: /a}",
            "test.yaml:1:66: listeners[0].upstream = \"https://a:1\": an outbound listener needs tcp:// or tls://\n  help: write it like tcp://db.example:5432, or remove direction: outbound",
        ),
    ] {
        let given = faults(&listener(rest));
        let strip = |text: &str| text.split_once(": listeners").map_or(String::new(), |(_, rest)| rest.to_owned());
        assert_eq!(strip(&given), strip(message), "{rest}\n{given}");
        assert!(given.starts_with("test.yaml:1:"), "{given}");
    }
}
