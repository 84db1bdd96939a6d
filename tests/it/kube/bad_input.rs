//! Owns tests of input that is no good: told with its place, exit code 2, and nothing written or printed.

use std::fmt::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::{Run, ebbtide, folder};

const COMMANDS: [&str; 3] = ["inject", "check", "budget"];

/// Where the fault must be placed.
#[derive(Clone, Copy)]
enum At {
    Line(usize),
    /// Anywhere, but in the file.
    Somewhere,
    /// The file as a whole.
    File,
}

use At::{File, Line, Somewhere};

/// Up to the pod's spec.
const HEAD: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: x\nspec:\n  selector:\n    matchLabels: {app: x}\n  \
                    template:\n    metadata:\n      labels: {app: x}\n    spec:\n";

/// Up to what follows the image of the only container, which begins in line 16.
const CONTAINER: &str = "      containers:\n        - name: app\n          image: x\n          # here\n";

/// Not YAML, or YAML that kubectl would not take either.
const BROKEN: &[(&str, &[u8], At)] = &[
    ("a bracket that is never closed", b"kind: Pod\nspec: [1, 2\n", Somewhere),
    ("a brace that is never closed", b"kind: Pod\nspec: {a: 1\nb: 2\n", Somewhere),
    ("a quote that is never closed", b"kind: Pod\nname: \"x\n", Somewhere),
    ("a single quote that is never closed", b"kind: Pod\nname: 'x\n", Somewhere),
    ("a tab as indentation", b"kind: Pod\nmetadata:\n\tname: x\n", Line(3)),
    ("less indentation in the middle of a mapping", b"kind: Pod\nmetadata:\n    name: x\n  labels: {}\n", Line(4)),
    ("a mapping inside of a value", b"kind: Pod\nname: a: b\n", Line(2)),
    ("an item where a key belongs", b"kind: Pod\n- one\n", Line(2)),
    ("a key without a colon", b"kind: Pod\nmetadata\nspec: 1\n", Somewhere),
    ("an unknown escape", b"kind: Pod\nname: \"\\q\"\n", Line(2)),
    ("a reserved indicator", b"kind: Pod\nname: @x\n", Line(2)),
    ("a percent sign at the start of a value", b"kind: Pod\nname: %x\n", Line(2)),
    ("an alias to nothing", b"kind: Pod\nname: *nobody\n", Line(2)),
    ("an alias inside of its own anchor", b"kind: Pod\nspec: &a\n  more: *a\n", Line(3)),
    ("a cycle by a merge key", b"kind: Pod\nspec: &a\n  <<: *a\n", Line(3)),
    ("a cycle in a list", b"kind: Pod\nspec: &a [1, *a]\n", Line(2)),
    ("a merge key with a number", b"kind: Pod\nspec:\n  <<: 7\n", Line(3)),
    ("a key that stands twice", b"kind: Pod\nspec:\n  a: 1\n  b: 2\n  a: 3\n", Line(5)),
    ("a key that stands twice in braces", b"kind: Pod\nspec: {a: 1, \"a\": 2}\n", Line(2)),
    ("a list as a key", b"kind: Pod\n? [a, b]\n: 1\n", Line(2)),
    ("a tag of somebody's own", b"kind: Pod\nspec: !mine {a: 1}\n", Line(2)),
    ("two documents without a marker", b"{kind: Pod}\n{kind: Pod}\n", Somewhere),
    ("bytes that are no UTF-8", b"kind: Pod\nname: \xff\xfe\n", Line(2)),
    ("text of another encoding", b"\xff\xfek\0i\0n\0d\0:\0 \0P\0o\0d\0", Line(1)),
    ("a zero byte", b"kind: Pod\nname: a\0b\n", Somewhere),
    ("an executable", b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0>\0\x01\0\0\0\xc0\xb0", Somewhere),
    ("JSON that stops", b"{\"kind\": \"Pod\", \"spec\":", Somewhere),
    ("the fault in the second document", b"# fine\nkind: ConfigMap\n---\nkind: Pod\nname: *x\n", Line(5)),
];

/// YAML, but no manifest with a workload.
const NO_WORKLOAD: &[(&str, &[u8], At)] = &[
    ("nothing", b"", File),
    ("blanks", b"\n\n  \n", File),
    ("comments", b"# one\n# two\n", File),
    ("markers", b"---\n---\n...\n", File),
    ("null", b"~\n", File),
    ("a word", b"hello\n", Somewhere),
    ("a number", b"42\n", Somewhere),
    ("a list", b"- kind: Pod\n", Somewhere),
    ("no kind", b"apiVersion: v1\nmetadata: {name: x}\n", Somewhere),
    ("a kind that is a list", b"apiVersion: v1\nkind: [Pod]\nmetadata: {name: x}\n", Somewhere),
    ("no apiVersion", b"kind: Deployment\nmetadata: {name: x}\nspec: {}\n", Somewhere),
    ("no template", b"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {}\n", Somewhere),
    ("a List without items", b"apiVersion: v1\nkind: List\nitems: 3\n", Somewhere),
];

/// Wrong types in a pod's spec; the text follows [`HEAD`].
const WRONG_TYPES: &[(&str, &str, At)] = &[
    ("no containers", "      restartPolicy: Always\n", Somewhere),
    ("containers that are a mapping", "      containers: {}\n", Line(12)),
    ("containers that are null", "      containers: ~\n", Somewhere),
    ("an empty list of containers", "      containers: []\n", Somewhere),
    ("a container that is a word", "      containers: [app]\n", Line(12)),
    ("a container without a name", "      containers: [{image: x}]\n", Line(12)),
    (
        "a grace period with a unit",
        "      terminationGracePeriodSeconds: 30s\n      containers: [{name: a}]\n",
        Line(12),
    ),
    ("init containers that are a mapping", "      initContainers: {a: 1}\n      containers: [{name: a}]\n", Line(12)),
];

/// As these, but in a container; the text follows [`CONTAINER`].
const WRONG_IN_CONTAINER: &[(&str, &str, At)] = &[
    ("a port that is a word", "          ports: [{containerPort: \"abc\"}]\n", Line(16)),
    ("a port beyond the last", "          ports: [{containerPort: 70000}]\n", Somewhere),
    ("ports that are a number", "          ports: 8080\n", Line(16)),
    ("a lifecycle that is a list", "          lifecycle: []\n", Line(16)),
    ("a command that is a word", "          lifecycle: {preStop: {exec: {command: sleep 5}}}\n", Line(16)),
    ("a variable that is a number", "          env: [{name: A, value: 1}]\n", Line(16)),
    ("a word where a yes or no belongs", "          stdin: maybe\n", Line(16)),
];

struct Place {
    dir: TempDir,
}

// === impl Place ===

impl Place {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    fn write(&self, name: &str, content: &[u8]) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    }
}

/// What is wrong with how a run refused this file.
fn misbehaviour(run: &Run, path: &str, at: At) -> Option<String> {
    let Some(rest) = run.err.strip_prefix(&format!("ebbtide: {path}:")) else {
        return Some(format!("does not begin with the file: {run:?}"));
    };
    let mut parts = rest.splitn(3, ':');
    let number = |part: Option<&str>| part.and_then(|part| part.parse::<usize>().ok());
    let (line, column) = (number(parts.next()), number(parts.next()));
    let fits = match at {
        Line(wanted) => line == Some(wanted) && column > Some(0),
        Somewhere => line > Some(0) && column > Some(0),
        File => line.is_none() && rest.starts_with(' '),
    };
    let message = parts.next().unwrap_or(rest).trim();
    let quiet = run.code == Some(2) && run.out.is_empty() && !run.err.contains("panicked");
    (!fits || !quiet || message.is_empty()).then(|| format!("{run:?}"))
}

/// By every command, from a file and from stdin, and with `--in-place`, which leaves the file as it was.
fn refused<'a>(cases: impl IntoIterator<Item = (&'a str, Vec<u8>, At)>) {
    let place = Place::new();
    let mut faults = Vec::new();
    for (title, content, at) in cases {
        let path = place.write("input.yaml", &content);
        let runs = COMMANDS.iter().flat_map(|command| {
            [
                (path.as_str(), ebbtide(&[command, "-f", &path], b"")),
                ("stdin", ebbtide(&[command, "-f", "-"], &content)),
            ]
        });
        let in_place = (path.as_str(), ebbtide(&["inject", "-f", &path, "--in-place"], b""));
        let wrong = runs.chain([in_place]).filter_map(|(name, run)| misbehaviour(&run, name, at));
        faults.extend(wrong.map(|wrong| format!("{title}: {wrong}")));
        assert_eq!(std::fs::read(&path).unwrap(), content, "{title}: the file has changed");
    }
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

fn owned(cases: &'static [(&str, &[u8], At)]) -> impl Iterator<Item = (&'static str, Vec<u8>, At)> {
    cases.iter().map(|(title, content, at)| (*title, content.to_vec(), *at))
}

#[test]
fn broken_yaml_is_told_with_its_place() {
    assert!(BROKEN.len() >= 15);
    refused(owned(BROKEN));
}

#[test]
fn a_file_without_a_workload_is_told() {
    refused(owned(NO_WORKLOAD));
}

/// Other things than workloads are no fault of the file where there is a workload beside them, and else they are.
#[test]
fn other_kinds_alone_are_told() {
    let cases = ["Service", "ConfigMap", "Secret", "Ingress", "Node"].map(|kind| {
        let text = format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: x}}\n");
        ("another kind", text.into_bytes(), Somewhere)
    });
    refused(cases);
}

/// A port, so that nothing else is wrong.
fn ports(text: &str) -> &'static str {
    if text.contains("ports:") { "" } else { "          ports: [{containerPort: 8080}]\n" }
}

#[test]
fn wrong_types_in_a_pod_are_told_with_their_place() {
    let outer = WRONG_TYPES.iter().map(|(title, text, at)| (*title, format!("{HEAD}{text}"), *at));
    let inner = WRONG_IN_CONTAINER
        .iter()
        .map(|(title, text, at)| (*title, format!("{HEAD}{CONTAINER}{text}{}", ports(text)), *at));
    refused(outer.chain(inner).map(|(title, text, at)| (title, text.into_bytes(), at)));
}

/// Ten levels of ten aliases each are ten thousand million values.
fn bomb() -> String {
    let mut text = "kind: Pod\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        writeln!(text, "a{level}: &a{level} [{aliases}]").unwrap();
    }
    text
}

/// The same by merge keys, of which each doubles what is there.
fn merge_bomb() -> String {
    let mut text = "kind: Pod\na0: &a0 {k: [x, x, x, x]}\n".to_owned();
    for level in 1..40 {
        let last = level - 1;
        writeln!(text, "a{level}: &a{level} {{l: {{<<: *a{last}}}, r: {{<<: *a{last}}}}}").unwrap();
    }
    text
}

fn nested(open: &str, close: &str, depth: usize) -> String {
    format!("kind: Pod\nspec: {}{}\n", open.repeat(depth), close.repeat(depth))
}

/// One after the other, in a process that may take a gibibyte of address space and some seconds of processor time.
#[test]
fn what_is_made_to_exhaust_ends_soon_and_small() {
    let sprawling = || {
        let mut text = format!("{HEAD}      containers:\n");
        (0..200_000).for_each(|number| {
            text.push_str(&format!("        - name: c{number}\n          image: registry.example.com/x\n"))
        });
        text
    };
    let cases: [(&str, String); 12] = [
        ("aliases of aliases", bomb()),
        ("merge keys of merge keys", merge_bomb()),
        ("brackets", nested("[", "]", 100_000)),
        ("brackets without an end", nested("[", "", 1_000_000)),
        ("braces", nested("{a: ", "}", 100_000)),
        ("dashes", format!("kind: Pod\nspec:\n  {}x\n", "- ".repeat(100_000))),
        ("keys in keys", (0..3000).fold(String::new(), |text, depth| text + &" ".repeat(depth) + "a:\n")),
        ("question marks", format!("{}\n", "? ".repeat(100_000))),
        ("ten megabytes of text", format!("kind: Pod\nspec: \"{}\"\n", "x".repeat(10 << 20))),
        ("ten megabytes of comments", "# comment comment comment\n".repeat(400_000)),
        ("ten megabytes of containers", sprawling()),
        ("ten megabytes of documents", "---\nkind: Pod\n".repeat(750_000)),
    ];
    let place = Place::new();
    let mut faults = Vec::new();
    for (title, content) in cases {
        let path = place.write("input.yaml", content.as_bytes());
        for command in COMMANDS {
            let wrong = bounded(command, &path);
            faults.extend(
                wrong.map(|wrong| format!("{title}: {command}: {}", wrong.chars().take(600).collect::<String>())),
            );
        }
        assert!(std::fs::read(&path).unwrap() == content.as_bytes(), "{title}: the file has changed");
    }
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

fn bounded(command: &str, path: &str) -> Option<String> {
    let script = format!("ulimit -v {KIBIBYTES}; ulimit -t {SECONDS}; exec \"$0\" {command} -f \"$1\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_ebbtide"), path]).stdin(Stdio::null());
    let output = shell.output().unwrap();
    if let Some(signal) = output.status.signal() {
        return Some(format!("killed by signal {signal}"));
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let run = Run { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) };
    let wrong = misbehaviour(&run, path, Somewhere).and_then(|_| misbehaviour(&run, path, File));
    wrong.or_else(|| (run.err.len() > 10_000).then(|| "a message nobody reads to its end".to_owned()))
}

const KIBIBYTES: u64 = 1 << 20;
const SECONDS: u64 = 20;

#[test]
fn what_is_not_there_is_told_by_its_name() {
    let place = Place::new();
    let empty = place.dir.path().join("empty");
    let other = place.dir.path().join("other");
    for folder in [&empty, &other] {
        std::fs::create_dir(folder).unwrap();
    }
    std::fs::write(other.join("notes.txt"), "no manifest").unwrap();
    for path in [Path::new("/no/such/file.yaml"), &place.dir.path().join("missing.yaml"), &empty, &other] {
        let path = path.display().to_string();
        for command in COMMANDS {
            let run = ebbtide(&[command, "-f", &path], b"");
            let wrong = misbehaviour(&run, &path, File);
            assert_eq!(wrong, None, "{command}");
        }
    }
    for command in COMMANDS {
        let run = ebbtide(&[command], b"");
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{command} without a file: {run:?}");
    }
}

/// Nothing half-written: the file before the bad one, good as it is, stays as it was; so do those of a folder.
#[test]
fn in_place_changes_all_files_or_none() {
    let good = std::fs::read(folder().join("01-named-port.yaml")).unwrap();
    let refused = std::fs::read(folder().join("42-real-hook.yaml")).unwrap();
    let place = Place::new();
    for bad in [b"kind: Pod\nspec: [\n".as_slice(), b"\xff", &refused] {
        let (first, last) = (place.write("a.yaml", &good), place.write("c.yaml", &good));
        let middle = place.write("b.yaml", bad);
        let files = ["-f", &first, "-f", &middle, "-f", &last];
        let folder = place.dir.path().display().to_string();
        for input in [&files as &[&str], &["-f", &folder]] {
            for more in [&["--in-place"] as &[&str], &[], &["--output", "patch"], &["--diff"]] {
                let run = ebbtide(&[&["inject"], input, more].concat(), b"");
                assert_eq!(misbehaviour(&run, &middle, Somewhere), None, "{input:?} {more:?}");
                for path in [&first, &last] {
                    assert!(std::fs::read(path).unwrap() == good, "{path} has changed");
                }
                assert!(std::fs::read(&middle).unwrap() == bad);
            }
        }
    }
    let names: Vec<_> = std::fs::read_dir(place.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "something was left behind: {names:?}");
}
