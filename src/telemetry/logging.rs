//! The log: `tracing` events as JSON (default) or text, on stdout.

use tracing::Level;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

use crate::config::{LogConfig, LogFormat};

/// Lines that wait for a slow reader of stdout; further ones are dropped.
const WAITING_LINES: usize = 4096;

/// Installs the subscriber of the process; a second call is ignored. What waits is written when the guard is dropped.
///
/// A thread of its own writes: a stdout that nobody reads must not stop the traffic, nor keep the process.
#[must_use = "what waits is lost without the guard"]
pub fn install(config: &LogConfig) -> WorkerGuard {
    let (stdout, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(WAITING_LINES)
        .thread_name("log")
        .finish(std::io::stdout());
    let level = LevelFilter::from_level(config.level);
    // What libraries warn of is what peers send: they could fill the log of a production system.
    let libraries = if config.level <= Level::INFO { LevelFilter::ERROR } else { level };
    let levels = Targets::new().with_default(level).with_targets(["h2", "hyper"].map(|library| (library, libraries)));
    let registry = tracing_subscriber::registry().with(levels);
    let layer = fmt::layer().with_target(false).log_internal_errors(false).with_writer(stdout);
    let result = match config.format {
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).try_init(),
        LogFormat::Text => registry.with(layer.with_ansi(false)).try_init(),
    };
    // Only tests start twice in one process.
    drop(result);
    guard
}

/// An error with its causes, for a log field: `a: b: c`.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
