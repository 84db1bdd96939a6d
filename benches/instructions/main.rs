//! Counts the instructions that ebbtide needs for each hot path, and fails when they grow.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a command of its own, with blocking threads and no runtime"
)]

mod app;
mod ebbtide;
mod http1;
mod http2;
mod rows;
mod tls;
mod websocket;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Counts the instructions that ebbtide needs for each hot path.
#[derive(Parser)]
struct Args {
    /// The binary to measure, as it is released.
    #[arg(long, value_name = "PATH")]
    ebbtide: PathBuf,
    /// Only this row; may be given more than once.
    #[arg(long, value_name = "ROW")]
    only: Vec<String>,
    /// Keep what callgrind wrote about each row in this folder, for callgrind_annotate.
    #[arg(long, value_name = "DIR")]
    profile: Option<PathBuf>,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    for row in rows::ROWS {
        if !args.only.is_empty() && !args.only.iter().any(|name| name == row.name) {
            continue;
        }
        let started = std::time::Instant::now();
        match row.measure(&args.ebbtide, args.profile.as_deref()) {
            Ok(count) => println!("{:20} {count:>10}  per {} [{:?}]", row.name, row.per, started.elapsed()),
            Err(error) => eprintln!("{}: {error}", row.name),
        }
    }
    ExitCode::SUCCESS
}
