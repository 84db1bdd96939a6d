//! The lines that show what happens while the demo runs.

use std::io::{self, Write};
use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::load::Tally;
use super::table::grouped;

/// Where all parts of the demo tell what has happened.
#[derive(Debug, Clone)]
pub(super) struct Events(UnboundedSender<Event>);

/// Something to show.
#[derive(Debug)]
pub(super) enum Event {
    /// A side begins.
    Heading(String),
    /// The pod was deleted; later times count from here.
    Deleted(Instant),
    /// Something happened at that moment.
    Line(Instant, String),
    /// The load runs, and counts here; `None` when it is over.
    Load(Option<Arc<Tally>>),
}

/// Writes the events, and once a second the requests so far: on one rewritten line if a person watches.
pub(super) struct Progress<'a> {
    out: &'a mut dyn Write,
    terminal: bool,
    deleted: Option<Instant>,
    load: Option<Arc<Tally>>,
    rewritable: bool,
}

// === impl Events ===

impl Events {
    /// Sends to the receiver of this channel.
    pub(super) fn new(sender: UnboundedSender<Event>) -> Self {
        Self(sender)
    }

    /// Something happened now.
    pub(super) fn line(&self, text: impl Into<String>) {
        self.send(Event::Line(Instant::now(), text.into()));
    }

    /// Any other event.
    pub(super) fn send(&self, event: Event) {
        // The receiver is gone only when the demo is being abandoned.
        self.0.send(event).ok();
    }
}

// === impl Progress ===

impl std::fmt::Debug for Progress<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Progress").field("terminal", &self.terminal).finish_non_exhaustive()
    }
}

impl<'a> Progress<'a> {
    /// `terminal`: whether `out` can rewrite a line.
    pub(super) fn new(out: &'a mut dyn Write, terminal: bool) -> Self {
        Self { out, terminal, deleted: None, load: None, rewritable: false }
    }

    /// Writes a line as it is.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        if self.rewritable {
            self.rewritable = false;
            write!(self.out, "\r{:WIDTH$}\r", "")?;
        }
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    /// Ends a rewritten line, so that whatever is written next has one of its own.
    pub(super) fn end(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.rewritable) { writeln!(self.out) } else { Ok(()) }
    }

    /// Takes an event in.
    pub(super) fn event(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Heading(text) => {
                self.deleted = None;
                self.line(&format!("\n{text}"))
            }
            Event::Deleted(at) => {
                self.deleted = Some(at);
                Ok(())
            }
            Event::Line(at, text) => self.line(&format!("{}  {text}", stamp(self.deleted, at))),
            Event::Load(load) => {
                self.load = load;
                Ok(())
            }
        }
    }

    /// Shows the requests so far, if the load runs.
    pub(super) fn tick(&mut self) -> io::Result<()> {
        let Some(load) = &self.load else { return Ok(()) };
        let (requests, failed) = load.totals();
        let stamp = stamp(self.deleted, Instant::now());
        let text = format!("{stamp}    {:>7} requests {:>7} failed", grouped(requests), grouped(failed));
        if !self.terminal {
            return self.line(&text);
        }
        self.rewritable = true;
        write!(self.out, "\r{text}")?;
        self.out.flush()
    }
}

fn stamp(deleted: Option<Instant>, at: Instant) -> String {
    match deleted {
        Some(deleted) => format!("[{:>6} s]", format!("+{:.2}", at.saturating_duration_since(deleted).as_secs_f64())),
        None => "[ warm-up]".to_owned(),
    }
}

const WIDTH: usize = 60;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines_bear_the_time_since_the_deletion() {
        let mut out = Vec::new();
        let mut progress = Progress::new(&mut out, false);
        let now = Instant::now();
        progress.event(Event::Line(now, "pods are ready".to_owned())).expect("must write");
        progress.event(Event::Deleted(now)).expect("must write");
        progress.event(Event::Line(now + Duration::from_millis(12_340), "gone".to_owned())).expect("must write");
        progress.event(Event::Load(Some(Arc::default()))).expect("must write");
        progress.tick().expect("must write");
        let text = String::from_utf8(out).expect("must be text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "[ warm-up]  pods are ready");
        assert_eq!(lines[1], "[+12.34 s]  gone");
        assert!(lines[2].ends_with("0 requests       0 failed"));
    }
}
