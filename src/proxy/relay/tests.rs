#![expect(clippy::disallowed_methods, reason = "the test has no worker to be local to")]

use std::future::poll_fn;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;

#[tokio::test]
async fn what_was_read_ahead_comes_first_and_half_close_is_kept() {
    let (mut client, down) = duplex(64);
    let (mut app, up) = duplex(64);
    let mut relay = Relay::new(down, up, Bytes::from_static(b"first "), Bytes::from_static(b"hello "));
    let relaying = tokio::spawn(async move { poll_fn(|cx| relay.poll(cx)).await });

    client.write_all(b"second").await.unwrap();
    client.shutdown().await.unwrap();
    let mut received = String::new();
    app.read_to_string(&mut received).await.unwrap();
    assert_eq!(received, "first second");

    // The client's FIN has been passed on, and the app still answers.
    app.write_all(b"world").await.unwrap();
    app.shutdown().await.unwrap();
    let mut received = String::new();
    client.read_to_string(&mut received).await.unwrap();
    assert_eq!(received, "hello world");
    assert_eq!(relaying.await.unwrap(), Flow::Finished);
}

#[tokio::test]
async fn a_reader_that_does_not_read_stops_the_sender() {
    let (mut client, down) = duplex(1024);
    let (_app, up) = duplex(1024);
    let mut relay = Relay::new(down, up, Bytes::new(), Bytes::new());
    let relaying = tokio::spawn(async move { poll_fn(|cx| relay.poll(cx)).await });
    let chunk = [7_u8; 1024];
    let mut sent = 0;
    while let Ok(written) = tokio::time::timeout(std::time::Duration::from_millis(200), client.write(&chunk)).await {
        sent += written.unwrap();
        assert!(sent < 1 << 20, "the relay must not take more than it can pass on");
    }
    relaying.abort();
}

#[tokio::test]
async fn finish_sends_what_was_read_and_then_fin() {
    let (mut client, down) = duplex(64);
    let (mut app, up) = duplex(64);
    let mut relay = Relay::new(down, up, Bytes::from_static(b"last words"), Bytes::new());
    relay.finish();
    assert_eq!(poll_fn(|cx| relay.poll(cx)).await, Flow::Finished);
    drop(relay);
    let mut received = String::new();
    app.read_to_string(&mut received).await.unwrap();
    assert_eq!(received, "last words");
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
}
