//! The schema is kept, describes every key, takes every example, and refuses nothing that the parser takes.

use std::fs;
use std::path::{Path, PathBuf};

use jsonschema::Validator;
use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Value, json};

use crate::config::check_text;
use crate::config::keys::{KEYS, TLS_CLIENT_AUTH};
use crate::config::schema::{extend, schema};

const FULL: &str = include_str!("../../../config/full.yaml");

pub(super) fn validator() -> Validator {
    jsonschema::draft202012::new(&schema()).unwrap()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config")
}

/// As an editor sees the text.
pub(super) fn as_json(text: &str) -> Value {
    let documents = Yaml::load_from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    documents.first().map_or(Value::Null, json_of)
}

fn json_of(node: &Yaml<'_>) -> Value {
    match node {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(value)) => json!(value),
        Yaml::Value(Scalar::Integer(value)) => json!(value),
        Yaml::Value(Scalar::FloatingPoint(value)) => json!(value.into_inner()),
        Yaml::Value(Scalar::String(value)) => json!(value),
        Yaml::Sequence(items) => items.iter().map(json_of).collect(),
        Yaml::Mapping(mapping) => {
            let entries = mapping.iter().map(|(key, value)| match json_of(key) {
                Value::String(name) => (name, json_of(value)),
                other => (other.to_string(), json_of(value)),
            });
            Value::Object(entries.collect())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_kept_schema_is_up_to_date() {
    let path = folder().join("ebbtide.schema.json");
    let expected = format!("{:#}\n", schema());
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == expected, "config/ebbtide.schema.json is out of date; run the tests with UPDATE_EXPECT=1");
}

#[test]
fn the_schema_is_one_that_every_tool_reads() {
    let schema = schema();
    assert!(jsonschema::draft202012::meta::is_valid(&schema));
    let text = schema.to_string();
    for beyond_re2 in ["(?=", "(?!", "(?<", r"\\d", r"\\w", r"\\p"] {
        assert!(!text.contains(beyond_re2), "{beyond_re2}");
    }
}

#[test]
fn every_example_is_valid_and_names_the_schema() {
    let validator = validator();
    let mut seen = 0;
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.starts_with("# yaml-language-server: $schema=ebbtide.schema.json\n"), "{}", path.display());
            let faults: Vec<_> = validator.iter_errors(&as_json(&text)).map(|error| error.to_string()).collect();
            assert_eq!(faults, Vec::<String>::new(), "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 14);
}

#[test]
fn every_key_is_described_and_its_default_is_valid() {
    let (schema, validator) = (schema(), validator());
    for key in KEYS {
        let mut place = &schema;
        for part in key.path.split('.') {
            place = match place["oneOf"].get(1) {
                Some(adaptive) => &adaptive["properties"],
                None => &place["properties"],
            };
            place = &place[part.trim_end_matches("[]")];
            place = if part.ends_with("[]") { &place["items"] } else { place };
        }
        assert_eq!(place.is_null(), !key.in_file, "{}", key.path);
        if !key.in_file {
            continue;
        }
        assert!(place["description"].as_str().unwrap().starts_with(key.doc), "{}", key.path);
        let default = &place["default"];
        assert_eq!(default.is_null(), key.default.is_empty(), "{}", key.path);
        if default.is_null() {
            continue;
        }
        let mut document = default.clone();
        for part in key.path.rsplit('.') {
            document = match part.strip_suffix("[]") {
                None => json!({ part: document }),
                Some(list) => {
                    document["name"] = json!("web");
                    if key.doc.starts_with("Outbound only") {
                        extend(&mut document, json!({"direction": "outbound", "bind": ":1", "upstream": "tcp://db:1"}));
                    }
                    json!({ list: [document] })
                }
            };
        }
        // It needs another key, whatever its value.
        assert!(key.path == TLS_CLIENT_AUTH || validator.is_valid(&document), "{}: {document}", key.path);
        assert_eq!(key.kind.parse(&as_written(default)).unwrap().to_string(), key.default, "{}", key.path);
    }
}

fn as_written(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[test]
fn examples_are_valid() {
    let schema = schema();
    let mut seen = 0;
    for (name, form) in schema["$defs"].as_object().unwrap() {
        let validator = jsonschema::draft202012::new(form).unwrap();
        for example in form["examples"].as_array().into_iter().flatten() {
            assert!(validator.is_valid(example), "{name}: {example}");
            seen += 1;
        }
    }
    assert!(seen > 20);
}

#[test]
fn a_tool_that_reads_yaml_1_1_finds_switches_too() {
    let validator = validator();
    let with = |key: &str, value: Value| json!({"listeners": [{"name": "web"}], key: value});
    for on in [true, false] {
        assert!(validator.is_valid(&with("pass_on_close", json!(on))));
    }
    assert!(validator.is_valid(&with("metrics", json!({"final_scrape": false}))));
    assert!(!validator.is_valid(&with("metrics", json!({"final_scrape": true}))));
}

/// `CONFIG_SEED` picks another sequence.
#[test]
fn what_the_schema_refuses_the_parser_refuses_as_well() {
    let seed = std::env::var_os("CONFIG_SEED").and_then(|seed| seed.to_str()?.parse().ok()).unwrap_or(7);
    let mut random = fastrand::Rng::with_seed(seed);
    let validator = validator();
    let full = as_json(FULL);
    let (mut by_schema, mut by_parser) = (0, 0);
    for round in 0..ROUNDS {
        let mut file = full.clone();
        for _ in 0..random.usize(1..4) {
            mutate(&mut file, &mut random);
        }
        let refusal = validator.validate(&file).err().map(|error| format!("{} at {}", error, error.instance_path()));
        let taken = check_text("mutated.yaml", &file.to_string()).is_ok();
        by_parser += usize::from(!taken);
        if let Some(refusal) = refusal {
            by_schema += 1;
            assert!(!taken, "seed {seed}, round {round}: {refusal}\n{file}");
        }
    }
    // Else the test says nothing.
    assert!(by_schema > ROUNDS / 3 && by_schema < by_parser && by_parser < ROUNDS, "{by_schema} {by_parser}");
}

/// Changes one place somewhere in it.
fn mutate(value: &mut Value, random: &mut fastrand::Rng) {
    let deeper = random.u8(..4) > 0;
    match value {
        Value::Object(object) if deeper && !object.is_empty() => {
            let at = random.usize(..object.len());
            mutate(object.values_mut().nth(at).unwrap(), random);
        }
        Value::Array(items) if deeper && !items.is_empty() => {
            let at = random.usize(..items.len());
            mutate(&mut items[at], random);
        }
        Value::Object(object) if !object.is_empty() && random.bool() => change_key(object, random),
        Value::Array(items) if !items.is_empty() && random.bool() => {
            let at = random.usize(..items.len());
            let copy = items[at].clone();
            if random.bool() { items.push(copy) } else { drop(items.remove(at)) }
        }
        other => *other = as_json(random.choice(VALUES).unwrap()),
    }
}

fn change_key(object: &mut Map<String, Value>, random: &mut fastrand::Rng) {
    let name = object.keys().nth(random.usize(..object.len())).unwrap().clone();
    let value = object.remove(&name).unwrap();
    let known = random.choice(KEYS).unwrap().path.rsplit('.').next().unwrap().to_owned();
    match random.u8(..4) {
        0 => {}
        1 => drop(object.insert(format!("{name}s"), value)),
        2 => drop(object.insert(known, value)),
        _ => {
            object.insert(known, value.clone());
            object.insert(name, value);
        }
    }
}

const ROUNDS: usize = 4000;

const VALUES: &[&str] = &[
    "0",
    "1",
    "-1",
    "5",
    "1.5",
    "1.2",
    "1001",
    "70000",
    "on",
    "off",
    "true",
    "false",
    "null",
    "[]",
    "{}",
    "[x]",
    "{x: 1}",
    "text",
    "''",
    "auto",
    "hold",
    "default",
    "10s",
    "1500ms",
    "25h",
    "0s",
    "50%",
    "101%",
    "64KiB",
    "4KiB",
    "outbound",
    "inbound",
    "tcp",
    "http",
    "required",
    "plain",
    "':0'",
    "'[::]:99999'",
    "127.0.0.1:1",
    "tcp://db:5432",
    "http://app",
    "https://app:443",
    "unix:///run/a.sock",
    "10.0.0.0/8",
    "10.0.0.0/33",
    "[10.0.0.0/8, '::1']",
    "a.example",
    "'*.example'",
    "/a/chain.pem:/a/key.pem",
    "'a:b:c'",
    "[a, b]",
    "[[a]]",
    "{min: 1s, quiet: 1s, max: 2s}",
    "{max: 2s}",
];
