//! Owns an app that is played frame by frame in the test's own process.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use tokio::net::TcpListener;

use crate::grpc::stage::{front, plain};
use crate::harness::client::Failure;
use crate::harness::ebbtide::Ebbtide;
use crate::harness::h2::{Frame, NO_LAST, RawH2, Seen, setting};
use crate::harness::{SOON, fresh_ip};

/// Where ebbtide finds the app.
pub(crate) struct Script {
    listener: TcpListener,
}

/// One connection of ebbtide's, seen from the app: what it asks stands in `seen.answers`.
pub(crate) struct AppSide(RawH2);

// === impl Script ===

impl Script {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind(SocketAddr::new(fresh_ip(), 0)).await.expect("a port is free");
        Self { listener }
    }

    /// For what is not played frame by frame.
    pub(crate) fn into_listener(self) -> TcpListener {
        self.listener
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("the listener is bound")
    }

    /// One worker, so that connections can be told; it speaks HTTP/2 to the app whoever asks.
    pub(crate) async fn front(&self, drain: &str) -> (Ebbtide, SocketAddr) {
        let config = plain(drain).env("EBBTIDE_WORKERS", "1");
        front(config, &format!("h2c://{}", self.address())).await
    }

    /// The next connection on which something is said, with the largest windows: ebbtide also dials only to look.
    pub(crate) async fn accept(&self) -> AppSide {
        self.accept_with(&[(setting::INITIAL_WINDOW_SIZE, NO_LAST)]).await
    }

    pub(crate) async fn accept_with(&self, settings: &[(u16, u32)]) -> AppSide {
        loop {
            match RawH2::accept(&self.listener).await {
                Ok(mut raw) => {
                    let window = Frame::window_update(0, NO_LAST - 65_535);
                    raw.frames(&[Frame::settings(settings), window]).await.expect("ebbtide reads");
                    return AppSide(raw);
                }
                Err(Failure::Eof | Failure::Reset) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    /// The head of a gRPC answer whose messages follow.
    pub(crate) fn grpc_head(stream: u32) -> Frame {
        Frame::headers(stream, &[(":status", "200"), ("content-type", "application/grpc")])
    }

    /// A whole answer.
    pub(crate) fn answer(stream: u32, body: &[u8]) -> [Frame; 2] {
        [Frame::headers(stream, &[(":status", "200")]), Frame::data(stream, body).end_stream()]
    }

    /// A gRPC answer without messages.
    pub(crate) fn grpc_ok(stream: u32) -> Frame {
        let fields = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "0")];
        Frame::headers(stream, &fields).end_stream()
    }
}

// === impl AppSide ===

impl AppSide {
    /// Waits until these streams have been asked for in full.
    pub(crate) async fn requests(&mut self, streams: &[u32]) {
        let all = |seen: &Seen| streams.iter().all(|stream| seen.is_over(*stream)).then_some(());
        self.wait(&format!("requests {streams:?}"), SOON, all).await.expect("ebbtide stays");
    }

    /// Waits until this path has been asked for; answers its stream. The order of requests is nobody's promise.
    pub(crate) async fn asked_for(&mut self, path: &str) -> u32 {
        let find = |seen: &Seen| {
            let mut all = seen.answers.iter();
            all.find(|(_, one)| one.header(":path") == Some(path)).map(|(stream, _)| *stream)
        };
        self.wait(&format!("a request for {path}"), SOON, find).await.expect("ebbtide stays")
    }
}

impl Deref for AppSide {
    type Target = RawH2;

    fn deref(&self) -> &RawH2 {
        &self.0
    }
}

impl DerefMut for AppSide {
    fn deref_mut(&mut self) -> &mut RawH2 {
        &mut self.0
    }
}
