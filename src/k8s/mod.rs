//! Kubernetes manifests: `inject`, `check` and `budget`. Pure functions over text; nothing of the data path may name
//! this module.

pub mod document;
mod scalar;
mod render;
mod diff;
mod edit;
pub mod object;
pub mod workload;
pub mod shell;
pub mod hook;
pub mod mesh;
pub mod check;
pub mod inject;
pub mod timeline;
