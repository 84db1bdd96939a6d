//! `ebbtide check`: what in a manifest loses requests, by rules with stable numbers.

mod facts;
mod input;
pub mod output;
mod rules;
pub mod sarif;
mod silence;

use json_patch::PatchOperation;

pub use self::input::{Input, KubeVersion, Options, Platform};
pub use self::rules::{RETIRED, RULES};
use super::document::{self, Fault};
use super::workload::Workload;

/// One thing that is looked for.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// `EB001`; never given to another rule.
    pub id: &'static str,
    /// A few words in lower case, with dashes.
    pub name: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// One sentence: what is wrong.
    pub summary: &'static str,
    /// Why it loses requests, or what else it does.
    pub why: &'static str,
    /// The way out.
    pub fix: &'static str,
    /// Looks for it.
    pub run: fn(&Input<'_>, &mut Report<'_>),
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// May lose requests, or hides that they are lost.
    Warning,
    /// Loses requests, or is refused by the API server.
    Error,
}

/// One thing that was found.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The rule that found it.
    pub rule: &'static Rule,
    /// The rule's, unless this case is less bad.
    pub severity: Severity,
    /// Which of the input's objects has it, in the order in which [`super::object::objects`] gives them.
    pub index: usize,
    /// `Deployment/web`.
    pub object: String,
    /// The object's namespace, empty if the manifest names none.
    pub namespace: String,
    /// The file, and the place of the field in it.
    pub file: String,
    /// Line and column.
    pub place: document::Place,
    /// JSON Pointer of the field in the object.
    pub path: String,
    /// What was found, with names and numbers.
    pub message: String,
    /// What mends it, from the object's root; empty if that takes a decision.
    pub fix: Vec<PatchOperation>,
    /// Why it is not counted, if somebody has said so.
    pub silenced: Option<String>,
}

/// Where rules leave what they find.
#[derive(Debug)]
pub struct Report<'a> {
    input: &'a Input<'a>,
    rule: &'static Rule,
    findings: Vec<Finding>,
}

/// What all rules found.
#[derive(Debug, Clone)]
pub struct Checked {
    /// In the order of files and lines.
    pub findings: Vec<Finding>,
    /// How many objects with pods were looked at.
    pub workloads: usize,
}

/// Runs all rules.
///
/// # Errors
/// An input that can't be read as manifests.
pub fn check(documents: &[document::Document], options: &Options) -> Result<Checked, Fault> {
    let objects = super::object::objects(documents)?;
    let input = Input::new(documents, &objects, options)?;
    let is_looked_at = |object: &super::object::Object| {
        object.template_path(options.template_path.as_deref()).is_some()
            || object.kind.ends_with("WebhookConfiguration")
    };
    if let Some(first) = objects.first().filter(|_| !objects.iter().any(is_looked_at)) {
        let message = format!(
            "holds nothing with a pod template, so there is nothing to check; taken are {}",
            super::object::KINDS
        );
        return Err(first.fault(&documents[first.document], "", message));
    }
    let mut findings = Vec::new();
    for rule in RULES {
        let mut report = Report { input: &input, rule, findings: Vec::new() };
        (rule.run)(&input, &mut report);
        findings.append(&mut report.findings);
    }
    silence::apply(&input, &mut findings);
    findings.sort_by(|a, b| (&a.file, a.place, a.rule.id).cmp(&(&b.file, b.place, b.rule.id)));
    Ok(Checked { findings, workloads: input.workloads.len() })
}

// === impl Severity ===

impl std::fmt::Display for Severity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

// === impl Report ===

impl Report<'_> {
    /// A finding in a workload; `path` is a JSON Pointer from its object's root, as [`Workload::in_spec`] makes them.
    pub fn add(&mut self, workload: &Workload<'_>, path: &str, message: impl Into<String>) -> &mut Finding {
        self.add_to(workload.object, path, message)
    }

    /// A finding in any object.
    pub fn add_to(&mut self, object: &super::object::Object, path: &str, message: impl Into<String>) -> &mut Finding {
        let index = self.input.objects.iter().position(|one| std::ptr::eq(one, object)).unwrap_or_default();
        let fault = object.fault(&self.input.documents[object.document], path, message);
        self.findings.push(Finding {
            rule: self.rule,
            severity: self.rule.severity,
            index,
            object: object.title(),
            namespace: object.namespace.clone(),
            file: fault.file,
            place: fault.place.unwrap_or_default(),
            path: path.to_owned(),
            message: fault.message,
            fix: Vec::new(),
            silenced: None,
        });
        let last = self.findings.len() - 1;
        &mut self.findings[last]
    }
}

// === impl Finding ===

impl Finding {
    /// How to mend it: `change` gets a copy of the object and makes it right.
    pub fn fix(&mut self, object: &super::object::Object, change: impl FnOnce(&mut serde_json::Value)) -> &mut Self {
        let mut mended = object.value.clone();
        change(&mut mended);
        self.fix = super::diff::diff(&object.value, &mended);
        self
    }

    /// Less bad, or worse, than the rule says.
    pub fn severity(&mut self, severity: Severity) -> &mut Self {
        self.severity = severity;
        self
    }
}

#[cfg(test)]
mod tests;
