//! The upstream edge: dialling the app, reusing connections to it, knowing whether it accepts.

pub mod connect;
pub mod remote;
pub mod pool;
pub mod quiet;
pub mod multiplex;
mod taken_back;
pub mod speaks;
pub mod park;
pub mod probe;
pub mod watched;
