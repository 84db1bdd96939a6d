//! Changes a document's text so that it says something else and looks as it did: comments, order and style stay.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use json_patch::PatchOperation;
use json_patch::jsonptr::Pointer;
use serde::Serialize as _;
use serde_json::Value;
use yaml_edit::{Document as Tree, YamlFile, YamlNode};

use super::diff::diff;
use super::document::{self, Document};
use super::render::render;

/// A document's new text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Edited {
    pub(super) text: String,
    /// It could not be changed in its place and was written anew, without comments.
    pub(super) rewritten: bool,
}

/// The text that says `after`. Whatever the edit did, it is read again and must say just that; a text in which it
/// does not (an anchor that others lean on, most often) is written anew as a whole.
pub(super) fn edit(document: &Document, before: &Value, after: &Value) -> Edited {
    if before == after {
        return Edited { text: document.text.clone(), rewritten: false };
    }
    if let Some(text) = json_like(&document.text, after) {
        return Edited { text, rewritten: false };
    }
    let operations = diff(before, after);
    // A library's fault in an odd text must cost no more than the comments.
    let edited = catch_unwind(AssertUnwindSafe(|| in_place(&document.text, before, &operations))).ok().flatten();
    match edited.filter(|text| says(text, after)) {
        Some(text) => Edited { text, rewritten: false },
        None => Edited { text: anew(&document.text, after), rewritten: true },
    }
}

/// JSON stays JSON, on one line or with the indentation that it has.
fn json_like(text: &str, after: &Value) -> Option<String> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
    let line_end = if text.ends_with('\n') { "\n" } else { "" };
    let Some(second) = text.trim_end().lines().nth(1) else { return Some(format!("{after}{line_end}")) };
    let indent = &second[..second.len() - second.trim_start().len()];
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
    after.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter)).ok()?;
    Some(format!("{}{line_end}", String::from_utf8(bytes).ok()?))
}

fn says(text: &str, value: &Value) -> bool {
    let read = document::read("", text.as_bytes());
    read.is_ok_and(|documents| {
        let [document] = documents.as_slice() else { return false };
        document.root.as_ref().is_some_and(|root| root.to_value() == *value)
    })
}

fn anew(text: &str, value: &Value) -> String {
    let marker = if text.trim_start_matches('\u{feff}').starts_with("---") { "---\n" } else { "" };
    let text = format!("{marker}{}", render(value));
    text
}

fn in_place(text: &str, before: &Value, operations: &[PatchOperation]) -> Option<String> {
    let file = YamlFile::from_str(text).ok()?;
    let tree = file.documents().next()?;
    let mut value = before.clone();
    for operation in operations {
        match operation {
            PatchOperation::Add(add) => {
                let (parent, key) = parent(&tree, &value, &add.path)?;
                let new = new_node(&add.value)?;
                match &parent {
                    YamlNode::Mapping(_) => set(&parent, &key, &new)?,
                    YamlNode::Sequence(items) => match key.parse().ok()? {
                        index if index >= items.len() => items.push(&new),
                        index => items.insert(index, &new),
                    },
                    _ => return None,
                }
            }
            PatchOperation::Replace(replace) => {
                let (parent, key) = parent(&tree, &value, &replace.path)?;
                let new = new_node(&replace.value)?;
                set(&parent, &key, &new)?;
            }
            PatchOperation::Remove(remove) => {
                let (parent, key) = parent(&tree, &value, &remove.path)?;
                match &parent {
                    YamlNode::Mapping(mapping) => drop(mapping.remove(key.as_str())?),
                    YamlNode::Sequence(items) => drop(items.remove(key.parse().ok()?)?),
                    _ => return None,
                }
            }
            PatchOperation::Move(_) | PatchOperation::Copy(_) | PatchOperation::Test(_) => return None,
        }
        json_patch::patch(&mut value, std::slice::from_ref(operation)).ok()?;
    }
    Some(file.to_string())
}

/// Not a whole document: with one a comment behind the old value would go.
fn new_node(value: &Value) -> Option<YamlNode> {
    root(&Tree::from_str(&render(value)).ok()?)
}

fn root(tree: &Tree) -> Option<YamlNode> {
    let mapping = tree.as_mapping().map(YamlNode::Mapping);
    let collection = mapping.or_else(|| tree.as_sequence().map(YamlNode::Sequence));
    collection.or_else(|| tree.as_scalar().map(YamlNode::Scalar))
}

/// The collection in which an operation's target stands, and the target's key or index. An alias on the way becomes a
/// copy of what it stands for: what is changed in one place must not change in the others.
fn parent(tree: &Tree, value: &Value, path: &Pointer) -> Option<(YamlNode, String)> {
    let mut tokens: Vec<String> = path.tokens().map(|token| token.decoded().into_owned()).collect();
    let last = tokens.pop()?;
    let (mut node, mut value) = (root(tree)?, value);
    for token in &tokens {
        value = match value {
            Value::Array(items) => items.get(token.parse::<usize>().ok()?)?,
            other => other.get(token)?,
        };
        if matches!(child(&node, token)?, YamlNode::Alias(_)) {
            set(&node, token, &new_node(value)?)?;
        }
        node = child(&node, token)?;
    }
    Some((node, last))
}

fn child(node: &YamlNode, token: &str) -> Option<YamlNode> {
    match node {
        YamlNode::Mapping(mapping) => mapping.get(token),
        YamlNode::Sequence(items) => items.get(token.parse().ok()?),
        _ => None,
    }
}

/// Replaces what is there, or adds a key.
fn set(node: &YamlNode, token: &str, new: &YamlNode) -> Option<()> {
    match node {
        YamlNode::Mapping(mapping) => {
            mapping.set(token, new);
            Some(())
        }
        YamlNode::Sequence(items) => items.set(token.parse().ok()?, new).then_some(()),
        _ => None,
    }
}
