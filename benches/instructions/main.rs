//! Counts the instructions that ebbtide needs for each hot path, and fails when they grow: docs/performance.md.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a command of its own, with blocking threads and no runtime"
)]

mod app;
mod baseline;
mod ebbtide;
mod facts;
mod http1;
mod http2;
mod rows;
mod tls;
mod websocket;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use serde_json::json;

use baseline::{Baseline, Recorded, TOLERANCE, Verdict, growth};
use ebbtide::Outcome;
use rows::{ROWS, Row};

/// Counts the instructions that ebbtide needs for each hot path, and fails if a row needs 5 % more than its baseline.
///
/// Exit codes: 0 all is well, 1 a row has grown or has no baseline, 2 it could not be measured.
#[derive(Parser)]
struct Args {
    /// The binary to measure: the released one, not that of a debug build.
    #[arg(long, value_name = "PATH", default_value = "target/release/ebbtide")]
    ebbtide: PathBuf,
    /// Measure only this row; may be given more than once.
    #[arg(long, value_name = "ROW", value_parser = ROWS.iter().map(|row| row.name).collect::<Vec<_>>())]
    only: Vec<String>,
    /// Print a table or JSON.
    #[arg(long, value_name = "FORM", default_value = "table")]
    output: Output,
    /// Write the counts into the baseline instead of checking them. Raises none without --note.
    #[arg(long)]
    update: bool,
    /// Why the rows that have grown need more; becomes their note.
    #[arg(long, value_name = "TEXT", requires = "update")]
    note: Option<String>,
    /// Keep what callgrind wrote about each row in this folder, for callgrind_annotate.
    #[arg(long, value_name = "DIR")]
    profile: Option<PathBuf>,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions/baseline.toml");

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether all is well.
fn run(args: &Args) -> Outcome<bool> {
    if !args.ebbtide.is_file() {
        return Err(format!("no {}; cargo build --release makes it", args.ebbtide.display()).into());
    }
    let mut baseline = Baseline::parse(&fs::read_to_string(BASELINE).unwrap_or_default())
        .map_err(|fault| format!("baseline.toml: {fault}"))?;
    let facts = facts::here();
    let others = facts::differences(&baseline.facts, &facts);
    let mut counts = Vec::new();
    for row in ROWS.iter().filter(|row| args.only.is_empty() || args.only.iter().any(|name| name == row.name)) {
        let count =
            row.measure(&args.ebbtide, args.profile.as_deref()).map_err(|error| format!("{}: {error}", row.name))?;
        if args.output == Output::Table {
            println!("{}", line(row, count, &baseline));
        }
        counts.push((row, count));
    }
    if args.output == Output::Json {
        println!("{}", as_json(&counts, &baseline, &facts));
    }
    others.iter().for_each(|difference| eprintln!("note: {difference}"));
    if args.update {
        return update(args, &counts, &mut baseline, facts);
    }
    let faults: Vec<_> = counts.iter().filter_map(|(row, count)| fault(row.name, *count, &baseline)).collect();
    faults.iter().for_each(|fault| eprintln!("error: {fault}"));
    Ok(faults.is_empty())
}

fn line(row: &Row, count: u64, baseline: &Baseline) -> String {
    let (old, change) = match baseline.row(row.name) {
        None => ("-".to_owned(), "-".to_owned()),
        Some(recorded) => (recorded.count.to_string(), format!("{:+.1} %", growth(recorded.count, count))),
    };
    let hint = match baseline.judge(row.name, count) {
        Verdict::Grown => "  GROWN",
        Verdict::New => "  NEW",
        Verdict::Shrunk => "  can be lowered: --update",
        Verdict::Same => "",
    };
    format!("{:18} {count:>9} {old:>9} {change:>9}  per {}{hint}", row.name, row.per)
}

/// What is wrong with a count, and the way out.
fn fault(name: &str, count: u64, baseline: &Baseline) -> Option<String> {
    match (baseline.judge(name, count), baseline.row(name)) {
        (Verdict::Grown, Some(old)) => Some(format!(
            "{name} needs {count} instructions, {:+.1} % of the {} in baseline.toml; {TOLERANCE} % are allowed. Look where \
             they come from (--only {name} --profile DIR, then callgrind_annotate). If they are worth it: --only {name} \
             --update --note 'WHY'",
            growth(old.count, count),
            old.count,
        )),
        (Verdict::New, _) => Some(format!("{name} has no baseline; make one: --only {name} --update --note 'WHAT'")),
        _ => None,
    }
}

fn update(args: &Args, counts: &[(&Row, u64)], baseline: &mut Baseline, facts: Vec<(String, String)>) -> Outcome<bool> {
    for (row, count) in counts {
        eprintln!("{}", baseline.update(row.name, *count, args.note.as_deref()));
    }
    let place = |recorded: &Recorded| ROWS.iter().position(|row| row.name == recorded.name);
    baseline.rows.retain(|recorded| place(recorded).is_some());
    baseline.rows.sort_by_key(place);
    if args.only.is_empty() {
        baseline.facts = facts;
    }
    fs::write(BASELINE, baseline.render())?;
    Ok(counts.iter().all(|(row, count)| baseline.judge(row.name, *count) != Verdict::Grown))
}

fn as_json(counts: &[(&Row, u64)], baseline: &Baseline, facts: &[(String, String)]) -> serde_json::Value {
    let rows = counts.iter().map(|(row, count)| {
        let old = baseline.row(row.name).map(|recorded| recorded.count);
        json!({
            "name": row.name,
            "per": row.per,
            "instructions": count,
            "baseline": old,
            "growth_percent": old.map(|old| growth(old, *count)),
        })
    });
    let facts = facts.iter().map(|(name, value)| (name.clone(), json!(value)));
    json!({ "measured_with": serde_json::Map::from_iter(facts), "rows": rows.collect::<Vec<_>>() })
}
