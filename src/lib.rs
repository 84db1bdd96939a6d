//! ebbtide: a native Kubernetes sidecar that lets legacy services leave without dropping a request.
//!
//! The modules in reading order: a request goes listener → detect → proxy → upstream; [`lifecycle`] is the heart.

pub mod listener;
pub mod detect;
pub mod proxy;
pub mod upstream;
pub mod k8s;
pub mod lifecycle;
pub mod worker;
pub mod admin;
pub mod control;
pub mod telemetry;
pub mod tls;
pub mod transport;
pub mod config;
pub mod system;
pub mod app;
pub mod demo;
pub mod cli;
