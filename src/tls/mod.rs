//! TLS: what is shown and believed, kept fresh, and the connections that speak it. There is one crypto provider: see
//! docs/adr/0013.

pub mod credentials;
pub mod server;
pub mod client;
pub mod reload;
pub mod stream;
pub mod identity;
pub mod turns;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// The one crypto provider.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests;
