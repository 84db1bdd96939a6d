//! Owns the rows: what is done again and again, and how often.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use crate::app::App;
use crate::ebbtide::{Ebbtide, Outcome};
use crate::http2::{self, Kind};
use crate::tls::{Stream, Tls, connect};
use crate::{http1, websocket};

/// One hot path.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// What one of it is.
    pub(crate) per: &'static str,
    load: Load,
}

#[derive(Clone, Copy)]
enum Load {
    /// A request with a body of the first size is answered with one of the second.
    Http1(usize, usize),
    NewConnection,
    /// So many streams at once, to an app that speaks HTTP/1.
    ToHttp1(u32),
    Grpc(u32),
    TlsHttp1,
    TlsHttp2,
    Handshake,
    WebSocket,
    Tcp,
    Idle(u32),
}

const SMALL: usize = 128;

pub(crate) const ROWS: &[Row] = &[
    row("h1-small", "GET, 128 B answer", Load::Http1(0, SMALL)),
    row("h1-large", "GET, 64 KiB answer", Load::Http1(0, 65_536)),
    row("h1-post", "POST of 4 KiB, 128 B answer", Load::Http1(4096, SMALL)),
    row("h1-new-connection", "connection with one GET", Load::NewConnection),
    row("h2-to-h1", "GET, one stream at a time", Load::ToHttp1(1)),
    row("h2-to-h1-32", "GET, 32 streams at once", Load::ToHttp1(32)),
    row("grpc", "call, one at a time, app h2c", Load::Grpc(1)),
    row("grpc-32", "call, 32 at once, app h2c", Load::Grpc(32)),
    row("tls-h1", "GET", Load::TlsHttp1),
    row("tls-h2", "GET, one stream at a time", Load::TlsHttp2),
    row("tls-handshake", "connection with full handshake and one GET", Load::Handshake),
    row("websocket", "128 B frame to the app and back", Load::WebSocket),
    row("tcp-small", "128 B to the app and back", Load::Tcp),
    row("idle-sweep", "sweep over 1,000 idle connections", Load::Idle(1000)),
];

const fn row(name: &'static str, per: &'static str, load: Load) -> Row {
    Row { name, per, load }
}

// === impl Row ===

impl Row {
    /// Instructions of ebbtide per one. Keeps what callgrind has written, if there is a folder for it.
    pub(crate) fn measure(&self, binary: &Path, keep: Option<&Path>) -> Outcome<u64> {
        let (app, scheme, batch) = match self.load {
            Load::Http1(_, size) => (App::Http1(size), "http", 1),
            Load::ToHttp1(streams) => (App::Http1(SMALL), "http", streams),
            Load::Grpc(streams) => (App::Grpc, "h2c", streams),
            Load::WebSocket => (App::WebSocket, "http", 1),
            Load::Tcp => (App::Echo, "tcp", 1),
            Load::NewConnection | Load::TlsHttp1 | Load::TlsHttp2 | Load::Handshake | Load::Idle(_) => {
                (App::Http1(SMALL), "http", 1)
            }
        };
        let tls = match self.load {
            Load::TlsHttp1 | Load::Handshake => Some(Tls::new("http/1.1")?),
            Load::TlsHttp2 => Some(Tls::new("h2")?),
            _ => None,
        };
        let app = app.start(batch as usize)?;
        let upstream = format!("{scheme}://{}", app.address);
        let certificate = tls.as_ref().map(|tls| (tls.chain.as_str(), tls.key.as_str()));
        let mut ebbtide = Ebbtide::start(binary, &upstream, certificate)?;
        app.threads.set(ebbtide.threads.clone()).map_err(|_| "started twice")?;
        let count = self.drive(&mut ebbtide, tls.as_ref())?;
        if let Some(folder) = keep {
            fs::create_dir_all(folder)?;
            // A call that began before the count is none to callgrind_annotate: it would take its cost for the caller's.
            let profile = fs::read_to_string(&ebbtide.profile)?.replace("\ncalls=0 ", "\ncalls=1 ");
            fs::write(folder.join(format!("callgrind.out.{}", self.name)), profile)?;
        }
        Ok(count)
    }

    fn drive(&self, ebbtide: &mut Ebbtide, tls: Option<&Tls>) -> Outcome<u64> {
        let to = ebbtide.address;
        let get = format!("GET /small {}\r\n", http1::HEAD).into_bytes();
        let dial_tls = || -> Outcome<Stream> { tls.ok_or("no certificate")?.connect(to) };
        match self.load {
            Load::Http1(size, answer) => {
                let mut stream = connect(to)?;
                let head = format!("POST /post {}content-length: {size}\r\n\r\n", http1::HEAD);
                let request = if size > 0 { [head.into_bytes(), vec![b'x'; size]].concat() } else { get };
                repeat(ebbtide, 1000, || http1::ask(&mut stream, &request, answer))
            }
            Load::NewConnection => {
                let threads = ebbtide.threads.clone();
                repeat(ebbtide, 500, || {
                    let mut stream = connect(to)?;
                    // Else it is chance whether the request comes with the connection or after it.
                    threads.wait_until_asleep()?;
                    http1::ask(&mut stream, &get, SMALL)
                })
            }
            Load::ToHttp1(streams) => {
                let mut client = http2::Client::new(connect(to)?, Kind::Get, streams)?;
                Ok(repeat(ebbtide, 1000 / streams, || client.ask())? / u64::from(streams))
            }
            Load::Grpc(streams) => {
                let mut client = http2::Client::new(connect(to)?, Kind::Call, streams)?;
                Ok(repeat(ebbtide, 1000 / streams, || client.ask())? / u64::from(streams))
            }
            Load::TlsHttp1 => {
                let mut stream = dial_tls()?;
                repeat(ebbtide, 1000, || http1::ask(&mut stream, &get, SMALL))
            }
            Load::TlsHttp2 => {
                let mut client = http2::Client::new(dial_tls()?, Kind::GetOverTls, 1)?;
                repeat(ebbtide, 1000, || client.ask())
            }
            Load::Handshake => repeat(ebbtide, 50, || {
                let mut stream = dial_tls()?;
                http1::ask(&mut stream, &get, SMALL)?;
                stream.conn.send_close_notify();
                Ok(stream.flush()?)
            }),
            Load::WebSocket => {
                let mut stream = connect(to)?;
                websocket::upgrade(&mut stream)?;
                repeat(ebbtide, 1000, || websocket::echo(&mut stream))
            }
            Load::Tcp => {
                let mut stream = connect(to)?;
                let mut answer = [0; SMALL];
                repeat(ebbtide, 1000, || {
                    stream.write_all(&[b'x'; SMALL])?;
                    Ok(stream.read_exact(&mut answer)?)
                })
            }
            Load::Idle(connections) => {
                let mut streams = Vec::new();
                for _ in 0..connections {
                    let mut stream = connect(to)?;
                    http1::ask(&mut stream, &get, SMALL)?;
                    streams.push(stream);
                }
                sweep(ebbtide)
            }
        }
    }
}

/// The cost of one, after some that do not count: connections, tables and buffers are there then.
fn repeat(ebbtide: &mut Ebbtide, times: u32, mut once: impl FnMut() -> Outcome<()>) -> Outcome<u64> {
    let threads = ebbtide.threads.clone();
    let mut run = |times| {
        (0..times).try_for_each(|_| {
            threads.wait_until_asleep()?;
            once()
        })
    };
    run(times / 5)?;
    ebbtide.count()?;
    run(times)?;
    Ok(ebbtide.count()? / u64::from(times))
}

/// The cost of one sweep over connections that have given back what they hold.
fn sweep(ebbtide: &mut Ebbtide) -> Outcome<u64> {
    for _ in 0..8 {
        ebbtide.threads.wait_for_sweep()?;
    }
    ebbtide.count()?;
    // Counting takes time, in which another sweep may begin, and wakes the worker up itself.
    let mut counts = Vec::new();
    for _ in 0..16 {
        ebbtide.threads.wait_for_sweep()?;
        counts.push(ebbtide.count()?);
    }
    let most = counts.iter().copied().max().unwrap_or(0);
    // One sweep: the least of those that are one at all.
    counts.into_iter().filter(|count| *count > most / 6).min().ok_or_else(|| "no sweep".into())
}
