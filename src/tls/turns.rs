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
        let first = once(handshake.as_mut()).await;
        // A turn lasts until all others who can go on have gone on.
        tokio::task::yield_now().await;
        if let Poll::Ready(done) = first {
            return Some(done);
        }
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::rc::Rc;
    use std::task::Waker;

    use tokio::runtime::LocalOptions;
    use tokio::task::{spawn_local, yield_now};

    use super::*;

    /// A handshake that can always go on, for so many steps.
    async fn steps(turns: Rc<Semaphore>, taken: Rc<Cell<usize>>, mut left: usize) {
        let handshake = pin!(poll_fn(|cx| {
            taken.set(taken.get() + 1);
            left -= 1;
            cx.waker().wake_by_ref();
            if left == 0 { Poll::Ready(()) } else { Poll::Pending }
        }));
        assert_eq!(in_turns(&turns, handshake, |_| false).await, Some(()));
    }

    /// To the end of the queue.
    async fn again() {
        let mut waited = false;
        poll_fn(|cx| {
            cx.waker().wake_by_ref();
            if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// On a runtime like a worker's.
    #[test]
    fn a_flood_leaves_everybody_else_their_turns() {
        const MANY: usize = 200;
        let runtime = tokio::runtime::Builder::new_current_thread().build_local(LocalOptions::default()).unwrap();
        let (turns, taken) = (Rc::new(Semaphore::new(AT_ONCE)), Rc::new(Cell::new(0)));
        let most = runtime.block_on(async {
            for _ in 0..MANY {
                drop(spawn_local(steps(Rc::clone(&turns), Rc::clone(&taken), 5)));
            }
            // A connection that is always ready.
            let busy = spawn_local(async move {
                let mut most = 0;
                while taken.get() < MANY * 5 {
                    let before = taken.get();
                    again().await;
                    most = most.max(taken.get() - before);
                }
                most
            });
            busy.await.unwrap()
        });
        assert!(most <= 3 * AT_ONCE, "{most} steps while another task waited");
    }

    #[tokio::test]
    async fn one_that_waits_ends_when_it_is_told_to() {
        let (turns, over) = (Semaphore::new(AT_ONCE), Cell::new(false));
        let waker: Cell<Option<Waker>> = Cell::new(None);
        let is_over = |cx: &mut Context<'_>| {
            waker.set(Some(cx.waker().clone()));
            over.get()
        };
        let stuck = pin!(std::future::pending::<()>());
        let told = async {
            let waits = loop {
                // Somebody who has no turn any more has been asked whether it is over.
                match waker.take() {
                    Some(waker) => break waker,
                    None => yield_now().await,
                }
            };
            over.set(true);
            waits.wake();
        };
        let (ended, ()) = tokio::join!(in_turns(&turns, stuck, is_over), told);
        assert_eq!(ended, None);
        assert_eq!(turns.available_permits(), AT_ONCE);
    }
}
