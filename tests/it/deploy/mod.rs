//! Owns tests of what is ready to be applied. Here: the example workloads, what they must say, and that ebbtide takes
//! what they say.

mod component;
mod monitoring;
mod queries;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use ebbtide::config::{Direction, Environment, Mode, load};
use ebbtide::lifecycle::budget;
use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Value, json};

use crate::harness::manifest::environment;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/example")
}

/// A file of the plain workload, or by `../tls/` of the one with TLS.
fn read(name: &str) -> Value {
    let documents = documents(&std::fs::read_to_string(folder().join(name)).unwrap());
    let [document] = <[Value; 1]>::try_from(documents).unwrap_or_else(|several| panic!("{name}: {several:?}"));
    document
}

fn documents(text: &str) -> Vec<Value> {
    let documents = Yaml::load_from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    documents.iter().map(to_json).collect()
}

/// What a program writes; `None` where it is not installed, and then it says so.
fn output_of(program: &str, arguments: &[&str], folder: &Path) -> Option<Output> {
    match Command::new(program).args(arguments).current_dir(folder).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: no {program} here");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

fn to_json(yaml: &Yaml<'_>) -> Value {
    match yaml {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(value)) => json!(value),
        Yaml::Value(Scalar::Integer(value)) => json!(value),
        Yaml::Value(Scalar::FloatingPoint(value)) => json!(value.into_inner()),
        Yaml::Value(Scalar::String(value)) => json!(value),
        Yaml::Sequence(items) => items.iter().map(to_json).collect(),
        Yaml::Mapping(mapping) => Value::Object(
            mapping.iter().map(|(key, value)| (key.as_str().unwrap().to_owned(), to_json(value))).collect(),
        ),
        other => panic!("not plain YAML: {other:?}"),
    }
}

fn pod() -> Value {
    read("deployment.yaml")["spec"]["template"]["spec"].clone()
}

fn sidecar() -> Value {
    pod()["initContainers"][0].clone()
}

#[test]
fn the_sidecar_is_native_and_first_and_has_its_own_hook() {
    let sidecar = sidecar();
    assert_eq!(sidecar["name"], "ebbtide");
    assert_eq!(sidecar["restartPolicy"], "Always");
    assert_eq!(sidecar["lifecycle"]["preStop"], json!({"exec": {"command": ["/ebbtide", "drain"]}}));
    assert_eq!(sidecar["startupProbe"]["httpGet"], json!({"path": "/startupz", "port": 14090}));
    let readiness = &sidecar["readinessProbe"];
    assert_eq!(readiness["httpGet"], json!({"path": "/readyz", "port": 14090}));
    assert_eq!((&readiness["periodSeconds"], &readiness["failureThreshold"]), (&json!(2), &json!(1)));
    assert_eq!(sidecar["livenessProbe"], Value::Null);
    let mount = &sidecar["volumeMounts"][0];
    assert_eq!(mount["mountPath"], "/run/ebbtide");
    let volume = pod()["volumes"].as_array().unwrap().iter().find(|one| one["name"] == mount["name"]).cloned();
    assert!(volume.unwrap()["emptyDir"].is_object());
}

#[test]
fn every_app_container_has_the_blocking_hook() {
    let containers = pod()["containers"].as_array().unwrap().clone();
    assert!(!containers.is_empty());
    for container in containers {
        // No host, and a number: a named port would be looked up in the app's container.
        assert_eq!(container["lifecycle"]["preStop"], json!({"httpGet": {"path": "/app-stop", "port": 14090}}));
        assert_eq!(container["volumeMounts"].to_string().matches("ebbtide").count(), 0, "the socket is ebbtide's own");
    }
}

#[test]
fn all_containers_fit_the_restricted_standard() {
    let pod = pod();
    assert_eq!(pod["securityContext"], json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}));
    assert_eq!(pod["automountServiceAccountToken"], json!(false));
    let containers = [&pod["initContainers"], &pod["containers"]];
    for container in containers.into_iter().flat_map(|list| list.as_array().unwrap()) {
        let security = &container["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"], json!(false));
        assert_eq!(security["readOnlyRootFilesystem"], json!(true));
        assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
        assert!(container["resources"]["requests"]["cpu"].is_string());
        assert!(container["resources"]["limits"]["memory"].is_string());
    }
    let sidecar = sidecar();
    assert_eq!(sidecar["securityContext"]["runAsUser"], json!(65532));
    assert_eq!(sidecar["resources"]["limits"]["cpu"], Value::Null);
    let connections = ebbtide::system::max_connections(1 << 20, Some(128 << 20), false);
    assert_eq!((sidecar["resources"]["limits"]["memory"].as_str(), connections), (Some("128Mi"), 4915));
}

#[test]
fn ebbtide_takes_the_environment_and_the_budget_fits() {
    {
        let loaded =
            load(None, &environment(&sidecar(), "10.1.2.3").into_iter().collect::<Environment>(), &[]).unwrap();
        let config = loaded.config;
        assert_eq!(config.mode, Mode::Sidecar);
        assert_eq!(loaded.warnings, Vec::<String>::new());
        assert_eq!(config.listeners.len(), 1);
        assert_eq!(config.listeners[0].direction, Direction::Inbound);
        assert_eq!(config.listeners[0].upstream.to_string(), "http://10.1.2.3:8080");
        let grace = pod()["terminationGracePeriodSeconds"].as_u64().unwrap();
        assert_eq!(config.drain.grace_period, Duration::from_secs(grace));
        let budget = budget::divide(config.mode, &config.drain);
        assert_eq!(budget.shrunk, None);
        let parts: Duration = budget.parts().iter().skip(1).map(|(_, length)| *length).sum();
        assert_eq!(parts, config.drain.grace_period);

        let ports = sidecar()["ports"].clone();
        let service = read("service.yaml");
        let web = config.listeners[0].bind.port();
        assert_eq!(ports[0]["containerPort"], json!(web));
        assert_eq!(service["spec"]["ports"][0]["targetPort"], json!(web));
        assert_eq!(ports[1]["containerPort"], json!(config.admin.bind.port()));
        assert_eq!(config.admin.bind.port(), 14090);
    }
}

#[test]
fn selectors_names_and_files_belong_together() {
    let deployment = read("deployment.yaml");
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&deployment["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(&read("service.yaml")["spec"]["selector"], labels);
    let monitor = read("../monitoring/podmonitor.yaml");
    assert_eq!(monitor["spec"]["selector"], json!({}), "all pods; the port's name selects");
    let port = monitor["spec"]["podMetricsEndpoints"][0]["port"].as_str().unwrap().to_owned();
    assert_eq!(sidecar()["ports"][1]["name"], json!(port));
    assert!(port.len() <= 15, "Kubernetes allows no longer port names");
    let kustomization = read("kustomization.yaml");
    for file in kustomization["resources"].as_array().unwrap() {
        assert!(folder().join(file.as_str().unwrap()).is_file(), "{file}");
    }
    assert_eq!(kustomization["images"][0]["name"], sidecar()["image"]);
    assert_eq!(kustomization["images"][0]["newTag"], env!("CARGO_PKG_VERSION"));
    assert_eq!(read("../component/kustomization.yaml")["images"], kustomization["images"]);
}

#[test]
fn the_workload_with_tls_is_the_plain_one_with_a_secret_and_another_port() {
    let (plain, tls) = (pod(), read("../tls/deployment.yaml")["spec"]["template"]["spec"].clone());
    let container = tls["initContainers"][0].clone();
    for field in ["lifecycle", "startupProbe", "readinessProbe", "livenessProbe", "restartPolicy", "securityContext"] {
        assert_eq!(container[field], sidecar()[field], "{field}: the admin port speaks no TLS");
    }
    assert_eq!(tls["containers"], plain["containers"], "the app's hook and probes know nothing of TLS");
    assert_eq!(tls["terminationGracePeriodSeconds"], plain["terminationGracePeriodSeconds"]);

    let mut variables = environment(&container, "10.1.2.3");
    let loaded = load(None, &variables.clone().into_iter().collect::<Environment>(), &[]).unwrap();
    assert_eq!(loaded.warnings, Vec::<String>::new());
    let listener = &loaded.config.listeners[0];
    let certificates = variables.remove("EBBTIDE_TLS_CERTIFICATES").unwrap();
    assert_eq!(listener.tls.as_ref().unwrap().certificates[0].to_string(), certificates);
    variables.remove("EBBTIDE_LISTEN").unwrap();
    assert_eq!(variables, environment(&sidecar(), "10.1.2.3"), "nothing else is set");

    // A folder: what is mounted by subPath never changes. Readable for our group: the files are root's.
    let mount = &container["volumeMounts"][1];
    assert_eq!(mount, &json!({"name": "tls", "mountPath": certificates, "readOnly": true}));
    let volume = tls["volumes"].as_array().unwrap().iter().find(|one| one["name"] == "tls").cloned().unwrap();
    assert_eq!(volume["secret"]["secretName"], "web-tls");
    assert_eq!(tls["securityContext"]["fsGroup"], container["securityContext"]["runAsGroup"]);
    let text = std::fs::read_to_string(folder().join("../tls/deployment.yaml")).unwrap();
    assert!(text.contains("defaultMode: 0440"), "octal, as kubectl reads it");

    let service = read("../tls/service.yaml");
    let port = &service["spec"]["ports"][0];
    assert_eq!((&port["port"], &port["targetPort"]), (&json!(443), &json!(listener.bind.port())));
    assert_eq!(container["ports"][0]["containerPort"], port["targetPort"]);
    let deployment = read("../tls/deployment.yaml");
    assert_eq!(service["spec"]["selector"], deployment["spec"]["template"]["metadata"]["labels"]);
    assert_eq!(service["spec"]["selector"], deployment["spec"]["selector"]["matchLabels"]);
    let kustomization = read("../tls/kustomization.yaml");
    assert_eq!(kustomization["images"], read("kustomization.yaml")["images"]);
    for file in kustomization["resources"].as_array().unwrap() {
        assert!(folder().join("../tls").join(file.as_str().unwrap()).is_file(), "{file}");
    }
}
