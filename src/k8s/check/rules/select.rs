//! Label selectors, as the API server reads them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Whether a selector matches these labels; an empty one matches everything.
pub(super) fn matches(selector: &LabelSelector, labels: &BTreeMap<&str, &str>) -> bool {
    let equal = selector.match_labels.iter().flatten();
    let is_equal = equal.into_iter().all(|(key, value)| labels.get(key.as_str()) == Some(&value.as_str()));
    is_equal
        && selector.match_expressions.iter().flatten().all(|expression| {
            let value = labels.get(expression.key.as_str());
            let is_listed = value.is_some_and(|value| expression.values.iter().flatten().any(|one| one == value));
            match expression.operator.as_str() {
                "In" => is_listed,
                "NotIn" => !is_listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}
