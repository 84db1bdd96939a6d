//! The `ebbtide` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    ebbtide::cli::main()
}
