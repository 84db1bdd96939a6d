//! Owns tests of `ebbtide check`: exit codes, the three outputs, silencing, where manifests come from. The rules
//! themselves are tested beside the code, over the fixtures in `rules/`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Exit code, stdout, stderr.
fn check(folder: &Path, arguments: &[&str], stdin: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ebbtide"));
    command.arg("check").args(arguments).current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let text = stdin.to_owned();
    // It may end without reading.
    let writer = std::thread::spawn(move || drop(pipe.write_all(text.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn pod(name: &str, annotations: &Value, container: &Value) -> Value {
    let mut container = container.clone();
    container["name"] = json!("app");
    container["image"] = json!("example.invalid/app:1");
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations},
        "spec": {"containers": [container]}})
}

/// An error (EB001).
fn bad(name: &str, annotations: &Value) -> Value {
    pod(name, annotations, &json!({"lifecycle": {"preStop": {"sleep": {"seconds": 40}}}}))
}

/// A warning (EB009).
fn dubious(name: &str) -> Value {
    pod(name, &json!({}), &json!({"livenessProbe": {"tcpSocket": {"port": 80}, "failureThreshold": 1}}))
}

fn good(name: &str) -> Value {
    pod(name, &json!({}), &json!({}))
}

fn folder(files: &[(&str, String)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn the_exit_code_says_whether_something_was_found() {
    let none = folder(&[]);
    for (manifest, fail_on, wanted) in [
        (good("a"), "warning", 0),
        (dubious("a"), "error", 0),
        (dubious("a"), "warning", 1),
        (bad("a", &json!({})), "error", 1),
        (bad("a", &json!({})), "warning", 1),
        (bad("a", &json!({"ebbtide.dev/ignore-EB001": "a batch job in disguise"})), "warning", 0),
        (bad("a", &json!({"ebbtide.dev/ignore-EB001": ""})), "error", 1),
        (bad("a", &json!({"ebbtide.dev/ignore-EB002": "another rule"})), "error", 1),
    ] {
        for output in ["text", "json", "sarif"] {
            let arguments = ["-f", "-", "--fail-on", fail_on, "--output", output];
            let (code, out, err) = check(none.path(), &arguments, &manifest.to_string());
            assert_eq!((code, err.as_str()), (Some(wanted), ""), "{fail_on} {output} {manifest}\n{out}");
        }
    }
    let (code, ..) = check(none.path(), &["-f", "-"], &bad("a", &json!({})).to_string());
    assert_eq!(code, Some(1), "errors count by default");
}

#[test]
fn what_cannot_be_read_is_exit_code_2_with_its_place() {
    let files = folder(&[("a.yaml", "kind: Pod\nspec: [1, 2\n".to_owned()), ("empty/a.txt", String::new())]);
    let huge = format!("# {}\n", "x".repeat(10 << 20));
    let cases: [(&[&str], &str, &str); 8] = [
        (&["-f", "a.yaml"], "", "a.yaml:3:1: "),
        (&["-f", "missing.yaml"], "", "missing.yaml: can't be read"),
        (&["-f", "empty"], "", "empty: holds no *.yaml"),
        (&["-f", "-"], "", "stdin: holds no Kubernetes object"),
        (&["-f", "-"], &huge, "stdin:1:"),
        (&["-f", "-"], "a: &x\n  b: *x\n", "stdin:2:6: "),
        (
            &["-f", "-"],
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: 7\n",
            "stdin:5:3: Pod/a: ",
        ),
        (&["-f", "-", "--kube-version", "two"], "", "no version like 1.31"),
    ];
    for (arguments, stdin, wanted) in cases {
        let (code, out, err) = check(files.path(), arguments, stdin);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?} {err}");
        assert!(err.contains(wanted), "{arguments:?}: no {wanted:?} in {err}");
    }
    let (code, ..) = check(files.path(), &[], "");
    assert_eq!(code, Some(2), "-f is missing");
}

#[test]
fn the_text_has_place_reason_and_patch() {
    let files = folder(&[(
        "web.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: app\n    image: a\n    \
         lifecycle:\n      preStop: {sleep: {seconds: 45}}\n  - name: other\n    image: a\n    lifecycle:\n      \
         preStop: {sleep: {seconds: 30}}\n"
            .to_owned(),
    )]);
    let (_, out, _) = check(files.path(), &["-f", "web.yaml"], "");
    let first =
        "web.yaml:9:7: error EB001: Pod/web: container app sleeps 45 s before it stops, the grace period is 30 s";
    assert!(out.starts_with(first), "{out}");
    assert!(out.contains("\nweb.yaml:13:7: error EB001: Pod/web: container other sleeps 30 s"), "{out}");
    assert_eq!(out.matches("why: ").count(), 1, "once for each rule\n{out}");
    assert!(
        out.contains("\n      - {\"op\":\"add\",\"path\":\"/spec/terminationGracePeriodSeconds\",\"value\":60}\n"),
        "{out}"
    );
    assert!(out.ends_with("\n2 errors, 0 warnings in 1 workload\n"), "{out}");
}

#[test]
fn the_json_has_all_of_it() {
    let none = folder(&[]);
    let reason = json!({"ebbtide.dev/ignore-EB001": "known"});
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [bad("a", &json!({})), bad("b", &reason), dubious("c"), good("d")]});
    let (code, out, _) = check(none.path(), &["-f", "-", "-o", "json"], &list.to_string());
    assert_eq!(code, Some(1));
    let found = json_of(&out);
    assert_eq!(found["summary"], json!({"errors": 1, "warnings": 1, "silenced": 1, "workloads": 4}));
    let findings = found["findings"].as_array().unwrap();
    let of = |object: &str| findings.iter().find(|one| one["object"] == object).unwrap().clone();
    let a = of("Pod/a");
    assert_eq!((&a["rule"], &a["name"]), (&json!("EB001"), &json!("hook-not-shorter-than-grace")));
    assert_eq!((&a["severity"], &a["file"], &a["line"]), (&json!("error"), &json!("stdin"), &json!(1)));
    assert_eq!((&a["path"], &a["silenced"]), (&json!("/spec/containers/0/lifecycle/preStop"), &Value::Null));
    assert_eq!(a["patch"], json!([{"op": "add", "path": "/spec/terminationGracePeriodSeconds", "value": 55}]));
    for text in ["message", "why", "way_out"] {
        assert!(!a[text].as_str().unwrap().is_empty(), "{text}");
    }
    assert_eq!(of("Pod/b")["silenced"], "known");
    assert_eq!(of("Pod/c")["severity"], "warning");
}

#[test]
fn the_sarif_is_what_code_scanning_takes() {
    let reason = json!({"ebbtide.dev/ignore-EB001": "known"});
    let files = folder(&[
        ("deploy/my app.yaml", format!("# first\n{}\n", bad("a", &json!({})))),
        ("deploy/b.yaml", format!("{}\n---\n{}\n", bad("b", &reason), dubious("c"))),
    ]);
    let (code, out, _) = check(files.path(), &["-f", "./deploy", "--output", "sarif"], "");
    assert_eq!(code, Some(1));
    let log = json_of(&out);
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    for rule in rules {
        for text in ["/id", "/name", "/shortDescription/text", "/fullDescription/text", "/help/text", "/help/markdown"]
        {
            assert!(rule.pointer(text).and_then(Value::as_str).is_some_and(|text| !text.is_empty()), "{text} {rule}");
        }
    }
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), 3, "{out}");
    for result in results {
        let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        assert_eq!(rules[index]["id"], result["ruleId"]);
        assert!(["error", "warning"].contains(&result["level"].as_str().unwrap()), "{result}");
        assert!(result["partialFingerprints"].is_object() && result["message"]["text"].is_string(), "{result}");
        let place = &result["locations"][0]["physicalLocation"];
        assert!(
            place["region"]["startLine"].as_u64().unwrap() >= 1 && place["region"]["startColumn"].is_u64(),
            "{result}"
        );
    }
    let of =
        |name: &str| results.iter().find(|one| one["message"]["text"].as_str().unwrap().starts_with(name)).unwrap();
    let a = &of("Pod/a:")["locations"][0]["physicalLocation"];
    assert_eq!(a["artifactLocation"]["uri"], "deploy/my%20app.yaml");
    assert_eq!(a["region"]["startLine"], 2);
    assert_eq!(of("Pod/a:").get("suppressions"), None);
    let silenced = json!([{"kind": "inSource", "status": "accepted", "justification": "known"}]);
    assert_eq!(of("Pod/b:")["suppressions"], silenced);
    assert_eq!(of("Pod/c:")["locations"][0]["physicalLocation"]["region"]["startLine"], 3);
}

#[test]
fn files_folders_and_the_standard_input_count_together() {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    let mut web = good("web");
    web["metadata"]["labels"] = json!({"app": "web"});
    let files = folder(&[
        ("a/kustomization.yaml", "resources: [web.yaml]\n".to_owned()),
        ("a/web.yaml", web.to_string()),
        ("a/inner/bad.json", bad("inner", &json!({})).to_string()),
        ("service.yml", service.to_string()),
    ]);
    let rules = |arguments: &[&str], stdin: &str| -> Vec<String> {
        let (_, out, err) = check(files.path(), &[arguments, &["-o", "json"]].concat(), stdin);
        assert_eq!(err, "");
        let found = json_of(&out);
        let findings = found["findings"].as_array().unwrap().iter();
        findings.map(|one| format!("{} {}", one["rule"].as_str().unwrap(), one["file"].as_str().unwrap())).collect()
    };
    assert_eq!(rules(&["-f", "a"], ""), [] as [&str; 0], "nothing says that it takes requests");
    assert_eq!(rules(&["-f", "a", "-f", "service.yml"], ""), ["EB007 a/web.yaml"]);
    assert_eq!(rules(&["-f", "-", "-f", "a"], &service.to_string()), ["EB007 a/web.yaml"]);
    assert_eq!(rules(&["-f", "a", "-R"], ""), ["EB001 a/inner/bad.json"]);
}

#[test]
fn what_a_cluster_made_of_an_object_is_not_told_twice() {
    let template = bad("web", &json!({}));
    let make = |kind: &str, name: &str, owner: Option<(&str, &str)>| {
        let owners: Vec<Value> =
            owner.map(|(kind, name)| json!({"kind": kind, "name": name, "controller": true})).into_iter().collect();
        json!({"apiVersion": "apps/v1", "kind": kind,
            "metadata": {"name": name, "namespace": "shop", "uid": "1", "creationTimestamp": null, "managedFields": [], "ownerReferences": owners},
            "spec": {"selector": {}, "template": {"metadata": {"creationTimestamp": null}, "spec": template["spec"]}},
            "status": {"replicas": 1}})
    };
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [
        make("Deployment", "web", None), make("ReplicaSet", "web-1", Some(("Deployment", "web"))),
        make("ReplicaSet", "orphan", Some(("Deployment", "elsewhere")))]});
    let none = folder(&[]);
    let (_, out, err) = check(none.path(), &["-f", "-", "-o", "json"], &list.to_string());
    assert_eq!(err, "");
    let found = json_of(&out);
    let objects: Vec<&Value> = found["findings"].as_array().unwrap().iter().map(|one| &one["object"]).collect();
    assert_eq!(objects, ["Deployment/web", "ReplicaSet/orphan"]);
}

#[test]
fn rules_explain_themselves() {
    let none = folder(&[]);
    let (code, list, _) = check(none.path(), &["--list-rules"], "");
    assert!(code == Some(0) && list.starts_with("EB001 error "), "{list}");
    for line in list.lines() {
        let id = line.split(' ').next().unwrap();
        let (code, page, _) = check(none.path(), &["--explain", id], "");
        assert!(code == Some(0) && page.starts_with(id) && page.contains("way out: "), "{page}");
    }
    let (code, _, err) = check(none.path(), &["--explain", "EB999"], "");
    assert!(code == Some(2) && err.contains("--list-rules"), "{err}");
}

#[test]
fn the_examples_have_no_error() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (code, out, err) = check(root, &["-f", "deploy/example", "-f", "deploy/tls"], "");
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
}
