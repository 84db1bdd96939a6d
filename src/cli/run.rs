//! `ebbtide run`.

use std::process::ExitCode;

use clap::ArgMatches;

use super::{FAILED, USAGE, complain};
use crate::config::{self, Environment};
use crate::telemetry::logging;

/// Help text.
pub const EXAMPLES: &str = "\
Every flag has a variable, and all but --config have a key in the file.
Later ones win: file, EBBTIDE_CONFIG_YAML, variables, flags.

Examples:
  ebbtide run --upstream http://127.0.0.1:8080
  EBBTIDE_MODE=sidecar EBBTIDE_UPSTREAM=http://127.0.0.1:8080 ebbtide run
  ebbtide run --config /etc/ebbtide/ebbtide.yaml --log-format text";

/// Runs the sidecar until it has drained.
pub fn run(matches: &ArgMatches) -> ExitCode {
    let file = config::config_file(matches);
    let loaded = match config::load(file.as_deref(), &Environment::of_process(), &config::flags_from(matches)) {
        Ok(loaded) => loaded,
        Err(errors) => {
            errors.iter().for_each(|error| complain(&error.to_string()));
            return ExitCode::from(USAGE);
        }
    };
    let _log = logging::install(&loaded.config.log);
    match crate::app::run(loaded) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            let text = logging::chain(&error);
            tracing::error!(error = text, "could not run");
            complain(&text);
            ExitCode::from(FAILED)
        }
    }
}
