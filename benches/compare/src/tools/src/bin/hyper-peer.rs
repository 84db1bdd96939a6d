//! The naive Rust reverse proxy: hyper-util's auto server, hyper-util's legacy client, one thread.
//! usage: hyper-peer BASE_PORT UPSTREAM CERT KEY    (ports as in pingora-peer)
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, combinators::BoxBody};
use hyper::{Request, Response, StatusCode, Uri, body::Incoming, header, service::service_fn};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::{conn::auto, graceful::GracefulShutdown};
use std::{io, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_rustls::{TlsAcceptor, rustls};

type C = Client<HttpConnector, Incoming>;
type E = Box<dyn std::error::Error + Send + Sync>;
type B = BoxBody<Bytes, hyper::Error>;

async fn proxy(c: C, up: Arc<str>, mut req: Request<Incoming>) -> Result<Response<B>, E> {
    let pq = req.uri().path_and_query().map(|p| p.as_str()).unwrap_or("/");
    let uri: Uri = format!("http://{up}{pq}").parse()?;
    *req.uri_mut() = uri;
    *req.version_mut() = hyper::Version::HTTP_11;
    let upgrade = req.headers().get(header::UPGRADE).cloned();
    for h in ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"] {
        req.headers_mut().remove(h);
    }
    let down = upgrade.as_ref().map(|u| {
        req.headers_mut().insert(header::UPGRADE, u.clone());
        req.headers_mut().insert(header::CONNECTION, "upgrade".parse().unwrap());
        hyper::upgrade::on(&mut req)
    });
    let mut resp = match c.request(req).await {
        Ok(r) => r,
        Err(_) => {
            let b = Empty::new().map_err(|n| match n {}).boxed();
            return Ok(Response::builder().status(StatusCode::BAD_GATEWAY).body(b)?);
        }
    };
    if let (Some(down), StatusCode::SWITCHING_PROTOCOLS) = (down, resp.status()) {
        let up = hyper::upgrade::on(&mut resp);
        tokio::spawn(async move {
            if let (Ok(d), Ok(u)) = (down.await, up.await) {
                let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(d), &mut TokioIo::new(u)).await;
            }
        });
    } else {
        for h in ["connection", "keep-alive", "transfer-encoding"] {
            resp.headers_mut().remove(h);
        }
    }
    Ok(resp.map(|b| b.boxed()))
}

fn tls(cert: &str, key: &str) -> io::Result<TlsAcceptor> {
    let certs =
        rustls_pemfile::certs(&mut io::BufReader::new(std::fs::File::open(cert)?)).collect::<Result<Vec<_>, _>>()?;
    let key = rustls_pemfile::private_key(&mut io::BufReader::new(std::fs::File::open(key)?))?.unwrap();
    let mut c = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(certs, key).unwrap();
    c.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(c)))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), E> {
    let a: Vec<String> = std::env::args().collect();
    let base: u16 = a[1].parse()?;
    let up: Arc<str> = a[2].as_str().into();
    let acceptor = tls(&a[3], &a[4])?;
    let client = |h2: bool| -> C {
        let mut k = HttpConnector::new();
        k.set_nodelay(true);
        Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).http2_only(h2).build(k)
    };
    let (c1, c2) = (client(false), client(true));
    let g = Arc::new(GracefulShutdown::new());
    let mut tasks = vec![];
    for i in 1..=4u16 {
        let l = {
            let s = tokio::net::TcpSocket::new_v4()?;
            s.set_reuseaddr(true)?;
            s.bind(([127, 0, 0, 1], base + i).into())?;
            s.listen(4096)?
        };
        let c = if i == 3 { c2.clone() } else { c1.clone() };
        tasks.push(tokio::spawn(serve(l, c, up.clone(), (i == 4).then(|| acceptor.clone()), g.clone())));
    }
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    term.recv().await;
    for t in &tasks {
        t.abort(); // stop accepting
    }
    for t in tasks {
        let _ = t.await;
    }
    if let Ok(g) = Arc::try_unwrap(g).map_err(|_| ()) {
        let _ = tokio::time::timeout(Duration::from_secs(10), g.shutdown()).await;
    }
    Ok(())
}

async fn serve(l: TcpListener, c: C, up: Arc<str>, tls: Option<TlsAcceptor>, g: Arc<GracefulShutdown>) {
    loop {
        let Ok((s, _)) = l.accept().await else { continue };
        let _ = s.set_nodelay(true);
        let (c, up, w, tls) = (c.clone(), up.clone(), g.watcher(), tls.clone());
        tokio::spawn(async move {
            let svc = service_fn(move |r| proxy(c.clone(), up.clone(), r));
            let b = auto::Builder::new(TokioExecutor::new());
            if let Some(t) = tls {
                let Ok(s) = t.accept(s).await else { return };
                let _ = w.watch(b.serve_connection_with_upgrades(TokioIo::new(s), svc).into_owned()).await;
            } else {
                let _ = w.watch(b.serve_connection_with_upgrades(TokioIo::new(s), svc).into_owned()).await;
            }
        });
    }
}
