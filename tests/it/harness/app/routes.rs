//! Owns what each path of the app does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::entry::Shared;
use super::server::Io;
use crate::harness::http::{Fault, Framing, Head, Sum, Wire, chunk, pattern};

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Reuse,
    Close,
}

/// One request being answered.
pub(super) struct Exchange<'a, S> {
    pub(super) app: &'a Arc<Shared>,
    pub(super) wire: &'a mut Wire<S>,
    pub(super) head: &'a Head,
    method: &'a str,
    path: &'a str,
    query: &'a str,
    pub(super) closes: bool,
}

/// Paths: `/` `/slow?ms=` `/echo` `/bytes?n=&chunked=1` `/chunks?n=&every_ms=&sse=1` `/drop` `/close`
/// `/early?status=&reads=1` `/http10` `/status?code=` `/headers` `/upgrade?ms=&refuse=1` `/truncate?n=&sent=`
/// `/die` `/hang` `/ws` `/events`, the last two in their own modules. Any other path answers like `/`.
pub(super) async fn answer<S: Io>(
    app: &Arc<Shared>,
    wire: &mut Wire<S>,
    head: &Head,
    connection: u64,
) -> Result<Next, Fault> {
    static REPLIES: AtomicU64 = AtomicU64::new(1);
    let (method, target) = head.request()?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let id = head.get("x-id").unwrap_or("-").to_owned();
    app.pen.note("req", &format!("id={id} method={method} path={target} conn={connection}"));
    let number = REPLIES.fetch_add(1, Ordering::Relaxed);
    let every = |nth: u64| nth > 0 && number.is_multiple_of(nth);
    let _turn = app.turns.acquire().await;
    let mut exchange = Exchange {
        app,
        wire,
        head,
        method,
        path,
        query,
        closes: !head.keeps_alive() || path == "/close" || every(app.options.close_every),
    };
    let next = exchange.run().await?;
    app.pen.note("done", &format!("id={id} conn={connection}"));
    if every(app.options.drop_every) {
        return Ok(Next::Close);
    }
    Ok(next)
}

impl<S: Io> Exchange<'_, S> {
    async fn run(&mut self) -> Result<Next, Fault> {
        if self.path == "/early" {
            self.closes = true;
            let status = self.number("status", 413);
            let next = self.reply(status, &[], b"too much\n").await?;
            if self.number("reads", 0) == 1 {
                self.upload().await?;
            }
            return Ok(next);
        }
        let upload = self.upload().await?;
        tokio::time::sleep(self.app.options.reply_delay).await;
        match self.path {
            "/slow" => {
                tokio::time::sleep(self.millis("ms")).await;
                self.reply(200, &[], b"slow\n").await
            }
            "/echo" => {
                let sum = ("x-sum", Sum::of(&upload).hex());
                match self.head.request_framing() {
                    Framing::Chunked => self.reply_chunked(&[sum], &upload).await,
                    _ => self.reply(200, &[sum], &upload).await,
                }
            }
            "/bytes" => {
                let body = pattern(self.number("n", 1000) as usize);
                if self.number("chunked", 0) == 1 {
                    self.reply_chunked(&[], &body).await
                } else {
                    self.reply(200, &[], &body).await
                }
            }
            "/chunks" => self.stream().await,
            "/drop" => {
                self.reply(200, &[], b"and now silence\n").await?;
                Ok(Next::Close)
            }
            "/http10" => {
                let reply = format!("HTTP/1.0 200 OK\r\n{}\r\nold times\n", self.id_line());
                self.write(reply.as_bytes()).await?;
                Ok(Next::Close)
            }
            "/status" => {
                let code = self.number("code", 200);
                self.reply(code, &[], b"as asked\n").await
            }
            "/headers" => {
                let text = self.head.text.clone();
                self.reply(200, &[], text.as_bytes()).await
            }
            "/upgrade" => self.upgrade().await,
            "/ws" => self.websocket().await,
            "/events" => self.events().await,
            "/truncate" => {
                let body = pattern(self.number("sent", 10) as usize);
                let head =
                    format!("HTTP/1.1 200 OK\r\n{}Content-Length: {}\r\n\r\n", self.id_line(), self.number("n", 1000));
                self.write(head.as_bytes()).await?;
                self.write(&body).await?;
                Ok(Next::Close)
            }
            "/die" => Ok(Next::Close),
            "/hang" => std::future::pending().await,
            _ => self.reply(200, &[], b"ok\n").await,
        }
    }

    async fn upload(&mut self) -> Result<Vec<u8>, Fault> {
        let framing = self.head.request_framing();
        if framing != Framing::Nothing && self.head.has_token("expect", "100-continue") {
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let mut upload = Vec::new();
        self.wire.body(framing, |piece| upload.extend_from_slice(piece)).await?;
        Ok(upload)
    }

    pub(super) async fn reply(&mut self, status: u16, headers: &[(&str, String)], body: &[u8]) -> Result<Next, Fault> {
        let bodiless = status < 200 || status == 204 || status == 304;
        let mut bytes = self.reply_head(status, headers);
        if !bodiless {
            bytes.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        bytes.push_str("\r\n");
        let mut bytes = bytes.into_bytes();
        if !bodiless && self.method != "HEAD" {
            bytes.extend_from_slice(body);
        }
        self.write(&bytes).await?;
        Ok(self.next())
    }

    async fn reply_chunked(&mut self, headers: &[(&str, String)], body: &[u8]) -> Result<Next, Fault> {
        let mut bytes = self.reply_head(200, headers).into_bytes();
        bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
        if self.method != "HEAD" {
            for piece in body.chunks(CHUNK) {
                bytes.extend(chunk(piece));
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        }
        self.write(&bytes).await?;
        Ok(self.next())
    }

    async fn stream(&mut self) -> Result<Next, Fault> {
        let events = self.number("sse", 0) == 1;
        let kind = if events { "text/event-stream" } else { "application/octet-stream" };
        let mut head = self.reply_head(200, &[("Content-Type", kind.to_owned())]);
        head.push_str("Transfer-Encoding: chunked\r\n\r\n");
        self.write(head.as_bytes()).await?;
        for index in 0..self.number("n", 10) {
            let piece =
                if events { format!("id: {index}\ndata: event {index}\n\n") } else { format!("piece {index}\n") };
            self.write(&chunk(piece.as_bytes())).await?;
            tokio::time::sleep(self.millis("every_ms")).await;
        }
        self.write(b"0\r\n\r\n").await?;
        Ok(self.next())
    }

    /// 101 and an echo of raw bytes until the client's FIN.
    async fn upgrade(&mut self) -> Result<Next, Fault> {
        tokio::time::sleep(self.millis("ms")).await;
        let Some(protocol) = self.head.get("upgrade").map(str::to_owned) else {
            return self.reply(426, &[], b"an upgrade was expected\n").await;
        };
        if self.number("refuse", 0) == 1 {
            return self.reply(403, &[], b"no\n").await;
        }
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\n{}Connection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n",
            self.id_line()
        );
        self.write(head.as_bytes()).await?;
        let early = self.wire.unread().to_vec();
        self.write(&early).await?;
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let read = self.wire.get_mut().read(&mut buffer).await.map_err(Fault::Io)?;
            if read == 0 {
                return Ok(Next::Close);
            }
            self.write(&buffer[..read]).await?;
        }
    }

    pub(super) fn reply_head(&self, status: u16, headers: &[(&str, String)]) -> String {
        let mut head = format!("HTTP/1.1 {status} Toy\r\n{}", self.id_line());
        if self.closes {
            head.push_str("Connection: close\r\n");
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head
    }

    /// The request's id goes back, so that a client sees a response that belongs to another request.
    pub(super) fn id_line(&self) -> String {
        self.head.get("x-id").map_or_else(String::new, |id| format!("x-id: {id}\r\n"))
    }

    pub(super) const fn next(&self) -> Next {
        if self.closes { Next::Close } else { Next::Reuse }
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let io = self.wire.get_mut();
        io.write_all(bytes).await.map_err(Fault::Io)?;
        io.flush().await.map_err(Fault::Io)
    }

    pub(super) fn millis(&self, key: &str) -> Duration {
        Duration::from_millis(u64::from(self.number::<u32>(key, 0)))
    }

    pub(super) fn number<T: std::str::FromStr>(&self, key: &str, otherwise: T) -> T {
        self.text(key).and_then(|value| value.parse().ok()).unwrap_or(otherwise)
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(name, _)| *name == key).map(|(_, value)| value).next()
    }
}

const CHUNK: usize = 4096;
