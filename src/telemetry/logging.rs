//! The log: `tracing` events as JSON (default) or text, on stdout.

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

use crate::config::{LogConfig, LogFormat};

/// Installs the subscriber of the process; a second call is ignored.
pub fn install(config: &LogConfig) {
    let level = LevelFilter::from_level(config.level);
    let registry = tracing_subscriber::registry().with(level);
    // A failed write to stdout must never be a reason to stop serving.
    let result = match config.format {
        LogFormat::Json => {
            let layer = fmt::layer().json().flatten_event(true).with_target(false).log_internal_errors(false);
            registry.with(layer).try_init()
        }
        LogFormat::Text => {
            registry.with(fmt::layer().with_target(false).with_ansi(false).log_internal_errors(false)).try_init()
        }
    };
    // Only tests start twice in one process.
    drop(result);
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
