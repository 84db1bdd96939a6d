//! The table of rules, in the order of their numbers. Each stands beside the function that looks for it.

mod grace;

use super::Rule;

/// Every rule. The number of one that is gone goes to [`RETIRED`] and to no other rule.
pub static RULES: &[&Rule] = &[&grace::EB001];

/// Numbers that are not given again: manifests may still silence them.
pub const RETIRED: &[&str] = &[];
