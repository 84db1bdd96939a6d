use std::future::poll_fn;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use super::*;
use crate::transport::Transport;

/// A client and an app with a relay of opaque bytes between them.
async fn relayed(up: &[u8], down: &[u8]) -> (UnixStream, UnixStream, Relay) {
    let (client, downstream) = UnixStream::pair().unwrap();
    let (app, upstream) = UnixStream::pair().unwrap();
    let relay = Relay::new(
        Transport::Unix(downstream),
        Transport::Unix(upstream),
        Direction::opaque(up),
        Direction::opaque(down),
    );
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
    let relay = Relay::new(
        Transport::Tcp(downstream),
        Transport::Tcp(upstream),
        Direction::opaque(b""),
        Direction::opaque(b""),
    );
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

/// A slow reader leaves bytes in the pipe; the end that is forced then comes behind them.
#[tokio::test]
async fn what_stands_in_a_pipe_goes_out_before_the_fin() {
    let ((mut client, downstream), (mut app, upstream)) = (tcp_pair().await, tcp_pair().await);
    let mut relay = Relay::new(
        Transport::Tcp(downstream),
        Transport::Tcp(upstream),
        Direction::opaque(b""),
        Direction::opaque(b""),
    );
    let gear = Gear::new();
    let chunk = vec![7; 1 << 20];
    let mut sent = 0;
    // Until neither the client's socket nor the pipe takes any more.
    while let Ok(n) = tokio::time::timeout(std::time::Duration::from_millis(300), async {
        tokio::select! {
            _ = poll_fn(|cx| relay.poll(&gear, cx)) => panic!("nobody has ended"),
            n = app.write(&chunk) => n.unwrap(),
        }
    })
    .await
    {
        sent += n;
    }
    assert!(!relay.down.is_empty(), "{sent} bytes were sent and none waits");
    let taken = relay.down.moved();
    relay.finish();
    let mut received = Vec::new();
    let (flow, result) = tokio::join!(poll_fn(|cx| relay.poll(&gear, cx)), client.read_to_end(&mut received));
    result.unwrap();
    assert_eq!((flow, received.len() as u64), (Flow::Finished, taken));
}

/// What a client receives of `parts`, if it is to be told to go behind the first of them.
async fn told_behind_the_first(parts: [&[u8]; 2]) -> Vec<u8> {
    let (mut client, downstream) = UnixStream::pair().unwrap();
    let (mut app, upstream) = UnixStream::pair().unwrap();
    let (up, down) = (Direction::framed(b"", false), Direction::framed(b"", true));
    let mut relay = Relay::new(Transport::Unix(downstream), Transport::Unix(upstream), up, down);
    let gear = Gear::new();
    app.write_all(parts[0]).await.unwrap();
    while relay.down.moved() < parts[0].len() as u64 {
        tokio::select! {
            biased;
            _ = poll_fn(|cx| relay.poll(&gear, cx)) => panic!("nobody has ended"),
            () = tokio::task::yield_now() => {}
        }
    }
    relay.down.end_with(Bytes::from_static(b"\x88\x02\x03\xe9"));
    let mut received = Vec::new();
    let writing = async {
        app.write_all(parts[1]).await.unwrap();
        // More than the sockets hold: what is dropped must not stop the app.
        app.write_all(&vec![0; 4 << 20]).await.unwrap();
    };
    let relaying = poll_fn(|cx| {
        let _ = relay.poll(&gear, cx);
        if relay.down.has_closed() && relay.down.hang_up() {
            let _ = relay.poll(&gear, cx);
        }
        Poll::<()>::Pending
    });
    tokio::select! {
        () = relaying => {}
        ((), result) = async { tokio::join!(writing, client.read_to_end(&mut received)) } => drop(result.unwrap()),
    }
    received
}

#[tokio::test]
async fn a_close_is_put_in_behind_the_frame_that_is_open_and_nothing_behind_it() {
    let whole = told_behind_the_first([b"\x81\x02hi", b"\x81\x02no"]).await;
    assert_eq!(whole, b"\x81\x02hi\x88\x02\x03\xe9");
    // What follows is cut anywhere, and must not be taken for frames.
    let cut = told_behind_the_first([b"\x81\x02h", b"i\x81\x7f\0\0\0\0\0\0\0\xff\x83\x83\x83\x83"]).await;
    assert_eq!(cut, b"\x81\x02hi\x88\x02\x03\xe9");
    let half = told_behind_the_first([b"\x01\x04ha", b"lf\x00\x02no"]).await;
    assert_eq!(half, b"\x01\x04half\x88\x02\x03\xe9");
    let head = told_behind_the_first([b"\x81\x7e\x00", b"\x02ok\x81\x02no"]).await;
    assert_eq!(head, b"\x81\x7e\x00\x02ok\x88\x02\x03\xe9");
}

#[tokio::test]
async fn no_second_close_is_put_in_behind_the_apps_own() {
    let received = told_behind_the_first([b"\x81\x02hi\x88\x02\x0f", b"\xa0"]).await;
    assert_eq!(received, b"\x81\x02hi\x88\x02\x0f\xa0");
    let received = told_behind_the_first([b"\x88", b"\x00\x81\x02no"]).await;
    assert_eq!(received, b"\x88\x00");
}
