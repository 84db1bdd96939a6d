//! A file's text as a layer of settings, each with its line and column.

use saphyr::{LoadableYamlNode, MarkedYaml, Marker, Scalar, YamlData};

use super::error::{ConfigError, Fault, Origin, nearest};
use super::keys::{self, HOLD, KEYS, Key, TOMBSTONES};
use super::source::{Item, Layer, Setting};

/// Reads one document. `name` is the file's name as messages show it; faults go into the layer's list.
pub(super) fn parse(name: &str, text: &str) -> Layer {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader { name, text, layer: Layer::default() };
    match load_one(text) {
        Ok(Some(root)) => reader.section(&root, "", ""),
        Ok(None) => {}
        Err((place, fault)) => {
            let origin = place.map_or_else(|| Origin::Whole(name.to_owned()), |(line, column)| reader.at(line, column));
            reader.layer.errors.push(ConfigError::new(origin, "", None, fault));
            reader.layer.incomplete = true;
        }
    }
    reader.layer
}

type Place = (usize, usize);

/// `None` for a text without a document.
fn load_one(text: &str) -> Result<Option<MarkedYaml<'_>>, (Option<Place>, Fault)> {
    if text.len() > LARGEST {
        return Err((None, Fault::new(too_large())));
    }
    check_shape(text).map_err(|(line, fault)| (Some((line, 1)), fault))?;
    let mut documents = MarkedYaml::load_from_str(text).map_err(|error| {
        let at = place(error.marker());
        let fault = match error.info() {
            "duplicated key in mapping" => {
                let key = plain_word(text, error.marker().index());
                Fault::new(format!("the key {key} is given twice in one mapping")).hint("keep one of them")
            }
            info => Fault::new(format!("is not valid YAML: {info}"))
                .hint("look for wrong indentation, a missing quote or a missing blank after a colon"),
        };
        (Some(at), fault)
    })?;
    if let Some(second) = documents.get(1) {
        let fault = Fault::new("has more than one document").hint("keep one, without a second ---");
        return Err((Some(place(&second.span.start)), fault));
    }
    Ok(documents.pop())
}

pub(super) fn too_large() -> String {
    format!("has more than {} KiB", LARGEST / 1024)
}

/// The parser's tree is built, compared and dropped by recursion, and each anchor keeps a copy of its node: a few
/// kilobytes could use up the stack or the memory. Flow nesting is bounded by the parser (255), block nesting here:
/// a nested block starts at a greater column, or behind another indicator on the same line.
fn check_shape(text: &str) -> Result<(), (usize, Fault)> {
    let mut anchors = 0;
    for (index, line) in text.lines().enumerate() {
        let content = line.trim_start();
        if content.starts_with('#') {
            continue;
        }
        let indicators = content.split_whitespace().filter(|word| matches!(*word, "-" | "?" | ":")).count();
        if line.len() - content.len() > DEEPEST || (!content.is_empty() && indicators > DEEPEST) {
            return Err((index + 1, Fault::new("is nested too deeply")));
        }
        let anchor = |word: &str| word.trim_start_matches(['[', '{', ',']).starts_with('&') && word.len() > 1;
        anchors += content.split_whitespace().filter(|word| anchor(word)).count();
        if anchors > MOST_ANCHORS {
            return Err((index + 1, Fault::new(format!("has more than {MOST_ANCHORS} anchors"))));
        }
    }
    Ok(())
}

struct Reader<'a> {
    name: &'a str,
    text: &'a str,
    layer: Layer,
}

// === impl Reader ===

impl Reader<'_> {
    /// A mapping. `path` is as in the table of keys, `shown` has indices in the place of `[]`.
    fn section(&mut self, node: &MarkedYaml<'_>, path: &str, shown: &str) {
        let YamlData::Mapping(mapping) = &node.data else {
            // A section whose keys are all commented out.
            if !is_null(node) {
                let names: Vec<_> = keys::section_keys(path).collect();
                let what = if path.is_empty() { "the file must be" } else { "must be" };
                let fault = Fault::new(format!("{what} a mapping")).hint(format!("its keys are {}", names.join(", ")));
                self.fault(&node.span.start, shown, None, fault);
                self.layer.incomplete |= path.is_empty();
            }
            return;
        };
        for (key, value) in mapping {
            let YamlData::Value(Scalar::String(name)) = &key.data else {
                let fault = Fault::new("has a key that is not a plain word");
                self.fault(&key.span.start, shown, None, fault);
                continue;
            };
            let (path, shown) = (join(path, name), join(shown, name));
            self.entry(&key.span.start, value, &path, &shown);
        }
    }

    fn entry(&mut self, at: &Marker, value: &MarkedYaml<'_>, path: &str, shown: &str) {
        if let Some(tombstone) = TOMBSTONES.iter().find(|tombstone| tombstone.path == path) {
            self.fault(at, shown, None, Fault::new(tombstone.reason).hint(tombstone.hint));
            return;
        }
        let key = keys::find(path).filter(|key| key.in_file);
        let is_mapping = matches!(value.data, YamlData::Mapping(_));
        let is_empty = is_null(value) || matches!(&value.data, YamlData::Mapping(mapping) if mapping.is_empty());
        if is_empty && NEVER_EMPTY.contains(&path) {
            // Who wrote it wanted TLS or an adaptive hold, and would get none.
            let fault = Fault::new("is empty").hint("set its keys, or remove it");
            self.fault(at, shown, None, fault);
            return;
        }
        if path == "listeners" {
            self.listeners(value);
        } else if keys::is_section(path) && (is_mapping || key.is_none()) {
            self.section(value, path, shown);
        } else if let Some(key) = key {
            match self.text_of(key, value) {
                Ok(text) => {
                    let (line, column) = place(&value.span.start);
                    let origin = self.at(line, column);
                    let setting = Setting::read(key, shown, &text, origin, &mut self.layer.errors);
                    self.layer.add(setting);
                }
                Err(fault) => self.fault(&value.span.start, shown, None, fault),
            }
        } else {
            self.unknown(at, path, shown);
        }
    }

    fn listeners(&mut self, node: &MarkedYaml<'_>) {
        let YamlData::Sequence(items) = &node.data else {
            if !is_null(node) {
                let fault = Fault::new("must be a list").hint("start each listener with a dash: - name: web");
                self.fault(&node.span.start, "listeners", None, fault);
                self.layer.incomplete = true;
            }
            return;
        };
        // Set even if the list is empty: it replaces the list of an earlier source.
        self.layer.listeners = Some(Vec::new());
        for (index, node) in items.iter().enumerate() {
            let (line, column) = place(&node.span.start);
            let item = Item::new(self.at(line, column));
            self.layer.listeners.get_or_insert_default().push(item);
            self.section(node, "listeners[]", &format!("listeners[{index}]"));
        }
    }

    fn unknown(&mut self, at: &Marker, path: &str, shown: &str) {
        let sections = KEYS.iter().filter_map(|key| key.path.rsplit_once('.').map(|(section, _)| section));
        let paths = KEYS.iter().filter(|key| key.in_file).map(|key| key.path);
        let hint = match nearest(path, paths.chain(sections)) {
            Some(found) => {
                let entry = shown.split('.').next().filter(|first| first.contains('[')).unwrap_or("listeners");
                format!("did you mean {}?", found.replace("listeners[]", entry))
            }
            None => {
                let section = path.rsplit_once('.').map_or("", |(section, _)| section);
                let names: Vec<_> = keys::section_keys(section).collect();
                format!("possible here: {}", names.join(", "))
            }
        };
        self.fault(at, shown, None, Fault::new("unknown key").hint(hint));
    }

    /// A list where there may be one.
    fn text_of(&self, key: &Key, node: &MarkedYaml<'_>) -> Result<String, Fault> {
        match &node.data {
            YamlData::Sequence(items) if key.kind.is_list() => {
                let texts: Vec<_> = items.iter().map(|item| self.scalar(item)).collect::<Result<_, _>>()?;
                Ok(texts.join(", "))
            }
            _ => self.scalar(node),
        }
    }

    fn scalar(&self, node: &MarkedYaml<'_>) -> Result<String, Fault> {
        match &node.data {
            YamlData::Value(Scalar::String(text)) => Ok(text.clone().into_owned()),
            YamlData::Value(Scalar::Null) => Err(Fault::new("has no value").hint("give one, or remove the key")),
            YamlData::Value(scalar) => Ok(self.as_written(node, scalar)),
            YamlData::Mapping(_) | YamlData::Sequence(_) => {
                Err(Fault::new("must be a single value, not a list or mapping"))
            }
            YamlData::Representation(..) | YamlData::Tagged(..) | YamlData::Alias(_) | YamlData::BadValue => {
                Err(Fault::new("has a tag or value that is not understood").hint("write it plainly, without a tag"))
            }
        }
    }

    /// The parser has already turned `10` or `1.50` into numbers; messages must show what stands in the file.
    fn as_written(&self, node: &MarkedYaml<'_>, scalar: &Scalar<'_>) -> String {
        let (start, end) = (node.span.start.index(), node.span.end.index());
        let text: String = self.text.chars().skip(start).take(end.saturating_sub(start)).collect();
        let is_plain = !text.is_empty() && !text.starts_with(['*', '&', '!', '"', '\'']);
        match scalar {
            _ if is_plain => text.trim().to_owned(),
            Scalar::Boolean(value) => value.to_string(),
            Scalar::Integer(value) => value.to_string(),
            Scalar::FloatingPoint(value) => value.to_string(),
            Scalar::String(value) => value.clone().into_owned(),
            Scalar::Null => String::new(),
        }
    }

    fn fault(&mut self, at: &Marker, key: &str, value: Option<String>, fault: Fault) {
        let (line, column) = place(at);
        let error = ConfigError::new(self.at(line, column), key, value, fault);
        self.layer.errors.push(error);
    }

    fn at(&self, line: usize, column: usize) -> Origin {
        Origin::Text { name: self.name.to_owned(), line, column }
    }
}

fn is_null(node: &MarkedYaml<'_>) -> bool {
    matches!(node.data, YamlData::Value(Scalar::Null))
}

pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn place(marker: &Marker) -> Place {
    (marker.line(), marker.col() + 1)
}

fn plain_word(text: &str, start: usize) -> String {
    text.chars().skip(start).take_while(|c| !c.is_whitespace() && *c != ':').take(80).collect()
}

/// Bytes; Linux allows no longer text in a variable either.
pub(super) const LARGEST: usize = 128 * 1024;

/// Columns of indentation, and block indicators on one line.
const DEEPEST: usize = 64;

const MOST_ANCHORS: usize = 16;

/// Sections that mean something by being there.
pub(super) const NEVER_EMPTY: [&str; 3] = ["listeners[].tls", "listeners[].upstream_tls", HOLD];
