//! The downstream edge: bound sockets, accepted connections, and their orderly end.

pub mod bind;
pub mod accept;
pub mod conn;
pub mod streams;
pub mod idle;
pub mod io;
pub mod linger;
pub mod long;
