//! Owns the repository's rules: they are tests, so that nobody has to remember them.

use std::fs;
use std::path::{Path, PathBuf};

use ebbtide::config::{Environment, load};
use ebbtide::k8s::check::{RULES, Severity};
use ebbtide::k8s::inject::{OPTIONS, PREFIX};
use ebbtide::lifecycle::budget;
use ebbtide::lifecycle::tick::Tick;
use ebbtide::proxy::grpc;
use ebbtide::proxy::response::Reason;
use ebbtide::telemetry::metrics::TABLE;

const LONGEST_FILE: usize = 400;

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All files below a folder whose names end so, with paths from the root, in order.
fn files(folder: &str, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path.strip_prefix(root()).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

fn code() -> Vec<String> {
    [files("src", ".rs"), files("tests", ".rs"), files("benches", ".rs")].concat()
}

fn pages() -> Vec<String> {
    let names = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let top = names.filter(|name| name.ends_with(".md"));
    top.chain(files("docs", ".md")).chain(files("benches", ".md")).collect()
}

/// Panics with all findings at once.
pub(crate) fn assert_none(rule: &str, findings: Vec<String>) {
    assert!(findings.is_empty(), "{rule}:\n{}", findings.join("\n"));
}

#[test]
fn no_file_is_long() {
    let long = code().into_iter().map(|path| (read(&path).lines().count(), path));
    let long = long.filter(|(lines, _)| *lines > LONGEST_FILE).map(|(lines, path)| format!("{path}: {lines}"));
    assert_none(&format!("more than {LONGEST_FILE} lines, split by what the parts own"), long.collect());
}

#[test]
fn every_module_says_what_it_owns() {
    let silent = code().into_iter().filter(|path| path.ends_with("/mod.rs") && !read(path).starts_with("//! "));
    assert_none("begins without //!", silent.collect());
}

#[test]
fn the_pure_core_names_no_runtime_and_no_clock() {
    let pure = ["machine/", "witness", "budget/", "spread", "phase", "tick"];
    let core = files("src/lifecycle", ".rs").into_iter().filter(|path| {
        let name = path.strip_prefix("src/lifecycle/").unwrap();
        pure.iter().any(|one| name.starts_with(one)) && !name.contains("tests")
    });
    let core: Vec<String> = core.collect();
    assert!(core.len() >= pure.len(), "{core:?}");
    let banned = ["tokio", "Instant", "SystemTime", "std::net", "std::fs", "tracing"];
    let impure = core.iter().flat_map(|path| {
        let text = read(path);
        banned.into_iter().filter(move |word| text.contains(word)).map(move |word| format!("{path}: {word}"))
    });
    assert_none("the core is handed time and observations", impure.collect());
}

#[test]
fn the_data_path_does_not_know_the_surface() {
    let folders = ["src/listener", "src/detect", "src/proxy", "src/upstream", "src/lifecycle"];
    let banned = ["crate::cli", "crate::control", "crate::admin", "crate::app::", "crate::demo"];
    let wrong = folders.iter().flat_map(|folder| files(folder, ".rs")).flat_map(|path| {
        let text = read(&path);
        banned.into_iter().filter(move |word| text.contains(word)).map(move |word| format!("{path}: {word}"))
    });
    assert_none("dependencies go the other way", wrong.collect());
}

#[test]
fn only_the_command_line_knows_manifests() {
    let others =
        files("src", ".rs").into_iter().filter(|path| !path.starts_with("src/k8s") && !path.starts_with("src/cli"));
    let wrong: Vec<_> =
        others.filter(|path| read(path).contains("k8s::") || read(path).contains("k8s_openapi")).collect();
    assert_none("what runs in a pod needs no manifest", wrong);
}

#[test]
fn open_ends_have_a_number() {
    let mark = concat!("TO", "DO");
    let open = code().into_iter().flat_map(|path| {
        let text = read(&path);
        let lines: Vec<String> = text
            .lines()
            .filter(|line| line.contains(mark) && !line.contains(&format!("{mark}(#")))
            .map(|line| format!("{path}: {}", line.trim()))
            .collect();
        lines
    });
    assert_none("name the issue", open.collect());
}

#[test]
fn the_map_shows_every_module() {
    let map = read("ARCHITECTURE.md");
    assert!(map.lines().count() <= 210, "a map is read as a whole");
    let missing = files("src", ".rs").into_iter().filter(|path| {
        let path = Path::new(path);
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let folder = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
        match stem {
            "tests" | "lib" => false,
            "mod" => folder != "tests" && !map.contains(&format!("{folder}/")),
            _ if folder == "tests" => false,
            _ => !map.contains(&format!("`{stem}`")) && !map.contains(&format!("`{stem}.rs`")),
        }
    });
    assert_none("not in ARCHITECTURE.md", missing.collect());
}

#[test]
fn links_lead_somewhere() {
    let broken = pages().into_iter().flat_map(|page| {
        let text = read(&page);
        let folder = root().join(&page).parent().unwrap().to_owned();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let targets = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
        let missing = targets.filter(|target| !folder.join(target.split('#').next().unwrap()).exists());
        missing.map(|target| format!("{page}: {target}")).collect::<Vec<_>>()
    });
    assert_none("no such file", broken.collect());
}

#[test]
fn pages_name_no_path_of_somebodys_machine() {
    let private = ["/home/", "/root/", "/tmp/", "/work/", "/Users/"];
    let found = pages().into_iter().flat_map(|page| {
        let text = read(&page);
        private.into_iter().filter(move |path| text.contains(path)).map(move |path| format!("{page}: {path}"))
    });
    assert_none("nobody else has it", found.collect());
}

#[test]
fn versions_agree() {
    let toolchain = read("rust-toolchain.toml");
    let rust = env!("CARGO_PKG_RUST_VERSION");
    assert!(toolchain.contains(&format!("channel = \"{rust}.")), "{toolchain}");
    assert!(read("Dockerfile").contains(&format!("FROM rust:{rust}-alpine")));
    assert!(read("README.md").contains(&format!("Rust ({rust} or later)")));
    assert!(read("CHANGELOG.md").contains(&format!("## {}", env!("CARGO_PKG_VERSION"))));
}

/// Cargo reads no manifest that names a target without a file, and the image's first layer has the manifest alone.
#[test]
fn the_dockerfile_makes_a_file_for_each_target_that_the_manifest_names() {
    let manifest = read("Cargo.toml");
    let mut missing = Vec::new();
    for (kind, folder) in [("bench", "benches"), ("test", "tests"), ("example", "examples")] {
        for target in manifest.split(&format!("[[{kind}]]")).skip(1) {
            let name = target.lines().find_map(|line| line.strip_prefix("name = ")).unwrap().trim_matches('"');
            let path = format!("{folder}/{name}/main.rs");
            if !read("Dockerfile").contains(&path) {
                missing.push(path);
            }
        }
    }
    assert_none("targets without a file in the Dockerfile", missing);
}

#[test]
fn the_metrics_page_has_the_table() {
    let mut table = String::from("| Metric | Type | Label | Meaning |\n|---|---|---|---|\n");
    for row in TABLE {
        let label = match row.label {
            None => "–".to_owned(),
            Some((name, _)) if row.name == "ebbtide_build_info" => format!("`{name}`"),
            Some(("path", [])) => "`path`: as configured".to_owned(),
            Some((name, [])) => format!("`{name}`: name of a listener"),
            Some((name, values)) => format!("`{name}`: `{}`", values.join("`, `")),
        };
        let label = match row.outer {
            None => label,
            Some((name, [])) => format!("`{name}`: its name; {label}"),
            Some((name, values)) => format!("`{name}`: `{}`; {label}", values.join("`, `")),
        };
        table.push_str(&format!("| `{}` | {} | {label} | {} |\n", row.name, row.kind, row.help));
    }
    assert_part("docs/user/metrics.md", "table", &table);
}

#[test]
fn the_lifecycle_page_has_the_budgets() {
    let mut table = String::from(
        "| Mode | Grace period | Hold ends | Drain deadline | App hooks released | Ends |\n|---|---|---|---|---|---|\n",
    );
    for mode in ["sidecar", "plain"] {
        for grace in [30, 10, 5, 1] {
            let variables = [
                ("EBBTIDE_MODE", mode.to_owned()),
                ("EBBTIDE_GRACE_PERIOD", format!("{grace}s")),
                ("EBBTIDE_UPSTREAM", "http://127.0.0.1:8080".to_owned()),
            ];
            let drain = load(None, &variables.into_iter().collect::<Environment>(), &[]).unwrap();
            let deadlines = budget::divide(drain.config.mode, &drain.config.drain).deadlines(Tick::default());
            let at = |tick: Tick| format!("{} s", (tick.since_start().as_secs_f64() * 100.0).round() / 100.0);
            let (hooks, end) = match mode {
                "sidecar" => (at(deadlines.close_deadline), "with its SIGTERM".to_owned()),
                _ => ("–".to_owned(), format!("by {}", at(deadlines.end))),
            };
            table.push_str(&format!(
                "| {mode} | {grace} s | {} | {} | {hooks} | {end} |\n",
                at(deadlines.hold_end),
                at(deadlines.drain_deadline),
            ));
        }
    }
    assert_part("docs/user/lifecycle.md", "budgets", &table);
}

#[test]
fn the_troubleshooting_page_has_our_own_answers() {
    const REASONS: [Reason; 21] = [
        Reason::AppDown,
        Reason::ParkingFull,
        Reason::AppUnreachable,
        Reason::AppRefuses,
        Reason::AppSilent,
        Reason::TooManyStreams,
        Reason::AppGone,
        Reason::DrainOver,
        Reason::NoNewTunnel,
        Reason::CutUnsent,
        Reason::CutUnanswered,
        Reason::AppBroke,
        Reason::AppAnswer,
        Reason::AppNotHttp2,
        Reason::ClientBody,
        Reason::ClientGone,
        Reason::BadHost,
        Reason::BadTarget,
        Reason::AmbiguousFraming,
        Reason::ConnectMethod,
        Reason::TransferCoding,
    ];
    let mut numbers = REASONS.map(|reason| reason as usize);
    numbers.sort_unstable();
    assert_eq!(numbers.to_vec(), (0..numbers.len()).collect::<Vec<_>>(), "each reason once, and none is missing");
    let mut table = String::from("| Text | HTTP | gRPC |\n|---|---|---|\n");
    for reason in REASONS {
        let (status, text, _) = reason.parts();
        let call = grpc::status_of(reason);
        table.push_str(&format!("| {text} | {} | {} {call:?} |\n", status.as_u16(), call as u16));
    }
    assert_part("docs/user/troubleshooting.md", "answers", &table);
}

#[test]
fn the_check_page_has_the_rules() {
    let sections = RULES.iter().map(|rule| {
        format!(
            "### {} {}\n\n*{}.* {}\n\n{}\n\n**Way out:** {}\n",
            rule.id,
            rule.name,
            if rule.severity == Severity::Error { "Error" } else { "Warning" },
            rule.summary,
            rule.why,
            rule.fix
        )
    });
    assert_part("docs/user/check.md", "rules", &sections.collect::<Vec<_>>().join("\n"));
}

#[test]
fn the_inject_page_has_the_options() {
    let mut table = String::from("| Flag | Annotation | Default | Meaning |\n|---|---|---|---|\n");
    for option in OPTIONS {
        let value = match option.bare {
            None => format!(" {}", option.value),
            Some(_) => format!("[={}]", option.value),
        };
        let default = if option.default.is_empty() { "–".to_owned() } else { format!("`{}`", option.default) };
        // A bar ends the cell, within backticks as well.
        let flag = format!("--{}{value}", option.name).replace('|', "\\|");
        table.push_str(&format!("| `{flag}` | `{PREFIX}{}` | {default} | {} |\n", option.name, option.doc));
    }
    assert_part("docs/user/inject.md", "options", &table);
}

/// What stands between `<!-- NAME -->` and `<!-- /NAME -->`; `UPDATE_EXPECT=1` writes it.
pub(crate) fn assert_part(page: &str, name: &str, part: &str) {
    let text = read(page);
    let (start, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->\n"));
    let (before, rest) = text.split_once(&start).unwrap_or_else(|| panic!("{page}: no {start}"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{page}: no {end}"));
    let expected = format!("{before}{start}{part}{end}{after}");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(root().join(page), expected).unwrap();
    } else {
        assert!(text == expected, "{page} is out of date; run the tests with UPDATE_EXPECT=1");
    }
}
