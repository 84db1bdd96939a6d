//! Owns what every shape's text goes through: comments and foreign parts stay, a second run is none, and all is reversible.

use serde_json::{Value, json};

use super::case::{differs, each, ensure};
use super::inject;
use crate::harness::manifest::{documents, list, name, objects, objects_of, value};

#[test]
fn comments_stay_in_their_order() {
    each(|case| {
        let after: Vec<&str> = comments(&case.after).collect();
        let mut rest = after.iter();
        let lost = comments(&case.before).find(|comment| !rest.any(|one| one == comment));
        ensure(lost.is_none(), || format!("lost or moved: {lost:?}"))
    });
}

/// What stands behind a `#` that begins a line or a comment; in blocks of text as well, which must not change either.
fn comments(text: &str) -> impl Iterator<Item = &str> {
    text.trim_start_matches(BOM).lines().filter_map(|line| {
        let mut quote = None;
        let mut before = ' ';
        for (at, c) in line.char_indices() {
            match (quote, c) {
                (None, '#') if before.is_whitespace() => return Some(line[at..].trim_end()),
                (None, '"' | '\'') if before.is_whitespace() || "[{,:".contains(before) => quote = Some(c),
                (Some(open), _) if c == open => quote = None,
                _ => {}
            }
            before = c;
        }
        None
    })
}

#[test]
fn what_is_no_workload_and_no_service_of_one_stays_to_the_byte() {
    each(|case| {
        let (before, after) = (documents(&case.before)?, documents(&case.after)?);
        ensure(before.len() == after.len(), || format!("{} documents became {}", before.len(), after.len()))?;
        for (old, new) in before.iter().zip(&after) {
            let objects = objects_of(value(old));
            let changes = |object: &Value| {
                let of = |(port, _): &(&str, u64)| port.split('/').next() == Some(name(object));
                case.shape.workload(object).is_some()
                    || object["kind"] == "Service" && case.shape.services.iter().any(of)
            };
            let same = old.text == new.text || objects.iter().any(changes);
            ensure(same, || format!("changed: {:?}\nto {:?}", old.text, new.text))?;
            for (old, new) in objects.iter().zip(objects_of(value(new))).filter(|(old, _)| !changes(old)) {
                ensure(*old == new, || format!("an item changed: {old}\nto {new}"))?;
            }
        }
        let ends = |text: &str| text.lines().count() > 1 && text.matches('\n').count() == text.matches("\r\n").count();
        ensure(ends(&case.before) == ends(&case.after), || "other line ends".to_owned())
    });
}

#[test]
fn a_second_run_changes_nothing() {
    each(|case| {
        let again = inject(&[&["-f", "-"], case.shape.args].concat(), case.after.as_bytes())?;
        ensure(again == case.after, || differs(&case.after, &again))
    });
}

#[test]
fn remove_gives_the_original_back() {
    each(|case| {
        let args: Vec<&str> =
            case.shape.args.iter().skip_while(|arg| **arg != "--template-path").take(2).copied().collect();
        let removed = inject(&[&["-f", "-", "--remove"], &args[..]].concat(), case.after.as_bytes())?;
        let same = objects(&removed)?.into_iter().map(semantic).eq(objects(&case.before)?.into_iter().map(semantic));
        ensure(same, || differs(&case.before, &removed))?;
        let (before, after): (Vec<_>, Vec<_>) = (comments(&case.before).collect(), comments(&removed).collect());
        ensure(before == after, || format!("comments became {after:?}"))?;
        let twice = inject(&[&["-f", "-", "--remove"], &args[..]].concat(), removed.as_bytes())?;
        ensure(twice == removed, || differs(&removed, &twice))
    });
}

/// Without what means the same as nothing: nulls, and empty lists and mappings of a pod and its containers.
fn semantic(value: Value) -> Value {
    const SAME_AS_NOTHING: [&str; 5] = ["annotations", "initContainers", "volumes", "lifecycle", "ports"];
    let is_empty = |value: &Value| match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        other => other.is_null(),
    };
    match value {
        Value::Array(items) => items.into_iter().map(semantic).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| (key, semantic(value)));
            let means = |(key, value): &(String, Value)| {
                !(value.is_null() || SAME_AS_NOTHING.contains(&key.as_str()) && is_empty(value))
            };
            Value::Object(fields.filter(means).collect())
        }
        other => other,
    }
}

#[test]
fn other_outputs_say_the_same() {
    each(|case| {
        let path = case.shape.path();
        let from_stdin = inject(&[&["-f", "-"], case.shape.args].concat(), case.before.as_bytes())?;
        ensure(from_stdin == case.after, || differs(&case.after, &from_stdin))?;
        let run = |form: &str| -> Result<Value, String> {
            let out = inject(&[&["-f", &path, "--output", form], case.shape.args].concat(), b"")?;
            serde_json::from_str(&out).map_err(|error| format!("{form}: {error}: {out}"))
        };
        let json = objects_of(run("json")?);
        ensure(json == objects(&case.after)?, || format!("JSON says something else: {json:?}"))?;
        let patches = run("patch")?;
        for (before, after) in case.pairs()? {
            let of = |one: &&Value| one["kind"] == before["kind"] && one["name"] == name(&before);
            let patch = match &patches[0]["patch"] {
                // One object, and its patch alone.
                Value::Null => patches.clone(),
                _ => {
                    list(&json!({"all": patches}), "all").iter().find(of).map_or(json!([]), |one| one["patch"].clone())
                }
            };
            let patch: json_patch::Patch = serde_json::from_value(patch).map_err(|error| error.to_string())?;
            let mut patched = before;
            json_patch::patch(&mut patched, &patch).map_err(|error| error.to_string())?;
            ensure(patched == after, || format!("the patch of {} leads elsewhere", name(&after)))?;
        }
        Ok(())
    });
}

#[test]
fn in_place_writes_what_the_output_would_be() {
    let dir = tempfile::TempDir::new().unwrap();
    each(|case| {
        let path = dir.path().join(case.shape.file);
        std::fs::write(&path, &case.before).map_err(|error| error.to_string())?;
        let told = inject(&[&["-f", &path.display().to_string(), "--in-place"], case.shape.args].concat(), b"")?;
        ensure(!told.contains("apiVersion"), || format!("and printed as well: {told}"))?;
        let written = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
        let same = written.trim_start_matches(BOM) == case.after.trim_start_matches(BOM);
        ensure(same && written.starts_with(BOM) == case.before.starts_with(BOM), || differs(&case.after, &written))
    });
}

const BOM: char = '\u{feff}';
