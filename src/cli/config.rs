//! `ebbtide config check`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use serde_json::json;

use super::{FAILED, USAGE, complain, print};
use crate::config::{self, ConfigError, Loaded};
use crate::lifecycle::budget;

/// What can be done with configuration files.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check a file alone, without environment and flags: all faults at once
    #[command(after_help = EXAMPLES)]
    Check {
        /// The YAML file
        file: PathBuf,
        /// Text for people, or one JSON document
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
}

/// How findings are printed.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Output {
    /// A line or two per fault.
    Text,
    /// `{"file", "errors", "warnings"}`.
    Json,
}

const EXAMPLES: &str = "\
Exit codes: 0 no fault (there may be warnings), 1 the file can't be read, 2 faults

Example:
  ebbtide config check config/sidecar.yaml";

/// Does it.
pub fn run(command: &Command) -> ExitCode {
    let Command::Check { file, output } = command;
    let name = file.display().to_string();
    let text = match std::fs::read(file) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => {
            complain(&format!("{name} can't be read: {error}"));
            return ExitCode::from(FAILED);
        }
    };
    let result = config::check_text(&name, &text);
    let (errors, warnings) = match &result {
        Ok(loaded) => (Vec::new(), warnings(loaded)),
        Err(errors) => (errors.iter().map(ConfigError::to_string).collect(), Vec::new()),
    };
    let printed = match output {
        Output::Json => print(&format!("{}\n", json!({"file": name, "errors": errors, "warnings": warnings}))),
        Output::Text => {
            errors.iter().for_each(|error| complain(error));
            warnings.iter().for_each(|warning| complain(&format!("warning: {warning}")));
            if errors.is_empty() { print(&format!("{name}: ok\n")) } else { ExitCode::SUCCESS }
        }
    };
    if errors.is_empty() { printed } else { ExitCode::from(USAGE) }
}

fn warnings(loaded: &Loaded) -> Vec<String> {
    let mut warnings = loaded.warnings.clone();
    let budget = budget::divide(loaded.config.mode, &loaded.config.drain);
    warnings.extend(budget.shrunk.filter(|shrunk| shrunk.user_set).map(|shrunk| shrunk.message));
    warnings
}
