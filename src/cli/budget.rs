//! `ebbtide budget`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::manifests::Files;
use super::{FAILED, print, refuse};
use crate::k8s::document::{Document, Fault};
use crate::k8s::object::{self, KINDS};
use crate::k8s::timeline::{Timeline, timeline};
use crate::k8s::workload::Workload;

/// What to read and how to print it.
#[derive(Debug, Args)]
pub struct Command {
    #[command(flatten)]
    files: Files,
    /// Text for people, or one JSON document
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Help text.
pub const EXAMPLES: &str = "\
Times are the latest possible ones: a drain ends as soon as nothing is in flight. In JSON, fits says whether all of it
fits, misfits what does not, and sigkill when the last SIGKILL comes, in seconds after the deletion.

Exit codes: 0 all fits, 1 something does not fit into a grace period or ebbtide would not start, 2 bad usage or input

Examples:
  ebbtide budget -f deployment.yaml
  kubectl get deployment web -o yaml | ebbtide budget -f -
  ebbtide inject -f deployment.yaml | ebbtide budget -f -";

/// Does it.
pub fn run(command: &Command) -> ExitCode {
    let timelines = command.files.documents().and_then(|documents| {
        timelines(&documents, command.files.template_path.as_deref()).map_err(|fault| vec![fault])
    });
    let timelines = match timelines {
        Ok(timelines) => timelines,
        Err(faults) => return refuse(&faults),
    };
    let printed = match command.output {
        Output::Json => print(&format!("{:#}\n", json!(timelines))),
        Output::Text => print(&timelines.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
    };
    let fits = timelines.iter().all(|timeline| timeline.fits);
    if fits { printed } else { ExitCode::from(FAILED) }
}

fn timelines(documents: &[Document], template_path: Option<&str>) -> Result<Vec<Timeline>, Fault> {
    let objects = object::objects(documents)?;
    let mut timelines = Vec::new();
    for object in &objects {
        if let Some(workload) = Workload::of(object, documents, template_path)? {
            timelines.push(timeline(&workload));
        }
    }
    match (timelines.is_empty(), objects.first()) {
        (true, Some(first)) => {
            let message = format!("holds nothing with a pod template; taken are {KINDS}");
            Err(first.fault(&documents[first.document], "", message))
        }
        _ => Ok(timelines),
    }
}
