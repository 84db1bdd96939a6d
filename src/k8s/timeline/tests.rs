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
    assert_eq!(too_long.misfits, ["the hook of app takes 12 s, the grace period is 12 s: the time to stop is missing"]);
    assert_eq!((too_long.left_over, too_long.fits), (0.0, false));
    let longer = of(&pod(30, &sleep.replace("12", "45")));
    let missing = "the hook of app takes 45 s, the grace period is 30 s: 15 s and the time to stop are missing";
    assert_eq!(longer.misfits, [missing]);
    assert_eq!((longer.left_over, longer.fits), (-15.0, false));
    assert_eq!(stop(&longer, "app"), (30.0, 30.0), "the kubelet waits no longer than the grace period");
    assert_eq!((timeline.fits, timeline.sigkill, longer.sigkill), (true, 30.0, 32.0));
}

#[test]
fn what_does_not_fit_is_said() {
    let timeline = of(&pod(10, &SIDECAR.replace("SECONDS", "30")));
    assert_eq!(timeline.warnings, ["ebbtide is told a grace period of 30 s and the pod has 10 s"]);
    assert_eq!(timeline.left_over, -18.0, "hooks are released at 23 s, and the app has 5 s from then on");
    let late = "the apps' hooks are released at 23 s, and 5 s are kept for the apps to stop: the grace period is 10 s";
    assert_eq!(timeline.misfits, [late]);
    let shrunk = of(&pod(10, &SIDECAR.replace("SECONDS", "10")));
    assert!(shrunk.shrunk && !shrunk.fits);
    assert!(shrunk.misfits[0].contains("= 24 s exceed the grace period of 10 s"), "{:?}", shrunk.misfits);
}

#[test]
fn a_configuration_that_is_refused_has_no_phases() {
    let refused = of(&pod(30, &SIDECAR.replace("SECONDS", "x")));
    assert!(refused.misfits[0].starts_with("ebbtide would not start: EBBTIDE_GRACE_PERIOD"), "{:?}", refused.misfits);
    assert_eq!((refused.ebbtide, refused.fits, stop(&refused, "app")), (None, false, (0.0, 0.0)));
    let flags = SIDECAR.replace("SECONDS", "30").replace("    env:\n", "    args: [run, --nonsense, '1']\n    env:\n");
    let flags = of(&pod(30, &flags));
    assert!(
        flags.misfits[0].contains("flags are not understood") && flags.misfits[0].contains("--nonsense"),
        "{flags}"
    );
    assert_eq!((flags.ebbtide, flags.fits), (None, false));
}

#[test]
fn what_stands_elsewhere_is_drawn_from_defaults() {
    let upstream = "    - {name: EBBTIDE_UPSTREAM, value: 'http://$(POD_IP):8080'}\n";
    let file = "    - {name: EBBTIDE_CONFIG, value: /etc/ebbtide.yaml}\n";
    let map = "    - {name: EBBTIDE_CONFIG_YAML, valueFrom: {configMapKeyRef: {name: e, key: text}}}\n";
    for (text, place) in [(file, "a file"), (map, "a ConfigMap, a Secret or a field of the pod")] {
        let elsewhere = of(&pod(30, &SIDECAR.replace("SECONDS", "30").replace(upstream, text)));
        let said = format!("ebbtide's configuration stands in {place}, which is not seen; defaults are drawn");
        assert_eq!(elsewhere.warnings, [said]);
        assert_eq!((stop(&elsewhere, "app"), elsewhere.fits), ((12.0, 23.0), true));
    }
    let grace = "    - {name: EBBTIDE_GRACE_PERIOD, value: SECONDSs}\n    - {name: EBBTIDE_HOLD, value: soon}\n";
    let faulty =
        SIDECAR.replace("    - {name: EBBTIDE_GRACE_PERIOD, value: SECONDSs}\n", grace).replace(upstream, file);
    let faulty = of(&pod(30, &faulty.replace("SECONDS", "30")));
    assert!(!faulty.fits && faulty.misfits[0].contains("EBBTIDE_HOLD"), "no file mends that: {faulty}");
}

#[test]
fn a_drain_that_does_not_happen_is_not_drawn() {
    let text = SIDECAR.replace("SECONDS", "30");
    let inbound = "    - {name: EBBTIDE_UPSTREAM, value: 'http://$(POD_IP):8080'}\n";
    let outbound = "    - {name: EBBTIDE_CONFIG_YAML, value: '{listeners: [{name: db, direction: outbound, protocol: tcp, bind: \"127.0.0.1:5432\", upstream: \"tcp://db:5432\"}]}'}\n";
    let outbound = of(&pod(30, &text.replace(inbound, outbound)));
    assert_eq!((outbound.ebbtide, stop(&outbound, "app")), (Some(Phases::default()), (0.0, 0.0)), "{outbound}");
    assert_eq!(row(&outbound, "ebbtide"), format!("{}K", "L".repeat(60)));
    assert!(outbound.to_string().contains("LINGERING: without an inbound listener"), "{outbound}");
    assert!(!outbound.to_string().contains("HOLDING"), "{outbound}");

    let own = "    lifecycle: {preStop: {exec: {command: [/ebbtide, drain]}}}\n";
    let missing = of(&pod(30, &text.replace(own, "")));
    assert_eq!((missing.ebbtide, stop(&missing, "app")), (None, (2.0, 5.0)), "taken for a restart of the app");
    assert!(missing.warnings[0].starts_with("ebbtide has no preStop hook of its own"), "{missing}");

    let elsewhere = of(&pod(30, &text.replace("port: 14090", "port: 8080")));
    assert_eq!(stop(&elsewhere, "app"), (0.0, 0.0));
    let said = "the hook of app calls port 8080, ebbtide's admin port is 14090: it holds nothing back";
    assert_eq!(elsewhere.warnings[0], said);
    assert!(elsewhere.warnings[1].starts_with("no container waits for ebbtide's drain"), "{elsewhere}");
    let named = of(&pod(30, &text.replace("port: 14090", "port: admin")));
    assert!(named.warnings[0].contains("port admin, a name that its container does not have"), "{named}");

    let plain = of(&pod(30, &text.replace("value: sidecar", "value: plain")));
    assert!(plain.warnings[0].contains("keeps no time for the apps to stop"), "{plain}");
    assert_eq!((stop(&plain, "app"), stop(&plain, "ebbtide")), ((12.0, 28.0), (12.0, 30.0)));
    assert!(plain.to_string().contains("ebbtide exits") && !plain.to_string().contains("LINGERING"), "{plain}");
}

#[test]
fn nothing_is_drawn_after_the_last_sigkill() {
    let timeline = of(&pod(10, &SIDECAR.replace("SECONDS", "30")));
    assert_eq!((stop(&timeline, "app").1, stop(&timeline, "ebbtide").1, timeline.sigkill), (10.0, 10.0, 12.0));
    let used_up = "SIGTERM; the grace period is used up, SIGKILL in 2 s";
    assert_eq!(timeline.events.iter().filter(|event| event.at == 10.0 && event.what == used_up).count(), 3);
    let last = timeline.events.last().unwrap();
    assert_eq!((last.at, last.what.as_str()), (12.0, "SIGKILL for what got SIGTERM at 10 s"));
    assert!(timeline.events.iter().all(|event| !event.what.starts_with("DRAINING")), "{timeline}");
    assert_eq!(row(&timeline, "ebbtide"), format!("{}{}{}K", "H".repeat(25), "N".repeat(25), "C".repeat(10)));
    assert_eq!(row(&timeline, "app"), format!("{}T.........K", "=".repeat(50)));
}

#[test]
fn native_sidecars_are_stopped_when_the_apps_are_gone() {
    let sidecars = "  initContainers:\n  - {name: first, image: f, restartPolicy: Always}\n  - {name: second, image: s, restartPolicy: Always}\n  containers:\n  - {name: app, image: a}\n";
    let timeline = of(&pod(30, sidecars));
    assert_eq!((stop(&timeline, "app"), stop(&timeline, "first")), ((0.0, 0.0), (0.0, 30.0)));
    let order: Vec<_> = timeline.containers.iter().map(|stop| stop.name.as_str()).collect();
    assert_eq!(order, ["app", "second", "first"]);
    let said = timeline.events.iter().find(|event| event.who == "first").unwrap();
    assert_eq!(said.what, "SIGTERM as soon as the apps and second have exited, 0 s at the earliest");
    assert_eq!((timeline.fits, timeline.sigkill), (true, 32.0));
}

#[test]
fn without_grace_no_hook_is_called() {
    let none = of(&pod(0, &SIDECAR.replace("SECONDS", "30")));
    assert_eq!((none.ebbtide, none.fits, stop(&none, "app")), (None, false, (0.0, 0.0)));
    assert!(none.misfits[0].contains("no hook is called"), "{none}");
    assert!(none.to_string().contains("preStop of app, ebbtide is not called"), "{none}");
}

#[test]
fn sums_are_of_exact_values() {
    let five = of(&pod(5, &SIDECAR.replace("SECONDS", "5")));
    assert_eq!(stop(&five, "proxy").1, 4.0);
    assert_eq!(five.left_over, 1.0);
}

#[test]
fn what_is_set_is_told() {
    let more = "value: sidecar}
    - {name: EBBTIDE_HOLD_MIN, value: 4s}
    - {name: EBBTIDE_HOLD_QUIET, value: 2s}
    - {name: EBBTIDE_HOLD_MAX, value: 15s}
    - {name: EBBTIDE_CONFIG_YAML, value: 'drain: {websocket_after: 16s, sse_after: 17s, idle_after: 18s}'}";
    let text = of(&pod(60, &SIDECAR.replace("SECONDS", "60").replace("value: sidecar}", more))).to_string();
    assert!(text.contains("HOLDING until nothing new has come for 2 s, not before 4 s, at the latest 15 s"), "{text}");
    assert!(text.contains("16 s  ebbtide  closes WebSocket sessions, spread until 18 s"), "{text}");
    assert!(text.contains("17 s  ebbtide  closes event streams, spread until 19 s"), "{text}");
    assert!(text.contains("18 s  ebbtide  closes idle connections, spread until 20 s"), "{text}");
    assert!(text.contains("DRAINING: waits for what is in flight\n"), "{text}");
}

#[test]
fn an_ordinary_ebbtide_has_no_phases_in_its_bar() {
    let ordinary = SIDECAR.replace("SECONDS", "30").replace("  containers:\n", "");
    let ordinary = ordinary.replace("  initContainers:\n  - {name: migrate, image: m}\n", "  containers:\n");
    let timeline =
        of(&pod(30, &ordinary.replace("    restartPolicy: Always\n", "").replace(", restartPolicy: Always", "")));
    let text = timeline.to_string();
    assert!(row(&timeline, "ebbtide").starts_with("T..."), "{text}");
    assert!(!text.contains("D drain") && text.contains("T SIGTERM at the latest"), "{text}");
    assert_eq!(stop(&timeline, "app"), (12.0, 23.0));
}

#[test]
fn every_phase_is_seen_at_any_length() {
    for grace in [1, 2, 5, 30, 600, 3600, 86_400] {
        let timeline = of(&pod(grace, &SIDECAR.replace("SECONDS", &grace.to_string())));
        let bar = row(&timeline, "ebbtide");
        assert!("HNDCLK".chars().all(|letter| bar.contains(letter)), "{grace}: {bar}");
        assert_eq!(bar.chars().count(), 61);
        let app = row(&timeline, "app");
        assert!(app.contains('T') && app.ends_with('K'), "{grace}: {app}");
        assert_eq!(app.find('T'), bar.find('L'), "{grace}:\n{bar}\n{app}");
    }
    let long = "  containers:\n  - {name: a-container-with-a-very-long-name, image: a}\n";
    let text = of(&pod(30, long)).to_string();
    assert!(text.contains("\na-container-with-a-very…  T"), "{text}");
}

fn row(timeline: &Timeline, name: &str) -> String {
    let text = timeline.to_string();
    let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn the_drawing_has_a_bar_for_each_container() {
    let timeline = of(&pod(30, &SIDECAR.replace("SECONDS", "30")));
    let bar = |name: &str| row(&timeline, name);
    assert_eq!(bar("ebbtide"), "HHHHHHHHHHNNNNNNNNNNDDDDDDDDDDDDDDDDDDDDDDCCCCLLLLLLLLLLLLLLK");
    assert_eq!(bar("app"), "========================----------------------T.............K");
    for grace in [1, 2, 7, 29, 45, 100, 600, 3599, 86_400] {
        let text = of(&pod(grace, &SIDECAR.replace("SECONDS", &grace.to_string()))).to_string();
        let scale = text.lines().find(|line| line.starts_with("seconds")).unwrap();
        assert!(scale.ends_with(&format!(" {grace}")), "{scale}");
    }
}
