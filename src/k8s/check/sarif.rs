//! What was found as SARIF 2.1.0, the form that GitHub code scanning and others take.

use serde_json::{Value, json};

use super::{Checked, Finding, RULES, Rule};

/// The whole log.
#[must_use]
pub fn sarif(checked: &Checked) -> Value {
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {
                "driver": {
                    "name": "ebbtide check",
                    "version": env!("CARGO_PKG_VERSION"),
                    "semanticVersion": env!("CARGO_PKG_VERSION"),
                    "rules": RULES.iter().map(|rule| descriptor(rule)).collect::<Vec<_>>(),
                },
            },
            "columnKind": "unicodeCodePoints",
            "results": checked.findings.iter().map(result).collect::<Vec<_>>(),
        }],
    })
}

fn descriptor(rule: &Rule) -> Value {
    json!({
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.why},
        "help": {
            "text": format!("{} {}", rule.why, rule.fix),
            "markdown": format!("{}\n\n**Way out:** {}", rule.why, rule.fix),
        },
        "defaultConfiguration": {"level": rule.severity.to_string()},
        "properties": {"problem.severity": rule.severity.to_string(), "tags": ["kubernetes", "reliability"]},
    })
}

fn result(finding: &Finding) -> Value {
    let identity = [finding.rule.id, &finding.namespace, &finding.object, &finding.path].join(" ");
    let patch: String = finding.fix.iter().map(|operation| format!("\n- {}", json!(operation))).collect();
    let fix = if patch.is_empty() { patch } else { format!("\n\nJSON Patch for {}:{patch}", finding.object) };
    let mut result = json!({
        "ruleId": finding.rule.id,
        "ruleIndex": RULES.iter().position(|rule| rule.id == finding.rule.id),
        "level": finding.severity.to_string(),
        "message": {"text": format!("{}: {}{fix}", finding.object, finding.message)},
        "locations": [{
            "physicalLocation": {
                "artifactLocation": {"uri": uri(&finding.file)},
                // A place is missing only where a whole file is meant.
                "region": {"startLine": finding.place.line.max(1), "startColumn": finding.place.column.max(1)},
            },
            "logicalLocations": [{"fullyQualifiedName": format!("{}{}", finding.object, finding.path)}],
        }],
        "partialFingerprints": {"ebbtide/v1": identity},
    });
    if let Some(reason) = &finding.silenced {
        result["suppressions"] = json!([{"kind": "inSource", "status": "accepted", "justification": reason}]);
    }
    result
}

/// A file's name as a reference that is relative to where the command ran, as code scanning wants it.
fn uri(file: &str) -> String {
    let file = file.strip_prefix("./").unwrap_or(file);
    let mut uri = String::from(if file.starts_with('/') { "file://" } else { "" });
    for byte in file.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => uri.push(char::from(byte)),
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_become_references() {
        assert_eq!(uri("./deploy/my app.yaml"), "deploy/my%20app.yaml");
        assert_eq!(uri("/srv/a.yaml"), "file:///srv/a.yaml");
        assert_eq!(uri("stdin"), "stdin");
        assert_eq!(uri("größe.yaml"), "gr%C3%B6%C3%9Fe.yaml");
    }
}
