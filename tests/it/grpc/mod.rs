//! Owns the tests of gRPC and of what ends an HTTP/2 stream: errors of ebbtide's own, and the time being up.

pub(crate) mod stage;

mod calls;

mod endings;

mod errors;

mod long;

mod stalled;
