//! The example files and the user's documentation agree with the code.

use std::fs;
use std::path::{Path, PathBuf};

use super::{faults, good, messages};
use crate::config::{KEYS, Key, Loaded, Origin, ResolvedValue, check_text, keys};

fn examples() -> Vec<(String, Loaded)> {
    let mut names: Vec<PathBuf> =
        fs::read_dir(root().join("config")).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    names.sort();
    names
        .iter()
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let loaded = check_text(&name, &fs::read_to_string(path).unwrap());
            (name, loaded.unwrap_or_else(|errors| panic!("{}", super::render(&errors))))
        })
        .collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_example_loads_without_a_warning() {
    let examples = examples();
    assert_eq!(
        examples.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        [
            "adaptive-hold.yaml",
            "database.yaml",
            "events.yaml",
            "full.yaml",
            "grpc.yaml",
            "mtls.yaml",
            "outbound-tls.yaml",
            "plain-docker.yaml",
            "proxy-protocol.yaml",
            "queue-consumer.yaml",
            "sidecar.yaml",
            "tls.yaml",
            "two-apps.yaml",
            "websocket.yaml"
        ]
    );
    for (name, loaded) in examples {
        assert_eq!(loaded.warnings, Vec::<String>::new(), "{name}");
    }
}

#[test]
fn the_full_example_has_every_key_with_its_default() {
    let examples = examples();
    let (_, full) = examples.iter().find(|(name, _)| name == "full.yaml").unwrap();
    let minimal = good("mode: sidecar\nlisteners: [{name: web, upstream: 'http://127.0.0.1:8080'}]");
    let of_listeners = |value: &&ResolvedValue| value.key.starts_with("listeners[");
    let pairs = |loaded: &Loaded| {
        let values = loaded.values.iter().filter(|value| !of_listeners(value));
        values.map(|value| (value.key.clone(), value.value.clone())).collect::<Vec<_>>()
    };
    assert_eq!(pairs(full), pairs(&minimal));
    for value in &full.values {
        let elsewhere = value.key == "admin.token" || of_listeners(&value);
        assert!(elsewhere || matches!(value.origin, Origin::Text { .. }), "{} is not in full.yaml", value.key);
    }
    for value in full.values.iter().filter(of_listeners) {
        let (_, field) = value.key.split_once("].").unwrap();
        let default = keys::find(&format!("listeners[].{field}")).unwrap().default;
        let differs = ["direction", "bind"].contains(&field);
        assert!(differs || default.is_empty() || value.value == default, "{value:?}");
    }
    let text = fs::read_to_string(root().join("config/full.yaml")).unwrap();
    for key in KEYS.iter().filter(|key| key.in_file) {
        let name = key.path.rsplit('.').next().unwrap();
        assert!(text.contains(&format!("{name}: ")), "{} is not in full.yaml", key.path);
    }
}

#[test]
fn the_table_is_sound() {
    for key in KEYS {
        for default in [Some(key.default), key.default_plain].into_iter().flatten().filter(|text| !text.is_empty()) {
            let value = key.kind.parse(default).unwrap_or_else(|fault| panic!("{}: {fault:?}", key.path));
            assert_eq!(value.to_string(), default, "{}", key.path);
        }
        assert!(key.doc.ends_with('.'), "{}", key.path);
        for same in [|key: &Key| Some(key.path), |key: &Key| key.env, |key: &Key| key.flag] {
            assert!(
                same(key).is_none() || KEYS.iter().filter(|other| same(other) == same(key)).count() == 1,
                "{}",
                key.path
            );
        }
    }
}

#[test]
fn the_documentation_is_up_to_date() {
    let path = root().join("docs/user/configuration.md");
    let text = fs::read_to_string(&path).unwrap();
    let broken = messages::BROKEN;
    let messages = faults(broken).replace("test.yaml", "ebbtide.yaml");
    let expected = replace_part(&text, "keys", &table());
    let expected = replace_part(&expected, "errors", &format!("```yaml\n{broken}```\n\n```text\n{messages}\n```\n"));
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &expected).unwrap();
    } else if text != expected {
        panic!("docs/user/configuration.md is out of date; run the tests with UPDATE_EXPECT=1");
    }
    let examples: Vec<_> = expected.split("```yaml\n").skip(1).filter_map(|part| part.split("```").next()).collect();
    assert_eq!(examples.iter().filter(|example| check_text("", example).is_err()).count(), 1, "only one is broken");
}

/// Replaces what stands between `<!-- NAME -->` and `<!-- /NAME -->`.
fn replace_part(text: &str, name: &str, part: &str) -> String {
    let (start, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->\n"));
    let (before, rest) = text.split_once(&start).unwrap();
    let (_, after) = rest.split_once(&end).unwrap();
    format!("{before}{start}{part}{end}{after}")
}

fn table() -> String {
    let mut table = String::from("| Key | Variable, flag | Default | Meaning |\n|---|---|---|---|\n");
    let code = |text: String| {
        if text.is_empty() { "–".to_owned() } else { format!("`{text}`") }
    };
    for key in KEYS {
        let file = format!("`{}`{}", key.path, if key.in_file { "" } else { ", not in the file" });
        let mut outside: Vec<_> = key.env.into_iter().map(|env| code(env.to_owned())).collect();
        outside.extend(key.flag.map(|flag| code(format!("--{flag}"))));
        let outside = if outside.is_empty() { "–".to_owned() } else { outside.join("<br>") };
        let default = match key.default_plain {
            Some(plain) => format!("`{}`, plain `{plain}`", key.default),
            None => code(key.default.to_owned()),
        };
        table.push_str(&format!("| {file} | {outside} | {default} | {} |\n", key.doc));
    }
    table
}
