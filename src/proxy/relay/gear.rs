//! What all relays of a worker share: one buffer, and pipes for the kernel to move bytes through.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// One per worker. A relay keeps nothing of it from one poll to the next, but for bytes that the other side would not
/// take.
#[derive(Debug)]
pub struct Gear {
    /// Made for the first relay: many pods have none.
    buffer: RefCell<Vec<u8>>,
    idle: RefCell<Vec<Pipe>>,
    /// Pipes made and not dropped.
    made: Rc<Cell<usize>>,
}

/// A pipe between two sockets (splice(2)), and how many bytes stand in it.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    held: usize,
    made: Rc<Cell<usize>>,
}

/// Bytes of one read. Larger ones are left to the kernel, where it can.
pub const BUFFER: usize = 64 * 1024;
/// Bytes that a pipe may hold; the kernel gives less to a user with many of them.
const PIPE: usize = 256 * 1024;
/// Two descriptors and up to [`PIPE`] bytes each; relays beyond it copy.
const MOST_PIPES: usize = 64;

// === impl Gear ===

impl Gear {
    /// Nothing is allocated yet.
    pub fn new() -> Self {
        Self { buffer: RefCell::default(), idle: RefCell::default(), made: Rc::default() }
    }

    /// Lends the buffer for one read and what follows from it.
    pub fn with_buffer<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut buffer = self.buffer.borrow_mut();
        buffer.resize(BUFFER, 0);
        work(&mut buffer)
    }

    /// An empty pipe, if there may be one more.
    pub fn pipe(&self) -> Option<Pipe> {
        if let Some(pipe) = self.idle.borrow_mut().pop() {
            return Some(pipe);
        }
        if self.made.get() >= MOST_PIPES {
            return None;
        }
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
        // Refused to a user who has too many: it works with the usual size as well.
        let _ = fcntl_setpipe_size(&write, PIPE);
        self.made.set(self.made.get() + 1);
        Some(Pipe { read, write, held: 0, made: Rc::clone(&self.made) })
    }

    /// Takes a pipe back; one that still holds bytes is closed.
    pub fn give_back(&self, pipe: Pipe) {
        if pipe.held == 0 {
            self.idle.borrow_mut().push(pipe);
        }
    }
}

impl Default for Gear {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Pipe ===

impl Pipe {
    /// Bytes in it.
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Takes what the socket has; 0 is its end. Only of use when the pipe is empty: then EAGAIN speaks of the socket.
    pub fn fill(&mut self, from: BorrowedFd<'_>) -> io::Result<usize> {
        let n = splice(from, None, self.write.as_fd(), None, PIPE, FLAGS)?;
        self.held += n;
        Ok(n)
    }

    /// Gives the socket what it takes.
    pub fn empty(&mut self, to: BorrowedFd<'_>) -> io::Result<usize> {
        let n = splice(self.read.as_fd(), None, to, None, self.held, FLAGS)?;
        self.held -= n;
        Ok(n)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.made.set(self.made.get() - 1);
    }
}

const FLAGS: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);
