//! Owns reading the Prometheus text format.

use std::collections::BTreeMap;

/// One scrape.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    samples: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn parse(text: &str) -> Self {
        let samples = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
            .map(|line| Sample::parse(line).unwrap_or_else(|| panic!("metric line {line:?}")))
            .collect();
        Self { samples }
    }

    /// All samples of a name that have at least these labels.
    pub(crate) fn all<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| {
            sample.name == name
                && labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|is| is == value))
        })
    }

    /// The only sample that fits; panics if there are several.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut fitting = self.all(name, labels);
        let first = fitting.next();
        assert!(fitting.next().is_none(), "several samples of {name}{labels:?}");
        first.map(|sample| sample.value)
    }

    /// The sum of all samples that fit; 0 if there is none.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.all(name, labels).map(|sample| sample.value).sum()
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.samples.iter().map(|one| one.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

// === impl Sample ===

impl Sample {
    fn parse(line: &str) -> Option<Self> {
        let name_end = line.find(['{', ' '])?;
        let (name, mut rest) = line.split_at(name_end);
        let mut labels = BTreeMap::new();
        if let Some(inner) = rest.strip_prefix('{') {
            rest = inner;
            loop {
                rest = rest.trim_start_matches([',', ' ']);
                if let Some(after) = rest.strip_prefix('}') {
                    rest = after;
                    break;
                }
                let (key, after) = rest.split_once("=\"")?;
                let (value, after) = quoted(after)?;
                labels.insert(key.to_owned(), value);
                rest = after;
            }
        }
        let value = rest.split_whitespace().next()?.parse().ok()?;
        Some(Self { name: name.to_owned(), labels, value })
    }
}

/// The text up to the closing quote, unescaped, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return Some((value, text.get(index + 1..)?)),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}
