//! `ebbtide inject`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use similar::TextDiff;

use super::manifests::{File, Files};
use super::{FAILED, USAGE, complain, print, refuse};
use crate::k8s::document::Document;
use crate::k8s::inject::{self, Changed, Outcome, Request};

/// What to read and what to print.
#[derive(Debug, Args)]
pub struct Command {
    #[command(flatten)]
    files: Files,
    /// Take ebbtide out again, and give back what it has changed
    #[arg(long)]
    remove: bool,
    /// All of the input with comments and order kept (yaml), the same as one object or List (json), or a JSON Patch,
    /// for several objects a list of them with kind, namespace and name (patch)
    #[arg(short, long, value_enum, default_value_t = Output::Yaml)]
    output: Output,
    /// Print only what would change, as a unified diff; exit code 1 if anything would
    #[arg(long, conflicts_with_all = ["output", "in_place"])]
    diff: bool,
    /// Write the files instead of printing them
    #[arg(short, long, conflicts_with = "output")]
    in_place: bool,
}

/// What is printed.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Yaml,
    Json,
    Patch,
}

/// Help text.
pub const EXAMPLES: &str = "\
Give it a workload together with its Services: they tell which ports clients use, and must lead to ebbtide.
What should be known before the result is applied is said on the standard error. A workload with the annotation
ebbtide.dev/inject: \"false\" on its pod template is left as it is.

Exit codes: 0 done, 1 something would change (--diff) or could not be written, 2 bad usage or input: nothing is printed

Examples:
  ebbtide inject -f deployment.yaml -f service.yaml --image registry.example.com/ebbtide:0.1.0 > injected.yaml
  helm template web . --skip-tests | ebbtide inject -f - | kubectl apply -f -
  kubectl get deployment web -o yaml | ebbtide inject -f - | kubectl apply -f -
  ebbtide inject -f manifests/ --in-place
  ebbtide inject -f manifests/ --diff
  ebbtide inject -f injected.yaml --remove";

/// Does it. `flags` are the options of the injection.
pub fn run(command: &Command, flags: BTreeMap<&'static str, String>) -> ExitCode {
    let files = match command.files.read() {
        Ok(files) => files,
        Err(faults) => return refuse(&faults),
    };
    if command.in_place && files.iter().any(|file| file.path.is_none()) {
        complain("--in-place can't write the standard input: name files");
        return ExitCode::from(USAGE);
    }
    let documents: Vec<Document> = files.iter().flat_map(|file| file.documents.clone()).collect();
    let request = Request { flags, remove: command.remove, template_path: command.files.template_path.clone() };
    let outcome = match inject::run(&documents, &request) {
        Ok(outcome) => outcome,
        Err(faults) => return refuse(&faults),
    };
    outcome.notes.iter().for_each(|note| complain(&note.to_string()));
    if command.diff {
        return diff(&files, &outcome);
    }
    if command.in_place {
        return write(&files, &outcome);
    }
    match command.output {
        Output::Yaml => print(&together(&files, &outcome)),
        Output::Json => print(&format!("{:#}\n", as_json(&outcome))),
        Output::Patch => print(&format!("{:#}\n", patches(&outcome))),
    }
}

/// Each file with its text afterwards.
fn texts<'a>(files: &'a [File], outcome: &'a Outcome) -> impl Iterator<Item = (&'a File, String)> {
    let mut rest = outcome.documents.as_slice();
    files.iter().map(move |file| {
        let (own, others) = rest.split_at(file.documents.len().min(rest.len()));
        rest = others;
        (file, own.iter().map(|document| document.text.as_str()).collect())
    })
}

fn before(file: &File) -> String {
    file.documents.iter().map(|document| document.text.as_str()).collect()
}

/// The files one after the other, with a marker where one begins without.
fn together(files: &[File], outcome: &Outcome) -> String {
    let mut all = String::new();
    for (_, text) in texts(files, outcome) {
        let text = text.trim_start_matches('\u{feff}');
        if !all.is_empty() && !text.trim_start().starts_with("---") {
            if !all.ends_with('\n') {
                all.push('\n');
            }
            all.push_str("---\n");
        }
        all.push_str(text);
    }
    all
}

fn as_json(outcome: &Outcome) -> Value {
    let values: Vec<&Value> =
        outcome.documents.iter().filter_map(|document: &Changed| document.value.as_ref()).collect();
    match values.as_slice() {
        [only] => (*only).clone(),
        several => json!({"apiVersion": "v1", "kind": "List", "items": several}),
    }
}

fn patches(outcome: &Outcome) -> Value {
    if outcome.object_count == 1 {
        return outcome.objects.first().map_or_else(|| json!([]), |changed| json!(changed.patch));
    }
    let each = outcome.objects.iter().map(|changed| {
        let object = &changed.object;
        json!({
            "apiVersion": object.api_version,
            "kind": object.kind,
            "namespace": object.namespace,
            "name": object.name,
            "patch": changed.patch,
        })
    });
    each.collect()
}

fn diff(files: &[File], outcome: &Outcome) -> ExitCode {
    let mut text = String::new();
    for (file, after) in texts(files, outcome) {
        let before = before(file);
        if before != after {
            let name = file.path.as_ref().map_or_else(|| "stdin".to_owned(), |path| path.display().to_string());
            let diff = TextDiff::from_lines(&before, &after);
            text.push_str(&diff.unified_diff().header(&name, &format!("{name} (injected)")).to_string());
        }
    }
    let changes = !text.is_empty();
    let printed = print(&text);
    if changes && printed == ExitCode::SUCCESS { ExitCode::from(FAILED) } else { printed }
}

fn write(files: &[File], outcome: &Outcome) -> ExitCode {
    for (file, after) in texts(files, outcome) {
        let Some(path) = file.path.as_ref().filter(|_| before(file) != after) else { continue };
        if let Err(error) = replace(path, &after) {
            complain(&format!("{} can't be written: {error}", path.display()));
            return ExitCode::from(FAILED);
        }
        complain(&format!("{}: written", path.display()));
    }
    ExitCode::SUCCESS
}

/// All or nothing, also if the process dies in the middle.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // Through a link, so that it stays one.
    let path = fs::canonicalize(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new: PathBuf = path.with_file_name(name);
    let written = fs::write(&new, text)
        .and_then(|()| fs::set_permissions(&new, fs::metadata(&path)?.permissions()))
        .and_then(|()| fs::rename(&new, &path));
    if written.is_err() {
        // Nothing to be done about a leftover that can't be removed either.
        let _ = fs::remove_file(&new);
    }
    written
}
