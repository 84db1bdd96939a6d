//! Owns WebSocket: every byte passes as it is, and every session ends with a closing handshake where there can be one.

mod bytes;
