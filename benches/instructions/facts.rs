//! Owns what counts depend on beside the code.

use std::process::Command;

/// Name and value of each.
pub(crate) fn here() -> Vec<(String, String)> {
    let facts = [
        // The binary's, as long as rust-toolchain.toml is obeyed.
        ("rust", env!("CARGO_PKG_RUST_VERSION").to_owned()),
        // Valgrind shows a processor of its own, with AVX2 where there is one. glibc and ring choose by it.
        ("processor", format!("{}, {}", std::env::consts::ARCH, vectors())),
        // Its allocator and its copying are a tenth of a request.
        ("libc", first_line("getconf", "GNU_LIBC_VERSION")),
        ("valgrind", first_line("valgrind", "--version")),
    ];
    facts.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// One sentence for each that is another one.
pub(crate) fn differences(then: &[(String, String)], now: &[(String, String)]) -> Vec<String> {
    let differ = then.iter().filter(|fact| !now.contains(fact));
    let tell = |(name, value): &(String, String)| {
        let here = now.iter().find(|(other, _)| other == name).map_or("none", |(_, value)| value);
        format!("the baseline was measured with {name} {value}, here it is {here}: that may make a difference")
    };
    differ.map(tell).collect()
}

fn first_line(command: &str, argument: &str) -> String {
    let output = Command::new(command).arg(argument).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or("unknown").trim().to_owned()
}

#[cfg(target_arch = "x86_64")]
fn vectors() -> &'static str {
    if std::arch::is_x86_feature_detected!("avx2") { "AVX2" } else { "no AVX2" }
}

#[cfg(not(target_arch = "x86_64"))]
fn vectors() -> &'static str {
    "as built"
}
