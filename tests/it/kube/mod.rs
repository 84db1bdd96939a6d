//! Owns tests of what ebbtide makes of Kubernetes manifests: by the real binary, with files as people write them.

mod bad_input;

mod case;

mod check;

mod injected;

mod kept;

mod play;

mod shapes;

mod strict;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// How a run of the binary ended.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs `ebbtide` with these arguments and nothing of the outer `EBBTIDE_*`; `input` is its standard input.
fn ebbtide(arguments: &[&str], input: &[u8]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ebbtide"));
    for (key, _) in std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with("EBBTIDE_")) {
        command.env_remove(key);
    }
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // A command that does not read it closes its end.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().unwrap()
    });
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it speaks UTF-8");
    Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// The result of `ebbtide inject` with these arguments, which must succeed.
fn inject(arguments: &[&str], input: &[u8]) -> Result<String, String> {
    let run = ebbtide(&[&["inject"], arguments].concat(), input);
    if run.code == Some(0) { Ok(run.out) } else { Err(format!("exit code {:?}: {}", run.code, run.err)) }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/kube/shapes")
}
