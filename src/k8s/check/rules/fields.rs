//! Rules about what the Kubernetes API would not understand.

use k8s_openapi::api::{apps::v1 as apps, autoscaling::v2 as autoscaling, batch::v1 as batch, core::v1 as core};
use k8s_openapi::api::{networking::v1 as networking, policy::v1 as policy};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::k8s::check::input::is_owned;
use crate::k8s::check::{Input, Report, Rule, Severity};
use crate::k8s::object::{Object, as_template, escape, unknown_fields};

pub(super) static EB018: Rule = Rule {
    id: "EB018",
    name: "unknown-field",
    severity: Severity::Warning,
    summary: "A field that the Kubernetes API does not have.",
    why: "kubectl refuses it, but many other ways to the API server drop it without a word: operators, client \
          libraries, kubectl --validate=false. A grace period or a hook whose name is misspelt is then simply not \
          there.",
    fix: "Write the field's name as the API has it, or take it out.",
    run: unknown,
};

fn unknown(input: &Input<'_>, report: &mut Report<'_>) {
    for object in input.objects.iter().filter(|object| !is_owned(object, input.objects)) {
        for path in unknown_in(input, object) {
            let name = path.rsplit('/').next().unwrap_or_default().replace("~1", "/").replace("~0", "~");
            let Some(better) = suggestion(&name) else {
                report.add_to(object, &path, format!("the Kubernetes API has no field {name} here, and may drop it"));
                continue;
            };
            let message =
                format!("the Kubernetes API has no field {name} here, and may drop it; did you mean {better}?");
            let parent = path[..path.rfind('/').unwrap_or_default()].to_owned();
            let is_free = object.value.pointer(&format!("{parent}/{}", escape(better))).is_none();
            let finding = report.add_to(object, &path, message);
            if is_free {
                finding.fix(object, |object| {
                    let map = object.pointer_mut(&parent).and_then(Value::as_object_mut);
                    if let Some((map, value)) = map.and_then(|map| map.shift_remove(&name).map(|value| (map, value))) {
                        map.insert(better.to_owned(), value);
                    }
                });
            }
        }
    }
}

fn unknown_in(input: &Input<'_>, object: &Object) -> Vec<String> {
    let fields = match (object.api_version.as_str(), object.kind.as_str()) {
        ("v1", "Pod") => fields_of::<core::PodSpec>,
        ("v1", "PodTemplate") => unknown_fields::<core::PodTemplate>,
        ("v1", "ReplicationController") => fields_of::<core::ReplicationControllerSpec>,
        ("v1", "Service") => fields_of::<core::ServiceSpec>,
        ("apps/v1", "Deployment") => fields_of::<apps::DeploymentSpec>,
        ("apps/v1", "StatefulSet") => fields_of::<apps::StatefulSetSpec>,
        ("apps/v1", "DaemonSet") => fields_of::<apps::DaemonSetSpec>,
        ("apps/v1", "ReplicaSet") => fields_of::<apps::ReplicaSetSpec>,
        ("batch/v1", "Job") => fields_of::<batch::JobSpec>,
        ("batch/v1", "CronJob") => fields_of::<batch::CronJobSpec>,
        ("policy/v1", "PodDisruptionBudget") => fields_of::<policy::PodDisruptionBudgetSpec>,
        ("networking.k8s.io/v1", "Ingress") => fields_of::<networking::IngressSpec>,
        ("autoscaling/v2", "HorizontalPodAutoscaler") => fields_of::<autoscaling::HorizontalPodAutoscalerSpec>,
        _ => return in_template(input, object),
    };
    fields(&object.value)
}

/// What objects of all these kinds have. What a cluster says of them is nobody's mistake, and its types are large.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "only what is not among them counts")]
struct Described<Spec> {
    api_version: String,
    kind: String,
    metadata: Option<ObjectMeta>,
    spec: Option<Spec>,
    status: Option<Value>,
}

fn fields_of<Spec: DeserializeOwned>(value: &Value) -> Vec<String> {
    unknown_fields::<Described<Spec>>(value)
}

/// Of a custom resource only its pod template is known.
fn in_template(input: &Input<'_>, object: &Object) -> Vec<String> {
    let Some(at) = object.template_path(input.options.template_path.as_deref()) else { return Vec::new() };
    let Some(template) = object.value.pointer(at) else { return Vec::new() };
    unknown_fields::<core::PodTemplateSpec>(&as_template(template))
        .into_iter()
        .map(|path| format!("{at}{path}"))
        .collect()
}

/// The field that was meant, if one letter or two are wrong, or their case is.
fn suggestion(name: &str) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    let mut near = NAMES.iter().filter(|known| **known != name && distance(&lower, &known.to_ascii_lowercase()) <= 2);
    let found = near.next()?;
    near.next().is_none().then_some(*found)
}

/// Levenshtein's.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.chars().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

/// Those of which a misspelt one loses requests.
const NAMES: &[&str] = &[
    "activeDeadlineSeconds",
    "containerPort",
    "containers",
    "failureThreshold",
    "httpGet",
    "initContainers",
    "initialDelaySeconds",
    "lifecycle",
    "livenessProbe",
    "maxSurge",
    "maxUnavailable",
    "minAvailable",
    "minReadySeconds",
    "periodSeconds",
    "postStart",
    "preStop",
    "progressDeadlineSeconds",
    "readinessProbe",
    "replicas",
    "resources",
    "restartPolicy",
    "rollingUpdate",
    "securityContext",
    "shareProcessNamespace",
    "startupProbe",
    "stopSignal",
    "strategy",
    "successThreshold",
    "targetPort",
    "terminationGracePeriodSeconds",
    "timeoutSeconds",
    "updateStrategy",
];
