//! Spares an app's connection the wake-up that changes nothing.
//!
//! hyper wakes the task of a client connection whenever a piece of a response's body has been taken, also when it was
//! the last one. By then the connection waits for the next request, and to look at all of it again costs a tenth of
//! what hyper does for a request.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;

/// Stands between a connection and whoever wakes its task. Everything happens on one thread, so a wake-up while a body
/// is polled can only be that body's.
#[derive(Debug, Default)]
pub struct Quiet {
    task: OnceLock<Waker>,
    holding_back: AtomicBool,
    held_back: AtomicBool,
}

// === impl Quiet ===

impl Quiet {
    /// Drives a connection to its end.
    pub async fn drive<C: Future + Unpin>(self: Arc<Self>, mut connection: C) -> C::Output {
        let waker = Waker::from(Arc::clone(&self));
        std::future::poll_fn(|cx| {
            // A task has the same waker for all its life.
            let _ = self.task.get_or_init(|| cx.waker().clone());
            Pin::new(&mut connection).poll(&mut Context::from_waker(&waker))
        })
        .await
    }

    /// Polls the body of a response that came on the connection.
    pub fn poll_body(&self, body: &mut Incoming, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        self.holding_back.store(true, Relaxed);
        let polled = Pin::new(&mut *body).poll_frame(cx);
        self.holding_back.store(false, Relaxed);
        if self.held_back.swap(false, Relaxed) && !body.is_end_stream() {
            // There is more to come, and there is room for it now.
            self.wake_task();
        }
        polled
    }

    fn wake_task(&self) {
        if let Some(task) = self.task.get() {
            task.wake_by_ref();
        }
    }
}

impl Wake for Quiet {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.holding_back.load(Relaxed) {
            self.held_back.store(true, Relaxed);
        } else {
            self.wake_task();
        }
    }
}
