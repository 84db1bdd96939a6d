//! Handshakes take turns: each costs as much as a dozen requests, and a flood of them must leave the others their time.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::Semaphore;

/// Handshakes that may go on before everybody else has; each step takes some 200 µs of a core.
pub const AT_ONCE: usize = 4;

/// Runs a handshake step by step, each in its turn; `None` if `is_over` says so while it waits. `is_over` is asked with the
/// task's context, so that it can have the task woken.
pub async fn in_turns<F: Future>(
    turns: &Semaphore,
    mut handshake: Pin<&mut F>,
    is_over: impl Fn(&mut Context<'_>) -> bool,
) -> Option<F::Output> {
    loop {
        // Never closed.
        let turn = turns.acquire().await.ok();
        if let Poll::Ready(done) = once(handshake.as_mut()).await {
            return Some(done);
        }
        // A turn lasts until all others who can go on have gone on.
        tokio::task::yield_now().await;
        if let Poll::Ready(done) = once(handshake.as_mut()).await {
            return Some(done);
        }
        drop(turn);
        // No await between the poll above and this one: what wakes the handshake from now on wakes this.
        let mut waited = false;
        let goes_on = poll_fn(|cx| {
            if is_over(cx) {
                Poll::Ready(false)
            } else if std::mem::replace(&mut waited, true) {
                Poll::Ready(true)
            } else {
                Poll::Pending
            }
        });
        if !goes_on.await {
            return None;
        }
    }
}

async fn once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}
