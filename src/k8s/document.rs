//! Reads YAML and JSON as kubectl does, and knows the place of every value.

use std::collections::HashMap;
use std::fmt;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};
use serde_json::{Map, Value};

use super::scalar;

/// One document of a file.
#[derive(Debug, Clone)]
pub struct Document {
    /// The file's name as given, `stdin` for the standard input.
    pub file: String,
    /// The text as it stands there, with the `---` before it.
    pub text: String,
    /// `None` if it holds nothing but comments.
    pub root: Option<Node>,
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub struct Node {
    /// Where it begins; that of the alias where one stands for it.
    pub place: Place,
    /// What it holds.
    pub data: Data,
}

/// What a node holds.
#[derive(Debug, Clone)]
pub enum Data {
    /// A string, number, boolean or null.
    Scalar(Value),
    /// A list.
    Sequence(Vec<Node>),
    /// Keys in the order of the file, merged ones (`<<`) last.
    Mapping(Vec<Entry>),
}

/// One key of a mapping.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The key; numbers and booleans as text.
    pub key: String,
    /// Where the key stands.
    pub place: Place,
    /// Its value.
    pub value: Node,
}

/// Line and column in a file, counted from 1, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Place {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

/// What is wrong with an input, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file's name.
    pub file: String,
    /// `None` if the file as a whole is meant.
    pub place: Option<Place>,
    /// What is wrong, and what to do.
    pub message: String,
}

/// Cuts a file's text at its document markers and reads each document.
///
/// # Errors
/// The first thing that is no YAML, that kubectl would not take either, or that is too large or too deep.
pub fn read(file: &str, bytes: &[u8]) -> Result<Vec<Document>, Fault> {
    let at = |place, message: String| Fault { file: file.to_owned(), place, message };
    if bytes.len() > LARGEST {
        let place = place_after(&bytes[..LARGEST]);
        let message = format!("is longer than {} MiB; give it in parts", LARGEST >> 20);
        return Err(at(Some(place), message));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        at(Some(place_after(&bytes[..error.valid_up_to()])), "is no UTF-8 text from here on".to_owned())
    })?;
    let mut documents = Vec::new();
    let mut nodes = MOST_NODES;
    for (line, part) in parts(text) {
        let root = Builder::build(part, &mut nodes)
            .map_err(|(place, message)| at(Some(Place { line: place.line + line, column: place.column }), message))?;
        let root = root.map(|mut root| {
            root.move_down(line);
            root
        });
        documents.push(Document { file: file.to_owned(), text: part.to_owned(), root });
    }
    Ok(documents)
}

/// The texts of the documents, with the number of lines before each. A line that begins with `---` can't be content
/// (YAML 1.2 §9.1.2), whatever it stands in.
fn parts(text: &str) -> Vec<(usize, &str)> {
    let mut parts = Vec::new();
    let (mut start, mut start_line, mut offset) = (0, 0, 0);
    let mut is_prefix = true;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let bare = line.trim_start_matches('\u{feff}');
        let is_marker =
            bare.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        // Directives and comments belong to the document behind them.
        if is_marker && !is_prefix {
            parts.push((start_line, &text[start..offset]));
            (start, start_line) = (offset, number);
        }
        is_prefix &= !is_marker && (bare.trim().is_empty() || bare.starts_with(['#', '%']));
        offset += line.len();
    }
    parts.push((start_line, &text[start..]));
    parts
}

fn place_after(bytes: &[u8]) -> Place {
    let line = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
    let last = bytes.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    Place { line, column: String::from_utf8_lossy(last).chars().count() + 1 }
}

type Refusal = (Place, String);

/// Makes a tree of the parser's events, without recursion: the depth is the input's.
struct Builder<'a> {
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
    fn build(text: &str, nodes: &'a mut usize) -> Result<Option<Node>, Refusal> {
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

// === impl Node ===

impl Node {
    /// As JSON.
    #[must_use]
    pub fn to_value(&self) -> Value {
        match &self.data {
            Data::Scalar(value) => value.clone(),
            Data::Sequence(items) => items.iter().map(Self::to_value).collect(),
            Data::Mapping(entries) => Value::Object(
                entries.iter().map(|entry| (entry.key.clone(), entry.value.to_value())).collect::<Map<_, _>>(),
            ),
        }
    }

    /// The node a JSON Pointer (RFC 6901) leads to.
    #[must_use]
    pub fn find(&self, pointer: &str) -> Option<&Self> {
        tokens(pointer).try_fold(self, |node, token| Some(node.child(&token)?.1))
    }

    /// Where the value at a JSON Pointer stands, by its key if it has one; the nearest that is there, if it is not.
    #[must_use]
    pub fn place_of(&self, pointer: &str) -> Place {
        let (mut node, mut place) = (self, self.place);
        for token in tokens(pointer) {
            let Some((at, child)) = node.child(&token) else { break };
            (node, place) = (child, at);
        }
        place
    }

    fn child(&self, token: &str) -> Option<(Place, &Self)> {
        match &self.data {
            Data::Scalar(_) => None,
            Data::Sequence(items) => items.get(token.parse::<usize>().ok()?).map(|item| (item.place, item)),
            Data::Mapping(entries) => {
                entries.iter().find(|entry| entry.key == token).map(|entry| (entry.place, &entry.value))
            }
        }
    }

    fn children_mut(&mut self) -> Vec<&mut Self> {
        match &mut self.data {
            Data::Scalar(_) => Vec::new(),
            Data::Sequence(items) => items.iter_mut().collect(),
            Data::Mapping(entries) => entries.iter_mut().map(|entry| &mut entry.value).collect(),
        }
    }

    fn size(&self) -> usize {
        1 + match &self.data {
            Data::Scalar(_) => 0,
            Data::Sequence(items) => items.iter().map(Self::size).sum(),
            Data::Mapping(entries) => entries.iter().map(|entry| entry.value.size()).sum(),
        }
    }

    /// All of it stands where the alias does.
    fn move_to(&mut self, place: Place) {
        self.place = place;
        if let Data::Mapping(entries) = &mut self.data {
            entries.iter_mut().for_each(|entry| entry.place = place);
        }
        self.children_mut().into_iter().for_each(|child| child.move_to(place));
    }

    fn move_down(&mut self, lines: usize) {
        self.place.line += lines;
        if let Data::Mapping(entries) = &mut self.data {
            entries.iter_mut().for_each(|entry| entry.place.line += lines);
        }
        self.children_mut().into_iter().for_each(|child| child.move_down(lines));
    }
}

// === impl Fault ===

impl Fault {
    /// At a place.
    #[must_use]
    pub fn at(file: &str, place: Place, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), place: Some(place), message: message.into() }
    }

    /// In a file as a whole.
    #[must_use]
    pub fn whole(file: &str, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), place: None, message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some(Place { line, column }) => write!(f, "{}:{line}:{column}: {}", self.file, self.message),
            None => write!(f, "{}: {}", self.file, self.message),
        }
    }
}

impl std::error::Error for Fault {}

/// The unescaped tokens of a JSON Pointer.
pub(super) fn tokens(pointer: &str) -> impl Iterator<Item = String> {
    pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~"))
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

/// Bytes of one file. The API server takes objects of about 1.5 MiB; a list of many may be longer.
pub const LARGEST: usize = 8 << 20;

/// Values of one file, with those that aliases stand for.
const MOST_NODES: usize = 1_000_000;

/// Levels of nesting; a pod template is some 15 levels deep.
const DEEPEST: usize = 64;

/// Stands for the key `<<`, which a quoted key can spell as well.
const MERGE: &str = "\0<<";

#[cfg(test)]
mod tests;
