//! Owns a run of `inject` over each shape, and how faults of many shapes are told at once.

use ebbtide::config::{Environment, Loaded, load};
use serde_json::Value;

use super::shapes::{SHAPES, Shape, Workload};
use super::{ebbtide, folder};
use crate::harness::manifest::{environment, name, objects, template_path};

/// A shape and what `inject` made of it.
pub(super) struct Case {
    pub(super) shape: &'static Shape,
    pub(super) before: String,
    pub(super) after: String,
    pub(super) err: String,
}

pub(super) type Verdict = Result<(), String>;

/// All that is wrong with any shape comes in one message.
pub(super) fn each(property: impl Fn(&Case) -> Verdict) {
    let faults = SHAPES.iter().filter_map(|shape| {
        let told = |fault| format!("{} {:?}: {fault}", shape.file, shape.args);
        Case::of(shape).and_then(|case| property(&case)).err().map(told)
    });
    none(faults.collect());
}

pub(super) fn none(faults: Vec<String>) {
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

pub(super) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(what()) }
}

/// The first line that is another one.
pub(super) fn differs(before: &str, after: &str) -> String {
    let pairs = before.lines().map(Some).chain([None]).zip(after.lines().map(Some).chain([None]));
    format!("it became other text: {:?}", pairs.into_iter().find(|(old, new)| old != new))
}

// === impl Case ===

impl Case {
    pub(super) fn of(shape: &'static Shape) -> Result<Self, String> {
        let run = ebbtide(&[&["inject", "-f", &shape.path()], shape.args].concat(), b"");
        ensure(run.code == Some(0), || format!("exit code {:?}: {}", run.code, run.err))?;
        Ok(Self { shape, before: shape.read(), after: run.out, err: run.err })
    }

    /// Objects before and after, one by one.
    pub(super) fn pairs(&self) -> Result<Vec<(Value, Value)>, String> {
        let (before, after) = (objects(&self.before)?, objects(&self.after)?);
        ensure(before.len() == after.len(), || format!("{} objects became {}", before.len(), after.len()))?;
        Ok(before.into_iter().zip(after).collect())
    }

    /// The workloads that got an ebbtide: what is expected, and the templates before and after.
    pub(super) fn templates(&self) -> Result<Vec<(&'static Workload, Value, Value)>, String> {
        let mut found = Vec::new();
        for (before, after) in self.pairs()? {
            let wanted = self.shape.workload(&before);
            if let Some((workload, path)) = wanted.zip(template_path(&before, self.shape.template_path())) {
                let template = |object: &Value| object.pointer(path).cloned().unwrap_or_default();
                found.push((workload, template(&before), template(&after)));
            }
        }
        ensure(found.len() == self.shape.workloads.len(), || format!("{} workloads", found.len()))?;
        Ok(found)
    }

    pub(super) fn pod_ip(&self) -> &'static str {
        if self.before.contains("ipFamilies: [IPv6]") { "fd00::7" } else { "10.1.2.3" }
    }

    pub(super) fn configuration(&self, sidecar: &Value) -> Result<Loaded, String> {
        let variables: Environment = environment(sidecar, self.pod_ip()).into_iter().collect();
        load(None, &variables, &[]).map_err(|faults| format!("{faults:?}"))
    }
}

// === impl Shape ===

impl Shape {
    pub(super) fn path(&self) -> String {
        folder().join(self.file).display().to_string()
    }

    pub(super) fn read(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap()
    }

    pub(super) fn template_path(&self) -> Option<&'static str> {
        self.args.iter().skip_while(|arg| **arg != "--template-path").nth(1).copied()
    }

    pub(super) fn workload(&self, object: &Value) -> Option<&'static Workload> {
        template_path(object, self.template_path())?;
        self.workloads.iter().find(|workload| workload.name == name(object))
    }
}
