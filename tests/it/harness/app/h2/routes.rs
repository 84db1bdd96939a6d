//! Owns what each path of the app does over HTTP/2; gRPC is beside it.

use std::time::Duration;

use super::exchange::{Exchange, Gone};
use super::{Order, grpc};
use crate::harness::app::Farewell;
use crate::harness::http::{Sum, pattern};

/// Paths: `/` `/slow?ms=` `/echo` `/headers` `/status?code=` `/upload?piece=&every_ms=` `/bytes?n=&piece=&every_ms=`
/// `/chunks?n=&every_ms=&sse=1` `/trailers?n=` `/early?status=&reads=1` `/reset?code=&sent=&ms=&head=0`
/// `/truncate?n=&sent=` `/hang` `/die?sent=` `/goaway?ms=&code=&gone_ms=` `/grpc/...`. Any other answers like `/`.
pub(super) async fn answer(exchange: &mut Exchange) -> Result<(), Gone> {
    let path = exchange.path().to_owned();
    if let Some(method) = path.strip_prefix("/grpc/") {
        return grpc::answer(exchange, method).await;
    }
    match path.as_str() {
        "/early" => return early(exchange).await,
        "/upload" => return upload(exchange).await,
        "/reset" => return reset(exchange).await,
        _ => {}
    }
    let upload = exchange.upload().await?;
    exchange.reply_delay().await?;
    match path.as_str() {
        "/slow" => {
            exchange.pause("ms").await?;
            exchange.reply(200, &[], b"slow\n").await
        }
        "/echo" => {
            let sum = ("x-sum", Sum::of(&upload).hex());
            exchange.reply(200, &[sum], &upload).await
        }
        "/headers" => {
            let fields = exchange.head.headers.iter();
            let lines = fields.map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
            let text: String = lines.collect();
            let pseudo = format!(":method: {}\n:uri: {}\n{text}", exchange.head.method, exchange.head.uri);
            exchange.reply(200, &[], pseudo.as_bytes()).await
        }
        "/status" => exchange.reply(exchange.number("code", 200), &[], b"as asked\n").await,
        "/bytes" => download(exchange).await,
        "/chunks" => chunks(exchange).await,
        "/trailers" => {
            exchange.begin(200, &[("trailer", "x-end, x-big".to_owned())], false)?;
            exchange.write(b"ok\n", false).await?;
            let big = "b".repeat(exchange.number("n", 1));
            exchange.trailers(&[("x-end", "yes".to_owned()), ("x-big", big)])
        }
        "/truncate" => {
            let length: usize = exchange.number("n", 1000);
            exchange.begin(200, &[("content-length", length.to_string())], false)?;
            exchange.write(&pattern(exchange.number("sent", 10)), false).await?;
            exchange.silence().await
        }
        "/hang" => exchange.silence().await,
        "/die" => {
            if exchange.has("sent") {
                exchange.begin(200, &[], false)?;
                exchange.write(&pattern(exchange.number("sent", 1)), false).await?;
                // What was written leaves with the next turn of the connection.
                exchange.sleep(Duration::from_millis(20)).await?;
            }
            exchange.order(Order::Die);
            exchange.silence().await
        }
        "/goaway" => {
            exchange.order(Order::Go(farewell(exchange)));
            exchange.pause("ms").await?;
            exchange.reply(200, &[], b"go\n").await
        }
        _ => exchange.reply(200, &[], b"ok\n").await,
    }
}

fn farewell(exchange: &Exchange) -> Farewell {
    if exchange.has("code") {
        Farewell::Abrupt(exchange.number("code", 0))
    } else if exchange.has("gone_ms") {
        Farewell::GracefulThenGone(Duration::from_millis(exchange.number("gone_ms", 0)))
    } else {
        Farewell::Graceful
    }
}

/// The answer ends before the request does; the rest of it is refused, or read.
async fn early(exchange: &mut Exchange) -> Result<(), Gone> {
    let status = exchange.number("status", 413);
    exchange.reply(status, &[], b"too much\n").await?;
    if exchange.number("reads", 0) == 1 {
        exchange.upload().await?;
    }
    Ok(())
}

/// Takes `piece` bytes, waits, takes the next; answers the count.
async fn upload(exchange: &mut Exchange) -> Result<(), Gone> {
    let size: u64 = exchange.number("piece", u64::MAX);
    let mut pauses = 0;
    while exchange.piece().await?.is_some() {
        while exchange.received() / size > pauses {
            exchange.pause("every_ms").await?;
            pauses += 1;
        }
    }
    let text = format!("received={}\n", exchange.received());
    exchange.reply(200, &[], text.as_bytes()).await
}

async fn download(exchange: &mut Exchange) -> Result<(), Gone> {
    let body = pattern(exchange.number("n", 1000));
    let mut left = body.chunks(exchange.number("piece", usize::MAX).min(body.len()).max(1)).peekable();
    exchange.begin(200, &[("content-length", body.len().to_string())], left.peek().is_none())?;
    while let Some(piece) = left.next() {
        exchange.write(piece, left.peek().is_none()).await?;
        if left.peek().is_some() {
            exchange.pause("every_ms").await?;
        }
    }
    Ok(())
}

async fn chunks(exchange: &mut Exchange) -> Result<(), Gone> {
    let events = exchange.number("sse", 0) == 1;
    let kind = if events { "text/event-stream" } else { "application/octet-stream" };
    exchange.begin(200, &[("content-type", kind.to_owned())], false)?;
    let count: u64 = exchange.number("n", 10);
    for index in 0..count {
        let piece = if events { format!("id: {index}\ndata: event {index}\n\n") } else { format!("piece {index}\n") };
        exchange.write(piece.as_bytes(), index + 1 == count).await?;
        exchange.sent += 1;
        if index + 1 < count {
            exchange.pause("every_ms").await?;
        }
    }
    Ok(())
}

/// RST_STREAM with a code: before the head (`head=0`), or after `sent` bytes of a body, and a wait.
async fn reset(exchange: &mut Exchange) -> Result<(), Gone> {
    if exchange.number("head", 1) == 1 {
        exchange.begin(200, &[], false)?;
        exchange.write(&pattern(exchange.number("sent", 10)), false).await?;
    }
    // A reset at once would overtake the frames before it.
    let wait = exchange.number("ms", 20);
    exchange.sleep(Duration::from_millis(wait)).await?;
    exchange.reset(exchange.number("code", 8));
    Ok(())
}
