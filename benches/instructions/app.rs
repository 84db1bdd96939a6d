//! Owns the app behind ebbtide: it reads whole requests and answers when ebbtide sleeps.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use crate::ebbtide::{Outcome, Threads};
use crate::{http1, http2, websocket};

/// What the app speaks.
#[derive(Clone, Copy)]
pub(crate) enum App {
    /// Answers with a body of this size.
    Http1(usize),
    Grpc,
    WebSocket,
    Echo,
}

/// A connection that has asked, and what it is to be told.
pub(crate) type Reply = (TcpStream, Vec<u8>);

/// Where an app is.
pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    /// Whom it waits for; set before the first request.
    pub(crate) threads: Arc<OnceLock<Arc<Threads>>>,
}

// === impl App ===

impl App {
    /// Serves until this process ends. Answers when so many requests have come.
    pub(crate) fn start(self, batch: usize) -> Outcome<Serving> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let serving = Serving { address: listener.local_addr()?, threads: Arc::default() };
        let (replies, asked) = channel();
        let threads = Arc::clone(&serving.threads);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let replies = replies.clone();
                // An error is the end of a connection, and of ours if it was too early: the client will miss an answer.
                thread::spawn(move || self.read(stream, &replies));
            }
        });
        thread::spawn(move || self.answer(batch, &asked, &threads));
        Ok(serving)
    }

    fn read(self, mut stream: TcpStream, replies: &Sender<Reply>) -> Outcome<()> {
        stream.set_nodelay(true)?;
        // Room for a whole large answer while nobody reads.
        socket2::SockRef::from(&stream).set_send_buffer_size(1 << 20)?;
        match self {
            Self::Http1(size) => http1::serve(&mut stream, size, replies),
            Self::Grpc => http2::serve(&mut stream, replies),
            Self::WebSocket => websocket::serve(&mut stream, replies),
            Self::Echo => http1::echo(&mut stream, replies),
        }
    }

    fn answer(self, batch: usize, asked: &Receiver<Reply>, threads: &OnceLock<Arc<Threads>>) -> Outcome<()> {
        let at_once = batch > 1 || matches!(self, Self::Http1(size) if size > 4096);
        loop {
            let mut replies = vec![asked.recv()?];
            while replies.len() < batch {
                replies.push(asked.recv()?);
            }
            let threads = threads.get().ok_or("a request before the start")?;
            threads.wait_until_asleep()?;
            let mut write = || replies.iter_mut().try_for_each(|(stream, answer)| stream.write_all(answer));
            if at_once { threads.at_once(&mut write)?? } else { write()? }
        }
    }
}
