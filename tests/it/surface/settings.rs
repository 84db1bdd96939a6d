//! Owns tests of `ebbtide config show` and `ebbtide config schema`: every setting of every source, and its place.

use ebbtide::config::{KEYS, Key};
use serde_json::Value;

use super::cli::run;
use crate::harness::ebbtide::Config;

/// What `config show` tells as JSON: key, value, origin.
async fn shown(config: &Config, arguments: &[&str]) -> Vec<[String; 3]> {
    let (code, out, err) = run(config, &[&["config", "show", "--output", "json"], arguments].concat()).await;
    assert_eq!(code, Some(0), "{err}");
    let all: Vec<Value> = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    all.iter().map(|one| ["key", "value", "origin"].map(|part| one[part].as_str().unwrap().to_owned())).collect()
}

fn assert_shown(all: &[[String; 3]], key: &str, value: &str, origin: &str) {
    let found = all.iter().find(|one| one[0] == key).unwrap_or_else(|| panic!("no {key} in {all:?}"));
    assert_eq!(found[1..], [value, origin], "{key}");
}

/// Nothing is set but what the test sets.
fn bare() -> Config {
    let mut config = Config::new();
    KEYS.iter().filter_map(|key| key.env).for_each(|name| config.unset(name));
    config
}

/// A good value that is not the default.
fn sample(key: &Key) -> &'static str {
    match key.path {
        "mode" => "sidecar",
        "listeners[].bind" => "127.0.0.1:15080",
        "listeners[].upstream" => "https://192.0.2.1:8443",
        "listeners[].tls.certificates" => "/tls, /other/chain.pem:/other/key.pem",
        "listeners[].upstream_tls.ca" => "/ca.pem",
        "listeners[].upstream_tls.server_name" => "app.example",
        "admin.bind" => "127.0.0.1:15090",
        "control_socket" => "/run/x.sock",
        "drain.grace_period" => "1m40s",
        "drain.hold" => "7s",
        "drain.hold.min" => "4s",
        "drain.hold.quiet" => "3s",
        "drain.hold.max" => "8s",
        "drain.notice_after" => "12.5%",
        "drain.idle_after" => "9s",
        "drain.app_stop" => "6s",
        "drain.margin" => "1s500ms",
        "log.format" => "text",
        "log.level" => "debug",
        "workers" => "3",
        "termination_message_path" => "/run/report",
        other => panic!("no sample for {other}"),
    }
}

/// The keys that one source can set together: a hold is either fixed or adaptive.
fn settable(
    adaptive: bool,
    by: fn(&Key) -> Option<&'static str>,
) -> impl Iterator<Item = (&'static Key, &'static str)> {
    let other = move |key: &Key| if adaptive { key.path == "drain.hold" } else { key.path.starts_with("drain.hold.") };
    let source = |key: &Key| ["config", "config_yaml", "admin.token"].contains(&key.path);
    KEYS.iter().filter(move |key| !other(key) && !source(key)).filter_map(move |key| Some((key, by(key)?)))
}

#[tokio::test]
async fn config_show_tells_values_and_where_they_stand() {
    let config = bare()
        .yaml("mode: sidecar\nlisteners: [{name: web, upstream: 'http://127.0.0.1:8080'}]\n")
        .env("EBBTIDE_HOLD", "12s")
        .env("EBBTIDE_MARGIN", "1s");
    let all = shown(&config, &["--margin", "3s"]).await;
    assert_shown(&all, "mode", "sidecar", "EBBTIDE_CONFIG_YAML:1:7");
    assert_shown(&all, "listeners[0].upstream", "http://127.0.0.1:8080", "EBBTIDE_CONFIG_YAML:2:35");
    assert_shown(&all, "drain.hold", "12s", "EBBTIDE_HOLD");
    assert_shown(&all, "drain.margin", "3s", "--margin");
    assert_shown(&all, "drain.app_stop", "5s", "default");
    let (code, out, _) = run(&config, &["config", "show"]).await;
    assert_eq!((code, out.lines().count()), (Some(0), all.len()));
}

#[tokio::test]
async fn every_key_of_a_file_is_shown_with_its_line() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/config/full.yaml");
    let full = std::fs::read_to_string(path).unwrap();
    let adaptive = full.replace("hold: 10s ", "hold: {min: 4s, quiet: 3s, max: 8s} ");
    let mut seen = Vec::new();
    for text in [&full, &adaptive] {
        let config = bare();
        let path = config.path("ebbtide.yaml").display().to_string();
        std::fs::write(&path, text).unwrap();
        for (config, arguments, name) in [
            (bare(), &["--config", &path] as &[&str], path.as_str()),
            (bare().env("EBBTIDE_CONFIG", &path), &[], path.as_str()),
            (bare().yaml(text), &[], "EBBTIDE_CONFIG_YAML"),
        ] {
            for [key, _, origin] in shown(&config, arguments).await {
                let Some(place) = origin.strip_prefix(name) else { continue };
                let mut numbers = place.split(':').skip(1).map(|number| number.parse::<usize>().unwrap());
                let line = text.lines().nth(numbers.next().unwrap() - 1).unwrap();
                let (before, _) = line.split_at(numbers.next().unwrap() - 1);
                let field = key.rsplit('.').next().unwrap();
                assert!(before.ends_with(&format!("{field}: ")), "{key} is not at {origin}: {line}");
                let listener = key.strip_prefix("listeners[").and_then(|rest| rest.split_once(']'));
                seen.push(listener.map_or_else(|| key.clone(), |(_, field)| format!("listeners[]{field}")));
            }
        }
    }
    for key in KEYS.iter().filter(|key| key.in_file) {
        assert!(seen.iter().any(|path| path == key.path), "{} of the file is not shown", key.path);
    }
}

#[tokio::test]
async fn every_variable_and_every_flag_is_shown_as_the_place() {
    for adaptive in [false, true] {
        let mut config = bare();
        settable(adaptive, |key| key.env).for_each(|(key, name)| config.set(name, sample(key)));
        let all = shown(&config, &[]).await;
        for (key, name) in settable(adaptive, |key| key.env) {
            assert_shown(&all, &key.path.replace("[]", "[0]"), sample(key), name);
        }
        let flags = settable(adaptive, |key| key.flag);
        let arguments: Vec<_> = flags.flat_map(|(key, flag)| [format!("--{flag}"), sample(key).to_owned()]).collect();
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        // A flag wins over its variable.
        for config in [bare(), config] {
            let all = shown(&config, &arguments).await;
            for (key, flag) in settable(adaptive, |key| key.flag) {
                assert_shown(&all, &key.path.replace("[]", "[0]"), sample(key), &format!("--{flag}"));
            }
        }
    }
}

#[tokio::test]
async fn no_output_holds_the_token() {
    const TOKEN: &str = "not-for-your-eyes";
    let config = bare().upstream("http://127.0.0.1:8080").env("EBBTIDE_ADMIN_TOKEN", TOKEN);
    assert_shown(&shown(&config, &[]).await, "admin.token", "(set)", "EBBTIDE_ADMIN_TOKEN");
    let spoilt = format!("{TOKEN}\n");
    let file = format!("admin: {{token: {TOKEN}}}");
    for (config, code) in [
        (config.clone(), 0),
        (config.clone().env("EBBTIDE_ADMIN_TOKEN", &spoilt), 2),
        (config.clone().env("EBBTIDE_ADMIN_TOKENS", TOKEN), 2),
        (config.yaml(&file), 2),
    ] {
        for output in ["text", "json"] {
            let (exit, out, err) = run(&config, &["config", "show", "--output", output]).await;
            assert_eq!(exit, Some(code), "{err}");
            assert!(!out.contains(TOKEN) && !err.contains(TOKEN), "{out}\n{err}");
        }
    }
}

#[tokio::test]
async fn config_check_and_config_show_agree_on_what_is_no_text() {
    let config = bare();
    let path = config.path("latin1.yaml").display().to_string();
    std::fs::write(&path, b"# caf\xe9\nlisteners: [{name: web, upstream: 'http://127.0.0.1:8080'}]\n").unwrap();
    for (path, fault) in [(path.as_str(), "is not UTF-8 text"), ("/dev/zero", "has more than 128 KiB")] {
        for arguments in [&["config", "check", path] as &[&str], &["config", "show", "--config", path]] {
            let (code, out, err) = run(&config, arguments).await;
            assert_eq!((code, out.as_str(), err), (Some(2), "", format!("ebbtide: {path}: {fault}\n")));
        }
    }
}

#[tokio::test]
async fn config_schema_prints_the_schema_that_is_kept() {
    let (code, out, err) = run(&bare(), &["config", "schema"]).await;
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out == include_str!("../../../config/ebbtide.schema.json"));
}
