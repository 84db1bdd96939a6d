//! Owns the test of `src/copy.c`, which only the static binary is linked with: here it runs by itself.

use std::path::Path;
use std::process::Command;

#[test]
fn copies_are_right_at_all_lengths_alignments_and_distances() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let scratch = tempfile::tempdir().unwrap();
    let program = scratch.path().join("copy");
    // As build.rs does. Who can link a Rust program has this command.
    let mut compile = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compile.args(["-O2", "-fno-builtin", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    let compiled = compile.arg(root.join("tests/copy.c")).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new(&program).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}
