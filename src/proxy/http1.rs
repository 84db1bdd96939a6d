//! HTTP/1 on a downstream connection: hyper's server, driven under the lifecycle.
//!
//! The notice is the `Connection: close` header alone; hyper's `graceful_shutdown` loses requests. An idle connection
//! is taken back from hyper, with whatever it had read, so that closing it is exact.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use hyper::server::conn::http1::{Builder, Parts};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::{Inbound, Served, finish_uploads, forward};
use crate::listener::conn::{Ask, Conn, Doing};
use crate::listener::io::Io;
use crate::telemetry::metrics::{Forced, Reject};

enum Stop {
    Done(hyper::Result<()>),
    Idle,
    HeadTimeout,
    Kill,
    CutUpload,
}

/// Serves requests until the connection is idle and asked for, or over.
pub async fn serve(io: Box<Io>, conn: &Rc<Conn>, inbound: &Rc<Inbound>) -> Served {
    // Boxed, so that an idle connection's task is small.
    Box::pin(serve_requests(io, conn, inbound)).await
}

async fn serve_requests(io: Box<Io>, conn: &Rc<Conn>, inbound: &Rc<Inbound>) -> Served {
    let header_bytes = conn.worker().config.limits.header_bytes;
    let service = service_fn(|request| forward::forward(request, Rc::clone(conn), Rc::clone(inbound)));
    let mut serving = Builder::new()
        // A client may close its sending side and still wait for the answer (RFC 9112 §9.6).
        .half_close(true)
        .max_buf_size(header_bytes.max(8192))
        .max_header_size(header_bytes)
        .auto_date_header(false)
        // The sweep times heads; hyper's timer would close idle connections as well.
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(io), service);
    let stop = poll_fn(|cx| {
        conn.wake_with(cx.waker());
        if conn.asked() == Ask::KILL {
            return Poll::Ready(Stop::Kill);
        }
        if let Poll::Ready(result) = Pin::new(&mut serving).poll(cx) {
            return Poll::Ready(Stop::Done(result));
        }
        if conn.doing.get() == Doing::Exchange && conn.is_settled() {
            conn.set_doing(Doing::Idle);
        }
        match (conn.doing.get(), conn.asked()) {
            (Doing::Idle, Ask::RECLAIM | Ask::CLOSE) if conn.is_settled() => Poll::Ready(Stop::Idle),
            (Doing::Head, Ask::HEAD_TIMEOUT) if conn.is_settled() => Poll::Ready(Stop::HeadTimeout),
            (Doing::Exchange, Ask::FORCE) if !conn.uploads.borrow().is_empty() => Poll::Ready(Stop::CutUpload),
            (Doing::Exchange, _) | (_, Ask::NOTHING) => Poll::Pending,
            _ => {
                // Asked for a state that is over; the sweep asks anew.
                conn.clear_ask();
                Poll::Pending
            }
        }
    })
    .await;
    let Parts { io, read_buf, .. } = serving.into_parts();
    if let (Some(tail), Stop::Kill) = (conn.tail.take(), &stop) {
        tail.cut(conn);
    }
    if let Stop::CutUpload = stop {
        conn.worker().count_forced(Forced::RequestUnanswered);
    }
    finish_uploads(conn, matches!(stop, Stop::Kill | Stop::CutUpload));
    let mut io = io.into_inner();
    match stop {
        Stop::Idle => {
            conn.set_doing(Doing::Idle);
            io.put_back(read_buf);
            Served::Idle(io)
        }
        Stop::HeadTimeout => Served::HeadTimeout(io),
        Stop::Kill | Stop::CutUpload => Served::Drop(io),
        Stop::Done(Ok(())) if conn.upgrade.borrow().is_some() => {
            io.put_back(read_buf);
            Served::Upgraded(io)
        }
        // Under TLS the farewell is still to come.
        Stop::Done(Ok(())) if conn.eof.get() && io.transport().tls().is_none() => Served::Gone,
        Stop::Done(Ok(())) => Served::Close(io),
        Stop::Done(Err(error)) => after_error(&error, io, conn),
    }
}

fn after_error(error: &hyper::Error, io: Box<Io>, conn: &Conn) -> Served {
    if error.is_parse() {
        let reason = if error.is_parse_too_large() { Reject::HeadTooLarge } else { Reject::BadRequest };
        conn.worker().metrics.rejected.add(reason as usize);
        // hyper has written its 400, 414 or 431.
        return Served::Close(io);
    }
    Served::Drop(io)
}
