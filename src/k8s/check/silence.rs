//! Findings that somebody has looked at and taken for right: `ebbtide.dev/ignore-EB001: REASON` on the object or its
//! pod template.

use super::{Finding, Input};
use crate::k8s::object::escape;

/// Marks what is silenced. A reason must be given; without one the annotation does nothing, and the finding says so.
pub(super) fn apply(input: &Input<'_>, findings: &mut [Finding]) {
    for finding in findings {
        let Some(object) = input.objects.get(finding.index) else { continue };
        let annotation = format!("{PREFIX}{}", finding.rule.id);
        let name = escape(&annotation);
        let template = object.template_path(input.options.template_path.as_deref()).unwrap_or_default();
        let found = ["", template]
            .into_iter()
            .find_map(|at| object.value.pointer(&format!("{at}/metadata/annotations/{name}")));
        let Some(reason) = found else { continue };
        match reason.as_str().map(str::trim).filter(|reason| !reason.is_empty()) {
            Some(reason) => finding.silenced = Some(reason.to_owned()),
            None => finding.message.push_str(&format!(" ({annotation} says no reason and does nothing)")),
        }
    }
}

/// Of the annotation, before the rule's number.
pub(super) const PREFIX: &str = "ebbtide.dev/ignore-";
