//! Tests of the whole module, by what they look at.

mod units;
mod files;
mod messages;
mod tls;
mod sources;
mod random;
mod schema;
mod agreement;

use super::{ConfigError, Loaded, check_text};

/// Loads a text that must be good.
fn good(text: &str) -> Loaded {
    check_text("test.yaml", text).unwrap_or_else(|errors| panic!("{}\n{text}", render(&errors)))
}

/// Loads a text that must be faulty, and gives the messages, one after the other.
fn faults(text: &str) -> String {
    match check_text("test.yaml", text) {
        Ok(_) => panic!("must be faulty:\n{text}"),
        Err(errors) => render(&errors),
    }
}

fn render(errors: &[ConfigError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// A good listener on line 1.
const WEB: &str = "listeners: [{name: web, bind: ':1', upstream: 'http://127.0.0.1:2'}]\n";
