//! Writes a value as YAML that kubectl reads back as the same value.

use serde_json::Value;

use super::scalar;

/// In block style, with a line break at the end.
pub(super) fn render(value: &Value) -> String {
    let mut text = String::new();
    node(value, 0, &mut text);
    text
}

/// The rest of a line and the lines below it; lists stand at the column of their key.
fn node(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (index, (key, value)) in map.iter().enumerate() {
                if index > 0 {
                    out.push_str(&" ".repeat(indent));
                }
                out.push_str(&word(key));
                out.push(':');
                match value {
                    Value::Object(map) if !map.is_empty() => {
                        out.push_str(&format!("\n{}", " ".repeat(indent + 2)));
                        node(value, indent + 2, out);
                    }
                    Value::Array(items) if !items.is_empty() => {
                        out.push_str(&format!("\n{}", " ".repeat(indent + 2)));
                        node(value, indent + 2, out);
                    }
                    _ => {
                        out.push(' ');
                        node(value, indent, out);
                    }
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(&" ".repeat(indent));
                }
                out.push_str("- ");
                node(item, indent + 2, out);
            }
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
        Value::String(text) => out.push_str(&format!("{}\n", word(text))),
        other => out.push_str(&format!("{other}\n")),
    }
}

/// Text that is read back as this text: as it is, or in quotes.
fn word(text: &str) -> String {
    let is_plain_character = |c: char| c.is_ascii_alphanumeric() || "-_./$()@+=,;~^*%!?<>|&' ".contains(c);
    let starts_plainly = text.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '$' | '_' | '('));
    let has_colon = text.contains(": ") || text.ends_with(':');
    let is_plain = starts_plainly
        && !text.ends_with(' ')
        && !has_colon
        && text.chars().all(|c| is_plain_character(c) || c == ':')
        // In a flow list or mapping these would end it.
        && !text.contains(',')
        && scalar::plain(text).is_string();
    // A JSON string is a YAML string in double quotes.
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
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
