//! Owns starts with files that can't be used, which are told all at once, and with a certificate that is old.

use std::path::Path;
use std::time::{Duration, SystemTime};

use super::front::{NAME, seen_by_app};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::client::Failure;
use crate::harness::process::Exit;
use crate::harness::stage::{LONG, alone, listener, listeners, serving, tls};
use crate::harness::tls::{Authority, Leaf, SecretDir, TlsPlan};

const SOON_OVER: &str = "the certificate expires soon, and nobody has renewed it";

#[tokio::test]
async fn every_fault_of_the_files_is_told_and_nothing_starts() {
    let ca = Authority::new("starts");
    let (one, two) = (ca.pair(&[NAME]), ca.pair(&[NAME]));
    let (good, empty, mixed) = (SecretDir::new(&one), SecretDir::empty(), SecretDir::empty());
    mixed.swap_mismatched(&one, &two);
    let nonsense = SecretDir::empty();
    nonsense.swap_files(&[("tls.crt", "nonsense"), ("tls.key", &one.key), ("ca.crt", "nonsense")]);
    let ca_of = |folder: &SecretDir| folder.file("ca.crt").display().to_string();
    let upstream = |keys: &str| listener("app", "https://127.0.0.1:1", &format!(", upstream_tls: {{{keys}}}"));
    let http = "http://127.0.0.1:1";
    let (first, second) = (empty.path().display(), mixed.path().display());
    let three = format!(", tls: {{certificates: [\"{first}\", \"{second}\"], client_ca: \"{}\"}}", ca_of(&empty));
    let lines = listener("good", http, &tls(&good, ""))
        + &listener("empty", http, &tls(&empty, ""))
        + &listener("mixed", "tcp://127.0.0.1:1", &tls(&mixed, ""))
        + &listener("nonsense", http, &tls(&nonsense, ""))
        + &listener("three", http, &three)
        + &listener("clients", http, &tls(&good, &format!(", client_ca: \"{}\"", ca_of(&nonsense))))
        + &upstream(&format!("ca: \"{}\", certificate: \"{second}\"", ca_of(&empty)));
    let config = listeners(LONG, &lines);
    let process = config.spawn(|_, _| {});
    assert_eq!(process.exit(SOON).await, Exit::Code(1));
    let log = process.log_text();
    // What is said to people, not what is logged.
    let told: Vec<_> = log.lines().filter(|line| !line.starts_with('{')).collect();
    for (listener, side, path, reason) in [
        ("empty", "tls", empty.file("tls.crt"), "can't be read"),
        ("mixed", "tls", mixed.file("tls.key"), "is not the key of the certificate"),
        ("nonsense", "tls", nonsense.file("tls.crt"), "holds no certificate"),
        ("clients", "tls", nonsense.file("ca.crt"), "holds no certificate"),
        ("three", "tls", empty.file("tls.crt"), "can't be read"),
        ("three", "tls", mixed.file("tls.key"), "is not the key of the certificate"),
        ("three", "tls", empty.file("ca.crt"), "can't be read"),
        ("app", "upstream_tls", mixed.file("tls.key"), "is not the key of the certificate"),
        ("app", "upstream_tls", empty.file("ca.crt"), "can't be read"),
    ] {
        let name = format!("listener {listener:?}: {side}:");
        let fault = told.iter().find(|line| line.contains(&name)).unwrap_or_else(|| panic!("{name} is missing: {log}"));
        let file = path.file_name().and_then(|name| name.to_str()).unwrap();
        let folder = path.parent().map(Path::display).unwrap().to_string();
        assert!(fault.contains(reason) && fault.contains(&folder) && fault.contains(file), "{fault}");
    }
    assert!(!log.contains("listener \\\"good\\\"") && !log.contains("\"listening\""), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}

#[tokio::test]
async fn an_old_certificate_is_served_and_told() {
    let ca = Authority::new("starts");
    let expired = ca.issue(&Leaf::new(&[NAME]).expired());
    // Most of its time is over, and of another one half.
    let (day, now) = (Duration::from_secs(24 * 3600), SystemTime::now());
    let short = ca.issue(&Leaf::new(&[NAME]).valid(now - day * 10, now + day));
    let (old, short, long) = (SecretDir::new(&expired), SecretDir::new(&short), SecretDir::new(&ca.pair(&[NAME])));
    let (app, options, _dir) = alone(AppOptions::default()).await;
    let lines = [("old", &old), ("short", &short), ("long", &long)];
    let lines = lines.map(|(name, secret)| listener(name, &options.upstream(), &tls(secret, ""))).concat();
    let (px, address) = serving(listeners(LONG, &lines)).await;
    let warned = &px.logged("the certificate has expired", 1).await[0].to_string();
    assert!(warned.contains("WARN") && warned.contains(&old.path().display().to_string()), "{warned}");
    let warned = &px.logged(SOON_OVER, 1).await[0].to_string();
    assert!(warned.contains("WARN") && warned.contains(&short.path().display().to_string()), "{warned}");
    let path = old.path().display().to_string();
    let labels = [("listener", "old"), ("path", path.as_str())];
    let until = px.metrics().await.value("ebbtide_tls_certificate_expiry_timestamp_seconds", &labels);
    assert_eq!(until, Some(expired.expires as f64));
    assert_eq!(px.log_events(SOON_OVER).len(), 1, "{}", px.log_text());
    // It is for the client to judge.
    let target = TlsPlan::new(ca.pem(), NAME).to(address);
    assert_eq!(seen_by_app(&target, &[]).await.unwrap_err(), Failure::BadCertificate);
    let fresh = ca.pair(&[NAME]);
    old.swap(&fresh);
    super::reload::has_reloaded(&px, "ok", 1).await;
    assert_eq!(seen_by_app(&target, &[]).await.unwrap().status, 200);
    assert_eq!(app.journal.count("req"), 1);
}
