//! Owns tests of what Kustomize makes of `deploy/`: the component adds what the example says, and refuses the rest.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use ebbtide::config::{Environment, load};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{documents, environment, output_of, pod, sidecar};
use crate::tidy::{self, root};

/// What each Kustomize that is installed says: `kubectl` has one, and there is a program of its own.
fn builds(folder: &Path) -> Vec<Output> {
    let path = folder.to_str().unwrap();
    let builders = [("kubectl", "kustomize"), ("kustomize", "build")];
    builders.iter().filter_map(|(program, command)| output_of(program, &[command, path], root())).collect()
}

fn built(folder: &str) -> Vec<Vec<Value>> {
    let outputs = builds(&root().join(folder)).into_iter().map(|output| {
        assert!(output.status.success(), "{folder}: {}", String::from_utf8_lossy(&output.stderr));
        documents(std::str::from_utf8(&output.stdout).unwrap())
    });
    outputs.collect()
}

fn of(objects: &[Value], kind: &str, name: &str) -> Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.next().unwrap_or_else(|| panic!("no {kind} {name}")).clone()
}

fn apps() -> Vec<Value> {
    documents(&tidy::read("deploy/component-example/app.yaml"))
}

/// What Kustomize makes of the sidecar of the example.
fn expected_sidecar() -> Value {
    let mut sidecar = sidecar();
    sidecar["image"] = json!(concat!("registry.example.com/ebbtide:", env!("CARGO_PKG_VERSION")));
    let of_pod = pod()["securityContext"].clone();
    sidecar["securityContext"].as_object_mut().unwrap().extend(of_pod.as_object().unwrap().clone());
    sidecar
}

fn first(list: &mut Value) -> Value {
    list.as_array_mut().unwrap().remove(0)
}

#[test]
fn the_component_adds_what_the_example_says_and_nothing_else() {
    for objects in built("deploy/component-example") {
        let mut shop = of(&objects, "Deployment", "shop");
        let template = &mut shop["spec"]["template"]["spec"];
        assert_eq!(first(&mut template["initContainers"]), expected_sidecar());
        assert_eq!(first(&mut template["volumes"]), pod()["volumes"][0]);
        let example = &pod()["containers"][0];
        let hook = template["containers"][0].as_object_mut().unwrap().remove("lifecycle");
        assert_eq!(hook.as_ref(), Some(&example["lifecycle"]));
        let grace = template.as_object_mut().unwrap().remove("terminationGracePeriodSeconds");
        assert_eq!(grace, Some(pod()["terminationGracePeriodSeconds"].clone()));
        assert_eq!(shop, of(&apps(), "Deployment", "shop"), "the rest is as it was");

        let mut service = of(&objects, "Service", "shop");
        assert_eq!(service["spec"]["ports"][0]["targetPort"], 14080);
        service["spec"]["ports"][0]["targetPort"] = json!("http");
        assert_eq!(service, of(&apps(), "Service", "shop"));
        assert_eq!(of(&objects, "Deployment", "batch"), of(&apps(), "Deployment", "batch"), "it has no label");
    }
}

/// Settings of one workload, by a patch behind the component.
#[test]
fn a_patch_behind_the_component_sets_what_is_different() {
    for objects in built("deploy/component-example") {
        let store = of(&objects, "StatefulSet", "store")["spec"]["template"]["spec"].clone();
        let variables = environment(&store["initContainers"][0], "10.1.2.3");
        let loaded = load(None, &variables.into_iter().collect::<Environment>(), &[]).unwrap();
        assert_eq!(loaded.warnings, Vec::<String>::new());
        assert_eq!(loaded.config.drain.grace_period, Duration::from_secs(60));
        assert_eq!(store["terminationGracePeriodSeconds"], 60);
        assert_eq!(loaded.config.listeners[0].upstream.to_string(), "h2c://10.1.2.3:50051");
        assert_eq!(of(&objects, "Service", "store")["spec"]["ports"][0]["targetPort"], 14080);
    }
}

fn push(list: &mut Value, value: Value) {
    list.as_array_mut().unwrap().push(value);
}

/// Half of an injection is worse than none, so it is an error.
#[test]
fn the_component_refuses_what_it_can_not_do() {
    type Change = fn(&mut Value);
    let cases: [(&str, &str, Change); 6] = [
        ("Deployment", "", |_| {}),
        ("Deployment", "/spec/template/spec/containers/0/lifecycle", |it| {
            it["spec"]["template"]["spec"]["containers"][0]["lifecycle"] =
                json!({"preStop": {"sleep": {"seconds": 5}}});
        }),
        ("Deployment", "/spec/template/spec/containers ", |it| {
            push(&mut it["spec"]["template"]["spec"]["containers"], json!({"name": "proxy", "image": "proxy"}));
        }),
        ("Deployment", "/spec/template/spec/terminationGracePeriodSeconds", |it| {
            it["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(60);
        }),
        ("Service", "/spec/ports ", |it| {
            push(&mut it["spec"]["ports"], json!({"name": "grpc", "port": 50051}));
        }),
        ("Service", "/spec/clusterIP", |it| it["spec"]["clusterIP"] = json!("None")),
    ];
    for (kind, path, change) in cases {
        let mut objects = [of(&apps(), "Deployment", "shop"), of(&apps(), "Service", "shop")];
        change(objects.iter_mut().find(|object| object["kind"] == kind).unwrap());
        let folder = tempfile::tempdir().unwrap();
        for output in builds(&using_the_component(folder.path(), &objects)) {
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.success(), path.is_empty(), "{path}: {told}");
            assert!(told.contains(path), "{path}: {told}");
        }
    }
}

/// A folder with a copy of the component, and one beside it with these objects; Kustomize takes no absolute paths.
fn using_the_component(folder: &Path, objects: &[Value]) -> PathBuf {
    let (component, own) = (folder.join("component"), folder.join("own"));
    for made in [&component, &own] {
        std::fs::create_dir(made).unwrap();
    }
    for entry in std::fs::read_dir(root().join("deploy/component")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), component.join(entry.file_name())).unwrap();
    }
    let texts: Vec<String> = objects.iter().map(Value::to_string).collect();
    std::fs::write(own.join("objects.yaml"), texts.join("\n---\n")).unwrap();
    let kustomization = json!({"resources": ["objects.yaml"], "components": ["../component"]});
    std::fs::write(own.join("kustomization.yaml"), kustomization.to_string()).unwrap();
    own
}

#[test]
fn the_examples_can_be_built() {
    for (folder, kinds) in [
        ("deploy/example", vec!["Service", "Deployment"]),
        ("deploy/tls", vec!["Service", "Deployment"]),
        ("deploy/monitoring", vec!["ConfigMap", "PodMonitor", "PrometheusRule"]),
    ] {
        for objects in built(folder) {
            assert_eq!(objects.iter().map(|object| &object["kind"]).collect::<Vec<_>>(), kinds, "{folder}");
        }
    }
}

/// Fields that this kind does not have: the API server would drop them, or refuse the object.
fn unknown_fields<T: DeserializeOwned>(object: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    let mut note = |path: serde_ignored::Path<'_>| unknown.push(path.to_string());
    // One type of closure for all, or each of them would compile all the types once more.
    let note: &mut dyn FnMut(serde_ignored::Path<'_>) = &mut note;
    let read: Result<T, _> = serde_ignored::deserialize(object, note);
    read.err().map(|error| error.to_string()).into_iter().chain(unknown).collect()
}

#[test]
fn all_fields_are_those_of_kubernetes() {
    for folder in ["deploy/example", "deploy/tls", "deploy/component-example", "deploy/monitoring"] {
        for object in built(folder).iter().flatten() {
            let kind = object["kind"].as_str().unwrap();
            let unknown = match kind {
                "Deployment" => unknown_fields::<Deployment>(object),
                "StatefulSet" => unknown_fields::<StatefulSet>(object),
                "Service" => unknown_fields::<Service>(object),
                "ConfigMap" => unknown_fields::<ConfigMap>(object),
                "PodMonitor" | "PrometheusRule" => Vec::new(),
                other => panic!("{folder}: {other}"),
            };
            assert_eq!(unknown, Vec::<String>::new(), "{folder}: {kind}");
        }
    }
    let wrong = json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80, "targetport": 80}]}});
    assert_eq!(unknown_fields::<Service>(&wrong), ["spec.?.ports.?.0.targetport"]);
}

#[test]
fn the_dashboard_comes_as_grafana_s_sidecar_wants_it() {
    for objects in built("deploy/monitoring") {
        let map = of(&objects, "ConfigMap", "ebbtide-dashboard");
        assert_eq!(map["metadata"]["labels"], json!({"grafana_dashboard": "1"}));
        assert_eq!(map["data"]["dashboard.json"], tidy::read("deploy/monitoring/dashboard.json").as_str());
        // `kubectl apply` keeps a copy of the object in an annotation.
        assert!(map.to_string().len() < 256 * 1024);
    }
}
