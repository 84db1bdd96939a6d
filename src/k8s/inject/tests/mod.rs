//! Owns tests of the injection: generated workloads here, field cases and findings of reviews beside.

use super::*;
use crate::k8s::document::{self, Node};

mod cases;
mod found;
mod generate;

fn read(text: &str) -> Vec<Document> {
    document::read("x.yaml", text.as_bytes()).unwrap_or_else(|fault| panic!("{fault}\n{text}"))
}

fn injected(text: &str, flags: &[(&'static str, &str)]) -> Result<Outcome, Vec<String>> {
    let flags = flags.iter().map(|(name, text)| (*name, (*text).to_owned())).collect();
    run(&read(text), &Request { flags, ..Request::default() })
        .map_err(|faults| faults.iter().map(ToString::to_string).collect())
}

fn removed(text: &str) -> Outcome {
    run(&read(text), &Request { remove: true, ..Request::default() })
        .unwrap_or_else(|faults| panic!("{faults:?}\n{text}"))
}

fn text(outcome: &Outcome) -> String {
    outcome.documents.iter().map(|document| document.text.as_str()).collect()
}

fn values(text: &str) -> Vec<Value> {
    read(text).iter().map(|document| document.root.as_ref().map_or(Value::Null, Node::to_value)).collect()
}

#[test]
fn generated_workloads_are_injected_once_and_given_back() {
    let seed = generate::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut taken = 0;
    for round in 0..400 {
        let before = generate::workload(&mut random);
        let context = |text: &str| format!("seed {seed}, round {round}\n{text}");
        let outcome = match injected(&before, &[]) {
            Ok(outcome) => outcome,
            Err(faults) => {
                let is_expected = |fault: &String| {
                    fault.contains("declares a port")
                        || fault.contains("look like none")
                        || fault.contains("preStop hook of its own")
                };
                assert!(faults.iter().all(is_expected), "{}", context(&format!("{faults:?}\n{before}")));
                continue;
            }
        };
        taken += 1;
        let first = text(&outcome);
        for value in values(&first) {
            generate::assert_strict(&value, &context(&first));
        }
        let again =
            injected(&first, &[]).unwrap_or_else(|faults| panic!("{}", context(&format!("{faults:?}\n{first}"))));
        assert_eq!(text(&again), first, "{}", context("a second run changes something"));
        assert!(again.objects.is_empty(), "{}", context(&first));
        let back = removed(&first);
        assert_eq!(
            values(&text(&back)),
            values(&before),
            "{}",
            context(&format!("{before}\n===\n{first}\n===\n{}", text(&back)))
        );
        for comment in before.lines().filter(|line| line.trim_start().starts_with('#')) {
            assert!(first.lines().any(|line| line == comment), "{}", context(&format!("{comment:?} is lost\n{first}")));
        }
        for changed in &outcome.objects {
            let mut patched = changed.object.value.clone();
            json_patch::patch(&mut patched, &changed.patch).unwrap();
            let after = outcome.documents[changed.object.document].value.as_ref().unwrap();
            assert_eq!(Some(&patched), after.pointer(&changed.object.pointer), "{}", context(&before));
        }
    }
    assert!(taken > 200, "seed {seed}: only {taken} of 400 could be injected");
}
