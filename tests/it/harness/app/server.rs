//! Owns the app's listening socket and its connections, TCP or Unix.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;

use super::entry::Shared;
use super::routes::{self, Next};
use super::{Listen, Speaks, h2, tcp};
use crate::harness::http::{Fault, Wire};
use crate::harness::tls::TlsServer;

/// Either kind of stream.
pub(super) trait Io: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Io for S {}

pub(super) async fn listen(app: Arc<Shared>) {
    tokio::time::sleep(app.options.listen_after).await;
    let mut listening = app.listening.subscribe();
    let closed = async move {
        let _ = listening.wait_for(|open| !*open).await;
    };
    match app.options.listen.clone() {
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address).await.expect("the port is free");
            app.pen.note("listening", &format!("at={address}"));
            tokio::select! { () = accept_tcp(&app, &listener) => {} () = closed => {} }
        }
        Listen::Unix(path) => {
            let _ = std::fs::remove_file(&path);
            let listener = UnixListener::bind(&path).expect("the socket path is free");
            app.pen.note("listening", &format!("at={}", path.display()));
            tokio::select! { () = accept_unix(&app, &listener) => {} () = closed => {} }
        }
        Listen::Pod | Listen::Nowhere => panic!("nowhere to listen"),
    }
    app.pen.note("unlistening", "");
}

async fn accept_tcp(app: &Arc<Shared>, listener: &TcpListener) {
    let config = app.options.tls.as_ref().map(|tls| (tls.clone(), tls.config()));
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            match &config {
                Some((tls, config)) => drop(tokio::spawn(serve_tls(app.clone(), tls.clone(), config.clone(), stream))),
                None => drop(tokio::spawn(serve(app.clone(), stream, next_number()))),
            }
        }
    }
}

async fn accept_unix(app: &Arc<Shared>, listener: &UnixListener) {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(app.clone(), stream, next_number()));
        }
    }
}

fn next_number() -> u64 {
    static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
    CONNECTIONS.fetch_add(1, Ordering::Relaxed)
}

/// Notes what was agreed, and at the end how the client has ended it, as far as it was read.
async fn serve_tls(app: Arc<Shared>, tls: Box<TlsServer>, config: Arc<ServerConfig>, stream: TcpStream) {
    let connection = next_number();
    let socket = match tls.accept(&config, stream).await {
        Ok(socket) => socket,
        Err(error) => return app.pen.note("untrusted", &format!("conn={connection} why={}", word(&error))),
    };
    let (alpn, name) = (socket.alpn().unwrap_or_default(), socket.asked_name().unwrap_or_default());
    let client = socket.peer_serial().map_or_else(String::new, |serial| serial.to_string());
    let (version, resumed) = (socket.version(), socket.was_resumed());
    let version = version.map_or_else(String::new, |version| format!("{version:?}"));
    app.pen.note(
        "tls",
        &format!("conn={connection} alpn={alpn} name={name} client={client} version={version} resumed={resumed}"),
    );
    serve(app.clone(), socket.clone(), connection).await;
    // A client that is gone answers what we say with a reset.
    let (how, notify) = (socket.ending(), socket.tls_ended(Duration::ZERO).await.close_notify);
    let _ = socket.clone().shutdown().await;
    app.pen.note("tls_end", &format!("conn={connection} how={how:?} notify={notify}"));
}

/// A field of the journal has no spaces.
fn word(error: &std::io::Error) -> String {
    error.to_string().replace(' ', "_")
}

async fn serve(app: Arc<Shared>, stream: impl Io, connection: u64) {
    app.pen.note("connected", &format!("conn={connection}"));
    if let Speaks::Tcp(flow) = app.options.speaks {
        let _busy = Busy::begin(&app.in_flight);
        tcp::serve(&app, stream, flow, connection).await;
        app.pen.note("disconnected", &format!("conn={connection}"));
        return;
    }
    let mut wire = Wire::new(stream);
    match bounded(&app, h2::has_preface(&mut wire)).await {
        Ok(true) => h2::serve(&app, wire, connection).await,
        Ok(false) if app.options.speaks == Speaks::Http2 => {}
        Ok(false) => serve_http1(&app, &mut wire, connection).await,
        Err(_) => {}
    }
    app.pen.note("disconnected", &format!("conn={connection}"));
}

async fn serve_http1(app: &Arc<Shared>, wire: &mut Wire<impl Io>, connection: u64) {
    loop {
        let Ok(head) = bounded(app, wire.head()).await else { break };
        let _busy = Busy::begin(&app.in_flight);
        if !matches!(routes::answer(app, wire, &head, connection).await, Ok(Next::Reuse)) {
            break;
        }
    }
}

/// The wait for the first bytes of something.
async fn bounded<T>(app: &Shared, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    match app.options.idle_close {
        Some(idle) => tokio::time::timeout(idle, work).await.unwrap_or(Err(Fault::Eof)),
        None => work.await,
    }
}

/// Counts one request from its head to the last byte of its response.
pub(super) struct Busy<'a>(&'a watch::Sender<usize>);

impl<'a> Busy<'a> {
    pub(super) fn begin(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
