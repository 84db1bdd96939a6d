//! `ebbtide check`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::manifests::Files;
use super::{FAILED, print, refuse};
use crate::k8s::check::{self, Checked, KubeVersion, Options as Cluster, Platform, RULES, Rule, Severity};
use crate::k8s::document::Fault;

/// What is checked, and what is said of it.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    files: Files,
    /// Text for people, one JSON document, or SARIF 2.1.0 for code scanning
    #[arg(long, short = 'o', value_enum, default_value_t = Output::Text)]
    output: Output,
    /// The least severity that makes the exit code 1
    #[arg(long, value_enum, value_name = "SEVERITY", default_value_t = FailOn::Error)]
    fail_on: FailOn,
    /// Version of the cluster; without it what is said depends on no version, or names it
    #[arg(long, value_name = "1.MINOR")]
    kube_version: Option<KubeVersion>,
    /// Where the nodes come from; spot and preemptible ones end before long grace periods do
    #[arg(long, value_enum, value_name = "PLATFORM")]
    platform: Option<Platform>,
    /// Print what there is to say of one rule, and nothing else
    #[arg(long, value_name = "RULE", exclusive = true, value_parser = rule)]
    explain: Option<&'static Rule>,
    /// Print the rules, one in a line, and nothing else
    #[arg(long, exclusive = true)]
    list_rules: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
    Sarif,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FailOn {
    Error,
    Warning,
}

/// Help text.
pub const EXAMPLES: &str = "\
Exit codes: 0 nothing found that --fail-on means, 1 something was, 2 bad usage, or manifests that can't be read

Examples:
  ebbtide check -f deploy/
  helm template . | ebbtide check -f - --kube-version 1.31
  kubectl get deployments,statefulsets,services -A -o yaml | ebbtide check -f - --fail-on warning
  ebbtide check -f deploy/ --output sarif >ebbtide.sarif
  ebbtide check --explain EB001

A finding is silenced by the annotation ebbtide.dev/ignore-EB001: REASON on the object or its pod template.";

/// Does it.
pub fn run(options: &Options) -> ExitCode {
    if let Some(rule) = options.explain {
        return print(&check::output::explain(rule));
    }
    if options.list_rules {
        let line = |rule: &&Rule| format!("{} {:<7} {:<36} {}\n", rule.id, rule.severity, rule.name, rule.summary);
        return print(&RULES.iter().map(line).collect::<String>());
    }
    match look(options) {
        Ok(checked) => tell(options, &checked),
        Err(faults) => refuse(&faults),
    }
}

fn look(options: &Options) -> Result<Checked, Vec<Fault>> {
    let documents = options.files.documents()?;
    let cluster = Cluster {
        kube_version: options.kube_version,
        platform: options.platform,
        template_path: options.files.template_path.clone(),
    };
    check::check(&documents, &cluster).map_err(|fault| vec![fault])
}

fn tell(options: &Options, checked: &Checked) -> ExitCode {
    let text = match options.output {
        Output::Text => check::output::text(checked),
        Output::Json => format!("{:#}\n", check::output::json(checked)),
        Output::Sarif => format!("{:#}\n", check::sarif::sarif(checked)),
    };
    let printed = print(&text);
    let is_bad = match options.fail_on {
        FailOn::Error => checked.count(Severity::Error) > 0,
        FailOn::Warning => checked.count(Severity::Error) + checked.count(Severity::Warning) > 0,
    };
    if is_bad { ExitCode::from(FAILED) } else { printed }
}

fn rule(text: &str) -> Result<&'static Rule, String> {
    let found = RULES.iter().find(|rule| rule.id.eq_ignore_ascii_case(text) || rule.name == text);
    found.copied().ok_or_else(|| "no such rule; --list-rules shows them".to_owned())
}
