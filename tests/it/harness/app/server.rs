//! Owns the app's listening socket and its connections, TCP or Unix.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use super::entry::Shared;
use super::routes::{self, Next};
use super::{Listen, Speaks, h2, tcp};
use crate::harness::http::{Fault, Wire};

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
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::spawn(serve(app.clone(), stream));
        }
    }
}

async fn accept_unix(app: &Arc<Shared>, listener: &UnixListener) {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(app.clone(), stream));
        }
    }
}

async fn serve(app: Arc<Shared>, stream: impl Io) {
    static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
    let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
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
