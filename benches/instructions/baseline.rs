//! Owns what counts are held against: a file with a count and a note for each row, and the rule that a count only grows
//! with a new note.

use std::fmt::Write;

/// A row that needs more than this, in percent, fails. Runs differ by less than one.
pub(crate) const TOLERANCE: f64 = 5.0;
/// What is not worth a change of the file.
const NOISE: f64 = 1.0;
/// The section with what the counts depend on beside the code.
const FACTS: &str = "measured-with";

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Baseline {
    /// With what it was measured: name and value.
    pub(crate) facts: Vec<(String, String)>,
    pub(crate) rows: Vec<Recorded>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) name: String,
    /// Instructions.
    pub(crate) count: u64,
    /// Why they are as many as they are.
    pub(crate) note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Grown,
    Same,
    Shrunk,
    /// Nothing to hold it against.
    New,
}

// === impl Baseline ===

impl Baseline {
    /// Reads sections, numbers and strings on one line each: no more of TOML than [`Self::render`] writes.
    ///
    /// # Errors
    /// With the line that is none of these, or a row that lacks something.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut baseline = Self::default();
        let mut in_facts = false;
        for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
            let fault = |what: &str| format!("line {number}: {what}: {line}");
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                in_facts = name == FACTS;
                if baseline.row(name).is_some() {
                    return Err(fault("the second of this name"));
                }
                if !in_facts {
                    baseline.rows.push(Recorded { name: name.to_owned(), count: 0, note: String::new() });
                }
                continue;
            }
            let (key, value) = line.split_once(" = ").ok_or_else(|| fault("neither [name] nor key = value"))?;
            let text = || serde_json::from_str::<String>(value).map_err(|_| fault("not a string"));
            match (key, in_facts, baseline.rows.last_mut()) {
                (_, true, _) => baseline.facts.push((key.to_owned(), text()?)),
                ("count", false, Some(row)) => row.count = value.parse().map_err(|_| fault("not a number"))?,
                ("note", false, Some(row)) => row.note = text()?,
                _ => return Err(fault("unknown key")),
            }
        }
        match baseline.rows.iter().find(|row| row.count == 0 || row.note.trim().is_empty()) {
            Some(row) => Err(format!("{}: a row has a count and a note", row.name)),
            None => Ok(baseline),
        }
    }

    /// As the file is written.
    pub(crate) fn render(&self) -> String {
        let mut text = String::from(HEAD);
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        _ = writeln!(text, "\n[{FACTS}]");
        for (name, value) in &self.facts {
            _ = writeln!(text, "{name} = {}", quoted(value));
        }
        for Recorded { name, count, note } in &self.rows {
            _ = writeln!(text, "\n[{name}]\ncount = {count}\nnote = {}", quoted(note));
        }
        text
    }

    pub(crate) fn row(&self, name: &str) -> Option<&Recorded> {
        self.rows.iter().find(|row| row.name == name)
    }

    pub(crate) fn judge(&self, name: &str, count: u64) -> Verdict {
        match self.row(name).map(|row| growth(row.count, count)) {
            None => Verdict::New,
            Some(percent) if percent > TOLERANCE => Verdict::Grown,
            Some(percent) if percent < -TOLERANCE => Verdict::Shrunk,
            Some(_) => Verdict::Same,
        }
    }

    /// Takes over a new count: a lower one as it is, a higher one only with a note. Says what has become of it.
    pub(crate) fn update(&mut self, name: &str, count: u64, note: Option<&str>) -> String {
        let Some(row) = self.rows.iter_mut().find(|row| row.name == name) else {
            let note = note.unwrap_or("first count").to_owned();
            self.rows.push(Recorded { name: name.to_owned(), count, note });
            return format!("{name}: new, {count}");
        };
        let (old, percent) = (row.count, growth(row.count, count));
        if percent.abs() <= NOISE {
            return format!("{name}: kept at {old}");
        }
        if percent > 0.0 {
            let Some(note) = note else {
                return format!("{name}: kept at {old}; {count} is {percent:+.1} %, to raise it say why: --note TEXT");
            };
            note.clone_into(&mut row.note);
        }
        row.count = count;
        format!("{name}: {old} -> {count}, {percent:+.1} %")
    }
}

/// In percent.
pub(crate) fn growth(old: u64, new: u64) -> f64 {
    (new as f64 - old as f64) * 100.0 / old as f64
}

const HEAD: &str = "\
# Instructions of each hot path, see docs/performance.md. Written by the benchmark's --update: it lowers counts by
# itself and raises one only with --note, which tells why. Never raise a count by hand.
";
