//! Owns the app's journal: what it received and did, with times, in a file that outlives it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use crate::harness::wait::{Mono, eventually};

/// The writing side, in the app.
#[derive(Debug)]
pub(super) struct Pen(Mutex<File>);

/// The reading side, in the test.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    path: PathBuf,
}

/// One line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) at: Mono,
    pub(crate) kind: String,
    pub(crate) fields: BTreeMap<String, String>,
}

// === impl Pen ===

impl Pen {
    pub(super) fn open(path: &PathBuf) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path).expect("the journal can be opened");
        Self(Mutex::new(file))
    }

    /// One write per line: an app that dies at once loses nothing and tears no line.
    pub(super) fn note(&self, kind: &str, fields: &str) {
        let line = format!("{} {kind} {fields}\n", Mono::now().nanos());
        let _ = self.0.lock().expect("no writer panics").write_all(line.as_bytes());
    }
}

// === impl Journal ===

impl Journal {
    pub(crate) const fn at(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(&self.path).unwrap_or_default()
    }

    /// The last lines, for a failing test.
    pub(crate) fn tail(&self, lines: usize) -> String {
        let text = self.text();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Every whole line of this kind: `up listening unlistening connected disconnected req done term call
    /// beat held ack exit`, of HTTP/2 `preface goaway cancel lost` and `stream=` in `req` and `done`, of
    /// WebSocket `ws message close violation over`, of event streams `events`, of raw TCP `received`,
    /// of TLS `tls tls_end untrusted`.
    pub(crate) fn lines(&self, kind: &str) -> Vec<Line> {
        let text = self.text();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().filter_map(Line::parse).filter(|line| line.kind == kind).collect()
    }

    pub(crate) fn count(&self, kind: &str) -> usize {
        self.lines(kind).len()
    }

    /// How often the request with this `x-id` reached the app.
    pub(crate) fn times_seen(&self, id: &str) -> usize {
        self.lines("req").iter().filter(|line| line.get("id") == id).count()
    }

    /// How often each request reached the app.
    pub(crate) fn seen(&self) -> BTreeMap<String, usize> {
        let mut seen = BTreeMap::new();
        for line in self.lines("req") {
            *seen.entry(line.get("id").to_owned()).or_default() += 1;
        }
        seen
    }

    /// Panics unless every answered call reached the app exactly once and no other more often.
    pub(crate) fn assert_at_most_once<'a, E: Debug + 'a>(
        &self,
        calls: impl Iterator<Item = (&'a str, &'a Result<u16, E>)>,
    ) {
        let seen = self.seen();
        for (id, result) in calls {
            let times = seen.get(id).copied().unwrap_or(0);
            let fits = match result {
                Ok(_) => times == 1,
                Err(_) => times <= 1,
            };
            assert!(fits, "{id} ({result:?}) reached the app {times} times");
        }
    }

    /// The first SIGTERM of the last life.
    pub(crate) fn term_at(&self) -> Option<Mono> {
        let up = self.lines("up").last()?.at;
        self.lines("term").iter().map(|line| line.at).find(|at| *at >= up)
    }

    /// When the last response had been written in full.
    pub(crate) fn last_byte_at(&self) -> Option<Mono> {
        self.lines("done").last().map(|line| line.at)
    }

    /// Waits for at least so many lines of a kind.
    pub(crate) async fn wait(&self, kind: &str, at_least: usize, deadline: Duration) -> Vec<Line> {
        eventually(&format!("{at_least} `{kind}` in the journal"), deadline, || {
            let lines = self.lines(kind);
            if lines.len() >= at_least { Ok(lines) } else { Err(lines.len()) }
        })
        .await
    }
}

// === impl Line ===

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let at = Mono::from_nanos(words.next()?.parse().ok()?);
        let kind = words.next()?.to_owned();
        let fields = words
            .filter_map(|word| word.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Some(Self { at, kind, fields })
    }

    /// Empty if the field is missing.
    pub(crate) fn get(&self, key: &str) -> &str {
        self.fields.get(key).map_or("", String::as_str)
    }
}
