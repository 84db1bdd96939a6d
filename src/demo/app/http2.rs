//! The embedded app's HTTP/2: the same orders, and two gRPC methods.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::grpc;
use super::ORDER_TIME;

/// Serves streams until the peer has closed.
pub(super) async fn serve<T: AsyncRead + AsyncWrite + Unpin>(io: T) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(io).await?;
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(accepted) => {
                    let (request, respond) = accepted?;
                    streams.spawn(stream(request, respond));
                }
                None => return Ok(()),
            },
            Some(_) = streams.join_next() => {}
        }
    }
}

async fn stream(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let (request, body) = request.into_parts();
    let body = read(body).await?;
    match request.uri.path() {
        "/order" if request.method == Method::POST => {
            sleep(ORDER_TIME).await;
            respond.send_response(head(200, "text/plain"), false)?.send_data(body, true)
        }
        grpc::PRICE => {
            sleep(ORDER_TIME).await;
            let mut answer = respond.send_response(head(200, grpc::CONTENT_TYPE), false)?;
            answer.send_data(body, false)?;
            end(&mut answer)
        }
        grpc::WATCH => {
            let mut answer = respond.send_response(head(200, grpc::CONTENT_TYPE), false)?;
            for number in 0_u64.. {
                answer.send_data(grpc::message(&number.to_be_bytes()), false)?;
                sleep(NEWS_TIME).await;
            }
            end(&mut answer)
        }
        _ => respond.send_response(head(404, "text/plain"), true).map(drop),
    }
}

async fn read(mut body: RecvStream) -> Result<Bytes, h2::Error> {
    let mut whole = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

fn end(answer: &mut SendStream<Bytes>) -> Result<(), h2::Error> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", grpc::OK.into());
    answer.send_trailers(trailers)
}

fn head(status: u16, content_type: &'static str) -> Response<()> {
    let mut response = Response::new(());
    // Every status given here is a valid one.
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}

/// Between two messages of a stream.
const NEWS_TIME: Duration = Duration::from_millis(100);
