//! Owns the list of integration test modules; all of them share one binary and one harness.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and has a process and a runtime of its own"
)]

mod harness;

mod kubelet_selftest;

mod lifecycle;

mod simulation;

mod toys_selftest;

mod h2_selftest;

mod ws_selftest;

mod tls_selftest;

mod streams_selftest;

mod surface;

mod deploy;

mod kube;

mod tidy;

mod instructions;

mod copy;

mod http1;

mod http2;

mod grpc;

mod h2_upstream;

mod websocket;

mod events;

mod outbound;

mod tcp;

mod tls;
