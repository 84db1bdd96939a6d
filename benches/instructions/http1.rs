//! Owns HTTP/1 and plain bytes, as small as they can be: one whole message at a time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::Sender;

use crate::app::Reply;
use crate::ebbtide::Outcome;

pub(crate) const HEAD: &str = "HTTP/1.1\r\nhost: app.example\r\nuser-agent: instructions/1.0\r\naccept: */*\r\n";

// --- the app ---

pub(crate) fn serve(stream: &mut TcpStream, size: usize, replies: &Sender<Reply>) -> Outcome<()> {
    let answer = [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: ",
        size.to_string().as_bytes(),
        b"\r\ndate: Mon, 30 Nov 2026 12:00:00 GMT\r\nserver: app\r\n\r\n",
        &vec![b'x'; size],
    ]
    .concat();
    while read_message(stream)?.is_some() {
        replies.send((stream.try_clone()?, answer.clone()))?;
    }
    Ok(())
}

pub(crate) fn echo(stream: &mut TcpStream, replies: &Sender<Reply>) -> Outcome<()> {
    let mut buffer = vec![0; 65_536];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            length => replies.send((stream.try_clone()?, buffer[..length].to_vec()))?,
        }
    }
}

// --- both ---

/// The size of the body of the next message, or `None` if the connection ends instead.
pub(crate) fn read_message(stream: &mut impl Read) -> Outcome<Option<usize>> {
    let mut input = Vec::new();
    let head = loop {
        if let Some(end) = input.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if read_some(stream, &mut input)? == 0 {
            return if input.is_empty() { Ok(None) } else { Err("half a head".into()) };
        }
    };
    let text = String::from_utf8_lossy(&input[..head]).to_ascii_lowercase();
    let length = text.split_once("content-length: ").and_then(|(_, rest)| rest.lines().next()?.trim().parse().ok());
    let length: usize = length.unwrap_or(0);
    while input.len() < head + length {
        if read_some(stream, &mut input)? == 0 {
            return Err("half a body".into());
        }
    }
    if input.len() > head + length {
        return Err("more than one message".into());
    }
    Ok(Some(length))
}

fn read_some(stream: &mut impl Read, input: &mut Vec<u8>) -> Outcome<usize> {
    let mut buffer = [0; 65_536];
    let length = stream.read(&mut buffer)?;
    input.extend_from_slice(&buffer[..length]);
    Ok(length)
}

// --- the client ---

/// Sends a request and reads an answer with a body of this size.
pub(crate) fn ask(stream: &mut (impl Read + Write), request: &[u8], size: usize) -> Outcome<()> {
    stream.write_all(request)?;
    stream.flush()?;
    match read_message(stream)? {
        Some(length) if length == size => Ok(()),
        other => Err(format!("not {size} but {other:?} bytes").into()),
    }
}
