//! Mutated files: whatever stands in them, the loader returns. `CONFIG_SEED` picks another sequence.

use super::render;
use crate::config::check_text;

const SEEDS: &[&str] = &[
    include_str!("../../../config/full.yaml"),
    include_str!("../../../config/two-apps.yaml"),
    include_str!("../../../config/adaptive-hold.yaml"),
    "a: &a [x, {b: *c, ? d : e}]\n<<: *a\n--- |\n  text\n...\n%YAML 1.2\n",
];

const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ": ",
    "- ",
    "? ",
    "&a ",
    "*a",
    "!t ",
    "!!int ",
    "|\n",
    ">-\n",
    "\"",
    "'",
    "#",
    "\n",
    "\r",
    "\t",
    "  ",
    "---\n",
    "...\n",
    "%TAG ! x\n",
    "\0",
    "\u{feff}",
    "é",
    "\u{1F600}",
    "null",
    "~",
    "0x10",
    "1e999",
    ".nan",
    "18446744073709551616",
    ",",
    "@",
    "`",
    "\\x",
    "<<: ",
];

#[test]
fn mutated_files_never_panic() {
    let seed = std::env::var_os("CONFIG_SEED").and_then(|seed| seed.to_str()?.parse().ok()).unwrap_or(7);
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..ROUNDS {
        let mut text: Vec<char> = random.choice(SEEDS).unwrap().chars().collect();
        if random.bool() {
            let start = random.usize(..text.len());
            text.drain(..start);
        }
        for _ in 0..random.usize(1..12) {
            let at = random.usize(..=text.len());
            match random.u8(..5) {
                0 => text.truncate(at),
                1 => {
                    let end = (at + random.usize(..20)).min(text.len());
                    text.drain(at..end);
                }
                2 => {
                    let end = (at + random.usize(..40)).min(text.len());
                    let copy: Vec<char> = text[at..end].to_vec();
                    let to = random.usize(..=text.len());
                    text.splice(to..to, copy);
                }
                _ => {
                    let piece = random.choice(PIECES).unwrap();
                    text.splice(at..at, piece.chars());
                }
            }
        }
        let text: String = text.into_iter().collect();
        if let Err(errors) = check_text("random.yaml", &text) {
            assert!(!errors.is_empty());
            for error in &errors {
                let lines = error.to_string().lines().count();
                assert!((1..=2).contains(&lines), "round {round}: {}\n{text}", render(&errors));
            }
        }
    }
}

const ROUNDS: usize = 3000;
