//! What was found, as text for people and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Checked, Finding, Rule, Severity};

/// One paragraph for each finding; the reasons once for each rule.
#[must_use]
pub fn text(checked: &Checked) -> String {
    let mut out = String::new();
    let mut told: Vec<&str> = Vec::new();
    for finding in &checked.findings {
        // Writing to a String can't fail.
        let _ = paragraph(finding, !told.contains(&finding.rule.id), &mut out);
        if finding.silenced.is_none() {
            told.push(finding.rule.id);
        }
    }
    out + &checked.summary() + "\n"
}

fn paragraph(finding: &Finding, is_first: bool, out: &mut String) -> std::fmt::Result {
    let Finding { rule, file, place, message, .. } = finding;
    let object = match finding.namespace.as_str() {
        "" => finding.object.clone(),
        namespace => format!("{} in {namespace}", finding.object),
    };
    let head = format!("{file}:{}:{}", place.line, place.column);
    if let Some(reason) = &finding.silenced {
        return writeln!(out, "{head}: silenced {}: {object}: {message}\n    reason: {reason}\n", rule.id);
    }
    writeln!(out, "{head}: {} {}: {object}: {message}", finding.severity, rule.id)?;
    if is_first {
        out.push_str(&wrapped("why: ", rule.why));
        out.push_str(&wrapped("way out: ", rule.fix));
    }
    if !finding.fix.is_empty() {
        writeln!(out, "    JSON Patch for {object}:")?;
        for operation in &finding.fix {
            writeln!(out, "      - {}", json!(operation))?;
        }
    }
    writeln!(out)
}

fn wrapped(title: &str, text: &str) -> String {
    let indent = "    ";
    let mut out = format!("{indent}{title}");
    let mut column = out.len();
    for word in text.split_whitespace() {
        if column + word.len() > WIDTH {
            out = format!("{}\n{indent}  ", out.trim_end());
            column = indent.len() + 2;
        }
        out.push_str(word);
        out.push(' ');
        column += word.chars().count() + 1;
    }
    format!("{}\n", out.trim_end())
}

/// One document; fields are added to it, never taken away or renamed.
#[must_use]
pub fn json(checked: &Checked) -> Value {
    let findings = checked.findings.iter().map(|finding| {
        json!({
            "rule": finding.rule.id,
            "name": finding.rule.name,
            "severity": finding.severity.to_string(),
            "object": finding.object,
            "namespace": finding.namespace,
            "file": finding.file,
            "line": finding.place.line,
            "column": finding.place.column,
            "path": finding.path,
            "message": finding.message,
            "why": finding.rule.why,
            "way_out": finding.rule.fix,
            "patch": finding.fix,
            "silenced": finding.silenced,
        })
    });
    json!({
        "findings": findings.collect::<Vec<_>>(),
        "summary": {
            "errors": checked.count(Severity::Error),
            "warnings": checked.count(Severity::Warning),
            "silenced": checked.silenced(),
            "workloads": checked.workloads,
        },
    })
}

/// All that is to be said of one rule.
#[must_use]
pub fn explain(rule: &Rule) -> String {
    format!(
        "{} {} ({})\n\n{}{}{}\n{}",
        rule.id,
        rule.name,
        rule.severity,
        wrapped("", rule.summary),
        wrapped("why: ", rule.why),
        wrapped("way out: ", rule.fix),
        wrapped(
            "silence it: ",
            &format!("annotate the object or its pod template with {}{}: REASON", super::silence::PREFIX, rule.id)
        ),
    )
}

// === impl Checked ===

impl Checked {
    /// How many findings of that severity are not silenced.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|one| one.silenced.is_none() && one.severity == severity).count()
    }

    /// How many are silenced.
    #[must_use]
    pub fn silenced(&self) -> usize {
        self.findings.iter().filter(|one| one.silenced.is_some()).count()
    }

    /// `3 errors, 1 warning in 4 workloads; 1 silenced`
    #[must_use]
    pub fn summary(&self) -> String {
        let silenced = match self.silenced() {
            0 => String::new(),
            count => format!("; {count} silenced"),
        };
        format!(
            "{}, {} in {}{silenced}",
            counted(self.count(Severity::Error), "error"),
            counted(self.count(Severity::Warning), "warning"),
            counted(self.workloads, "workload"),
        )
    }
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Of the text, in characters.
const WIDTH: usize = 110;
