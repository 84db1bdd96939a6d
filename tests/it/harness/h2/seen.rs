//! Owns what a raw connection has seen: one answer per stream, and the frames about the connection.

use std::collections::BTreeMap;

use loona_hpack::Decoder;

use super::frame::{Frame, Kind, setting};
use super::grpc;
use crate::harness::wait::Mono;

/// Header fields in their order.
pub(crate) type Fields = Vec<(String, String)>;

/// What came on one stream so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    /// Statuses of the 1xx heads.
    pub(crate) interim: Vec<u16>,
    pub(crate) head: Fields,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<Fields>,
    /// END_STREAM has come.
    pub(crate) ended: bool,
    /// The code of RST_STREAM.
    pub(crate) reset: Option<u32>,
    /// When the end or the reset came.
    pub(crate) over_at: Option<Mono>,
    /// When the last frame came.
    pub(crate) last_at: Option<Mono>,
}

/// A frame about the whole connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Settings(Vec<(u16, u32)>),
    SettingsAck,
    Ping([u8; 8]),
    PingAck([u8; 8]),
    Goaway { last: u32, code: u32, debug: Vec<u8> },
}

/// Everything that came, in the order of the wire where order matters.
pub(crate) struct Seen {
    pub(crate) answers: BTreeMap<u32, Answer>,
    pub(crate) control: Vec<(Mono, Control)>,
    pub(crate) frames: usize,
    decoder: Decoder<'static>,
    /// A header block whose END_HEADERS has not come: its stream, whether it ends the stream, its bytes.
    open_block: Option<(u32, bool, Vec<u8>)>,
    /// What may still be sent; the first is the connection.
    windows: BTreeMap<u32, i64>,
    initial_window: i64,
}

// === impl Seen ===

impl Seen {
    pub(super) fn new() -> Self {
        Self {
            answers: BTreeMap::new(),
            control: Vec::new(),
            frames: 0,
            decoder: Decoder::new(),
            open_block: None,
            windows: BTreeMap::from([(0, DEFAULT_WINDOW)]),
            initial_window: DEFAULT_WINDOW,
        }
    }

    /// Empty if nothing has come on this stream.
    pub(crate) fn answer(&self, stream: u32) -> Answer {
        self.answers.get(&stream).cloned().unwrap_or_default()
    }

    pub(crate) fn is_over(&self, stream: u32) -> bool {
        self.answers.get(&stream).is_some_and(Answer::is_over)
    }

    /// What came about leaving: GOAWAY frames and pings, without the acknowledgements of ours.
    pub(crate) fn notices(&self) -> Vec<Control> {
        let notice = |one: &&(Mono, Control)| matches!(one.1, Control::Goaway { .. } | Control::Ping(_));
        self.control.iter().filter(notice).map(|(_, control)| control.clone()).collect()
    }

    /// Last-stream-id and code of each GOAWAY.
    pub(crate) fn goaways(&self) -> Vec<(u32, u32)> {
        let goaway = |one: &(Mono, Control)| match one.1 {
            Control::Goaway { last, code, .. } => Some((last, code)),
            _ => None,
        };
        self.control.iter().filter_map(goaway).collect()
    }

    /// When the GOAWAY of this number (from 0) came.
    pub(crate) fn goaway_at(&self, number: usize) -> Option<Mono> {
        let goaways = self.control.iter().filter(|(_, control)| matches!(control, Control::Goaway { .. }));
        goaways.map(|(at, _)| *at).nth(number)
    }

    /// The peer's settings, later values above earlier ones.
    pub(crate) fn settings(&self) -> Option<BTreeMap<u16, u32>> {
        let all: Vec<&Vec<(u16, u32)>> = self
            .control
            .iter()
            .filter_map(|(_, control)| match control {
                Control::Settings(values) => Some(values),
                _ => None,
            })
            .collect();
        (!all.is_empty()).then(|| all.into_iter().flatten().copied().collect())
    }

    /// What flow control lets us send on this stream now.
    pub(crate) fn may_send(&self, stream: u32) -> usize {
        let own = self.windows.get(&stream).copied().unwrap_or(0) + self.initial_window;
        usize::try_from(own.min(self.windows[&0])).unwrap_or(0)
    }

    /// Windows of streams are kept as a difference to the initial one, which may change later.
    pub(super) fn sent(&mut self, stream: u32, bytes: usize) {
        for one in [0, stream] {
            *self.windows.entry(one).or_default() -= bytes as i64;
        }
    }

    pub(super) fn add(&mut self, frame: &Frame) {
        self.frames += 1;
        let now = Mono::now();
        if let Some(control) = control(frame) {
            if let Control::Settings(values) = &control {
                self.settle(values);
            }
            self.control.push((now, control));
            return;
        }
        match frame.kind {
            Kind::WindowUpdate => *self.windows.entry(frame.stream).or_default() += i64::from(frame.number(0)),
            Kind::Headers => {
                self.open_block = Some((frame.stream, frame.ends_stream(), frame.content().to_vec()));
                self.close_block(frame, now);
            }
            Kind::Continuation => {
                let (_, _, block) = self.open_block.as_mut().expect("CONTINUATION follows HEADERS");
                block.extend_from_slice(frame.content());
                self.close_block(frame, now);
            }
            Kind::Data => {
                let answer = self.touched(frame.stream, now);
                answer.body.extend_from_slice(frame.content());
                if frame.ends_stream() {
                    answer.end(now);
                }
            }
            Kind::RstStream => {
                let answer = self.touched(frame.stream, now);
                answer.reset.get_or_insert_with(|| frame.number(0));
                answer.over_at.get_or_insert(now);
            }
            _ => {}
        }
    }

    fn close_block(&mut self, frame: &Frame, now: Mono) {
        if !frame.ends_headers() {
            return;
        }
        let (stream, ends, block) = self.open_block.take().expect("a block is open");
        let fields = self.decoder.decode(&block).unwrap_or_else(|error| panic!("header block: {error:?}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let fields: Fields = fields.iter().map(|(name, value)| (text(name), text(value))).collect();
        let answer = self.touched(stream, now);
        let status = get(&fields, ":status").and_then(|status| status.parse().ok());
        match status {
            Some(interim @ 100..200) => answer.interim.push(interim),
            _ if answer.head.is_empty() => answer.head = fields,
            _ => answer.trailers = Some(fields),
        }
        if ends {
            answer.end(now);
        }
    }

    fn touched(&mut self, stream: u32, now: Mono) -> &mut Answer {
        let answer = self.answers.entry(stream).or_default();
        answer.last_at = Some(now);
        answer
    }

    fn settle(&mut self, values: &[(u16, u32)]) {
        for (id, value) in values {
            if *id == setting::INITIAL_WINDOW_SIZE {
                self.initial_window = i64::from(*value);
            }
        }
    }
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Seen").field("control", &self.control).field("answers", &self.answers).finish_non_exhaustive()
    }
}

// === impl Answer ===

impl Answer {
    /// 0 before a head has come.
    pub(crate) fn status(&self) -> u16 {
        self.header(":status").and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        get(&self.head, name)
    }

    pub(crate) fn trailer(&self, name: &str) -> Option<&str> {
        get(self.trailers.as_ref()?, name)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Ended or reset.
    pub(crate) const fn is_over(&self) -> bool {
        self.over_at.is_some()
    }

    /// A clean end, and no reset before it.
    pub(crate) const fn is_whole(&self) -> bool {
        self.ended && self.reset.is_none()
    }

    /// From the trailers or, if there are none, from the head.
    pub(crate) fn grpc_status(&self) -> Option<u16> {
        self.trailer("grpc-status").or_else(|| self.header("grpc-status"))?.parse().ok()
    }

    pub(crate) fn grpc_message(&self) -> Option<&str> {
        self.trailer("grpc-message").or_else(|| self.header("grpc-message"))
    }

    /// One HEADERS frame with END_STREAM and nothing else.
    pub(crate) fn is_trailers_only(&self) -> bool {
        self.is_whole() && self.body.is_empty() && self.trailers.is_none() && self.header("grpc-status").is_some()
    }

    /// The whole gRPC messages, and how many bytes of an unfinished one follow.
    pub(crate) fn messages(&self) -> (Vec<Vec<u8>>, usize) {
        grpc::split(&self.body)
    }

    fn end(&mut self, now: Mono) {
        // A reset after the end takes nothing back: it is about the request's body.
        if self.reset.is_none() {
            self.ended = true;
        }
        self.over_at.get_or_insert(now);
    }
}

fn control(frame: &Frame) -> Option<Control> {
    let eight = || frame.payload.clone().try_into().expect("a PING has eight bytes");
    Some(match frame.kind {
        Kind::Settings if frame.is_ack() => Control::SettingsAck,
        Kind::Settings => Control::Settings(frame.settings_values()),
        Kind::Ping if frame.is_ack() => Control::PingAck(eight()),
        Kind::Ping => Control::Ping(eight()),
        Kind::Goaway => Control::Goaway {
            last: frame.number(0),
            code: frame.number(4),
            debug: frame.payload.get(8..).unwrap_or_default().to_vec(),
        },
        _ => return None,
    })
}

fn get<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

const DEFAULT_WINDOW: i64 = 65_535;
