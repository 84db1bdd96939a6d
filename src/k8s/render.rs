//! Writes a value as YAML that kubectl reads back as the same value.

use serde_json::Value;

use super::scalar;

/// In block style, with a line break at the end.
pub(super) fn render(value: &Value) -> String {
    let mut text = String::new();
    node(value, 0, &mut text);
    text
}

/// The rest of a line and the lines below it.
fn node(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (index, (key, value)) in map.iter().enumerate() {
                if index > 0 {
                    out.push_str(&" ".repeat(indent));
                }
                out.push_str(&word(key));
                out.push(':');
                if is_block(value) {
                    out.push_str(&format!("\n{}", " ".repeat(indent + 2)));
                    node(value, indent + 2, out);
                } else {
                    out.push(' ');
                    node(value, indent, out);
                }
            }
        }
        Value::Array(items) if is_block(value) => {
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(&" ".repeat(indent));
                }
                out.push_str("- ");
                node(item, indent + 2, out);
            }
        }
        Value::Array(items) => {
            let words: Vec<_> = items.iter().map(scalar_text).collect();
            out.push_str(&format!("[{}]\n", words.join(", ")));
        }
        Value::String(text) if is_literal(text) => {
            out.push_str("|\n");
            for line in text.lines() {
                match line {
                    "" => out.push('\n'),
                    _ => out.push_str(&format!("{}{line}\n", " ".repeat(indent + 2))),
                }
            }
        }
        scalar => out.push_str(&format!("{}\n", scalar_text(scalar))),
    }
}

/// Takes lines of its own: all but scalars, what is empty, and short lists of words.
fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(items) => {
            let is_short =
                items.iter().all(|item| !item.is_object() && !item.is_array() && item.to_string().len() < 40);
            !(items.is_empty() || is_short && value.to_string().len() < 80)
        }
        _ => false,
    }
}

fn scalar_text(value: &Value) -> String {
    match value {
        Value::String(text) => word(text),
        other => other.to_string(),
    }
}

/// Text that is read back as this text: as it is, or in quotes.
fn word(text: &str) -> String {
    // Nothing that means something to some parser, within a flow list too.
    let is_plain_character = |c: char| c.is_ascii_alphanumeric() || "-_./$()@+=~ ".contains(c);
    let starts_plainly = text.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '$' | '_' | '('));
    let has_colon = text.contains(": ") || text.ends_with(':');
    let is_plain = starts_plainly
        && !text.ends_with(' ')
        && !has_colon
        && text.chars().all(|c| is_plain_character(c) || c == ':')
        && scalar::plain(text).is_string();
    let is_readable = !text.contains('\'') && text.contains('"') && !text.chars().any(char::is_control);
    match (is_plain, is_readable) {
        (true, _) => text.to_owned(),
        (false, true) => format!("'{text}'"),
        // A JSON string is a YAML string in double quotes.
        (false, false) => Value::from(text).to_string(),
    }
}

/// Several lines that a literal block gives back exactly.
fn is_literal(text: &str) -> bool {
    text.len() > 1
        && text.ends_with('\n')
        && !text.ends_with("\n\n")
        && !text.starts_with([' ', '\n', '\t'])
        && text.chars().all(|c| {
            c == '\n' || (!c.is_control() && c != '\u{feff}' && c != '\u{2028}' && c != '\u{2029}' && c != '\u{85}')
        })
}
