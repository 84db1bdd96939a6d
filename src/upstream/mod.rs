//! The upstream edge: dialling the app, reusing connections to it, knowing whether it accepts.

pub mod connect;
pub mod pool;
pub mod multiplex;
pub mod speaks;
pub mod park;
pub mod probe;
pub mod watched;
