//! What is wrong with a configuration, and where each value came from.

use std::fmt;

/// One fault; a failed load returns all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Where the value stands.
    pub origin: Origin,
    /// Dotted key such as `drain.hold` or `listeners[0].bind`; empty if the fault is in no single key.
    pub key: String,
    /// The text as given; `None` if there is none, or if it is a secret.
    pub value: Option<String>,
    /// What is wrong with it.
    pub reason: String,
    /// The way out.
    pub hint: Option<String>,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A place in a file, or in the text of `EBBTIDE_CONFIG_YAML`.
    Text {
        /// File name as given, or the variable's name.
        name: String,
        /// Counted from 1.
        line: usize,
        /// Counted from 1, in characters.
        column: usize,
    },
    /// An environment variable, by name.
    Variable(String),
    /// A command-line flag, with its dashes.
    Flag(String),
    /// A source as a whole: a file's name, or `configuration` for all sources together.
    Whole(String),
}

/// What is wrong with a value, not yet tied to a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) reason: String,
    pub(super) hint: Option<String>,
}

// === impl ConfigError ===

impl ConfigError {
    pub(super) fn new(origin: Origin, key: impl Into<String>, value: Option<String>, fault: Fault) -> Self {
        Self { origin, key: key.into(), value, reason: fault.reason, hint: fault.hint }
    }
}

impl fmt::Display for ConfigError {
    /// At most two lines, whatever the value holds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if !self.key.is_empty() {
            write!(f, "{}", one_line(&self.key))?;
            if let Some(value) = &self.value {
                write!(f, " = {:?}", shortened(value))?;
            }
            f.write_str(": ")?;
        }
        write!(f, "{}", one_line(&self.reason))?;
        if let Some(hint) = &self.hint {
            write!(f, "\n  help: {}", one_line(hint))?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

// === impl Origin ===

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Text { name, line, column } => write!(f, "{name}:{line}:{column}"),
            Self::Variable(name) | Self::Flag(name) | Self::Whole(name) => f.write_str(name),
        }
    }
}

// === impl Fault ===

impl Fault {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), hint: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// The candidate a mistyped name most likely meant: at most a third of it mistyped, or the same last part in another
/// section.
pub(crate) fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A longer name is no typing mistake, and the distance below is quadratic.
    if given.len() > 100 {
        return None;
    }
    let last = |path: &str| path.rsplit('.').next().map(str::to_owned);
    let section = given.rfind('.').map_or("", |dot| &given[..=dot]);
    candidates
        .into_iter()
        .map(|candidate| {
            let same_last = last(candidate) == last(given);
            let distance = edits(given, candidate).min(if same_last { 1 } else { usize::MAX });
            // A section spelt right must not make up for a name that has nothing in common.
            let tried = if candidate.starts_with(section) { &given[section.len()..] } else { given };
            let allowed = if same_last { 1 } else { tried.chars().count() / 3 };
            (distance, allowed, candidate)
        })
        .filter(|(distance, allowed, _)| distance <= allowed)
        .min_by_key(|(distance, ..)| *distance)
        .map(|(.., candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours, without regard to case.
fn edits(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().map(|c| c.to_ascii_lowercase()).collect();
    let b: Vec<char> = b.chars().map(|c| c.to_ascii_lowercase()).collect();
    let mut before = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, cb) in b.iter().enumerate() {
            let replaced = above[j] + usize::from(ca != cb);
            let mut best = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *ca == b[j - 1] && a[i - 1] == *cb {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above.last().copied().unwrap_or_default()
}

fn shortened(value: &str) -> String {
    if value.chars().count() <= LONGEST_VALUE {
        value.to_owned()
    } else {
        value.chars().take(LONGEST_VALUE).chain("...".chars()).collect()
    }
}

/// A key may hold anything a YAML string can; a log line must stay one line.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Characters of a value shown in a message.
const LONGEST_VALUE: usize = 80;
