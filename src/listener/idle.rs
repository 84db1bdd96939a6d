//! A connection that waits, without any buffer, for its first bytes or its next ones.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use bytes::{Bytes, BytesMut};

use super::conn::{Ask, Conn, Doing};
use super::io::Io;

/// What ended the wait.
#[derive(Debug)]
pub enum Woken {
    /// Enough bytes to go on.
    Bytes(Bytes),
    /// The client is gone, or has closed its side.
    Eof,
    /// It is time to close it.
    Close,
    /// What had begun did not come in time.
    HeadTimeout,
}

/// Waits until something comes; then for `enough` bytes to go on.
pub async fn idle(io: &mut Io, conn: &Rc<Conn>, enough: impl Fn(&[u8]) -> bool) -> Woken {
    conn.clear_ask();
    // Copied, and let go of: it may be a piece of a large buffer.
    let mut read = BytesMut::from(io.take_ahead().as_ref());
    if read.is_empty() {
        conn.set_doing(Doing::Idle);
    }
    loop {
        if !read.is_empty() && enough(&read) {
            return Woken::Bytes(read.freeze());
        }
        conn.bare.set(true);
        let more = poll_fn(|cx| {
            conn.wake_with(cx.waker());
            match io.poll_more(cx, &mut read) {
                Poll::Ready(more) => Poll::Ready(Some(more)),
                Poll::Pending if asks_to_end(conn) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
        conn.bare.set(false);
        match more {
            Some(Ok(1..)) => {
                conn.head_began();
                continue;
            }
            Some(Ok(0) | Err(_)) => return Woken::Eof,
            None => {}
        }
        return match conn.asked() {
            Ask::HEAD_TIMEOUT => Woken::HeadTimeout,
            // The kernel knows better than the reactor: a request that is already here gets its answer.
            Ask::CLOSE if has_unread(io) => {
                conn.clear_ask();
                continue;
            }
            Ask::CLOSE => Woken::Close,
            _ => Woken::Eof,
        };
    }
}

/// Bytes wait in the kernel.
pub fn has_unread(io: &Io) -> bool {
    matches!(io.transport().peek(), Ok(1..))
}

/// The sweep wants an end of what is waited for; anything else that it asked is over.
pub fn asks_to_end(conn: &Conn) -> bool {
    match conn.asked() {
        Ask::CLOSE => conn.doing.get() == Doing::Idle,
        Ask::HEAD_TIMEOUT => conn.doing.get() == Doing::Head,
        Ask::KILL => true,
        _ => {
            conn.clear_ask();
            false
        }
    }
}
