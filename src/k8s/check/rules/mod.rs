//! The table of rules, in the order of their numbers. Each stands beside the function that looks for it.

mod fields;
mod grace;
mod programs;
mod app_probes;
mod process;
mod rollout;
mod scaling;
mod companions;
mod traffic;
mod front;
mod select;
mod sidecar;
mod configured;
mod hooks;
mod calls;
mod network;
mod services;
mod security;
mod admission;
mod probes;

use super::Rule;

/// Every rule. The number of one that is gone goes to [`RETIRED`] and to no other rule.
pub static RULES: &[&Rule] = &[
    &grace::EB001,
    &grace::EB002,
    &programs::EB003,
    &programs::EB004,
    &process::EB005,
    &companions::EB006,
    &traffic::EB007,
    &process::EB008,
    &app_probes::EB009,
    &app_probes::EB010,
    &rollout::EB011,
    &app_probes::EB012,
    &rollout::EB013,
    &traffic::EB014,
    &scaling::EB015,
    &companions::EB016,
    &grace::EB017,
    &fields::EB018,
    &sidecar::EB030,
    &sidecar::EB031,
    &sidecar::EB032,
    &sidecar::EB033,
    &hooks::EB034,
    &hooks::EB035,
    &calls::EB036,
    &calls::EB037,
    &calls::EB038,
    &configured::EB039,
    &configured::EB040,
    &configured::EB041,
    &network::EB042,
    &network::EB043,
    &services::EB044,
    &services::EB045,
    &services::EB046,
    &sidecar::EB047,
    &security::EB048,
    &security::EB049,
    &security::EB050,
    &admission::EB051,
    &admission::EB052,
    &admission::EB053,
    &network::EB054,
    &probes::EB055,
];

/// Numbers that are not given again: manifests may still silence them.
pub const RETIRED: &[&str] = &[];

#[cfg(test)]
mod tests;
