//! `ebbtide config check`, `ebbtide config show` and `ebbtide config schema`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgMatches, Subcommand, ValueEnum};
use serde_json::json;

use super::{FAILED, USAGE, complain, print};
use crate::config::{self, ConfigError, Environment, Loaded};
use crate::lifecycle::budget;

/// What can be done with configuration files.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check a file alone, without environment and flags: all faults at once
    #[command(after_help = CHECK_EXAMPLES)]
    Check {
        /// The YAML file
        file: PathBuf,
        /// Text for people, or one JSON document
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Show every setting as `ebbtide run` would see it here, and where it comes from
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// Text for people, or one JSON document
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Print the JSON Schema (draft 2020-12) of the configuration file, for editors and CI
    #[command(after_help = SCHEMA_EXAMPLES)]
    Schema,
}

/// How findings are printed.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Output {
    /// A line or two for each.
    Text,
    /// One JSON document.
    Json,
}

/// Help text of the group.
pub const EXAMPLES: &str = "\
Examples:
  ebbtide config check config/sidecar.yaml
  ebbtide config show
  ebbtide config schema > ebbtide.schema.json";

const CHECK_EXAMPLES: &str = "\
Exit codes: 0 no fault (there may be warnings), 1 the file can't be read, 2 faults

Example:
  ebbtide config check config/sidecar.yaml";

const SHOW_EXAMPLES: &str = "\
It takes the flags of `ebbtide run`: give it those that the container has.

Exit codes: 0 the settings are valid, 2 they are not

Examples:
  kubectl exec POD -c ebbtide -- /ebbtide config show
  EBBTIDE_UPSTREAM=http://127.0.0.1:8080 ebbtide config show --hold 5s --output json";

const SCHEMA_EXAMPLES: &str = "\
Example:
  ebbtide config schema > ebbtide.schema.json

The first line of a configuration file then tells an editor with the YAML language server:
  # yaml-language-server: $schema=ebbtide.schema.json";

/// Does it. `matches` are those of the group.
pub fn run(command: &Command, matches: &ArgMatches) -> ExitCode {
    match command {
        Command::Check { file, output } => check(file, *output),
        Command::Show { output } => {
            let Some(matches) = matches.subcommand_matches("show") else { return ExitCode::from(USAGE) };
            show(matches, *output)
        }
        Command::Schema => print(&format!("{:#}\n", config::schema())),
    }
}

fn show(matches: &ArgMatches, output: Output) -> ExitCode {
    let (file, flags) = (config::config_file(matches), config::flags_from(matches));
    let loaded = match config::load(file.as_deref(), &Environment::of_process(), &flags) {
        Ok(loaded) => loaded,
        Err(errors) => {
            errors.iter().for_each(|error| complain(&error.to_string()));
            return ExitCode::from(USAGE);
        }
    };
    warnings(&loaded).iter().for_each(|warning| complain(&format!("warning: {warning}")));
    let values = loaded.values.iter();
    match output {
        Output::Json => {
            let all: Vec<_> = values
                .map(|one| json!({"key": one.key, "value": one.value, "origin": one.origin.to_string()}))
                .collect();
            print(&format!("{}\n", json!(all)))
        }
        Output::Text => {
            let wide = loaded.values.iter().map(|one| one.key.len()).max().unwrap_or_default();
            print(
                &values.map(|one| format!("{:<wide$} {:<28} {}\n", one.key, one.value, one.origin)).collect::<String>(),
            )
        }
    }
}

fn check(file: &Path, output: Output) -> ExitCode {
    let name = file.display().to_string();
    let result = match config::check_file(file) {
        Ok(result) => result,
        Err(error) => {
            complain(&format!("{name} can't be read: {error}"));
            return ExitCode::from(FAILED);
        }
    };
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
    warnings.extend(budget.too_late());
    warnings.extend(budget.shrunk.filter(|shrunk| shrunk.user_set).map(|shrunk| shrunk.message));
    warnings
}
