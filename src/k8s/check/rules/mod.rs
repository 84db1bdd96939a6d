//! The table of rules, in the order of their numbers.

mod grace;

use super::{Rule, Severity};

/// Every rule.
pub static RULES: &[Rule] = &[Rule {
    id: "EB001",
    name: "hook-not-shorter-than-grace",
    severity: Severity::Error,
    summary: "A preStop hook sleeps as long as the grace period, or longer.",
    why: "The grace period runs from the deletion on, hooks included. The kubelet kills the container in the middle of its hook: the app never gets SIGTERM with time to act on it, and what is in flight is lost.",
    fix: "Raise terminationGracePeriodSeconds above the sleep and what the app needs to stop, or let ebbtide hold SIGTERM back instead of the sleep.",
    run: grace::hook_not_shorter,
}];
