//! Rules about injection: the webhook that does it, the pods that ask for it, and the annotations that steer it.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::{front, select};
use crate::config;
use crate::k8s::check::silence;
use crate::k8s::check::{Input, RETIRED, RULES, Report, Rule, Severity};
use crate::k8s::hook;
use crate::k8s::inject::{self, OPTIONS, PREFIX};
use crate::k8s::object::{Object, escape};
use crate::k8s::workload::Workload;

pub(super) static EB051: Rule = Rule {
    id: "EB051",
    name: "webhook-can-stop-the-cluster",
    severity: Severity::Error,
    summary: "ebbtide's webhook can keep system pods, or its own, from being created.",
    why: "With failurePolicy Fail no pod that the webhook is asked about is created while it is down. If these are its own \
          pods, it never comes back; if they are those of kube-system, the cluster does not. A long timeout keeps every pod \
          waiting whenever it is slow.",
    fix: "Ask for opted-in pods only (objectSelector on ebbtide.dev/inject), or leave out kube-system and the webhook's own \
          namespace by kubernetes.io/metadata.name; a timeout of some seconds.",
    run: webhook,
};

pub(super) static EB052: Rule = Rule {
    id: "EB052",
    name: "opted-in-without-ebbtide",
    severity: Severity::Warning,
    summary: "A pod asks for ebbtide, or was given it, and has none.",
    why: "A webhook with failurePolicy Ignore lets pods start without ebbtide when it is away, and an injection that nobody \
          runs does nothing. Such a pod loses requests at its end, and looks like the others. Where the container was \
          lost after an injection, what was changed for it is still there and leads nowhere.",
    fix: "Delete the pod so that it is made again, or run ebbtide inject over the manifest. Where the \
          container was lost, put it back, and find out who drops it.",
    run: opted_in,
};

pub(super) static EB053: Rule = Rule {
    id: "EB053",
    name: "annotation",
    severity: Severity::Warning,
    summary: "An annotation ebbtide.dev/... is unknown, or says nothing that can be read.",
    why: "It does nothing, while somebody believes that it does. A rule that is silenced without a reason is not silenced.",
    fix: "docs/user/inject.md has the list of the options; they stand on the pod template. The value of \
          ebbtide.dev/ignore-EB001 is the reason.",
    run: annotations,
};

/// What both kinds of webhooks say of when they are called.
struct Webhook<'a> {
    name: &'a str,
    failure_policy: Option<&'a str>,
    timeout: Option<i32>,
    namespaces: Option<&'a LabelSelector>,
    objects: Option<&'a LabelSelector>,
    conditions: Option<&'a Vec<MatchCondition>>,
    client: &'a WebhookClientConfig,
}

/// Of one type of webhook; the two differ in nothing that is looked at.
macro_rules! webhooks {
    ($configuration:expr) => {
        $configuration.webhooks.iter().flatten().map(|webhook| Webhook {
            name: &webhook.name,
            failure_policy: webhook.failure_policy.as_deref(),
            timeout: webhook.timeout_seconds,
            namespaces: webhook.namespace_selector.as_ref(),
            objects: webhook.object_selector.as_ref(),
            conditions: webhook.match_conditions.as_ref(),
            client: &webhook.client_config,
        })
    };
}

fn webhook(input: &Input<'_>, report: &mut Report<'_>) {
    let group = "admissionregistration.k8s.io";
    for (object, configuration) in input.all::<MutatingWebhookConfiguration>(group, "MutatingWebhookConfiguration") {
        webhooks!(configuration).enumerate().for_each(|(index, one)| one_webhook(object, index, &one, report));
    }
    for (object, configuration) in input.all::<ValidatingWebhookConfiguration>(group, "ValidatingWebhookConfiguration")
    {
        webhooks!(configuration).enumerate().for_each(|(index, one)| one_webhook(object, index, &one, report));
    }
}

fn one_webhook(object: &Object, index: usize, webhook: &Webhook<'_>, report: &mut Report<'_>) {
    let service = webhook.client.service.as_ref();
    let names = [object.name.as_str(), webhook.name, service.map_or("", |service| service.name.as_str())];
    if !names.iter().any(|name| name.contains("ebbtide")) {
        return;
    }
    let at = format!("/webhooks/{index}");
    if let Some(timeout) = webhook.timeout.filter(|timeout| *timeout > LONGEST_TIMEOUT) {
        let message = format!("webhook {} may keep each pod waiting for {timeout} s", webhook.name);
        let path = format!("{at}/timeoutSeconds");
        report.add_to(object, &path, message).severity(Severity::Warning).fix(object, |object| {
            if let Some(timeout) = object.pointer_mut(&path) {
                *timeout = LONGEST_TIMEOUT.into();
            }
        });
    }
    // A condition may leave out what the selectors don't.
    let has_conditions = webhook.conditions.is_some_and(|conditions| !conditions.is_empty());
    if webhook.failure_policy == Some("Ignore") || has_conditions {
        return;
    }
    let is_asked = |namespace: &str| {
        let labels = BTreeMap::from([("kubernetes.io/metadata.name", namespace)]);
        webhook.namespaces.is_none_or(|selector| select::matches(selector, &labels))
            && webhook.objects.is_none_or(|selector| select::matches(selector, &BTreeMap::new()))
    };
    let own = service.map(|service| service.namespace.as_str());
    let mut asked: Vec<&str> = ["kube-system"].into_iter().chain(own).filter(|namespace| is_asked(namespace)).collect();
    asked.dedup();
    if !asked.is_empty() {
        let message = format!(
            "webhook {} has failurePolicy Fail and is asked about pods of {}: while it is down they can't be created",
            webhook.name,
            asked.join(" and "),
        );
        report.add_to(object, &at, message);
    }
}

fn opted_in(input: &Input<'_>, report: &mut Report<'_>) {
    let has_webhook = input
        .objects
        .iter()
        .any(|object| object.kind == "MutatingWebhookConfiguration" && object.value.to_string().contains("ebbtide"));
    for workload in &input.workloads {
        if workload.ebbtide().is_none() && is_lost(workload, has_webhook, report) {
            continue;
        }
        let label = workload.labels().find(|(name, _)| *name == INJECT).map(|(_, value)| value);
        let says = |value: Option<&str>| value.is_some_and(|value| value == "true" || value == "enabled");
        let (is_annotated, is_labelled) = (says(workload.annotation(INJECT)), says(label));
        if !(is_annotated || is_labelled) || front::all(workload).next().is_some() {
            continue;
        }
        let is_running = workload.object.kind == "Pod" && workload.object.value.pointer("/metadata/uid").is_some();
        if has_webhook && !is_running {
            // The template stays as it is; the pods get it.
            continue;
        }
        let field = if is_annotated { "annotations" } else { "labels" };
        let path = format!("{}/metadata/{field}/{}", workload.path, escape(INJECT));
        let (severity, what) = match is_running {
            true => (Severity::Error, "the pod runs without it, and loses requests at its end"),
            false => (Severity::Warning, "nothing has put it in"),
        };
        report.add(workload, &path, format!("{INJECT} asks for ebbtide, and {what}")).severity(severity);
    }
}

/// Whether what belongs to ebbtide is still there, and it is not.
fn is_lost(workload: &Workload<'_>, has_webhook: bool, report: &mut Report<'_>) -> bool {
    let comes_later = has_webhook && workload.object.value.pointer("/metadata/uid").is_none();
    let has_port = |port: i32| {
        let mut ports = workload.ordinary().flat_map(|place| place.container.ports.iter().flatten());
        ports.any(|one| one.container_port == port)
    };
    let orphan = workload.ordinary().find(|place| {
        let hook = hook::of(place.container).filter(|hook| hook::is_app_stop(hook));
        let port = hook.and_then(|hook| hook::number(&hook.http_get.as_ref()?.port));
        port.is_some_and(|port| !has_port(port))
    });
    let (path, what) = match orphan {
        _ if comes_later => return false,
        Some(place) => (
            workload.in_container(place, "/lifecycle/preStop/httpGet"),
            format!("the preStop hook of container {} asks ebbtide", place.container.name),
        ),
        None if workload.annotation(INJECTED).is_some() => (
            format!("{}/metadata/annotations/{}", workload.path, escape(INJECTED)),
            format!("{INJECTED} says that ebbtide is in"),
        ),
        None => return false,
    };
    let message = format!(
        "{what}, and no container is ebbtide: the sidecar is gone, such hooks fail, and Services that send to its ports \
         reach nobody"
    );
    report.add(workload, &path, message).severity(Severity::Error);
    true
}

fn annotations(input: &Input<'_>, report: &mut Report<'_>) {
    for object in input.objects {
        let template = object.template_path(input.options.template_path.as_deref());
        let of_template = template.filter(|path| !path.is_empty());
        for at in std::iter::once("").chain(of_template) {
            let metadata = format!("{at}/metadata/annotations");
            let annotations = object.value.pointer(&metadata).and_then(Value::as_object);
            for (name, value) in annotations.into_iter().flatten() {
                let Some(option) = name.strip_prefix(PREFIX) else { continue };
                let is_template = template == Some(at);
                if let Some(reason) = wrong(option, value.as_str().unwrap_or_default(), is_template, template.is_some())
                {
                    report.add_to(object, &format!("{metadata}/{}", escape(name)), format!("{name}: {reason}"));
                }
            }
        }
    }
}

/// Why an annotation does nothing; `option` is what stands behind `ebbtide.dev/`.
fn wrong(option: &str, value: &str, is_template: bool, has_template: bool) -> Option<String> {
    if let Some(id) = format!("{PREFIX}{option}").strip_prefix(silence::PREFIX) {
        let is_known = RULES.iter().any(|rule| rule.id == id) || RETIRED.contains(&id);
        return match (is_known, value.trim().is_empty()) {
            (false, _) => Some(format!("there is no rule {id}")),
            (true, true) => Some("the value must be the reason why; without one the rule is not silenced".to_owned()),
            (true, false) => None,
        };
    }
    if !inject::is_annotation(option) {
        let near = config::nearest(option, OPTIONS.iter().map(|option| option.name));
        return Some(
            near.map_or_else(|| "is unknown".to_owned(), |near| format!("is unknown; is {PREFIX}{near} meant?")),
        );
    }
    let is_option = OPTIONS.iter().any(|known| known.name == option);
    match (is_option, is_template, has_template) {
        (true, true, _) => inject::refuses(option, value).map(|reason| format!("{value:?} {reason}")),
        (true, false, true) => Some("does nothing here: it belongs on the pod template".to_owned()),
        (true, false, false) => Some("does nothing on an object without pods".to_owned()),
        (false, ..) => None,
    }
}

const INJECT: &str = "ebbtide.dev/inject";

/// What an injection leaves.
const INJECTED: &str = "ebbtide.dev/injected";

/// Seconds; what the API server takes where nothing is said.
const LONGEST_TIMEOUT: i32 = 10;
