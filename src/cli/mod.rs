//! The command line: run, drain, status, config, inject, check, budget, demo.

pub mod run;
pub mod control;
pub mod check;
pub mod config;
pub mod manifests;
pub mod inject;
pub mod budget;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::demo;

/// Exit code: the command could not do its work.
const FAILED: u8 = 1;
/// Exit code: bad usage or configuration.
const USAGE: u8 = 2;

/// A native Kubernetes sidecar that lets legacy services leave without dropping a request.
#[derive(Debug, Parser)]
#[command(name = "ebbtide", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the sidecar: front the app, and drain when the pod terminates
    #[command(after_help = run::EXAMPLES)]
    Run,
    /// Tell the running sidecar that the pod terminates (its own preStop hook)
    #[command(after_help = control::DRAIN_EXAMPLES)]
    Drain(control::Options),
    /// Show what the running sidecar is doing
    #[command(after_help = control::STATUS_EXAMPLES)]
    Status(control::Options),
    /// Check configuration files, show the settings in force, print the file's schema
    #[command(subcommand, after_help = config::EXAMPLES)]
    Config(config::Command),
    /// Put ebbtide into Kubernetes manifests and send the traffic of their Services to it; take it out again
    #[command(after_help = inject::EXAMPLES)]
    Inject(inject::Command),
    /// Find what in Kubernetes manifests loses requests, with ebbtide or without
    #[command(after_help = check::EXAMPLES)]
    Check(check::Options),
    /// Draw what happens second by second when a workload's pods are deleted, with ebbtide or without
    #[command(after_help = budget::EXAMPLES)]
    Budget(budget::Command),
    /// Play a pod deletion twice, without ebbtide and with it, and count what is lost
    Demo(demo::Options),
    /// The demo's app
    #[command(hide = true)]
    DemoApp {
        #[arg(long)]
        listen: std::net::SocketAddr,
        #[arg(long)]
        raw: std::net::SocketAddr,
    },
}

const EXAMPLES: &str = "\
Examples:
  EBBTIDE_UPSTREAM=http://127.0.0.1:8080 ebbtide run
  ebbtide inject -f deployment.yaml -f service.yaml > injected.yaml

Exit codes: 0 done (a drain that had to cut something too), 1 could not do it or something was found, 2 bad usage,
configuration or manifests";

/// Parses the command line and does what it says.
pub fn main() -> ExitCode {
    let command = Cli::command()
        .mut_subcommand("run", |run| run.args(crate::config::clap_args()))
        .mut_subcommand("inject", |inject| inject.args(crate::k8s::inject::clap_args()))
        .mut_subcommand("config", |group| group.mut_subcommand("show", |show| show.args(crate::config::clap_args())));
    let matches = match command.try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            // Help and version are no failures; a closed stdout is nobody's mistake.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(USAGE);
        }
    };
    match cli.command {
        Command::Run => {
            let Some(matches) = matches.subcommand_matches("run") else { return ExitCode::from(USAGE) };
            run::run(matches)
        }
        Command::Drain(options) => control::drain(&options),
        Command::Status(options) => control::status(&options),
        Command::Inject(command) => {
            let flags = matches.subcommand_matches("inject").map(crate::k8s::inject::flags_from).unwrap_or_default();
            inject::run(&command, flags)
        }
        Command::Check(options) => check::run(&options),
        Command::Budget(command) => budget::run(&command),
        Command::Config(command) => {
            let Some(matches) = matches.subcommand_matches("config") else { return ExitCode::from(USAGE) };
            config::run(&command, matches)
        }
        Command::Demo(options) => play_demo(&options),
        Command::DemoApp { listen, raw } => finish(demo::app_main(listen, raw)),
    }
}

fn play_demo(options: &demo::Options) -> ExitCode {
    match demo::run(options, &mut std::io::stdout().lock(), &mut std::io::stderr().lock()) {
        Ok(outcome) if outcome.lost_nothing() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(FAILED),
        Err(error) => finish(Err(error)),
    }
}

fn finish<E: std::error::Error>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&crate::telemetry::logging::chain(&error));
            ExitCode::from(FAILED)
        }
    }
}

/// All faults, and nothing on the standard output.
fn refuse(faults: &[impl ToString]) -> ExitCode {
    faults.iter().for_each(|fault| complain(&fault.to_string()));
    ExitCode::from(USAGE)
}

/// One message on stderr.
fn complain(message: &str) {
    use std::io::Write as _;
    // Nobody is left to be told if stderr is closed.
    let _ = writeln!(std::io::stderr(), "ebbtide: {message}");
}

/// Text on stdout; a reader that has had enough is a success.
fn print(text: &str) -> ExitCode {
    use std::io::Write as _;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            complain(&format!("stdout: {error}"));
            ExitCode::from(FAILED)
        }
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}
