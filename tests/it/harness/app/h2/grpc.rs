//! Owns what each gRPC method of the app does.

use super::exchange::{Exchange, Gone};
use crate::harness::h2::grpc::{Messages, message, numbered};

/// Methods below `/grpc/`: `unary?ms=&size=` `collect` `stream?n=&every_ms=&size=` `bidi?every_ms=`
/// `error?status=&bytes=&head=1` `half?before=&size=&sent=&ms=` `reset?n=&code=` `hang`.
/// Any other is unimplemented.
pub(super) async fn answer(exchange: &mut Exchange, method: &str) -> Result<(), Gone> {
    match method {
        "bidi" => return bidi(exchange).await,
        "hang" => return exchange.silence().await,
        _ => {}
    }
    let upload = exchange.upload().await?;
    exchange.reply_delay().await?;
    match method {
        "unary" => {
            exchange.pause("ms").await?;
            let payload = match exchange.number("size", 0) {
                0 => Messages::from(upload).next().unwrap_or_default(),
                size => numbered(0, size),
            };
            begin(exchange)?;
            send(exchange, &payload).await?;
            finish(exchange)
        }
        "collect" => {
            let mut messages = Messages::from(upload);
            let count = std::iter::from_fn(|| messages.next()).count() as u64;
            begin(exchange)?;
            send(exchange, &numbered(count, 8)).await?;
            finish(exchange)
        }
        "stream" => {
            begin(exchange)?;
            numbers(exchange, exchange.number("n", u64::MAX)).await?;
            finish(exchange)
        }
        "error" => error(exchange).await,
        "half" => half(exchange).await,
        "reset" => {
            begin(exchange)?;
            numbers(exchange, exchange.number("n", 1)).await?;
            // A reset at once would overtake the messages before it.
            exchange.sleep(std::time::Duration::from_millis(20)).await?;
            exchange.reset(exchange.number("code", 8));
            Ok(())
        }
        _ => exchange.begin(200, &[kind(), status(12)], true),
    }
}

/// Every message goes back at once, or after a pause.
async fn bidi(exchange: &mut Exchange) -> Result<(), Gone> {
    begin(exchange)?;
    let mut messages = Messages::default();
    while let Some(piece) = exchange.piece().await? {
        messages.add(&piece);
        while let Some(payload) = messages.next() {
            send(exchange, &payload).await?;
            exchange.pause("every_ms").await?;
        }
    }
    finish(exchange)
}

async fn numbers(exchange: &mut Exchange, count: u64) -> Result<(), Gone> {
    let size = exchange.number("size", 8);
    for index in 0..count {
        send(exchange, &numbered(index, size)).await?;
        if index + 1 < count {
            exchange.pause("every_ms").await?;
        }
    }
    Ok(())
}

/// Trailers-only, or after a head, with a `grpc-message` of so many bytes.
async fn error(exchange: &mut Exchange) -> Result<(), Gone> {
    let text = "m".repeat(exchange.number("bytes", 10));
    let trailers = [status(exchange.number("status", 13)), ("grpc-message", text)];
    if exchange.number("head", 0) == 1 {
        begin(exchange)?;
        return exchange.trailers(&trailers);
    }
    let [status, text] = trailers;
    exchange.begin(200, &[kind(), status, text], true)
}

/// Whole messages, then a part of one; its rest and a good end after `ms`, or never.
async fn half(exchange: &mut Exchange) -> Result<(), Gone> {
    begin(exchange)?;
    let before = exchange.number("before", 0);
    numbers(exchange, before).await?;
    let whole = message(&numbered(before, exchange.number("size", 1000)));
    let (sent, rest) = whole.split_at(exchange.number("sent", whole.len() / 2).min(whole.len()));
    exchange.write(sent, false).await?;
    if !exchange.has("ms") {
        return exchange.silence().await;
    }
    exchange.pause("ms").await?;
    exchange.write(rest, false).await?;
    exchange.sent += 1;
    finish(exchange)
}

fn begin(exchange: &mut Exchange) -> Result<(), Gone> {
    exchange.begin(200, &[kind()], false)
}

async fn send(exchange: &mut Exchange, payload: &[u8]) -> Result<(), Gone> {
    exchange.write(&message(payload), false).await?;
    exchange.sent += 1;
    Ok(())
}

fn finish(exchange: &mut Exchange) -> Result<(), Gone> {
    exchange.trailers(&[status(0)])
}

fn kind() -> (&'static str, String) {
    ("content-type", "application/grpc".to_owned())
}

fn status(code: u16) -> (&'static str, String) {
    ("grpc-status", code.to_string())
}
