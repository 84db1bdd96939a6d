//! A bare hyper server for HTTP/2, the yardstick of h2spec: what fails here is not ebbtide's doing.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

/// Reads the request to its end first, as the app behind ebbtide does, so that faults in its body come before the answer.
async fn hello(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    request.into_body().collect().await?;
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
