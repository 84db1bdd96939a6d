//! Owns HTTP/2, as small as it can be: known header blocks, and of what comes only the ends of streams are looked at.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::Sender;

use crate::app::Reply;
use crate::ebbtide::Outcome;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// INITIAL_WINDOW_SIZE of a mebibyte.
const SETTINGS: &[u8] = &[0, 4, 0, 0x10, 0, 0];
/// Adds a gibibyte to the window of the connection: more than a row sends.
const WINDOW: &[u8] = &[0x40, 0, 0, 0];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS_FRAME: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// Header fields of HPACK (RFC 7541) as the crate h2 writes them: in Huffman's code, and all but the path go into the
/// dynamic table. `first` fills it, the blocks after it point into it.
struct Block {
    first: &'static [&'static [u8]],
    later: &'static [&'static [u8]],
}

/// `:method: GET`, `:path: /small`, `:authority: app.example`, `user-agent: instructions/1.0`,
/// `accept: */*`.
const GET: Block = Block {
    first: &[&[0x82], SMALL, AUTHORITY, USER_AGENT, b"\x53\x83\xf9\x63\xe7"],
    later: &[&[0x82], SMALL, &[0xc0, 0xbf, 0xbe]],
};
/// `:method: POST`, `:path: /echo.Echo/Say`, `:authority: app.example`, `user-agent:
/// instructions/1.0`, `content-type: application/grpc`, `te: trailers`.
const CALL: Block = Block {
    first: &[&[0x83], SAY, AUTHORITY, USER_AGENT, GRPC, b"\x40\x82\x49\x7f\x86\x4d\x83\x35\x05\xb1\x1f"],
    later: &[&[0x83], SAY, &[0xc1, 0xc0, 0xbf, 0xbe]],
};
/// `:status: 200`, `content-type: application/grpc`.
const ANSWER: Block = Block { first: &[&[0x88], GRPC], later: &[&[0x88, 0xbf]] };
/// `grpc-status: 0`.
const STATUS: Block = Block { first: &[b"\x40\x88\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x81\x07"], later: &[&[0xbe]] };

const SMALL: &[u8] = b"\x04\x85\x61\x14\x8e\x8a\x3f";
const SAY: &[u8] = b"\x04\x8b\x60\xa4\x9c\xeb\xe0\x24\xe7\x63\x70\xfd\x7f";
const AUTHORITY: &[u8] = b"\x41\x88\x1d\x75\xae\x5f\x23\xa6\xba\x0b";
const USER_AGENT: &[u8] = b"\x7a\x8b\x35\x48\x4d\x96\x91\x26\x3d\x48\x60\x2b\x83";
const GRPC: &[u8] = b"\x5f\x8b\x1d\x75\xd0\x62\x0d\x26\x3d\x4c\x4d\x65\x64";

/// `:scheme`, http and https; it goes in front.
const HTTP: &[u8] = &[0x86];
const HTTPS: &[u8] = &[0x87];

/// A message of gRPC: not compressed, 128 bytes.
fn message() -> Vec<u8> {
    [&[0, 0, 0, 0, 128][..], &[b'x'; 128]].concat()
}

impl Block {
    fn bytes(&self, first: bool) -> Vec<u8> {
        if first { self.first.concat() } else { self.later.concat() }
    }
}

// --- the app ---

pub(crate) fn serve(stream: &mut TcpStream, replies: &Sender<Reply>) -> Outcome<()> {
    let mut preface = [0; PREFACE.len()];
    match stream.read(&mut preface)? {
        // A probe.
        0 => return Ok(()),
        read => stream.read_exact(&mut preface[read..])?,
    }
    stream.write_all(&greeting())?;
    let mut first = true;
    while let Some(frame) = read_frame(stream)? {
        if frame.ends_stream() {
            let answer = [
                encode(HEADERS, END_HEADERS, frame.stream, &ANSWER.bytes(first)),
                encode(DATA, 0, frame.stream, &message()),
                encode(HEADERS, END_HEADERS | END_STREAM, frame.stream, &STATUS.bytes(first)),
            ];
            first = false;
            replies.send((stream.try_clone()?, answer.concat()))?;
        } else {
            answer_control(stream, &frame)?;
        }
    }
    Ok(())
}

// --- the client ---

/// One connection, on which so many requests are sent at once.
pub(crate) struct Client<S> {
    stream: S,
    scheme: &'static [u8],
    kind: Kind,
    at_once: u32,
    next: u32,
}

/// What is asked for.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Get,
    GetOverTls,
    /// Of gRPC.
    Call,
}

impl<S: Read + Write> Client<S> {
    pub(crate) fn new(mut stream: S, kind: Kind, at_once: u32) -> Outcome<Self> {
        stream.write_all(&[PREFACE, &greeting()].concat())?;
        stream.flush()?;
        let scheme = if matches!(kind, Kind::GetOverTls) { HTTPS } else { HTTP };
        Ok(Self { stream, scheme, kind, at_once, next: 1 })
    }

    /// Sends them and waits until all are answered.
    pub(crate) fn ask(&mut self) -> Outcome<()> {
        let mut request = Vec::new();
        for _ in 0..self.at_once {
            let (block, end) = match self.kind {
                Kind::Call => (&CALL, 0),
                Kind::Get | Kind::GetOverTls => (&GET, END_STREAM),
            };
            let head = [self.scheme, &block.bytes(self.next == 1)].concat();
            request.extend(encode(HEADERS, END_HEADERS | end, self.next, &head));
            if end == 0 {
                request.extend(encode(DATA, END_STREAM, self.next, &message()));
            }
            self.next += 2;
        }
        self.stream.write_all(&request)?;
        self.stream.flush()?;
        let mut open = self.at_once;
        while open > 0 {
            let frame = read_frame(&mut self.stream)?.ok_or("the connection has ended")?;
            if frame.ends_stream() {
                open -= 1;
            } else {
                answer_control(&mut self.stream, &frame)?;
            }
        }
        Ok(())
    }
}

// --- frames ---

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }
}

fn greeting() -> Vec<u8> {
    [encode(SETTINGS_FRAME, 0, 0, SETTINGS), encode(WINDOW_UPDATE, 0, 0, WINDOW)].concat()
}

fn encode(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn read_frame(stream: &mut impl Read) -> Outcome<Option<Frame>> {
    let mut head = [0; 9];
    match stream.read(&mut head)? {
        0 => return Ok(None),
        read => stream.read_exact(&mut head[read..])?,
    }
    let [high, middle, low, kind, flags, id @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
    stream.read_exact(&mut payload)?;
    Ok(Some(Frame { kind, flags, stream: u32::from_be_bytes(id), payload }))
}

fn answer_control(stream: &mut impl Write, frame: &Frame) -> Outcome<()> {
    match (frame.kind, frame.flags & ACK) {
        (SETTINGS_FRAME | PING, 0) => {
            let payload: &[u8] = if frame.kind == PING { &frame.payload } else { &[] };
            stream.write_all(&encode(frame.kind, ACK, 0, payload))?;
            Ok(stream.flush()?)
        }
        (3 | GOAWAY, _) => Err(format!("frame {} came: {:?}", frame.kind, frame.payload).into()),
        _ => Ok(()),
    }
}
