//! The clients against servers that end things in every way there is; here those of HTTP/2 and gRPC.

mod long;

use bytes::Bytes;
use h2::Reason;
use h2::server::{Connection, SendResponse};
use http::{HeaderMap, HeaderName, Response};
use tokio::net::TcpListener;

use super::super::grpc;
use super::*;

type Served = Connection<TcpStream, Bytes>;

/// One gRPC answer: whole messages, bytes of one that is not whole, and how it ends.
#[derive(Debug)]
struct Script {
    messages: u64,
    torn: bool,
    /// `None`: trailers without a status.
    status: Option<u16>,
}

/// A client of `kind` in front of `serve`, which is handed each of its HTTP/2 connections by number.
async fn client<F>(tasks: &mut JoinSet<()>, kind: LoadKind, serve: fn(usize, Served) -> F) -> (Client, Balancer)
where
    F: Future<Output = ()> + Send + 'static,
{
    let serve = move |number, stream| async move { serve(number, h2::server::handshake(stream).await.unwrap()).await };
    tcp_client(tasks, kind, serve).await
}

/// A client of `kind` in front of `serve`, which is handed each of its connections by number.
async fn tcp_client<S, F>(tasks: &mut JoinSet<()>, kind: LoadKind, serve: S) -> (Client, Balancer)
where
    S: Fn(usize, TcpStream) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(serve(number, stream));
        }
    });
    let balancer = Balancer::start(server, server).await.unwrap();
    let client = Client {
        kind,
        target: balancer.address,
        refusals: balancer.refusals(),
        tally: Arc::default(),
        stop: watch::channel(false).1,
    };
    (client, balancer)
}

async fn serve_all(mut connection: Served, each: fn(usize, SendResponse<Bytes>)) {
    let mut number = 0;
    while let Some(Ok((request, respond))) = connection.accept().await {
        // The body is not looked at: small ones fit into the window.
        drop(request);
        each(number, respond);
        number += 1;
    }
}

fn answer(mut respond: SendResponse<Bytes>, script: &Script) {
    let mut body = respond.send_response(Response::new(()), false).unwrap();
    for number in 0..script.messages {
        body.send_data(grpc::message(&number.to_be_bytes()), false).unwrap();
    }
    if script.torn {
        body.send_data(Bytes::from_static(&[0, 0, 0, 0, 9, 1]), false).unwrap();
    }
    let mut trailers = HeaderMap::new();
    trailers.extend(script.status.map(|status| (HeaderName::from_static("grpc-status"), status.into())));
    body.send_trailers(trailers).unwrap();
}

#[tokio::test]
async fn a_refused_request_is_sent_again_and_shown() {
    let mut tasks = JoinSet::new();
    let (client, _balancer) = client(&mut tasks, LoadKind::Http2Request, |_, connection| async move {
        serve_all(connection, |number, mut respond| match number {
            0 => respond.send_reset(Reason::REFUSED_STREAM),
            _ => drop(respond.send_response(Response::new(()), true).unwrap()),
        })
        .await;
    })
    .await;
    let channel = Channel::new(client.clone());
    assert_eq!(channel.send(&http2::post("/"), &Bytes::new()).await.unwrap().status(), 200);
    assert_eq!(client.tally.lock()[&LoadKind::Http2Request].repeated, 1);
}

#[tokio::test]
async fn after_goaway_a_new_connection_is_made() {
    let mut tasks = JoinSet::new();
    let (client, _balancer) = client(&mut tasks, LoadKind::Http2Request, |number, mut connection| async move {
        while let Some(Ok((_request, mut respond))) = connection.accept().await {
            let mut response = Response::new(());
            response.headers_mut().insert("connection-number", number.into());
            respond.send_response(response, true).unwrap();
            connection.graceful_shutdown();
        }
    })
    .await;
    let channel = Channel::new(client.clone());
    for number in 0..3 {
        let response = channel.send(&http2::post("/"), &Bytes::new()).await.unwrap();
        assert_eq!(response.headers()["connection-number"], number.to_string());
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(client.tally.totals(), (0, 0));
}

#[tokio::test]
async fn a_request_whose_connection_dies_is_lost() {
    let mut tasks = JoinSet::new();
    let (client, _balancer) = client(&mut tasks, LoadKind::Http2Request, |_, mut connection| async move {
        // Dropped with the request taken and not answered.
        connection.accept().await;
    })
    .await;
    let failure = Channel::new(client.clone()).send(&http2::post("/"), &Bytes::new()).await.unwrap_err();
    assert!(matches!(failure, Failure::NoAnswer | Failure::Reset), "{failure:?}");
    assert_eq!(client.tally.lock().get(&LoadKind::Http2Request), None, "nothing was sent again");
}

#[tokio::test]
async fn a_pod_that_does_not_listen_refuses() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut tasks = JoinSet::new();
    let (client, _balancer) = client(&mut tasks, LoadKind::GrpcUnary, |_, _| async {}).await;
    let balancer = Balancer::start(closed, closed).await.unwrap();
    let client = Client { target: balancer.address, refusals: balancer.refusals(), ..client };
    calls::price(Arc::new(Channel::new(client.clone()))).await;
    assert_eq!(client.tally.lock()[&LoadKind::GrpcUnary].failures, BTreeMap::from([(Failure::Refused, 1)]));
}

#[tokio::test]
async fn only_a_status_between_two_messages_tells_a_stream_to_call_again() {
    const SCRIPTS: [(Script, Result<Left, Failure>); 5] = [
        (Script { messages: 3, torn: false, status: Some(14) }, Ok(Left::Told)),
        (Script { messages: 3, torn: true, status: Some(14) }, Err(Failure::CutShort)),
        (Script { messages: 0, torn: false, status: Some(14) }, Err(Failure::GrpcStatus)),
        (Script { messages: 3, torn: false, status: Some(13) }, Err(Failure::GrpcStatus)),
        (Script { messages: 3, torn: false, status: None }, Err(Failure::GrpcStatus)),
    ];
    let mut tasks = JoinSet::new();
    let (client, _balancer) = client(&mut tasks, LoadKind::GrpcStream, |_, connection| async move {
        serve_all(connection, |number, respond| answer(respond, &SCRIPTS[number].0)).await;
    })
    .await;
    let channel = Channel::new(client.clone());
    let (_going, mut stop) = watch::channel(false);
    for (number, (_, expected)) in SCRIPTS.iter().enumerate() {
        assert_eq!(calls::follow(&channel, &mut stop).await, *expected, "script {number}");
    }
}

#[tokio::test]
async fn a_stream_that_is_running_when_the_load_ends_is_no_loss() {
    let mut tasks = JoinSet::new();
    let (client, _balancer) = client(&mut tasks, LoadKind::GrpcStream, |_, mut connection| async move {
        let mut bodies = Vec::new();
        while let Some(Ok((_request, mut respond))) = connection.accept().await {
            bodies.push(respond.send_response(Response::new(()), false).unwrap());
        }
    })
    .await;
    let (stop, stopped) = watch::channel(false);
    let client = Client { stop: stopped, ..client };
    let (ended, ()) = tokio::join!(
        async {
            timeout(REQUEST_TIMEOUT, calls::watch(client.clone())).await.unwrap();
            client.tally.totals()
        },
        async {
            sleep(Duration::from_millis(100)).await;
            stop.send_replace(true);
        }
    );
    assert_eq!(ended, (1, 0));
}

#[test]
fn only_the_expected_answer_counts_as_one() {
    let answer = |status, body: &[u8]| Answer { status, keep_alive: true, body: body.to_vec() };
    assert_eq!(judge(&answer(200, b"a"), b"a"), Ok(()));
    assert_eq!(judge(&answer(200, b"b"), b"a"), Err(Failure::Other));
    assert_eq!(judge(&answer(404, b"a"), b"a"), Err(Failure::Other));
    assert_eq!(judge(&answer(503, b"a"), b"a"), Err(Failure::ServerError));
}

#[test]
fn the_tally_adds_up_over_kinds() {
    let tally = Tally::default();
    tally.record(LoadKind::SlowRequest, Ok(()));
    tally.record(LoadKind::KeepAlivePost, Err(Failure::Reset));
    assert_eq!(tally.totals(), (2, 1));
}
