//! Findings that somebody has looked at and taken for right: `ebbtide.dev/ignore-EB001: REASON` on the object or its
//! pod template.

use serde_json::Value;

use super::{Finding, Input};
use crate::k8s::object::escape;

/// Marks what is silenced. A reason must be given; without one the annotation does nothing.
pub(super) fn apply(input: &Input<'_>, findings: &mut [Finding]) {
    for finding in findings {
        let name = escape(&format!("{PREFIX}{}", finding.rule.id));
        let object = input
            .objects
            .iter()
            .find(|object| (object.title(), &object.namespace) == (finding.object.clone(), &finding.namespace));
        let Some(object) = object else { continue };
        let template = object.template_path(input.options.template_path.as_deref()).unwrap_or_default();
        let reason = ["", template]
            .into_iter()
            .find_map(|at| object.value.pointer(&format!("{at}/metadata/annotations/{name}")).and_then(Value::as_str));
        finding.silenced = reason.map(str::trim).filter(|reason| !reason.is_empty()).map(str::to_owned);
    }
}

/// Of the annotation, before the rule's number.
pub(super) const PREFIX: &str = "ebbtide.dev/ignore-";
