//! SIGTERM, SIGINT and SIGQUIT, which mean the same (an image's STOPSIGNAL may choose any of them).

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The installed handlers; from their creation on no signal is lost, nor ends the process by its default action.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
}

// === impl Signals ===

impl Signals {
    /// Installs the handlers; call it before any other work, inside a runtime.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    /// The next signal's name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.quit.recv() => "SIGQUIT",
        }
    }
}
