//! HTTP/2 on a downstream connection: hyper's server, driven under the lifecycle.
//!
//! The notice is GOAWAY(2^31-1) and PING; h2 sends the final GOAWAY when the PING is acknowledged. A client that does
//! not acknowledge within [`ACK_TIMER`](crate::listener::streams::ACK_TIMER) has the acknowledgement put into its bytes
//! by `io`: see docs/adr/0007.

mod io;

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use self::io::LentIo;
use super::{Inbound, Served, count_late_head, finish_uploads, forward};
use crate::detect::frames::FrameHead;
use crate::listener::conn::{Ask, Conn};
use crate::listener::io::Io;
use crate::telemetry::metrics::{Notice, Reject};
use crate::worker::Local;

/// Streams that a client may have open at once.
const MOST_STREAMS: u32 = 200;
/// Bytes of one request that wait for the app to take them.
const STREAM_WINDOW: u32 = 65_535;
/// More than all streams together can hold, so that those that the app does not read leave room for the others. Half of
/// it is h2's measure for unread small frames, which it counts at 256 bytes each: beyond it the connection ends, and with
/// it what one client can make us keep.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Bytes of one response that wait for the client to take them.
const SEND_BUFFER: usize = 64 * 1024;

enum Stop {
    /// The client is gone, or everything is said.
    Done(hyper::Result<()>),
    /// Nothing is open and the client had its time.
    Close,
    HeadTimeout,
    /// The client resets its streams faster than any has reason to.
    Flood,
    Kill,
}

/// GOAWAY(2^31-1, ENHANCE_YOUR_CALM).
const CALM: [u8; 17] = [0, 0, 8, FrameHead::GOAWAY, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0x0b];

/// Serves streams until the connection is over.
pub async fn serve(io: Box<Io>, conn: &Rc<Conn>, inbound: &Rc<Inbound>) -> Served {
    Box::pin(serve_streams(io, conn, inbound)).await
}

async fn serve_streams(io: Box<Io>, conn: &Rc<Conn>, inbound: &Rc<Inbound>) -> Served {
    let http2 = conn.begin_http2();
    let worker = conn.worker();
    let header_bytes = worker.config.limits.header_bytes;
    // Boxed once, since hyper moves it several times on the way into its task.
    let service = service_fn(|request| Box::pin(forward::forward_stream(request, Rc::clone(conn), Rc::clone(inbound))));
    let (io, returned) = LentIo::new(io, Rc::clone(conn));
    let mut builder = Builder::new(Local);
    if worker.config.websocket.over_http2 {
        builder.enable_connect_protocol();
    }
    let mut serving = Box::pin(
        builder
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_stream_window_size(STREAM_WINDOW)
            .max_concurrent_streams(MOST_STREAMS)
            .max_header_list_size(u32::try_from(header_bytes).unwrap_or(u32::MAX))
            .max_send_buf_size(SEND_BUFFER)
            .auto_date_header(false)
            .serve_connection(TokioIo::new(io), service),
    );
    let stop = poll_fn(|cx| {
        conn.wake_with(cx.waker());
        loop {
            if conn.asked() == Ask::KILL {
                return Poll::Ready(Stop::Kill);
            }
            if let Poll::Ready(result) = serving.as_mut().poll(cx) {
                return Poll::Ready(Stop::Done(result));
            }
            if http2.floods() {
                worker.metrics.rejected.add(Reject::StreamResets as usize);
                return Poll::Ready(Stop::Flood);
            }
            match conn.asked() {
                // A client that takes GOAWAY for the end has all its answers by then, if there is such a moment.
                Ask::NOTICE
                    if http2.told_at().is_none() && (http2.insists() || (http2.is_settled() && conn.flushed.get())) =>
                {
                    conn.clear_ask();
                    conn.told.set(true);
                    http2.told(worker.lifecycle.now());
                    worker.metrics.notices.add(Notice::Goaway as usize);
                    serving.as_mut().graceful_shutdown();
                    continue;
                }
                Ask::NOTICE if http2.told_at().is_none() => {}
                Ask::CLOSE if http2.is_settled() => return Poll::Ready(Stop::Close),
                Ask::HEAD_TIMEOUT => return Poll::Ready(Stop::HeadTimeout),
                Ask::NOTHING => {}
                // Asked for a state that is over; the sweep asks anew.
                _ => conn.clear_ask(),
            }
            return Poll::Pending;
        }
    })
    .await;
    // Every stream that is still open ends with it: hyper's tasks find their connection gone.
    drop(serving);
    finish_uploads(conn, matches!(stop, Stop::Kill | Stop::Flood));
    let Some(mut io) = returned.take() else { return Served::Gone };
    match stop {
        Stop::HeadTimeout => {
            count_late_head(worker);
            Served::Close(io)
        }
        Stop::Flood => {
            // Only between two frames of ours can it be understood, and whoever does not read need not be told.
            if conn.flushed.get() {
                io.transport_mut().write_now(&CALM);
            }
            Served::Close(io)
        }
        Stop::Kill => Served::Drop(io),
        // Under TLS the farewell is still to come.
        Stop::Done(_) if conn.eof.get() && io.transport().tls().is_none() => Served::Gone,
        Stop::Done(Ok(())) | Stop::Close => Served::Close(io),
        // h2 has said why in its GOAWAY.
        Stop::Done(Err(_)) => Served::Close(io),
    }
}
