use serde_json::json;

use super::*;
use crate::k8s::{document, object};

fn of(text: &str) -> Timeline {
    let documents = document::read("x.yaml", text.as_bytes()).unwrap();
    let objects = object::objects(&documents).unwrap();
    timeline(&Workload::of(&objects[0], &documents, None).unwrap().unwrap())
}

fn pod(grace: u64, containers: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  terminationGracePeriodSeconds: {grace}\n{containers}"
    )
}

const SIDECAR: &str = "  initContainers:
  - {name: migrate, image: m}
  - name: ebbtide
    image: ebbtide
    restartPolicy: Always
    env:
    - {name: EBBTIDE_MODE, value: sidecar}
    - {name: EBBTIDE_GRACE_PERIOD, value: SECONDSs}
    - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: EBBTIDE_UPSTREAM, value: 'http://$(POD_IP):8080'}
    lifecycle: {preStop: {exec: {command: [/ebbtide, drain]}}}
  - {name: proxy, image: p, restartPolicy: Always}
  containers:
  - name: app
    image: a
    lifecycle: {preStop: {httpGet: {path: /app-stop, port: 14090}}}
";

fn stop(timeline: &Timeline, name: &str) -> (f64, f64) {
    let stop = timeline.containers.iter().find(|stop| stop.name == name).unwrap();
    (stop.sigterm_earliest, stop.sigterm_latest)
}

#[test]
fn ebbtide_holds_sigterm_back_until_the_drain_is_over() {
    let timeline = of(&pod(30, &SIDECAR.replace("SECONDS", "30")));
    assert_eq!(timeline.warnings, Vec::<String>::new());
    let phases = timeline.ebbtide.unwrap();
    assert_eq!(
        json!(phases),
        json!({"notice": 5.0, "hold_min": 10.0, "hold_end": 10.0, "drain_deadline": 21.0, "hooks_released": 23.0})
    );
    // Two seconds of spread after the hold are the least.
    assert_eq!(stop(&timeline, "app"), (12.0, 23.0));
    assert_eq!(stop(&timeline, "ebbtide"), (12.0, 28.0));
    assert_eq!(stop(&timeline, "proxy"), (12.0, 28.0));
    assert!(timeline.containers.iter().all(|stop| stop.name != "migrate"), "it has ended long ago");
    assert_eq!((timeline.left_over, timeline.shrunk), (2.0, false));
}

#[test]
fn without_ebbtide_a_sleep_is_all_there_is() {
    let sleep = "  containers:\n  - {name: app, image: a, lifecycle: {preStop: {sleep: {seconds: 12}}}}\n  - {name: log, image: l}\n";
    let timeline = of(&pod(30, sleep));
    assert_eq!(timeline.ebbtide, None);
    assert_eq!(stop(&timeline, "app"), (12.0, 12.0));
    assert_eq!(stop(&timeline, "log"), (0.0, 0.0));
    assert_eq!(timeline.left_over, 18.0);
    let too_long = of(&pod(12, sleep));
    assert_eq!(too_long.warnings, ["the hook of app takes 12 s, the grace period is 12 s"]);
    assert_eq!(too_long.left_over, 0.0);
}

#[test]
fn what_does_not_fit_is_said() {
    let timeline = of(&pod(10, &SIDECAR.replace("SECONDS", "30")));
    assert_eq!(timeline.warnings, ["ebbtide is told a grace period of 30s and the pod has 10s"]);
    assert_eq!(timeline.left_over, -18.0, "hooks are released at 23 s, and the app has 5 s from then on");
    let shrunk = of(&pod(10, &SIDECAR.replace("SECONDS", "10")));
    assert!(shrunk.shrunk);
    assert!(shrunk.warnings[0].contains("= 24s exceed the grace period of 10s"), "{:?}", shrunk.warnings);
    let refused = of(&pod(30, &SIDECAR.replace("SECONDS", "x")));
    assert!(refused.warnings[0].starts_with("ebbtide would not start: EBBTIDE_GRACE_PERIOD"), "{:?}", refused.warnings);
}

#[test]
fn the_drawing_has_a_bar_for_each_container() {
    let text = of(&pod(30, &SIDECAR.replace("SECONDS", "30"))).to_string();
    let bar = |name: &str| {
        text.lines()
            .find(|line| line.starts_with(&format!("{name} ")))
            .unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .to_owned()
    };
    assert_eq!(bar("ebbtide"), "HHHHHHHHHHNNNNNNNNNNDDDDDDDDDDDDDDDDDDDDDDCCCCLLLLLLLLLLLLLLK");
    assert_eq!(bar("app"), "========================----------------------T.............K");
    for grace in [1, 2, 7, 29, 45, 100, 600, 3599, 86_400] {
        let text = of(&pod(grace, &SIDECAR.replace("SECONDS", &grace.to_string()))).to_string();
        let scale = text.lines().find(|line| line.starts_with("seconds")).unwrap();
        assert!(scale.ends_with(&format!(" {grace}")), "{scale}");
    }
}
