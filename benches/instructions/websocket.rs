//! Owns WebSocket, as small as it can be: frames with 128 bytes, each sent back.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::Sender;

use crate::app::Reply;
use crate::ebbtide::Outcome;
use crate::http1;

/// The pair of RFC 6455, section 1.3.
const UPGRADE: &str = "upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-version: 13\r\n\
     sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
     sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

const SIZE: usize = 128;
/// FIN and binary, a length in two bytes, and with it whether the bytes are masked.
const TO_APP: [u8; 4] = [0x82, 0x80 | 126, 0, SIZE as u8];
const TO_CLIENT: [u8; 4] = [0x82, 126, 0, SIZE as u8];
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

// --- the app ---

pub(crate) fn serve(stream: &mut TcpStream, replies: &Sender<Reply>) -> Outcome<()> {
    if http1::read_message(stream)?.is_none() {
        return Ok(());
    }
    replies.send((stream.try_clone()?, AGREED.into()))?;
    let mut frame = [0; TO_APP.len() + MASK.len() + SIZE];
    loop {
        stream.read_exact(&mut frame)?;
        let (mask, masked) = frame[TO_APP.len()..].split_at(MASK.len());
        let payload = masked.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
        replies.send((stream.try_clone()?, TO_CLIENT.into_iter().chain(payload).collect()))?;
    }
}

// --- the client ---

pub(crate) fn upgrade(stream: &mut TcpStream) -> Outcome<()> {
    stream.write_all(format!("GET /chat {}{UPGRADE}", http1::HEAD).as_bytes())?;
    match http1::read_message(stream)? {
        Some(0) => Ok(()),
        other => Err(format!("no upgrade: {other:?}").into()),
    }
}

/// Sends a frame and reads it back.
pub(crate) fn echo(stream: &mut TcpStream) -> Outcome<()> {
    let masked = MASK.into_iter().cycle().map(|mask| b'x' ^ mask).take(SIZE);
    stream.write_all(&TO_APP.into_iter().chain(MASK).chain(masked).collect::<Vec<u8>>())?;
    let mut frame = [0; TO_CLIENT.len() + SIZE];
    stream.read_exact(&mut frame)?;
    let as_sent = frame.starts_with(&TO_CLIENT) && frame[TO_CLIENT.len()..] == [b'x'; SIZE];
    if as_sent { Ok(()) } else { Err("another message came back".into()) }
}
