//! Where the events of a `text/event-stream` end (HTML Living Standard §9.2.6). Pure.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};

use super::boundary::Boundary;

/// Follows one stream of events. An event ends with an empty line; lines end with LF, CR LF or CR.
#[derive(Debug, Clone, Copy)]
pub struct Events {
    line: Line,
    /// The latest byte was a CR: a LF right behind it belongs to it.
    after_cr: bool,
    /// A field of an event that has not ended stands in the lines since the latest empty one.
    open: bool,
    /// An event has ended.
    any: bool,
}

/// What the line that is being read has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Empty,
    /// It begins with a colon.
    Comment,
    Field,
}

/// The response is a stream of events that can be followed: a coding would hide where they end.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    const NAME: &[u8] = b"text/event-stream";
    let named = |text: &[u8]| {
        text.get(..NAME.len()).is_some_and(|start| start.eq_ignore_ascii_case(NAME))
            && matches!(text.get(NAME.len()), None | Some(b';' | b' '))
    };
    let is_plain = headers.get_all(CONTENT_ENCODING).iter().all(|coding| coding == "identity");
    is_plain && headers.get(CONTENT_TYPE).is_some_and(|value| named(value.as_bytes()))
}

// === impl Events ===

impl Events {
    /// Before the first byte.
    pub const fn new() -> Self {
        Self { line: Line::Empty, after_cr: false, open: false, any: false }
    }

    /// At least one event has ended.
    pub const fn any(&self) -> bool {
        self.any
    }

    /// In no field: a client throws away what an event that does not end has told it, and comments anyway.
    pub fn in_no_field(&self) -> bool {
        self.line != Line::Field
    }

    fn end_line(&mut self) {
        match std::mem::replace(&mut self.line, Line::Empty) {
            Line::Empty => {
                self.any |= self.open;
                self.open = false;
            }
            Line::Comment => {}
            Line::Field => self.open = true,
        }
    }
}

impl Default for Events {
    fn default() -> Self {
        Self::new()
    }
}

impl Boundary for Events {
    fn step(&mut self, bytes: &[u8]) -> usize {
        let mut ended = false;
        for (at, byte) in bytes.iter().enumerate() {
            let was_open = !self.at_boundary();
            match byte {
                b'\n' if self.after_cr => {}
                b'\n' | b'\r' => self.end_line(),
                b':' if self.line == Line::Empty => self.line = Line::Comment,
                _ if self.line == Line::Empty => self.line = Line::Field,
                _ => {}
            }
            self.after_cr = *byte == b'\r';
            let half_of_crlf = self.after_cr && bytes.get(at + 1) == Some(&b'\n');
            ended |= was_open && self.at_boundary();
            if ended && !half_of_crlf {
                return at + 1;
            }
        }
        bytes.len()
    }

    /// Nothing of an event is out. Comments belong to none, so that a keep-alive line counts as silence.
    fn at_boundary(&self) -> bool {
        self.line == Line::Empty && !self.open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(bytes: &[u8]) -> Vec<usize> {
        let mut seen = Events::new();
        let mut ends = Vec::new();
        let mut at = 0;
        while let Some(taken) = seen.advance_to_boundary(&bytes[at..]) {
            at += taken;
            ends.push(at);
        }
        ends
    }

    #[test]
    fn an_event_ends_with_an_empty_line_whatever_ends_its_lines() {
        for (end, length) in [("\n", 1), ("\r\n", 2), ("\r", 1)] {
            let event = format!("id: 1{end}data: x{end}{end}");
            let bytes = format!("{event}{event}data: half{end}");
            assert_eq!(ends(bytes.as_bytes()), [event.len(), 2 * event.len()], "{end:?}");
            assert_eq!(event.len(), 12 + 3 * length);
        }
    }

    #[test]
    fn every_cut_gives_the_same_boundaries() {
        let bytes = b"data: a\r\n\r\nid: 2\rdata\r\r: keep\nevent: b\n\n:\n\ndata: c\n\n";
        let whole = {
            let mut seen = Events::new();
            bytes
                .iter()
                .map(|byte| {
                    seen.advance(&[*byte]);
                    seen.at_boundary()
                })
                .collect::<Vec<_>>()
        };
        for cut in 0..bytes.len() {
            let mut seen = Events::new();
            seen.advance(&bytes[..cut]);
            for at in cut..bytes.len() {
                let mut further = seen;
                further.advance(&bytes[cut..=at]);
                assert_eq!(further.at_boundary(), whole[at], "cut at {cut}, up to {at}");
            }
        }
    }

    #[test]
    fn silence_and_comments_are_between_events() {
        let mut seen = Events::new();
        assert!(seen.at_boundary() && !seen.any());
        seen.advance(b": keep-alive\n");
        assert!(seen.at_boundary() && !seen.any());
        seen.advance(b"data: x\n");
        assert!(!seen.at_boundary() && seen.in_no_field());
        seen.advance(b"data: y");
        assert!(!seen.at_boundary() && !seen.in_no_field());
        seen.advance(b"\n\n");
        assert!(seen.at_boundary() && seen.any());
    }

    #[test]
    fn codings_and_other_types_are_not_followed() {
        let headers = |content_type: &str, coding: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, content_type.parse().unwrap());
            if let Some(coding) = coding {
                headers.insert(CONTENT_ENCODING, coding.parse().unwrap());
            }
            headers
        };
        assert!(is_event_stream(&headers("text/event-stream", None)));
        assert!(is_event_stream(&headers("Text/Event-Stream;charset=utf-8", Some("identity"))));
        assert!(!is_event_stream(&headers("text/event-stream", Some("gzip"))));
        assert!(!is_event_stream(&headers("text/event-streams", None)));
        assert!(!is_event_stream(&headers("application/x-ndjson", None)));
    }
}
