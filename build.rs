//! Gives the static binary a memcpy of its own: see src/copy.c.

#![expect(clippy::disallowed_methods, reason = "cargo tells a build script everything by its environment")]

fn main() {
    println!("cargo::rerun-if-changed=src/copy.c");
    let is = |what: &str, value: &str| std::env::var(what).is_ok_and(|is| is == value);
    if !(is("CARGO_CFG_TARGET_ENV", "musl") && is("CARGO_CFG_TARGET_ARCH", "x86_64")) {
        return;
    }
    cc::Build::new()
        .file("src/copy.c")
        .opt_level(2)
        .flag("-fno-builtin")
        // Its own loops must not become calls of itself.
        .flag_if_supported("-fno-tree-loop-distribute-patterns")
        .compile("copy");
    for name in ["memcpy", "memmove"] {
        println!("cargo::rustc-link-arg-bins=-Wl,--wrap={name}");
    }
}
