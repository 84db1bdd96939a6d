//! A bare hyper server for HTTP/2, the yardstick of h2spec: what fails here is not ebbtide's doing.

use std::convert::Infallible;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(b"hello from bare hyper"))))
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", serde_json::json!({"event": "listening", "address": listener.local_addr()?.to_string()}));
    loop {
        let (socket, _) = listener.accept().await?;
        tokio::spawn(async move {
            let connection = http2::Builder::new(TokioExecutor::new());
            // The client breaks the rules on purpose, so most connections end with an error.
            let _ = connection.serve_connection(TokioIo::new(socket), service_fn(hello)).await;
        });
    }
}
