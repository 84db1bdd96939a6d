//! Streams that are taken back before the app has shown that it knows of them.
//!
//! Servers take many streams that are reset before they were accepted for an attack and end the whole connection, with
//! the streams of everybody else (h2: more than twenty). A pause of the app is enough for that, or a client that leaves
//! with all its streams open. So a connection resets only a few such streams, and holds the others open until an answer
//! shows that the app has come so far.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

use super::multiplex::Answer;

/// The answer to one request, as it comes.
pub(super) type Answering = Pin<Box<dyn Future<Output = Answer>>>;

/// One connection's.
#[derive(Default)]
pub(super) struct TakenBack {
    begun: Cell<u64>,
    /// Streams that somebody waits for.
    waiting: Cell<usize>,
    /// Reset, and the app may not know that they ever were; in no order.
    unheard: RefCell<Vec<u64>>,
    /// Nobody waits for them, but they are still open.
    held: RefCell<Vec<(u64, Answering)>>,
    total: Cell<usize>,
}

/// Fewer than the twenty that h2 takes.
const MOST_UNHEARD: usize = 16;
/// nghttp2 ends a connection that has seen a thousand resets and goes on with them.
const MOST_IN_ALL: usize = 500;

// === impl TakenBack ===

impl TakenBack {
    /// A stream begins; its place in the order of all.
    pub(super) fn begun(&self) -> u64 {
        self.waiting.set(self.waiting.get() + 1);
        self.begun.replace(self.begun.get() + 1)
    }

    /// One more is reset, that the app knows of.
    pub(super) fn count(&self) {
        self.total.set(self.total.get() + 1);
    }

    /// The app has answered or refused stream number `number`, so it knows of every one that was begun before. How many
    /// places have become free by that.
    pub(super) fn answered(&self, number: u64) -> usize {
        self.waiting.set(self.waiting.get().saturating_sub(1));
        self.heard_of(number)
    }

    /// Nobody waits for stream number `number` any more. True if it was reset, false if it stays open for now.
    pub(super) fn give_up(&self, number: u64, answer: Answering) -> bool {
        self.waiting.set(self.waiting.get().saturating_sub(1));
        self.count();
        if self.unheard.borrow().len() >= MOST_UNHEARD {
            self.held.borrow_mut().push((number, answer));
            return false;
        }
        self.unheard.borrow_mut().push(number);
        true
    }

    /// Looks whether the app has answered a stream that is only held open. How many places have become free.
    pub(super) fn sweep(&self) -> usize {
        if self.held.borrow().is_empty() {
            return 0;
        }
        let mut cx = Context::from_waker(Waker::noop());
        let latest = {
            let mut held = self.held.borrow_mut();
            held.iter_mut()
                .filter_map(|(number, answer)| answer.as_mut().poll(&mut cx).is_ready().then_some(*number))
                .max()
        };
        latest.map_or(0, |number| self.heard_of(number))
    }

    /// The connection must not be used for more: no answer to come can show how far the app is, or it has seen too much.
    pub(super) fn is_too_much(&self) -> bool {
        let stuck = self.waiting.get() == 0 && self.unheard.borrow().len() >= MOST_UNHEARD;
        stuck || self.total.get() >= MOST_IN_ALL
    }

    fn heard_of(&self, latest: u64) -> usize {
        let mut unheard = self.unheard.borrow_mut();
        unheard.retain(|number| *number > latest);
        let mut held = self.held.borrow_mut();
        if held.is_empty() {
            return 0;
        }
        let (mut free, kept): (Vec<_>, Vec<_>) = held.drain(..).partition(|(number, _)| *number <= latest);
        *held = kept;
        while unheard.len() < MOST_UNHEARD
            && let Some(one) = held.pop()
        {
            unheard.push(one.0);
            free.push(one);
        }
        drop((unheard, held));
        // Dropping them resets the streams.
        free.len()
    }
}

impl std::fmt::Debug for TakenBack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TakenBack").field("waiting", &self.waiting).field("total", &self.total).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    /// An answer that never comes, and knows that it was dropped.
    fn answer(dropped: &Rc<Cell<usize>>) -> Answering {
        struct OnDrop(Rc<Cell<usize>>);
        impl Drop for OnDrop {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let guard = OnDrop(Rc::clone(dropped));
        Box::pin(async move {
            let _guard = guard;
            std::future::pending().await
        })
    }

    #[test]
    fn few_are_reset_at_once_and_the_others_when_the_app_has_shown_how_far_it_is() {
        let dropped = Rc::default();
        let taken_back = TakenBack::default();
        assert_eq!((0..40).map(|_| taken_back.begun()).last(), Some(39));
        let reset = (0..30).filter(|number| taken_back.give_up(*number, answer(&dropped))).count();
        assert_eq!((reset, dropped.get()), (MOST_UNHEARD, MOST_UNHEARD));
        // The app answers stream 20, so it knows of all before it; of the others no more than the few.
        assert_eq!(taken_back.answered(20), 30 - MOST_UNHEARD);
        assert_eq!(dropped.get(), 30);
        assert_eq!(taken_back.unheard.borrow().len(), 9);
        assert!(!taken_back.is_too_much());
    }

    #[test]
    fn a_connection_on_which_nothing_is_left_to_be_answered_is_given_up() {
        let taken_back = TakenBack::default();
        for number in 0..MOST_UNHEARD as u64 {
            assert!(!taken_back.is_too_much());
            taken_back.begun();
            taken_back.give_up(number, answer(&Rc::default()));
        }
        assert!(taken_back.is_too_much());
    }
}
