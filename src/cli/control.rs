//! `ebbtide drain` and `ebbtide status`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::{FAILED, USAGE, complain, print};
use crate::admin::status::Status;
use crate::config::{self, Environment};
use crate::control::client;
use crate::telemetry::logging;

/// Where the process is, and how the answer is printed.
#[derive(Debug, Args)]
pub struct Options {
    /// The control socket's path; EBBTIDE_CONTROL_SOCKET is the same
    #[arg(long, value_name = "PATH")]
    control_socket: Option<String>,
    /// The configuration file that the sidecar was given; EBBTIDE_CONFIG is the same
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Text for people, or one line of JSON
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// How the answer is printed.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Help text of `drain`.
pub const DRAIN_EXAMPLES: &str = "\
The process is found through the same variables that `ebbtide run` has: EBBTIDE_CONTROL_SOCKET, EBBTIDE_CONFIG,
EBBTIDE_CONFIG_YAML. Nobody answering within 1 s is exit code 1.

Example, the sidecar's own hook; it can't be taken back:
  lifecycle: {preStop: {exec: {command: [\"/ebbtide\", \"drain\"]}}}   # runs `ebbtide drain`";

/// Help text of `status`.
pub const STATUS_EXAMPLES: &str = "\
The process is found through the same variables that `ebbtide run` has: EBBTIDE_CONTROL_SOCKET, EBBTIDE_CONFIG,
EBBTIDE_CONFIG_YAML. Nobody answering within 1 s is exit code 1.

Examples:
  ebbtide status --output json
  kubectl exec POD -c ebbtide -- /ebbtide status";

/// Starts the drain, and returns at once.
pub fn drain(options: &Options) -> ExitCode {
    ask(options, "drain", |status| format!("{}\n", status.phase))
}

/// Shows the state.
pub fn status(options: &Options) -> ExitCode {
    ask(options, "status", Status::to_text)
}

fn ask(options: &Options, verb: &str, text: impl Fn(&Status) -> String) -> ExitCode {
    let environment = Environment::of_process();
    let socket =
        match config::control_socket(options.config.as_deref(), &environment, options.control_socket.as_deref()) {
            Ok(socket) => socket,
            Err(errors) => {
                errors.iter().for_each(|error| complain(&error.to_string()));
                return ExitCode::from(USAGE);
            }
        };
    match client::ask(&socket, verb) {
        Ok(status) => print(&match options.output {
            Output::Text => text(&status),
            Output::Json => format!("{}\n", status.to_json()),
        }),
        Err(error) => {
            complain(&logging::chain(&error));
            ExitCode::from(FAILED)
        }
    }
}
