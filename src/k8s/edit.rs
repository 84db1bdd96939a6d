//! Changes a document's text so that it says something else and looks as it did: comments, order and style stay.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use json_patch::PatchOperation;
use json_patch::jsonptr::Pointer;
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
    let operations = diff(before, after);
    // A library's fault in an odd text must cost no more than the comments.
    let edited = catch_unwind(AssertUnwindSafe(|| in_place(&document.text, &operations))).ok().flatten();
    match edited.filter(|text| says(text, after)) {
        Some(text) => Edited { text, rewritten: false },
        None => Edited { text: anew(&document.text, after), rewritten: true },
    }
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

fn in_place(text: &str, operations: &[PatchOperation]) -> Option<String> {
    let file = YamlFile::from_str(text).ok()?;
    let tree = file.documents().next()?;
    for operation in operations {
        match operation {
            PatchOperation::Add(add) => {
                let (parent, key) = parent(&tree, &add.path)?;
                let value = new_node(&add.value)?;
                match &parent {
                    YamlNode::Mapping(mapping) => mapping.set(key.as_str(), &value),
                    YamlNode::Sequence(items) => match key.parse().ok()? {
                        index if index >= items.len() => items.push(&value),
                        index => items.insert(index, &value),
                    },
                    _ => return None,
                }
            }
            PatchOperation::Replace(replace) => {
                let (parent, key) = parent(&tree, &replace.path)?;
                let value = new_node(&replace.value)?;
                match &parent {
                    YamlNode::Mapping(mapping) => mapping.set(key.as_str(), &value),
                    YamlNode::Sequence(items) => items.set(key.parse().ok()?, &value).then_some(())?,
                    _ => return None,
                }
            }
            PatchOperation::Remove(remove) => {
                let (parent, key) = parent(&tree, &remove.path)?;
                match &parent {
                    YamlNode::Mapping(mapping) => drop(mapping.remove(key.as_str())?),
                    YamlNode::Sequence(items) => drop(items.remove(key.parse().ok()?)?),
                    _ => return None,
                }
            }
            PatchOperation::Move(_) | PatchOperation::Copy(_) | PatchOperation::Test(_) => return None,
        }
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

/// The collection in which an operation's target stands, and the target's key or index.
fn parent(tree: &Tree, path: &Pointer) -> Option<(YamlNode, String)> {
    let mut tokens: Vec<String> = path.tokens().map(|token| token.decoded().into_owned()).collect();
    let last = tokens.pop()?;
    let node = tokens.iter().try_fold(root(tree)?, |node, token| match &node {
        YamlNode::Mapping(mapping) => mapping.get(token.as_str()),
        YamlNode::Sequence(items) => items.get(token.parse().ok()?),
        _ => None,
    })?;
    Some((node, last))
}
