//! Makes a tree of what the YAML parser finds.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};
use serde_json::Value;

use super::{Data, Entry, Node, Place};
use crate::k8s::scalar;

/// Where it goes wrong, and why.
pub(super) type Refusal = (Place, String);

/// Makes a tree of the parser's events, without recursion: the depth is the input's.
pub(super) struct Builder<'a> {
    open: Vec<Open>,
    /// By anchor; `None` while the node is still being read.
    anchors: HashMap<usize, Option<Node>>,
    root: Option<Node>,
    /// How many more nodes may be made, so that a few aliases can't stand for millions.
    nodes: &'a mut usize,
}

struct Open {
    place: Place,
    anchor: usize,
    data: Data,
    /// The key that waits for its value.
    key: Option<(String, Place)>,
    /// Keys so far, and the values of `<<`.
    seen: HashMap<String, Place>,
    merged: Vec<Node>,
}

// === impl Builder ===

impl<'a> Builder<'a> {
    pub(super) fn build(text: &str, nodes: &'a mut usize) -> Result<Option<Node>, Refusal> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut builder = Self { open: Vec::new(), anchors: HashMap::new(), root: None, nodes };
        let mut documents = 0;
        for event in Parser::new_from_str(text) {
            let (event, span) = event.map_err(|error| (place(error.marker()), not_yaml(error.info())))?;
            if let Event::DocumentStart(_) = event {
                documents += 1;
                if documents > 1 {
                    return Err((place(&span.start), "a second document begins here: write --- before it".to_owned()));
                }
            }
            builder.take(event, &span)?;
        }
        Ok(builder.root.filter(|root| !matches!(root.data, Data::Scalar(Value::Null))))
    }

    fn take(&mut self, event: Event<'_>, span: &Span) -> Result<(), Refusal> {
        let place = place(&span.start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_key = self.open.last().is_some_and(Open::awaits_key);
                if is_key && style == ScalarStyle::Plain && text == "<<" {
                    return self.key(MERGE.to_owned(), place);
                }
                let value = resolve(&text, style, tag.as_deref()).map_err(|reason| (place, reason))?;
                self.finish(Node { place, data: Data::Scalar(value) }, anchor)
            }
            Event::SequenceStart(anchor, tag) => self.open(place, anchor, tag.as_deref(), Data::Sequence(Vec::new())),
            Event::MappingStart(anchor, tag) => self.open(place, anchor, tag.as_deref(), Data::Mapping(Vec::new())),
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(open) = self.open.pop() else { return Ok(()) };
                let (anchor, node) = (open.anchor, open.close()?);
                self.finish(node, anchor)
            }
            Event::Alias(anchor) => {
                let mut node = match self.anchors.get(&anchor) {
                    Some(Some(node)) => node.clone(),
                    Some(None) => return Err((place, "this alias stands inside of what it stands for".to_owned())),
                    None => return Err((place, "this alias stands for nothing".to_owned())),
                };
                self.count(node.size(), place)?;
                node.move_to(place);
                self.finish(node, 0)
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {
                Ok(())
            }
        }
    }

    fn open(&mut self, place: Place, anchor: usize, tag: Option<&Tag>, data: Data) -> Result<(), Refusal> {
        if self.open.len() >= DEEPEST {
            return Err((place, format!("is nested more than {DEEPEST} levels deep")));
        }
        if tag.is_some_and(|tag| !tag.is_yaml_core_schema()) {
            return Err((place, "has a tag that kubectl does not know".to_owned()));
        }
        if self.open.last().is_some_and(Open::awaits_key) {
            return Err((place, "a key must be a plain word".to_owned()));
        }
        if anchor > 0 {
            self.anchors.insert(anchor, None);
        }
        self.open.push(Open { place, anchor, data, key: None, seen: HashMap::new(), merged: Vec::new() });
        Ok(())
    }

    fn key(&mut self, key: String, place: Place) -> Result<(), Refusal> {
        let Some(open) = self.open.last_mut() else { return Ok(()) };
        if let Some(first) = open.seen.insert(key.clone(), place) {
            return Err((place, format!("the key {key} stands in this mapping already, in line {}", first.line)));
        }
        open.key = Some((key, place));
        Ok(())
    }

    /// A node is whole: it is a key, a value, an item or the document.
    fn finish(&mut self, node: Node, anchor: usize) -> Result<(), Refusal> {
        self.count(1, node.place)?;
        if anchor > 0 {
            self.anchors.insert(anchor, Some(node.clone()));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        if open.awaits_key() {
            let place = node.place;
            return match node.data {
                Data::Scalar(value) => self.key(text_of(&value), place),
                Data::Sequence(_) | Data::Mapping(_) => Err((place, "a key must be a plain word".to_owned())),
            };
        }
        match (&mut open.data, open.key.take()) {
            (Data::Sequence(items), _) => items.push(node),
            (Data::Mapping(_), Some((key, _))) if key == MERGE => open.merged.push(node),
            (Data::Mapping(entries), Some((key, place))) => entries.push(Entry { key, place, value: node }),
            (Data::Mapping(_) | Data::Scalar(_), _) => {}
        }
        Ok(())
    }

    fn count(&mut self, nodes: usize, place: Place) -> Result<(), Refusal> {
        *self.nodes = self
            .nodes
            .checked_sub(nodes)
            .ok_or_else(|| (place, format!("holds more than {MOST_NODES} values, those of its aliases counted")))?;
        Ok(())
    }
}

// === impl Open ===

impl Open {
    fn awaits_key(&self) -> bool {
        matches!(self.data, Data::Mapping(_)) && self.key.is_none()
    }

    /// Puts in what `<<` brings: the mapping's own keys win, then the earlier of several sources.
    fn close(mut self) -> Result<Node, Refusal> {
        if let Data::Mapping(entries) = &mut self.data {
            let sources = self.merged.into_iter().flat_map(|node| match node.data {
                Data::Sequence(items) => items,
                Data::Mapping(_) | Data::Scalar(_) => vec![node],
            });
            for source in sources {
                let Data::Mapping(merged) = source.data else {
                    return Err((source.place, "<< takes a mapping or a list of mappings".to_owned()));
                };
                for entry in merged {
                    if !self.seen.contains_key(&entry.key) {
                        self.seen.insert(entry.key.clone(), entry.place);
                        entries.push(entry);
                    }
                }
            }
        }
        Ok(Node { place: self.place, data: self.data })
    }
}

fn resolve(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    let kind = match tag {
        None if style == ScalarStyle::Plain => return Ok(scalar::plain(text)),
        None => return Ok(Value::String(text.to_owned())),
        Some(tag) if tag.is_yaml_core_schema() => tag.suffix.as_str(),
        Some(_) => return Err("has a tag that kubectl does not know".to_owned()),
    };
    let value = scalar::plain(text);
    let fits = match kind {
        "str" => return Ok(Value::String(text.to_owned())),
        "int" | "float" => value.is_number(),
        "bool" => value.is_boolean(),
        "null" => value.is_null(),
        _ => return Err(format!("has the tag !!{kind}, which has no place in a manifest")),
    };
    if fits { Ok(value) } else { Err(format!("is no !!{kind}")) }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn not_yaml(info: &str) -> String {
    format!("is not valid YAML: {info}")
}

fn place(marker: &Marker) -> Place {
    Place { line: marker.line(), column: marker.col() + 1 }
}

/// Values of one file, with those that aliases stand for.
pub(super) const MOST_NODES: usize = 1_000_000;

/// Levels of nesting; a pod template is some 15 levels deep.
const DEEPEST: usize = 64;

/// Stands for the key `<<`, which a quoted key can spell as well.
const MERGE: &str = "\0<<";
