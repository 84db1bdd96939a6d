//! WebSocket sessions (RFC 6455): relayed frame by frame, closed in good order.

pub mod frames;
pub mod session;
