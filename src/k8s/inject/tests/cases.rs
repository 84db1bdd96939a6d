//! Manifests of field cases, and what inject makes of them.

use serde_json::{Value, json};

use super::{injected, read, removed, text, values};
use crate::k8s::document::Node;

pub(super) fn pod(value: &Value) -> &Value {
    ["/spec/jobTemplate/spec/template/spec", "/spec/template/spec"]
        .iter()
        .find_map(|path| value.pointer(path))
        .unwrap_or_else(|| &value["spec"])
}

/// The pod spec of the first document after an injection, and what was said.
pub(super) fn after(yaml: &str, flags: &[(&'static str, &str)]) -> (Value, String) {
    let outcome = injected(yaml, flags).unwrap_or_else(|faults| panic!("{faults:?}"));
    let notes: Vec<_> = outcome.notes.iter().map(ToString::to_string).collect();
    let again = injected(&text(&outcome), &[]).unwrap_or_else(|faults| panic!("{faults:?}"));
    assert_eq!(text(&again), text(&outcome), "a second run changes something");
    (pod(&values(&text(&outcome))[0]).clone(), notes.join("\n"))
}

pub(super) fn ebbtide(pod: &Value) -> &Value {
    let found: Vec<_> =
        pod["initContainers"].as_array().unwrap().iter().filter(|one| one["name"] == "ebbtide").collect();
    assert_eq!(found.len(), 1, "{pod}");
    found[0]
}

pub(super) fn variable(pod: &Value, name: &str) -> Value {
    let env = ebbtide(pod)["env"].as_array().unwrap().clone();
    env.into_iter().find(|one| one["name"] == name).map_or(Value::Null, |one| one["value"].clone())
}

pub(super) fn deployment(spec: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: kite}}\nspec:\n  selector: {{matchLabels: {{app: kite}}}}\n  \
         template:\n    metadata: {{labels: {{app: kite}}}}\n    spec:\n{spec}"
    )
}

#[test]
fn a_plan_longer_than_the_grace_period_raises_it() {
    // C18: 30 s apply, and the plans are longer.
    let plain = "      containers:\n      - {name: quill, image: q, ports: [{containerPort: 9100}]}\n";
    let (pod, said) = after(&deployment(plain), &[("hold", "25s"), ("app-stop", "15s")]);
    // hold + 5 s of drain + close + app_stop + margin
    assert_eq!(pod["terminationGracePeriodSeconds"], 49);
    assert_eq!(variable(&pod, "EBBTIDE_GRACE_PERIOD"), "49s");
    assert!(said.contains("raised from 30 to 49"), "{said}");
    let (pod, said) = after(&deployment(plain), &[("hold", "25s"), ("grace-period", "30")]);
    assert_eq!(pod["terminationGracePeriodSeconds"], Value::Null, "30 is what applies without it");
    assert!(said.contains("shorter than the 39 s"), "{said}");
}

#[test]
fn a_sleep_becomes_the_hold() {
    // C88 and C89: whatever kind of sleep it is, and however long.
    for (hook, seconds) in [
        ("{sleep: {seconds: 45}}", 45),
        ("{exec: {command: [/bin/sh, -c, sleep 12]}}", 12),
        ("{exec: {command: [sleep, 20s]}}", 20),
        ("{sleep: {seconds: 0}}", 0),
        ("{exec: {command: [/bin/bash, -c, 'exec sleep 5;']}}", 5),
    ] {
        let spec = format!(
            "      containers:\n      - name: kite\n        image: k\n        ports: [{{containerPort: 9100}}]\n        lifecycle: {{preStop: {hook}}}\n"
        );
        let (pod, said) = after(&deployment(&spec), &[]);
        let hold = if seconds > 10 { json!(format!("{seconds}s")) } else { Value::Null };
        assert_eq!(variable(&pod, "EBBTIDE_HOLD"), hold, "{hook}");
        let needed = u64::max(seconds, 10) + 14;
        let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
        assert_eq!(grace, needed.max(30), "{hook}");
        assert_eq!(
            pod["containers"][0]["lifecycle"],
            json!({"preStop": {"httpGet": {"path": "/app-stop", "port": 14090}}})
        );
        assert!(said.contains(&format!("sleep of {seconds}s in container kite is replaced")), "{said}");
    }
}

#[test]
fn another_hook_is_refused_unless_somebody_decides() {
    // C26: the app's hook starts the proxy's drain.
    let spec = "      containers:\n      - name: ember\n        image: e\n        ports: [{containerPort: 9100}]\n        \
                lifecycle:\n          preStop: {httpGet: {path: /drain, port: 9902}}\n";
    let yaml = deployment(spec);
    let faults = injected(&yaml, &[]).unwrap_err();
    assert!(
        faults[0].starts_with(
            "x.yaml:14:11: Deployment/kite: container ember has a preStop hook of its own (httpGet /drain)"
        ),
        "{faults:?}"
    );
    assert!(faults[0].contains("--replace-hook=ember") && faults[0].contains("--keep-hook=ember"));
    let (pod, said) = after(&yaml, &[("replace-hook", "ember")]);
    assert_eq!(pod["containers"][0]["lifecycle"]["preStop"]["httpGet"]["path"], "/app-stop");
    assert!(said.contains("what it did is not done any more"), "{said}");
    let (pod, said) = after(&yaml, &[("keep-hook", "all")]);
    assert_eq!(pod["containers"][0]["lifecycle"]["preStop"]["httpGet"]["path"], "/drain");
    assert!(said.contains("are lost"), "{said}");
    let faults = injected(&yaml, &[("replace-hook", "all"), ("keep-hook", "embr")]).unwrap_err();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].contains("--keep-hook names a container embr, and there is none"));
}

#[test]
fn a_job_gets_a_native_sidecar_wherever_ebbtide_stood() {
    // C29: in the wrong list.
    let yaml = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: nightly-sift}\nspec:\n  schedule: '7 2 * * *'\n  jobTemplate:\n    \
                spec:\n      template:\n        spec:\n          restartPolicy: OnFailure\n          containers:\n          \
                - {name: sift, image: 'example.invalid/sift:1'}\n          - {name: ebbtide, image: 'example.invalid/ebbtide:dev'}\n";
    let faults = injected(yaml, &[]).unwrap_err();
    assert!(
        faults[0].contains("none of its containers declares a port") && faults[0].contains("--outbound"),
        "{faults:?}"
    );
    let (pod, _) = after(yaml, &[("ports", "none"), ("outbound", "mq=127.0.0.1:5672=tcp://mq.example:5672")]);
    assert_eq!(pod["containers"].as_array().unwrap().len(), 1);
    assert_eq!(ebbtide(&pod)["restartPolicy"], "Always");
    assert_eq!(ebbtide(&pod)["image"], format!("example.invalid/ebbtide:{}", env!("CARGO_PKG_VERSION")));
    assert!(variable(&pod, "EBBTIDE_CONFIG_YAML").as_str().unwrap().contains("direction: outbound"));
}

#[test]
fn a_second_injection_after_others_mends_place_and_keeps_what_is_set_by_hand() {
    // C90 and C92: the policy is lost, another has gone in before, a user was set, the version is old.
    let yaml = "apiVersion: v1\nkind: Pod\nmetadata: {name: twice}\nspec:\n  initContainers:\n  - {name: fetch-config, image: 'f:1'}\n  \
                - name: ebbtide\n    image: registry.example.com:5000/team/ebbtide:0.0.1@sha256:00\n    securityContext: {runAsUser: 7777}\n    \
                env:\n    - {name: EBBTIDE_HOLD, value: 4s}\n    - {name: MINE, value: kept}\n    resources: {requests: {cpu: 10m}, limits: {cpu: '1'}}\n  \
                containers:\n  - {name: main, image: 'm:1', ports: [{containerPort: 8080}]}\n";
    let (pod, _) = after(yaml, &[]);
    let own = ebbtide(&pod);
    assert_eq!(pod["initContainers"][0]["name"], "ebbtide");
    assert_eq!(own["restartPolicy"], "Always");
    assert_eq!(own["image"], format!("registry.example.com:5000/team/ebbtide:{}", env!("CARGO_PKG_VERSION")));
    assert_eq!(own["securityContext"]["runAsUser"], 7777);
    assert_eq!(own["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!((variable(&pod, "EBBTIDE_HOLD"), variable(&pod, "MINE")), (json!("4s"), json!("kept")));
    assert_eq!(
        own["resources"],
        json!({"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi", "cpu": "1"}})
    );
    let (pod, _) = after(yaml, &[("hold", "6s"), ("cpu-request", "20m"), ("image", "x/ebbtide:2")]);
    assert_eq!((variable(&pod, "EBBTIDE_HOLD"), &ebbtide(&pod)["image"]), (json!("6s"), &json!("x/ebbtide:2")));
    assert_eq!(ebbtide(&pod)["resources"]["requests"]["cpu"], "20m");
}

#[test]
fn what_is_set_by_hand_afterwards_stays_and_what_follows_from_the_app_is_renewed() {
    let spec = "      containers:\n      - {name: app, image: a, ports: [{containerPort: 8080}]}\n";
    let first = text(&injected(&deployment(spec), &[("hold", "8s")]).unwrap());
    let by_hand = first
        .replace("value: http://$(POD_IP):8080", "value: h2c://$(POD_IP):8080")
        .replace("memory: 128Mi", "memory: 256Mi");
    let (pod, _) = after(&by_hand, &[]);
    assert_eq!(variable(&pod, "EBBTIDE_UPSTREAM"), "h2c://$(POD_IP):8080");
    assert_eq!(variable(&pod, "EBBTIDE_HOLD"), "8s", "what a flag said is remembered");
    assert_eq!(ebbtide(&pod)["resources"]["limits"]["memory"], "256Mi");
    let moved = first.replace("containerPort: 8080", "containerPort: 9090");
    let (pod, _) = after(&moved, &[]);
    assert_eq!(
        variable(&pod, "EBBTIDE_UPSTREAM"),
        "http://$(POD_IP):9090",
        "nobody has touched it, and the app has moved"
    );
    let (pod, _) = after(&by_hand, &[("upstream-host", "127.0.0.1")]);
    assert_eq!(variable(&pod, "EBBTIDE_UPSTREAM"), "h2c://127.0.0.1:8080", "a flag decides, and only on the host");
}

#[test]
fn names_move_to_a_port_that_every_version_finds() {
    // C82: among the ports of an init container a Service's name may not be looked up.
    let spec = "      containers:\n      - name: harbor\n        image: h\n        ports:\n        - {name: web, containerPort: 9100}\n        \
                readinessProbe: {httpGet: {port: web}}\n        livenessProbe: {tcpSocket: {port: web}}\n";
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: harbor}\nspec:\n  selector: {app: kite}\n  ports: [{name: web, port: 443, targetPort: web}]\n";
    let yaml = deployment(spec) + service;
    let outcome = injected(&yaml, &[]).unwrap();
    let values = values(&text(&outcome));
    assert_eq!(values[1], read(&yaml)[1].root.as_ref().map(Node::to_value).unwrap(), "the Service needs no change");
    let app = &pod(&values[0])["containers"][0];
    assert_eq!(app["ports"], json!([{"containerPort": 9100}, {"name": "web", "containerPort": 14080}]));
    assert_eq!(
        (&app["readinessProbe"]["httpGet"]["port"], &app["livenessProbe"]["tcpSocket"]["port"]),
        (&json!(9100), &json!(9100))
    );
    assert!(!outcome.notes.iter().any(|note| note.message.contains("targetPort")), "{:?}", outcome.notes);
}

#[test]
fn services_are_sent_to_ebbtide_and_back() {
    // C83
    let app = deployment("      containers:\n      - {name: rill, image: r, ports: [{containerPort: 9100}]}\n");
    let service = |ports: &str, selector: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: rill}}\nspec:\n  selector: {{app: {selector}}}\n  ports: {ports}\n"
        )
    };
    let ports_after = |service: &str| {
        let yaml = app.clone() + service;
        let outcome = injected(&yaml, &[]).unwrap_or_else(|faults| panic!("{faults:?}"));
        let first = text(&outcome);
        assert_eq!(text(&injected(&first, &[]).unwrap()), first);
        assert_eq!(values(&text(&removed(&first))), values(&yaml));
        let notes: Vec<_> = outcome.notes.iter().map(ToString::to_string).collect();
        (values(&first)[1]["spec"]["ports"].clone(), notes.join("\n"))
    };
    for (ports, expected) in [
        ("[{port: 80, targetPort: 9100}]", json!([{"port": 80, "targetPort": 14080}])),
        ("[{port: 9100}]", json!([{"port": 9100, "targetPort": 14080}])),
        (
            "[{port: 80, targetPort: 9100}, {name: b, port: 9100, targetPort: 9100}]",
            json!([{"port": 80, "targetPort": 14080}, {"name": "b", "port": 9100, "targetPort": 14080}]),
        ),
        (
            "[{port: 53, targetPort: 9100, protocol: UDP}, {port: 80, targetPort: 9100}]",
            json!([{"port": 53, "targetPort": 9100, "protocol": "UDP"}, {"port": 80, "targetPort": 14080}]),
        ),
    ] {
        let (ports, said) = ports_after(&service(ports, "kite"));
        assert_eq!(ports, expected);
        assert!(!said.contains("targetPort") && said.contains("must change when the new pods are there"), "{said}");
    }
    let (ports, said) = ports_after(&service("[{port: 80, targetPort: 9100}]", "another"));
    assert_eq!(ports, json!([{"port": 80, "targetPort": 9100}]), "it is not this workload's");
    assert!(said.contains("must get targetPort: 14080") && said.contains("app=kite"), "{said}");
    let (ports, said) = ports_after(&service("[{port: 80, targetPort: 8443}]", "kite"));
    assert_eq!(ports, json!([{"port": 80, "targetPort": 8443}]), "nobody listens there, and that is not ours to guess");
    assert!(said.contains("must get targetPort: 14080"), "{said}");
}

#[test]
fn the_container_fits_the_restricted_profile_and_has_requests() {
    // C85 and C86
    let (pod, _) =
        after(&deployment("      containers:\n      - {name: tern, image: t, ports: [{containerPort: 80}]}\n"), &[]);
    let own = ebbtide(&pod);
    assert_eq!(
        own["securityContext"],
        json!({
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
        })
    );
    assert_eq!(own["resources"], json!({"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}}));
    assert!(own["ports"].as_array().unwrap().iter().all(|port| port["containerPort"].as_u64() >= Some(1024)));
    // C87: nobody names a host.
    assert!(!own.to_string().contains("\"host\""));
    let (pod, _) = after(
        &deployment("      containers:\n      - {name: t, image: t, ports: [{containerPort: 80}]}\n"),
        &[("run-as-user", "image")],
    );
    assert_eq!(ebbtide(&pod)["securityContext"]["runAsUser"], Value::Null);
}

#[test]
fn apps_on_loopback_get_a_loopback_upstream() {
    for (container, host) in [
        ("args: [--host=127.0.0.1, --port=8080]", "127.0.0.1"),
        ("args: [--bind, localhost]", "127.0.0.1"),
        ("command: [sh, -c, 'exec app --listen 127.0.0.1:8080']", "127.0.0.1"),
        ("env: [{name: HOST, value: localhost}]", "127.0.0.1"),
        ("env: [{name: REDIS_HOST, value: localhost}]", "$(POD_IP)"),
        ("args: [--redis-host=127.0.0.1:6379]", "$(POD_IP)"),
        ("args: ['--db', '127.0.0.1:5432']", "$(POD_IP)"),
        ("args: [--host=0.0.0.0]", "$(POD_IP)"),
    ] {
        let spec = format!(
            "      containers:\n      - {{name: app, image: a, ports: [{{containerPort: 8080}}], {container}}}\n"
        );
        let (pod, _) = after(&deployment(&spec), &[]);
        assert_eq!(variable(&pod, "EBBTIDE_UPSTREAM"), format!("http://{host}:8080"), "{container}");
    }
}

#[test]
fn what_is_not_understood_is_said_with_its_name() {
    let app = deployment("      containers:\n      - {name: app, image: a, ports: [{containerPort: 8080}]}\n");
    for (flags, expected) in [
        (&[("ports", "99999")][..], "--ports = \"99999\": \"99999\" is neither a port"),
        (&[("ports", "ftp://21")], "ftp:// is none of http://"),
        (&[("ports", "web")], "--ports names web, and the ports' names are: "),
        (&[("ports", "other/8080")], "--ports names a container other, and there is none"),
        (&[("hold", "soon")], "--hold = \"soon\""),
        (&[("grace-period", "0")], "must be a number of seconds"),
        (&[("listen-port", "80")], "must be a port from 1024"),
        (&[("listen-port", "8080")], "--listen-port 8080 is a port of the pod already"),
        (&[("memory-limit", "much")], "must be a quantity"),
        (&[("run-as-user", "0")], "must be a user id over 0"),
        (&[("mesh", "consul")], "must be auto, istio, linkerd or none"),
        (&[("outbound", "mq")], "must be NAME="),
        (&[("outbound", "mq=127.0.0.1:1=http://x")], "--outbound = "),
    ] {
        let faults = injected(&app, flags).unwrap_err().join("\n");
        assert!(faults.contains(expected) && faults.starts_with("x.yaml:"), "{flags:?}: {faults}");
    }
    let annotated = app.replace("labels: {app: kite}}", "labels: {app: kite}, annotations: {ebbtide.dev/hodl: 5s}}");
    let faults = injected(&annotated, &[]).unwrap_err();
    assert!(
        faults[0].ends_with("the annotation ebbtide.dev/hodl is not known; did you mean ebbtide.dev/hold?"),
        "{faults:?}"
    );
    let damaged =
        app.replace("labels: {app: kite}}", "labels: {app: kite}, annotations: {ebbtide.dev/injected: yes it is}}");
    assert!(injected(&damaged, &[]).unwrap_err()[0].contains("is damaged"));
}
