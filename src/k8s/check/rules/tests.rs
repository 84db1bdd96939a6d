//! What the rules about ebbtide say of whole inputs.

use std::path::Path;

use crate::k8s::check::{Finding, Options, Severity, check, output};
use crate::k8s::document::{Document, read};
use crate::k8s::inject;

fn documents(text: &str) -> Vec<Document> {
    read("test", text.as_bytes()).unwrap()
}

fn found(text: &str, kube_version: Option<&str>) -> Vec<Finding> {
    let options = Options { kube_version: kube_version.map(|version| version.parse().unwrap()), ..Options::default() };
    check(&documents(text), &options).unwrap().findings
}

fn told(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(|one| format!("{} {}: {}", one.rule.id, one.place.line, one.message)).collect()
}

fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn the_example_workloads_have_no_finding() {
    for (folder, files) in [
        ("deploy/example", &["deployment.yaml", "service.yaml", "kustomization.yaml"][..]),
        ("deploy/tls", &["deployment.yaml", "service.yaml", "kustomization.yaml"]),
    ] {
        let text: Vec<String> = files.iter().map(|name| file(&format!("{folder}/{name}"))).collect();
        for version in [None, Some("1.29"), Some("1.34")] {
            assert_eq!(told(&found(&text.join("\n---\n"), version)), [""; 0], "{folder} on {version:?}");
        }
    }
}

const WORKLOADS: &[&str] = &[
    "apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: example.invalid/web:1
        ports: [{name: http, containerPort: 8080}, {name: metrics, containerPort: 9100}]
        readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 2}
        lifecycle: {preStop: {exec: {command: [sleep, '15']}}}
      initContainers:
      - {name: istio-init, image: 'example.invalid/proxyv2:1'}
      - {name: istio-proxy, image: 'example.invalid/proxyv2:1', restartPolicy: Always}
      - {name: logs, image: 'example.invalid/logs:1', restartPolicy: Always}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}, {name: metrics, port: 9100}]
",
    "apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}, annotations: {linkerd.io/inject: enabled}}
    spec:
      terminationGracePeriodSeconds: 120
      containers:
      - name: db
        image: docker.io/library/postgres:17
        ports: [{containerPort: 5432}]
      - name: api
        image: example.invalid/api:1
        ports: [{name: grpc, containerPort: 9090}]
        readinessProbe: {grpc: {port: 9090}}
---
apiVersion: v1
kind: Service
metadata: {name: db}
spec:
  selector: {app: db}
  ports: [{name: db, port: 5432}, {name: grpc, port: 9090, targetPort: grpc}]
",
    "apiVersion: batch/v1
kind: CronJob
metadata: {name: sift}
spec:
  schedule: '7 2 * * *'
  jobTemplate:
    spec:
      template:
        metadata:
          annotations:
            ebbtide.dev/ports: none
            ebbtide.dev/outbound: broker=127.0.0.1:5672=tcp://rabbit.queues.svc:5672
        spec:
          restartPolicy: OnFailure
          containers:
          - {name: sift, image: 'example.invalid/sift:1'}
",
];

#[test]
fn what_inject_writes_has_no_finding() {
    for text in WORKLOADS {
        let done =
            inject::run(&documents(text), &inject::Request::default()).unwrap_or_else(|faults| panic!("{faults:?}"));
        let text: Vec<String> = done.documents.iter().map(|document| document.text.clone()).collect();
        let text = text.concat();
        for version in [None, Some("1.29")] {
            let mut own = found(&text, version);
            own.retain(|one| one.rule.id >= "EB030" && one.rule.id <= "EB055");
            assert_eq!(told(&own), [""; 0], "{text}");
        }
    }
}

/// C83: what a Service does with and without ebbtide in its pods.
#[test]
fn a_service_and_its_pods_are_looked_at_together() {
    let with = file("tests/it/kube/rules/EB044/passes-moved-name.yaml");
    let (with, _) = with.split_once("---").unwrap();
    let without = "apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: app, image: 'example.invalid/web:1', ports: [{name: http, containerPort: 8080}]}
";
    let not_moved = with
        .replace("[{containerPort: 8080}, {name: http, containerPort: 14080}]", "[{name: http, containerPort: 8080}]");
    for (pod, target, expected) in [
        (with, Some("14080"), None),
        (with, Some("8080"), Some("EB044")),
        (with, Some("http"), None),
        (&not_moved, Some("http"), Some("EB044")),
        (with, Some("web"), Some("EB045")),
        (with, Some("14081"), Some("EB045")),
        (with, None, None),
        (without, Some("14080"), Some("EB045")),
        (without, Some("8080"), None),
        (without, Some("http"), None),
        (without, Some("web"), Some("EB045")),
        (without, None, None),
    ] {
        let service = target.map_or_else(String::new, |target| {
            format!(
                "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec:\n  selector: {{app: web}}\n  \
                 ports: [{{port: 80, targetPort: {target}}}]\n"
            )
        });
        let found = found(&format!("{pod}{service}"), None);
        let ids: Vec<&str> = found.iter().filter(|one| one.object == "Service/web").map(|one| one.rule.id).collect();
        assert_eq!(ids, expected.into_iter().collect::<Vec<_>>(), "{target:?}: {:?}", told(&found));
    }
}

/// What is not in the manifest is nothing to complain about.
#[test]
fn a_configuration_from_elsewhere_is_not_guessed() {
    let whole = file("tests/it/kube/rules/EB044/passes-moved-name.yaml");
    let upstream = "        - {name: EBBTIDE_UPSTREAM, value: \"http://$(POD_IP):8080\"}\n";
    let mode = "        - {name: EBBTIDE_MODE, value: sidecar}\n        - {name: EBBTIDE_GRACE_PERIOD, value: 30s}\n";
    assert!(whole.contains(upstream) && whole.contains(mode));
    for elsewhere in [
        "        - {name: EBBTIDE_CONFIG, value: /etc/ebbtide/ebbtide.yaml}\n",
        "        - {name: EBBTIDE_CONFIG_YAML, valueFrom: {configMapKeyRef: {name: ebbtide, key: yaml}}}\n",
        "        args: [run, --config, /etc/ebbtide/ebbtide.yaml]\n",
        "        envFrom: [{configMapRef: {name: ebbtide}}]\n",
    ] {
        let text = whole.replace(mode, "").replace(upstream, elsewhere);
        let mut found =
            found(&text.replace("terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: 77"), None);
        found.retain(|one| one.rule.id >= "EB030");
        assert_eq!(told(&found), [""; 0], "{elsewhere}");
    }
    let faulty = whole.replace(upstream, "        envFrom: [{configMapRef: {name: ebbtide}}]\n").replace("30s", "soon");
    let found = found(&faulty, None);
    assert!(found.iter().any(|one| one.rule.id == "EB041" && one.severity == Severity::Error), "{:?}", told(&found));
}

/// A script that is changed must do what it did; where that is not certain nothing is proposed.
#[test]
fn a_script_gets_exec_only_where_nothing_else_is_missing() {
    let silent = None;
    let unmended = Some(None);
    for (script, expected) in [
        ("server > log 2>&1", silent),
        ("server 2>&1", silent),
        ("set -e; server", silent),
        ("setup && exec server", silent),
        ("if ok; then exec server; fi", silent),
        ("trap 'kill $!' TERM; server & wait", silent),
        ("setup && server --port 1", Some(Some("setup && exec server --port 1"))),
        ("setup\nserver\n", Some(Some("setup\nexec server\n"))),
        ("server; sleep 5", unmended),
        ("server || echo failed", unmended),
        ("setup; server &", unmended),
        ("x && start.sh | tee log", unmended),
        ("server; exit 0", unmended),
        ("setup && server > log 2>&1", unmended),
        ("setup; server 'a b'", unmended),
        ("setup; server --a \\\n  --b", unmended),
        ("setup; server # exec it", unmended),
        ("exec > log 2>&1; setup; server --x", unmended),
        ("A=1 setup; A=2 server", unmended),
        ("while true; do server; done", unmended),
        ("kubectl exec web -- setup; server", Some(Some("kubectl exec web -- setup; exec server"))),
    ] {
        let pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "a", "image": "i", "command": ["sh", "-c", script]}]}});
        let found = found(&pod.to_string(), None);
        let finding = found.iter().find(|one| one.rule.id == "EB005");
        let patched = finding.map(|one| {
            let mut mended = pod.clone();
            json_patch::patch(&mut mended, &one.fix).unwrap();
            let text = mended.pointer("/spec/containers/0/command/2").unwrap().as_str().unwrap().to_owned();
            (!one.fix.is_empty()).then_some(text)
        });
        assert_eq!(patched, expected.map(|text: Option<&str>| text.map(str::to_owned)), "{script:?}");
    }
}

/// What a finding's rule proposes as a change.
fn has_fix(text: &str, id: &str) -> bool {
    let found = found(text, None);
    let finding = found.iter().find(|one| one.rule.id == id).unwrap_or_else(|| panic!("{id}: {:?}", told(&found)));
    !finding.fix.is_empty()
}

/// As an init container it would not be found by the name of its port before Kubernetes 1.33.
#[test]
fn what_a_service_finds_by_name_is_not_moved() {
    for (name, image, id) in
        [("pgbouncer", "example.invalid/pgbouncer:1", "EB006"), ("ebbtide", "example.invalid/ebbtide:1", "EB030")]
    {
        let text = format!(
            "apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      containers:
      - {{name: app, image: 'example.invalid/web:1', ports: [{{containerPort: 8080}}]}}
      - {{name: {name}, image: '{image}', ports: [{{name: front, containerPort: 14080}}]}}
"
        );
        let service = "---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: front}]
";
        assert!(has_fix(&text, id), "{id}");
        assert!(has_fix(&format!("{text}{}", service.replace("front", "14080")), id), "{id}");
        assert!(!has_fix(&format!("{text}{service}"), id), "{id}");
    }
}

/// On the node's port there is no room for one pod more.
#[test]
fn a_pod_with_a_port_of_its_node_gets_no_surge() {
    let text = file("tests/it/kube/rules/EB011/trips-single.yaml");
    assert!(has_fix(&text, "EB011"));
    for (old, new) in [
        ("containerPort: 8080", "containerPort: 8080, hostPort: 80"),
        ("    spec:\n      ", "    spec:\n      hostNetwork: true\n      "),
    ] {
        let on_node = text.replace(old, new);
        assert_ne!(on_node, text);
        assert!(!has_fix(&on_node, "EB011"), "{new}");
    }
}

#[test]
fn text_names_the_namespace_where_there_is_one() {
    let pod = |namespace: &str| {
        format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: web{namespace}}}
spec: {{containers: [{{name: web, image: i, lifecycle: {{preStop: {{sleep: {{seconds: 40}}}}}}}}]}}
"
        )
    };
    let text = |manifest: &str| output::text(&check(&documents(manifest), &Options::default()).unwrap());
    let in_shop = text(&pod(", namespace: shop"));
    assert!(
        in_shop.contains("EB001: Pod/web in shop: ") && in_shop.contains("Patch for Pod/web in shop:"),
        "{in_shop}"
    );
    assert!(text(&pod("")).contains("EB001: Pod/web: "));
}
