//! Owns the lines of `text/event-stream`, as the HTML standard §9.2.6 reads them.

use std::time::Duration;

use crate::harness::wait::Mono;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) data: String,
    /// When its blank line came.
    pub(crate) at: Mono,
}

/// One stream; an event without its blank line is thrown away with it.
#[derive(Debug)]
pub(crate) struct Parser {
    line: Vec<u8>,
    /// A CR has ended the line: an LF behind it belongs to the same end.
    after_cr: bool,
    begun: bool,
    data: String,
    kind: String,
    /// Of the event under way; it counts from the blank line on.
    id: String,
    last_id: String,
    retry: Option<Duration>,
}

// === impl Event ===

impl Event {
    /// From the app's write to our read, if the data are those of the toy app.
    pub(crate) fn delay(&self) -> Option<Duration> {
        let written = self.data.split(' ').nth(1)?.parse().ok()?;
        Some(self.at.since(Mono::from_nanos(written)))
    }
}

// === impl Parser ===

impl Parser {
    pub(crate) fn new(last_id: &str) -> Self {
        Self {
            line: Vec::new(),
            after_cr: false,
            begun: false,
            data: String::new(),
            kind: String::new(),
            id: last_id.to_owned(),
            last_id: last_id.to_owned(),
            retry: None,
        }
    }

    pub(crate) fn last_id(&self) -> &str {
        &self.last_id
    }

    /// What the stream has said about coming back.
    pub(crate) const fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// The events that these bytes make whole.
    pub(crate) fn feed(&mut self, bytes: &[u8], now: Mono) -> Vec<Event> {
        let mut events = Vec::new();
        for byte in bytes {
            let second = self.after_cr && *byte == b'\n';
            self.after_cr = *byte == b'\r';
            match byte {
                b'\n' if second => {}
                b'\n' | b'\r' => {
                    let line = std::mem::take(&mut self.line);
                    events.extend(self.end_line(&line, now));
                }
                _ => self.line.push(*byte),
            }
        }
        events
    }

    fn end_line(&mut self, line: &[u8], now: Mono) -> Option<Event> {
        let text = String::from_utf8_lossy(line);
        let mut line = text.as_ref();
        if !std::mem::replace(&mut self.begun, true) {
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
        }
        if line.is_empty() {
            return self.dispatch(now);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                self.data.push_str(value);
                self.data.push('\n');
            }
            "event" => value.clone_into(&mut self.kind),
            "id" if !value.contains('\0') => value.clone_into(&mut self.id),
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.retry = value.parse().ok().map(Duration::from_millis);
            }
            // A comment, or a field that nobody knows.
            _ => {}
        }
        None
    }

    fn dispatch(&mut self, now: Mono) -> Option<Event> {
        self.id.clone_into(&mut self.last_id);
        let (kind, mut data) = (std::mem::take(&mut self.kind), std::mem::take(&mut self.data));
        data.pop()?;
        let kind = if kind.is_empty() { "message".to_owned() } else { kind };
        Some(Event { id: self.last_id.clone(), kind, data, at: now })
    }
}
