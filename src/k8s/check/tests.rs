use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;
use crate::k8s::document::{Document, read};
use crate::k8s::object;

/// A manifest below `tests/it/kube/rules/EBnnn/`, with what its first lines say of it: `# options: --kube-version 1.28`,
/// `# severity: warning`, `# message: part of the text`, `# line: 12`, and in one that passes `# also: EB013`, an error
/// that it may have.
struct Fixture {
    path: PathBuf,
    text: String,
    options: Options,
}

impl Fixture {
    fn all(id: &str, beginning: &str) -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/kube/rules").join(id);
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let is_meant = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(beginning);
        paths.into_iter().filter(is_meant).map(Self::load).collect()
    }

    fn load(path: PathBuf) -> Self {
        let mut fixture = Self { text: std::fs::read_to_string(&path).unwrap(), path, options: Options::default() };
        let options: Vec<String> = fixture.says("options").flat_map(str::split_whitespace).map(str::to_owned).collect();
        for pair in options.chunks(2) {
            match [pair[0].as_str(), pair[1].as_str()] {
                ["--kube-version", version] => fixture.options.kube_version = Some(version.parse().unwrap()),
                ["--platform", name] => {
                    fixture.options.platform = Some(clap::ValueEnum::from_str(name, false).unwrap());
                }
                ["--template-path", path] => fixture.options.template_path = Some(path.to_owned()),
                other => panic!("{fixture}: {other:?}"),
            }
        }
        fixture
    }

    fn says<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        let key = format!("# {key}: ");
        let head = self.text.lines().take_while(|line| line.starts_with('#'));
        head.filter_map(move |line| line.strip_prefix(&key)).map(str::trim)
    }

    fn findings(&self, documents: &[Document]) -> Vec<Finding> {
        check(documents, &self.options).unwrap_or_else(|fault| panic!("{self}: {fault}")).findings
    }

    fn documents(&self) -> Vec<Document> {
        read(&self.to_string(), self.text.as_bytes()).unwrap()
    }
}

impl std::fmt::Display for Fixture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        write!(f, "{}", self.path.strip_prefix(root).unwrap().display())
    }
}

fn told(findings: &[Finding]) -> String {
    findings
        .iter()
        .map(|one| format!("\n  {:?} {} {}: {}", one.severity, one.rule.id, one.place.line, one.message))
        .collect()
}

/// The documents as they are when the finding's fix has been applied.
fn mended(documents: &[Document], finding: &Finding) -> Vec<Document> {
    let object = object::objects(documents).unwrap().remove(finding.index);
    let mut whole: Vec<Value> =
        documents.iter().map(|document| document.root.as_ref().map_or(Value::Null, |root| root.to_value())).collect();
    let target = whole[object.document].pointer_mut(&object.pointer).unwrap();
    json_patch::patch(target, &finding.fix).unwrap_or_else(|error| panic!("{}: {error}", finding.message));
    let texts: Vec<String> = whole.iter().map(|value| format!("---\n{value}\n")).collect();
    read("mended", texts.concat().as_bytes()).unwrap()
}

#[test]
fn numbers_are_unique_and_in_order_and_not_given_twice() {
    let ids: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    for rule in RULES {
        let is_number =
            rule.id.strip_prefix("EB").is_some_and(|number| number.len() == 3 && number.parse::<u16>().is_ok());
        assert!(is_number && !RETIRED.contains(&rule.id), "{}", rule.id);
        assert_eq!(RULES.iter().filter(|other| other.name == rule.name).count(), 1, "{}", rule.name);
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(rule.name.chars().all(is_name), "{}", rule.name);
        for text in [rule.summary, rule.why, rule.fix] {
            assert!(text.ends_with('.') && !text.contains("  ") && !text.contains('\n'), "{}: {text}", rule.id);
        }
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/kube/rules");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(ids.contains(&name.as_str()), "fixtures of {name}, which is no rule");
    }
}

#[test]
fn every_rule_finds_what_it_is_for() {
    let mut wrong: Vec<String> = Vec::new();
    for rule in RULES {
        let fixtures = Fixture::all(rule.id, "trips");
        assert!(!fixtures.is_empty(), "{} has no fixture that trips it", rule.id);
        for fixture in fixtures {
            let all = fixture.findings(&fixture.documents());
            let own: Vec<&Finding> = all.iter().filter(|finding| finding.rule.id == rule.id).collect();
            assert!(!own.is_empty(), "{fixture}: not found, but:{}", told(&all));
            for finding in &own {
                assert!(finding.place.line > 0, "{fixture}: {finding:?}");
            }
            let has = |key: &str, wanted: &str| {
                own.iter().any(|one| match key {
                    "severity" => one.severity.to_string() == wanted,
                    "line" => one.place.line.to_string() == wanted,
                    _ => one.message.contains(wanted),
                })
            };
            for key in ["severity", "line", "message"] {
                let missing = fixture.says(key).filter(|wanted| !has(key, wanted));
                wrong.extend(missing.map(|wanted| format!("{fixture}: {key} {wanted}{}", told(&all))));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_lets_what_is_right_pass() {
    let mut wrong: Vec<String> = Vec::new();
    for rule in RULES {
        let fixtures = Fixture::all(rule.id, "passes");
        assert!(!fixtures.is_empty(), "{} has no fixture that passes", rule.id);
        for fixture in fixtures {
            let also: Vec<&str> = fixture.says("also").flat_map(str::split_whitespace).collect();
            let mut found = fixture.findings(&fixture.documents());
            found.retain(|one| {
                one.rule.id == rule.id || (one.severity == Severity::Error && !also.contains(&one.rule.id))
            });
            if !found.is_empty() {
                wrong.push(format!("{fixture}:{}", told(&found)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn fixtures_are_called_by_what_they_are_for() {
    for rule in RULES {
        let known = Fixture::all(rule.id, "trips").len() + Fixture::all(rule.id, "passes").len();
        assert_eq!(Fixture::all(rule.id, "").len(), known, "{}: only trips-*.yaml and passes-*.yaml", rule.id);
    }
}

/// Fixes are applied one after the other, as somebody would who runs the check again after each.
#[test]
fn a_fix_mends_what_was_found() {
    for rule in RULES {
        for fixture in Fixture::all(rule.id, "trips") {
            let of_rule = |documents: &[Document]| -> Vec<Finding> {
                fixture.findings(documents).into_iter().filter(|finding| finding.rule.id == rule.id).collect()
            };
            let mut documents = fixture.documents();
            let mut found = of_rule(&documents);
            while let Some(finding) = found.iter().find(|finding| !finding.fix.is_empty()) {
                documents = mended(&documents, finding);
                let left = of_rule(&documents);
                assert!(left.len() < found.len(), "{fixture}: {}\n{:?}{}", finding.message, finding.fix, told(&left));
                found = left;
            }
        }
    }
}

#[test]
fn a_reason_silences_and_its_absence_does_not() {
    let manifest = |annotations: Value| {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "annotations": annotations},
            "spec": {"containers": [{"name": "app", "image": "i",
                "lifecycle": {"preStop": {"sleep": {"seconds": 30}}}}]}});
        let documents = read("a.json", pod.to_string().as_bytes()).unwrap();
        let found = check(&documents, &Options::default()).unwrap().findings;
        found.into_iter().find(|finding| finding.rule.id == "EB001").unwrap()
    };
    assert_eq!(manifest(json!({})).silenced, None);
    let silenced = manifest(json!({"ebbtide.dev/ignore-EB001": " a batch job in disguise "}));
    assert_eq!(silenced.silenced.as_deref(), Some("a batch job in disguise"));
    for nothing in ["", " "] {
        let found = manifest(json!({"ebbtide.dev/ignore-EB001": nothing}));
        assert!(found.silenced.is_none() && found.message.contains("says no reason"), "{}", found.message);
    }
}
