//! Fixed-response upstream on one port and one thread: hand-rolled HTTP/1.1 (cheap, so that it
//! does not hide the proxy), hyper for h2c prior knowledge, WebSocket echo.
//! /ws-count the number of WebSocket messages received so far; /small 128 B, /big 64 KiB, /d20 128 B after 20 ms, /slow 30 chunks over 3 s, /ws echo,
//! any h2 POST: a gRPC-shaped answer with trailers, after 20 ms if the path ends with D20, of 30
//! messages over 3 s if it ends with Slow.
use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{HeaderMap, Method, Request, Response, body::Frame, body::Incoming};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{convert::Infallible, io, time::Duration};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

static MESSAGES: AtomicU64 = AtomicU64::new(0);
const SMALL: &[u8] = &[b'x'; 128];
static BIG: [u8; 65536] = [b'y'; 65536];

fn head(len: usize) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {len}\r\n\r\n").into_bytes()
}

async fn h1(mut s: TcpStream) -> io::Result<()> {
    let mut small = head(128);
    small.extend_from_slice(SMALL);
    let mut big = head(65536);
    big.extend_from_slice(&BIG);
    let mut last = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 128\r\n\r\n".to_vec();
    last.extend_from_slice(SMALL);
    let mut buf = vec![0u8; 8192];
    let mut n = 0;
    loop {
        // one request at a time; bodies are not expected on h1
        let (end, path, close, key) = loop {
            let mut hs = [httparse::EMPTY_HEADER; 64];
            let mut r = httparse::Request::new(&mut hs);
            match r.parse(&buf[..n]) {
                Ok(httparse::Status::Complete(end)) => {
                    let mut close = false;
                    let mut key = None;
                    for h in r.headers.iter() {
                        if h.name.eq_ignore_ascii_case("connection") {
                            close = h.value.eq_ignore_ascii_case(b"close");
                        } else if h.name.eq_ignore_ascii_case("sec-websocket-key") {
                            key = Some(h.value.to_vec());
                        }
                    }
                    let path = match r.path.unwrap_or("") {
                        "/small" => 0,
                        "/big" => 1,
                        "/d20" => 2,
                        "/slow" => 3,
                        "/ws" => 4,
                        "/ws-count" => 5,
                        _ => 0,
                    };
                    break (end, path, close, key);
                }
                Ok(_) => {}
                Err(_) => return Ok(()),
            }
            let got = s.read(&mut buf[n..]).await?;
            if got == 0 {
                return Ok(());
            }
            n += got;
        };
        buf.copy_within(end..n, 0);
        n -= end;
        match path {
            0 if close => s.write_all(&last).await?,
            1 => s.write_all(&big).await?,
            2 => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                s.write_all(&small).await?
            }
            3 => {
                s.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await?;
                for _ in 0..30 {
                    s.write_all(b"80\r\n").await?;
                    s.write_all(SMALL).await?;
                    s.write_all(b"\r\n").await?;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                s.write_all(b"0\r\n\r\n").await?;
            }
            5 => {
                let count = MESSAGES.load(Ordering::Relaxed).to_string();
                let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", count.len());
                s.write_all((head + &count).as_bytes()).await?;
                return Ok(());
            }
            4 => return ws(s, key.unwrap_or_default()).await,
            _ => s.write_all(&small).await?,
        }
        if close {
            return Ok(());
        }
    }
}

async fn ws(mut s: TcpStream, key: Vec<u8>) -> io::Result<()> {
    use base64::Engine;
    let mut h = sha1_smol::Sha1::new();
    h.update(&key);
    h.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let acc = base64::engine::general_purpose::STANDARD.encode(h.digest().bytes());
    s.write_all(format!("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {acc}\r\n\r\n").as_bytes()).await?;
    let mut buf = vec![0u8; 65536];
    let mut n = 0;
    let mut out = Vec::with_capacity(4096);
    let mut closing = false;
    loop {
        // every client frame: 2 (+2) byte head, 4 byte mask, payload
        out.clear();
        let mut p = 0;
        while n - p >= 8 {
            let l7 = (buf[p + 1] & 0x7f) as usize;
            let (hl, len) =
                if l7 == 126 { (4, u16::from_be_bytes([buf[p + 2], buf[p + 3]]) as usize) } else { (2, l7) };
            if n - p < hl + 4 + len {
                break;
            }
            match buf[p] & 0x0f {
                8 => closing = true,
                1 | 2 => drop(MESSAGES.fetch_add(1, Ordering::Relaxed)),
                _ => {}
            }
            out.push(buf[p]);
            out.push(l7 as u8);
            out.extend_from_slice(&buf[p + 2..p + hl]);
            let m = [buf[p + hl], buf[p + hl + 1], buf[p + hl + 2], buf[p + hl + 3]];
            for i in 0..len {
                out.push(buf[p + hl + 4 + i] ^ m[i & 3]);
            }
            p += hl + 4 + len;
        }
        buf.copy_within(p..n, 0);
        n -= p;
        if !out.is_empty() {
            s.write_all(&out).await?;
        }
        if closing {
            return Ok(());
        }
        let got = s.read(&mut buf[n..]).await?;
        if got == 0 {
            return Ok(());
        }
        n += got;
    }
}

type B = BoxBody<Bytes, Infallible>;

/// A body whose frames come one every 100 ms, as the slow answer over HTTP/1.
fn slow(message: Bytes, trailers: Option<HeaderMap>) -> B {
    let (send, receive) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        for _ in 0..30 {
            if send.send(Frame::data(message.clone())).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if let Some(trailers) = trailers {
            let _ = send.send(Frame::trailers(trailers)).await;
        }
    });
    StreamBody::new(Frames(receive)).boxed()
}

async fn h2(req: Request<Incoming>) -> Result<Response<B>, Infallible> {
    let path = req.uri().path().to_owned();
    let late = path.ends_with("D20") || path.ends_with("d20");
    if req.method() == Method::POST {
        let _ = req.into_body().collect().await;
        if late {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut msg = vec![0u8, 0, 0, 0, 123];
        msg.resize(128, b'x');
        let mut t = HeaderMap::new();
        t.insert("grpc-status", "0".parse().unwrap());
        let body = if path.ends_with("Slow") {
            slow(msg.into(), Some(t))
        } else {
            let frames = [Ok::<_, Infallible>(Frame::data(Bytes::from(msg))), Ok(Frame::trailers(t))];
            StreamBody::new(Iter(frames.into_iter())).boxed()
        };
        return Ok(Response::builder().header("content-type", "application/grpc").body(body).unwrap());
    }
    if late {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let body = match path.as_str() {
        "/slow" => slow(Bytes::from_static(SMALL), None),
        "/big" => Full::new(Bytes::from_static(&BIG)).boxed(),
        _ => Full::new(Bytes::from_static(SMALL)).boxed(),
    };
    Ok(Response::builder().header("content-type", "text/plain").body(body).unwrap())
}

/// A stream over what a task sends.
struct Frames(tokio::sync::mpsc::Receiver<Frame<Bytes>>);
impl futures_core::Stream for Frames {
    type Item = Result<Frame<Bytes>, Infallible>;
    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

/// A ready-made stream over an iterator (spares a dependency on futures).
struct Iter<I>(I);
impl<I: Iterator + Unpin> futures_core::Stream for Iter<I> {
    type Item = I::Item;
    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<I::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}

async fn conn(s: TcpStream) -> io::Result<()> {
    let _ = s.set_nodelay(true);
    let mut b = [0u8; 3];
    s.peek(&mut b).await?;
    if &b == b"PRI" {
        let _ = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
            .max_concurrent_streams(2000)
            .serve_connection(hyper_util::rt::TokioIo::new(s), hyper::service::service_fn(h2))
            .await;
        Ok(())
    } else {
        h1(s).await
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:9000".into());
    let sock = tokio::net::TcpSocket::new_v4()?;
    sock.set_reuseaddr(true)?;
    sock.bind(addr.parse().unwrap())?;
    let l: TcpListener = sock.listen(4096)?;
    loop {
        if let Ok((s, _)) = l.accept().await {
            tokio::spawn(conn(s));
        }
    }
}
