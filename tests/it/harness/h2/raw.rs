//! Owns a raw HTTP/2 connection: every frame is the test's own; what has to be answered can be left to it.

use std::future::{Future, pending};
use std::io::ErrorKind;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::frame::{Frame, Kind, setting};
use super::seen::{Answer, Seen};
use super::{NO_LAST, PREFACE};
use crate::harness::SOON;
use crate::harness::client::{Ending, Failure, fresh_id};
use crate::harness::tls::{Socket, Target, alpn};
use crate::harness::wait::Mono;

/// Reads only while one of its methods is awaited; [`Self::during`] reads beside other work.
#[derive(Debug)]
pub(crate) struct RawH2 {
    io: Socket,
    input: Vec<u8>,
    /// How much of the input has become frames.
    taken: usize,
    /// Frames that wait for the socket; whole ones, so that an abandoned write tears none.
    output: Vec<u8>,
    pub(crate) seen: Seen,
    next_stream: u32,
    pub(crate) acks_settings: bool,
    pub(crate) acks_pings: bool,
    pub(crate) opens_windows: bool,
    ended: Option<Ending>,
}

// === impl RawH2 ===

impl RawH2 {
    /// Connected, and not a byte sent.
    pub(crate) async fn connect(to: impl Into<Target>) -> Result<Self, Failure> {
        let io = timeout(SOON, to.into().connect(alpn::H2)).await.map_err(|_| Failure::Timeout)??;
        Ok(Self::over(io))
    }

    /// Preface and SETTINGS exchanged; windows are as large as they can be.
    pub(crate) async fn open(to: impl Into<Target>) -> Result<Self, Failure> {
        let mut raw = Self::connect(to).await?;
        raw.greet(&[(setting::ENABLE_PUSH, 0), (setting::INITIAL_WINDOW_SIZE, NO_LAST)]).await?;
        raw.wait("SETTINGS of the peer", SOON, |seen| seen.settings()).await?;
        Ok(raw)
    }

    /// The server's side: takes one connection and reads the preface; SETTINGS are the test's business.
    pub(crate) async fn accept(listener: &TcpListener) -> Result<Self, Failure> {
        let (stream, _) = timeout(SOON, listener.accept()).await.map_err(|_| Failure::Timeout)??;
        stream.set_nodelay(true)?;
        Self::accepted(stream.into()).await
    }

    /// The same on a connection that has been taken.
    pub(crate) async fn accepted(socket: Socket) -> Result<Self, Failure> {
        let mut raw = Self::over(socket);
        let preface = async {
            while raw.input.len() < PREFACE.len() {
                if raw.io.read_buf(&mut raw.input).await? == 0 {
                    return Err(Failure::Eof);
                }
            }
            let said: Vec<u8> = raw.input.drain(..PREFACE.len()).collect();
            if said == PREFACE { Ok(()) } else { Err(Failure::Garbage) }
        };
        timeout(SOON, preface).await.map_err(|_| Failure::Timeout)??;
        Ok(raw)
    }

    fn over(io: Socket) -> Self {
        Self {
            io,
            input: Vec::new(),
            taken: 0,
            output: Vec::new(),
            seen: Seen::new(),
            next_stream: 1,
            acks_settings: true,
            acks_pings: true,
            opens_windows: true,
            ended: None,
        }
    }

    /// Preface, SETTINGS and a wide connection window, in one write.
    pub(crate) async fn greet(&mut self, settings: &[(u16, u32)]) -> Result<(), Failure> {
        let window = Frame::window_update(0, NO_LAST - 65_535);
        self.bytes([&PREFACE[..], &Frame::settings(settings).encode(), &window.encode()].concat()).await
    }

    // --- sending ---

    /// What TLS has agreed, and parts of an end.
    pub(crate) const fn socket(&self) -> &Socket {
        &self.io
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.io.is_tls() { "https" } else { "http" }
    }

    fn request(&self, stream: u32, method: &str, path: &str, headers: &[(&str, &str)]) -> Frame {
        request_over(self.scheme(), stream, method, path, headers)
    }

    /// Anything, e.g. a part of the preface.
    pub(crate) async fn bytes(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
        self.output.extend_from_slice(bytes.as_ref());
        timeout(SOON, self.flush()).await.map_err(|_| Failure::Timeout)?
    }

    pub(crate) async fn frame(&mut self, frame: Frame) -> Result<(), Failure> {
        self.frames(&[frame]).await
    }

    /// All in one write.
    pub(crate) async fn frames(&mut self, frames: &[Frame]) -> Result<(), Failure> {
        for frame in frames {
            if frame.kind == Kind::Data {
                self.seen.sent(frame.stream, frame.payload.len());
            }
        }
        self.bytes(frames.iter().flat_map(Frame::encode).collect::<Vec<u8>>()).await
    }

    /// The next odd id; nothing is sent.
    pub(crate) const fn fresh_stream(&mut self) -> u32 {
        self.next_stream += 2;
        self.next_stream - 2
    }

    /// A request without a body; answers its stream.
    pub(crate) async fn get(&mut self, path: &str) -> Result<u32, Failure> {
        let stream = self.fresh_stream();
        let head = self.request(stream, "GET", path, &[]).end_stream();
        self.frame(head).await?;
        Ok(stream)
    }

    /// The head of a request whose body follows by [`Self::data`] or [`Self::upload`].
    pub(crate) async fn begin(&mut self, path: &str, headers: &[(&str, &str)]) -> Result<u32, Failure> {
        let stream = self.fresh_stream();
        self.frame(self.request(stream, "POST", path, headers)).await?;
        Ok(stream)
    }

    /// The head of a gRPC call whose messages follow.
    pub(crate) async fn begin_grpc(&mut self, path: &str) -> Result<u32, Failure> {
        self.begin(path, GRPC).await
    }

    /// A gRPC call with one message.
    pub(crate) async fn unary(&mut self, path: &str, payload: &[u8]) -> Result<u32, Failure> {
        let stream = self.fresh_stream();
        let head = self.request(stream, "POST", path, GRPC);
        self.frames(&[head, Frame::data(stream, &super::grpc::message(payload)).end_stream()]).await?;
        Ok(stream)
    }

    /// One DATA frame whatever the windows say.
    pub(crate) async fn data(&mut self, stream: u32, bytes: &[u8], end: bool) -> Result<(), Failure> {
        let frame = Frame::data(stream, bytes);
        self.frame(if end { frame.end_stream() } else { frame }).await
    }

    /// A whole body as flow control allows; stops early if the stream is over before.
    pub(crate) async fn upload(&mut self, stream: u32, body: &[u8], deadline: Duration) -> Result<(), Failure> {
        let end = Mono::now() + deadline;
        let mut left = body;
        while !left.is_empty() && !self.seen.is_over(stream) {
            let room = self.seen.may_send(stream).min(MAX_FRAME).min(left.len());
            if room == 0 {
                self.next(end.since(Mono::now())).await?;
                continue;
            }
            let (piece, rest) = left.split_at(room);
            left = rest;
            self.data(stream, piece, rest.is_empty()).await?;
        }
        Ok(())
    }

    /// Our FIN; reading goes on.
    pub(crate) async fn half_close(&mut self) -> Result<(), Failure> {
        Ok(self.io.shutdown().await?)
    }

    /// Ends with RST.
    pub(crate) fn reset(self) {
        self.io.options().set_linger(Some(Duration::ZERO)).expect("linger can be set");
    }

    /// A receive buffer of this size, so that the peer's writes block early.
    pub(crate) fn receive_buffer(&self, bytes: usize) {
        self.io.options().set_recv_buffer_size(bytes).expect("the buffer can be set");
    }

    // --- reading ---

    /// The next frame, already counted in `seen` and answered if that is left to us.
    pub(crate) async fn next(&mut self, deadline: Duration) -> Result<Frame, Failure> {
        timeout(deadline, self.read()).await.unwrap_or(Err(Failure::Timeout))
    }

    /// Reads until the closure answers something; `Err` says how the connection ended before, and
    /// passing the deadline is a panic with everything that was seen.
    pub(crate) async fn wait<T>(
        &mut self,
        what: &str,
        deadline: Duration,
        mut found: impl FnMut(&Seen) -> Option<T>,
    ) -> Result<T, Failure> {
        let end = Mono::now() + deadline;
        loop {
            if let Some(value) = found(&self.seen) {
                return Ok(value);
            }
            match self.next(end.since(Mono::now())).await {
                Ok(_) => {}
                Err(Failure::Timeout) => panic!("{what}: not within {deadline:?}; {:?}", self.seen),
                Err(failure) => return Err(failure),
            }
        }
    }

    /// What came on a stream when it is over.
    pub(crate) async fn answer(&mut self, stream: u32, deadline: Duration) -> Result<Answer, Failure> {
        self.wait(&format!("end of stream {stream}"), deadline, |seen| {
            seen.is_over(stream).then(|| seen.answer(stream))
        })
        .await
    }

    /// So many GOAWAY frames; answers them all.
    pub(crate) async fn goaways(&mut self, count: usize, deadline: Duration) -> Result<Vec<(u32, u32)>, Failure> {
        self.wait(&format!("{count} GOAWAY"), deadline, |seen| Some(seen.goaways()).filter(|all| all.len() >= count))
            .await
    }

    /// Sends a PING and waits for its ACK: all that was sent before has then been read by the peer.
    pub(crate) async fn round_trip(&mut self) -> Result<(), Failure> {
        let payload = u64::from(self.next_stream).to_be_bytes();
        let acks =
            |seen: &Seen| seen.control.iter().filter(|(_, one)| *one == super::Control::PingAck(payload)).count();
        let before = acks(&self.seen);
        self.frame(Frame::ping(payload)).await?;
        self.wait("ACK of our PING", SOON, |seen| (acks(seen) > before).then_some(())).await
    }

    /// Reads beside other work until that is done.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let reading = async {
            while self.read().await.is_ok() {}
            pending::<()>().await;
        };
        tokio::select! {
            done = work => done,
            () = reading => unreachable!("reading never returns"),
        }
    }

    /// Reads to the end and tells how it came; nothing is closed by us.
    pub(crate) async fn ending(&mut self, deadline: Duration) -> Ending {
        let end = Mono::now() + deadline;
        let work = async { while self.read().await.is_ok() {} };
        let _ = timeout(deadline, work).await;
        match self.ended {
            // The FIN must follow.
            Some(Ending::Fin) => self.io.ended(end.since(Mono::now())).await,
            other => other.unwrap_or(Ending::StillOpen),
        }
    }

    async fn read(&mut self) -> Result<Frame, Failure> {
        loop {
            if let Some((frame, length)) = Frame::parse(&self.input[self.taken..]) {
                self.taken += length;
                self.seen.add(&frame);
                self.respond(&frame);
                self.try_flush();
                return Ok(frame);
            }
            if self.ended.is_some() {
                return Err(Failure::Eof);
            }
            tokio::select! {
                ready = self.io.readable() => ready?,
                ready = self.io.writable(), if !self.output.is_empty() => ready?,
            }
            self.try_flush();
            self.try_fill()?;
        }
    }

    fn try_fill(&mut self) -> Result<(), Failure> {
        // Once per read, not once per frame: bursts of small frames would be moved again and again.
        self.input.drain(..std::mem::take(&mut self.taken));
        match self.io.try_read_buf(&mut self.input) {
            Ok(0) => {
                self.ended = Some(self.io.ending());
                Err(if self.input.is_empty() { Failure::Eof } else { Failure::Truncated })
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => {
                self.ended = Some(self.io.ending());
                Err(error.into())
            }
        }
    }

    fn respond(&mut self, frame: &Frame) {
        match frame.kind {
            Kind::Settings if self.acks_settings && !frame.is_ack() => {
                self.output.extend(Frame::settings_ack().encode());
            }
            Kind::Ping if self.acks_pings && !frame.is_ack() => {
                self.output.extend(Frame::ping_ack(&frame.payload).encode());
            }
            Kind::Data if self.opens_windows && !frame.payload.is_empty() => {
                let more = frame.payload.len() as u32;
                self.output.extend(Frame::window_update(0, more).encode());
                if !frame.ends_stream() {
                    self.output.extend(Frame::window_update(frame.stream, more).encode());
                }
            }
            _ => {}
        }
    }

    /// Takes in what comes meanwhile, unjudged: a peer that answers more than we read would stop reading.
    async fn flush(&mut self) -> Result<(), Failure> {
        while !self.output.is_empty() {
            tokio::select! {
                ready = self.io.writable() => {
                    ready?;
                    match self.io.try_write(&self.output) {
                        Ok(written) => drop(self.output.drain(..written)),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        Err(error) => {
                            self.output.clear();
                            return Err(error.into());
                        }
                    }
                }
                ready = self.io.readable(), if self.ended.is_none() => {
                    ready?;
                    // How it ended is kept; the writing side has its own fault.
                    let _ = self.try_fill();
                }
            }
        }
        Ok(())
    }

    fn try_flush(&mut self) {
        while !self.output.is_empty() {
            match self.io.try_write(&self.output) {
                Ok(written) => drop(self.output.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // A peer that no longer reads may still be read.
                Err(_) => self.output.clear(),
            }
        }
    }
}

/// The head of a request with an id of its own, unless `headers` has one.
pub(crate) fn request(stream: u32, method: &str, path: &str, headers: &[(&str, &str)]) -> Frame {
    request_over("http", stream, method, path, headers)
}

fn request_over(scheme: &str, stream: u32, method: &str, path: &str, headers: &[(&str, &str)]) -> Frame {
    let id = fresh_id();
    let mut fields = vec![(":method", method), (":scheme", scheme), (":path", path), (":authority", "toy")];
    if !headers.iter().any(|(name, _)| *name == "x-id") {
        fields.push(("x-id", &id));
    }
    fields.extend_from_slice(headers);
    Frame::headers(stream, &fields)
}

const GRPC: &[(&str, &str)] = &[("content-type", "application/grpc"), ("te", "trailers")];
const MAX_FRAME: usize = 16_384;
