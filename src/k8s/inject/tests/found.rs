//! What reviews of the injection have found: each was wrong once.

use serde_json::json;

use super::cases::{after, deployment, ebbtide, pod, variable};
use super::{injected, removed, text, values};

#[test]
fn a_second_run_without_the_services_and_the_namespace_leaves_ports_and_mesh_as_they_are() {
    let app = deployment(
        "      containers:\n      - {name: app, image: a, ports: [{containerPort: 8080}, {containerPort: 9000}]}\n",
    );
    let app = app.replace("metadata: {name: kite}", "metadata: {name: kite, namespace: shop}");
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: kite}\nspec:\n  selector: {app: kite}\n  ports: [{port: 80, targetPort: 9000, appProtocol: grpc}]\n";
    let namespace =
        "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}}\n";
    let first = injected(&(app + service + namespace), &[]).unwrap();
    let alone = first.documents[0].text.clone();
    assert!(alone.contains("h2c://$(POD_IP):9000") && alone.contains("excludeInboundPorts: \"14090\""), "{alone}");
    assert_eq!(text(&injected(&alone, &[]).unwrap()), alone);
}

#[test]
fn ports_that_were_set_by_hand_are_gone_on_from() {
    let spec = "      containers:\n      - {name: app, image: a, ports: [{containerPort: 8080}]}\n";
    let first = text(&injected(&deployment(spec), &[("admin-port", "15090"), ("listen-port", "15080")]).unwrap());
    // As somebody else might have written it: without our annotation.
    let by_hand: String =
        first.lines().filter(|line| !line.contains("ebbtide.dev/injected")).map(|line| format!("{line}\n")).collect();
    assert_eq!(pod(&values(&by_hand)[0]), pod(&values(&text(&injected(&by_hand, &[]).unwrap()))[0]));
    let tls = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/tls/deployment.yaml")).unwrap();
    let (pod, _) = after(&tls, &[]);
    assert_eq!(
        ebbtide(&pod)["ports"],
        json!([{"name": "ebbtide-web", "containerPort": 14443}, {"name": "ebbtide-admin", "containerPort": 14090}])
    );
}

#[test]
fn what_is_somebody_elses_is_left_alone() {
    let named = deployment(
        "      containers:\n      - {name: ebbtide, image: acme/tide-tables:3, ports: [{containerPort: 8080}]}\n",
    );
    let faults = injected(&named, &[]).unwrap_err();
    assert!(
        faults[0].contains("container ebbtide has ebbtide's name or image and does not look like ebbtide"),
        "{faults:?}"
    );
    let volume = deployment(
        "      containers:\n      - {name: app, image: a, ports: [{containerPort: 8080}], volumeMounts: [{name: ebbtide, mountPath: /data}]}\n      volumes:\n      - {name: ebbtide, emptyDir: {medium: Memory}}\n",
    );
    let first = injected(&volume, &[]).unwrap();
    let (pod, _) = after(&volume, &[]);
    assert_eq!(ebbtide(&pod)["volumeMounts"], json!([{"name": "ebbtide-2", "mountPath": "/run/ebbtide"}]));
    assert_eq!(values(&text(&removed(&text(&first)))), values(&volume));
}

#[test]
fn a_service_before_pods_with_and_without_ebbtide_is_refused() {
    let one = deployment("      containers:\n      - {name: app, image: a, ports: [{containerPort: 8080}]}\n");
    let declined = one.replace(
        "metadata: {labels: {app: kite}}",
        "metadata: {labels: {app: kite}, annotations: {ebbtide.dev/inject: 'false'}}",
    );
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: kite}\nspec:\n  selector: {app: kite}\n  ports: [{port: 80, targetPort: 8080}]\n";
    let faults = injected(&format!("{one}---\n{declined}{service}"), &[]).unwrap_err();
    assert!(
        faults[0].contains(
            "Service/kite: sends to Deployment/kite, which gets ebbtide, and to Deployment/kite, which does not"
        ),
        "{faults:?}"
    );
}

#[test]
fn a_service_by_number_gets_the_name_where_there_is_one_so_that_a_rollout_reaches_all_pods() {
    let app =
        deployment("      containers:\n      - {name: app, image: a, ports: [{name: http, containerPort: 8080}]}\n");
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: kite}\nspec:\n  selector: {app: kite}\n  ports: [{port: 80, targetPort: 8080}]\n";
    let first = injected(&(app.clone() + service), &[]).unwrap();
    assert_eq!(values(&text(&first))[1]["spec"]["ports"], json!([{"port": 80, "targetPort": "http"}]));
    assert!(!first.notes.iter().any(|note| note.message.contains("must change when")), "{:?}", first.notes);
    assert_eq!(values(&text(&removed(&text(&first)))), values(&(app + service)));
}

#[test]
fn removal_says_what_must_go_back_elsewhere_and_takes_services_alone() {
    let app = deployment("      containers:\n      - {name: app, image: a, ports: [{containerPort: 8080}]}\n");
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: kite}\nspec:\n  selector: {app: kite}\n  ports: [{port: 80, targetPort: 8080}]\n";
    let first = injected(&(app + service), &[]).unwrap();
    let said: Vec<_> = removed(&first.documents[0].text).notes.iter().map(ToString::to_string).collect();
    assert!(
        said[0].contains("Services with targetPort 14080") && said[0].contains("must get targetPort: 8080 again"),
        "{said:?}"
    );
    assert_eq!(removed(&text(&first)).notes, []);
    assert_eq!(values(&text(&removed(&first.documents[1].text))), values(service));
}

#[test]
fn what_is_spoken_follows_from_names_probes_and_numbers() {
    for (port, scheme) in [
        ("ports: [{containerPort: 9000, name: app-tcp}]", "tcp"),
        ("ports: [{containerPort: 9443, name: webhook-server}]", "tcp"),
        ("ports: [{containerPort: 7000}], readinessProbe: {httpGet: {port: 7000, scheme: HTTPS}}", "tcp"),
        ("ports: [{containerPort: 7000}], readinessProbe: {grpc: {port: 7000}}", "h2c"),
        ("ports: [{containerPort: 7000}], livenessProbe: {httpGet: {port: 7000}}", "http"),
        ("ports: [{containerPort: 7000, name: grpc-web}]", "http"),
        ("ports: [{containerPort: 7000, name: http2}]", "h2c"),
        ("ports: [{containerPort: 5432}]", "tcp"),
    ] {
        let spec = format!("      containers:\n      - {{name: app, image: a, {port}}}\n");
        let (pod, said) = after(&deployment(&spec), &[]);
        let upstream = variable(&pod, "EBBTIDE_UPSTREAM");
        assert!(upstream.as_str().unwrap().starts_with(&format!("{scheme}://")), "{port}: {upstream}");
        assert!(!said.contains("though nothing says so"), "{port}: {said}");
    }
    let spec = "      containers:\n      - {name: app, image: a, ports: [{containerPort: 7000}]}\n";
    assert!(after(&deployment(spec), &[]).1.contains("port 7000 is taken for HTTP/1.1, though nothing says so"));
}

#[test]
fn a_job_without_ports_among_others_is_left_as_it_is() {
    let app = deployment("      containers:\n      - {name: app, image: a, ports: [{containerPort: 8080}]}\n");
    let job = "---\napiVersion: batch/v1\nkind: Job\nmetadata: {name: migrate}\nspec:\n  template:\n    spec:\n      restartPolicy: Never\n      containers: [{name: migrate, image: m}]\n";
    for flags in [&[][..], &[("ports", "8080")]] {
        let outcome = injected(&(app.clone() + job), flags).unwrap_or_else(|faults| panic!("{faults:?}"));
        assert_eq!(outcome.objects.len(), 1);
        let said: Vec<_> = outcome.notes.iter().map(ToString::to_string).collect();
        assert!(said.iter().any(|note| note.contains("Job/migrate: is left as it is")), "{said:?}");
    }
    let outbound = [("ports", "none"), ("outbound", "mq=127.0.0.1:5672=tcp://mq.example:5672")];
    let alone =
        job.replace("spec:\n      restartPolicy", "spec:\n      terminationGracePeriodSeconds: 8\n      restartPolicy");
    let (pod, _) = after(alone.trim_start_matches("---\n"), &outbound);
    assert_eq!(pod["terminationGracePeriodSeconds"], 8, "there is no hold where there are no clients");
}

#[test]
fn names_that_have_moved_already_are_known_without_the_annotation() {
    let app =
        deployment("      containers:\n      - {name: app, image: a, ports: [{name: http, containerPort: 8080}]}\n");
    let first = text(&injected(&app, &[]).unwrap());
    let lost: String =
        first.lines().filter(|line| !line.contains("ebbtide.dev/injected")).map(|line| format!("{line}\n")).collect();
    let lost = lost.replace(", annotations: {}", "");
    let again = text(&injected(&lost, &[]).unwrap_or_else(|faults| panic!("{faults:?}\n{lost}")));
    assert_eq!(pod(&values(&again)[0]), pod(&values(&first)[0]));
    let back = text(&removed(&lost));
    assert_eq!(pod(&values(&back)[0]), pod(&values(&app)[0]));
}
