//! Reads YAML and JSON as kubectl does, and knows the place of every value.

mod build;

use std::fmt;

use serde_json::{Map, Value};

use self::build::{Builder, MOST_NODES};

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

/// Bytes of one file. The API server takes objects of about 1.5 MiB; a list of many may be longer.
pub const LARGEST: usize = 8 << 20;

#[cfg(test)]
mod tests;
