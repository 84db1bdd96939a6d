use std::future::poll_fn;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use super::*;

/// A client and an app with a relay of opaque bytes between them.
async fn relayed(up: &[u8], down: &[u8]) -> (UnixStream, UnixStream, Relay) {
    let (client, downstream) = UnixStream::pair().unwrap();
    let (app, upstream) = UnixStream::pair().unwrap();
    let relay =
        Relay::new(Side::Unix(downstream), Side::Unix(upstream), Direction::opaque(up), Direction::opaque(down));
    (client, app, relay)
}

async fn run(mut relay: Relay) -> Flow {
    let gear = Gear::new();
    poll_fn(|cx| relay.poll(&gear, cx)).await
}

#[tokio::test]
async fn what_was_read_ahead_comes_first_and_half_close_is_kept() {
    let (mut client, mut app, relay) = relayed(b"first ", b"hello ").await;
    let play = async move {
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
    };
    let (flow, ()) = tokio::join!(run(relay), play);
    assert_eq!(flow, Flow::Finished);
}

#[tokio::test]
async fn a_reader_that_does_not_read_stops_the_sender() {
    let (mut client, _app, relay) = relayed(b"", b"").await;
    let play = async move {
        let chunk = [7_u8; 1024];
        let mut sent = 0;
        while let Ok(written) = tokio::time::timeout(std::time::Duration::from_millis(200), client.write(&chunk)).await
        {
            sent += written.unwrap();
            assert!(sent < 4 << 20, "the relay must not take more than it can pass on");
        }
    };
    tokio::select! {
        flow = run(relay) => panic!("{flow:?}"),
        () = play => {}
    }
}

#[tokio::test]
async fn finish_sends_what_was_read_and_then_fin() {
    let (mut client, mut app, mut relay) = relayed(b"last words", b"").await;
    relay.finish();
    assert_eq!(run(relay).await, Flow::Finished);
    let mut received = String::new();
    app.read_to_string(&mut received).await.unwrap();
    assert_eq!(received, "last words");
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

/// Large writes go through pipes, small ones through the buffer, and changes between the two lose or mix up nothing.
#[tokio::test]
async fn every_byte_passes_in_order_whoever_moves_it() {
    let ((client, downstream), (app, upstream)) = (tcp_pair().await, tcp_pair().await);
    let relay = Relay::new(Side::Tcp(downstream), Side::Tcp(upstream), Direction::opaque(b""), Direction::opaque(b""));
    let sizes = [1, 300_000, 7, 64 * 1024, 65_537, 20, 2_000_000, 1];
    let bytes = move |salt: usize| {
        sizes
            .iter()
            .flat_map(move |size| (0..*size).map(move |at| ((at * 7 + at / 251 + salt + size) % 256) as u8))
            .collect::<Vec<u8>>()
    };
    let talk = |stream: TcpStream, salt: usize, other: usize| async move {
        let (mut read, mut write) = stream.into_split();
        let writing = async move {
            let all = bytes(salt);
            let mut rest = &all[..];
            for size in sizes {
                write.write_all(&rest[..size]).await.unwrap();
                rest = &rest[size..];
            }
        };
        let mut received = Vec::new();
        let ((), result) = tokio::join!(writing, read.read_to_end(&mut received));
        result.unwrap();
        assert!(received == bytes(other), "{} bytes came", received.len());
    };
    let (flow, (), ()) = tokio::join!(run(relay), talk(client, 1, 2), talk(app, 2, 1));
    assert_eq!(flow, Flow::Finished);
}
