//! Owns plays of manifests: what the YAML says, and nothing else, is what the pod harness runs, deletes and loses nothing of.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::{folder, inject};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, Flow, Listen, OnTerm};
use crate::harness::client::{Ending, Load, Plan, Raw, Request, send};
use crate::harness::h2::{Call, H2Load, H2Plan};
use crate::harness::manifest::{environment, list, name, objects, resolve};
use crate::harness::pod::{ADMIN_PORT, Event, Hook, HookEnd, Mode, Pod, Program, Who};
use crate::harness::process::Exit;
use crate::harness::wait::{Mono, eventually};

/// A pod that runs as its manifest says.
struct Play {
    pod: Pod,
    grace: u64,
    /// Where clients of each Service port connect: what the node makes of its `targetPort`.
    clients: Vec<(String, SocketAddr)>,
    apps: u8,
}

/// Which kind of server stands behind a scheme.
fn app(upstream: &str) -> AppOptions {
    let (scheme, address) = upstream.split_once("://").expect("a scheme");
    let options = match scheme {
        "h2c" => AppOptions::default().h2c(),
        "tcp" => AppOptions { on_term: OnTerm::FinishInFlight, ..AppOptions::default().tcp(Flow::Echo) },
        _ => AppOptions::default(),
    };
    AppOptions { listen: Listen::Tcp(address.parse().expect("an address")), ..options }
}

fn hook(container: &Value) -> Hook {
    let hook = &container["lifecycle"]["preStop"];
    let words = list(&hook["exec"], "command").iter().map(|word| word.as_str().unwrap());
    match (&hook["httpGet"], words.collect::<Vec<_>>().as_slice()) {
        (Value::Null, []) => Hook::None,
        (Value::Null, ["/ebbtide", "drain"]) => Hook::Drain,
        (Value::Null, words) => Hook::exec(words),
        (get, _) => {
            assert_eq!((&get["port"], &get["host"]), (&ADMIN_PORT.into(), &Value::Null), "{get}");
            Hook::get(get["path"].as_str().unwrap())
        }
    }
}

impl Play {
    /// In the order of the manifest, until all probes in it pass.
    async fn start(manifest: &str) -> Self {
        let objects = objects(manifest).unwrap();
        let of = |kind: &str| objects.iter().filter(move |one| one["kind"] == kind).collect::<Vec<_>>();
        let template = of("Deployment")[0]["spec"]["template"].clone();
        let (spec, init) = (&template["spec"], list(&template["spec"], "initContainers"));
        let grace = spec["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
        let sidecar = &init[0];
        assert_eq!((init.len(), name(sidecar)), (1, "ebbtide"));
        assert_eq!(sidecar["restartPolicy"], "Always", "else it would have to end before the app starts");

        let mut pod = Pod::builder().grace(grace).mode(Mode::Sidecar).own_hook(hook(sidecar));
        let ip = pod.ip();
        let variables = environment(sidecar, &ip.to_string());
        for (key, value) in &variables {
            // A pod's network is its own; here every pod has an address in that of the machine.
            pod = pod.env(key, &value.replace("[::]", &ip.to_string()));
        }
        let readiness = &sidecar["readinessProbe"];
        assert_eq!(endpoint(readiness, sidecar), ("/readyz".to_owned(), ADMIN_PORT));
        assert_eq!(endpoint(&sidecar["startupProbe"], sidecar), ("/startupz".to_owned(), ADMIN_PORT));
        pod = pod.readiness(Duration::from_secs(readiness["periodSeconds"].as_u64().unwrap_or(10)));

        let containers = list(spec, "containers");
        let ports: Vec<Value> = containers.iter().flat_map(|one| list(one, "ports").to_vec()).collect();
        let upstreams = upstreams(&variables);
        for container in containers {
            let own = |upstream: &&String| {
                let ends = |port: &Value| upstream.ends_with(&format!(":{}", port["containerPort"]));
                list(container, "ports").iter().any(ends)
            };
            let upstream = upstreams.iter().find(own).expect("each container of these serves something");
            pod = pod.main(Program::Toy(Box::new(app(upstream))), hook(container));
        }
        let services = of("Service").into_iter().flat_map(|service| list(&service["spec"], "ports").to_vec());
        let clients = services.map(|port| {
            let target = if port["targetPort"].is_null() { &port["port"] } else { &port["targetPort"] };
            let number = resolve(target, &ports).expect("the Service has an endpoint");
            (name(&port).to_owned(), SocketAddr::new(ip, number as u16))
        });
        let clients = clients.collect();
        let play = Self { pod: pod.start().await, grace, clients, apps: containers.len() as u8 };
        play.pod.ready().await;
        // Its probe has a period of its own, and the end of readiness is to be seen.
        play.pod.timeline().wait_for(Event::Ready(true), SOON).await;
        for container in containers {
            play.probes_of_the_app_pass(ip, container).await;
        }
        play
    }

    async fn probes_of_the_app_pass(&self, ip: IpAddr, container: &Value) {
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            if container[probe]["httpGet"].is_null() {
                continue;
            }
            let (path, port) = endpoint(&container[probe], container);
            let before = self.pod.ebbtide().metrics().await.sum("ebbtide_requests_total", &[]);
            let answer = send(SocketAddr::new(ip, port), &Request::get(&path), SOON).await.unwrap();
            assert_eq!(answer.status, 200, "{probe}");
            let after = self.pod.ebbtide().metrics().await.sum("ebbtide_requests_total", &[]);
            assert_eq!(before, after, "{probe}: it asks the app and not ebbtide");
        }
    }

    /// Where clients of a Service port connect; it must not be the app itself.
    fn client(&self, port: &str) -> SocketAddr {
        let (_, address) = self.clients.iter().find(|(name, _)| name == port).expect("a Service has this port");
        assert!(address.port() >= 14080, "{address}: past ebbtide");
        *address
    }

    async fn is_draining(&self) -> Mono {
        self.pod.ebbtide().phase_becomes("draining", Duration::from_secs(self.grace)).await;
        Mono::now()
    }

    /// Hooks, apps, ebbtide, each after the other; nobody is killed, nothing was cut.
    fn ended_in_order(&self) {
        let (timeline, ok) = (self.pod.timeline(), Exit::Code(0));
        timeline.assert_order(&[Event::HookReturned(Who::Ebbtide, HookEnd::Ok), Event::Turn(Who::Ebbtide)]);
        for app in (0..self.apps).map(Who::App) {
            timeline.assert_order(&[
                Event::StartupPassed(Who::Ebbtide),
                Event::Started(app),
                Event::Deleting(self.grace),
                Event::HookReturned(app, HookEnd::Ok),
                Event::Signalled(app, Signal::TERM),
                Event::Exited(app, ok),
                Event::Turn(Who::Ebbtide),
                Event::Signalled(Who::Ebbtide, Signal::TERM),
                Event::Exited(Who::Ebbtide, ok),
            ]);
        }
        timeline.assert_never("a SIGKILL", |event| matches!(event, Event::Signalled(_, Signal::KILL)));
        let ready: Vec<_> = timeline.all().iter().filter_map(|one| ready(one.event)).collect();
        assert_eq!(ready, [true, false], "{}", timeline.table());
        let report: Value = serde_json::from_str(&self.pod.ebbtide().termination_text()).unwrap();
        assert_eq!((&report["outcome"], &report["forced"]), (&"drained".into(), &serde_json::json!({})), "{report}");
        assert!(!report["remarks"].to_string().contains("missing"), "{report}");
    }
}

const fn ready(event: Event) -> Option<bool> {
    match event {
        Event::Ready(ready) => Some(ready),
        _ => None,
    }
}

/// Path and port of a probe as the kubelet looks it up: in its own container.
fn endpoint(probe: &Value, container: &Value) -> (String, u16) {
    let get = &probe["httpGet"];
    let port = resolve(&get["port"], list(container, "ports")).expect("the port is the container's own");
    (get["path"].as_str().unwrap().to_owned(), port as u16)
}

/// By the configuration that the variables make.
fn upstreams(variables: &std::collections::BTreeMap<String, String>) -> Vec<String> {
    let variables = variables.clone().into_iter().collect::<ebbtide::config::Environment>();
    let config = ebbtide::config::load(None, &variables, &[]).unwrap().config;
    config.listeners.iter().map(|listener| listener.upstream.to_string()).collect()
}

/// Hold 2 s, drain 5 s or more, app stop 1 s: what a short test needs.
fn injected(input: &str) -> String {
    inject(&["-f", "-", "--hold", "2s", "--app-stop", "1s"], input.as_bytes()).unwrap()
}

/// A Deployment with these containers and a Service with these ports, both in flow style.
fn manifest(grace: u64, containers: &str, ports: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: play}}\nspec:\n  selector: {{matchLabels: {{app: play}}}}\n  \
         template:\n    metadata: {{labels: {{app: play}}}}\n    spec:\n      terminationGracePeriodSeconds: {grace}\n      \
         containers:\n{containers}---\napiVersion: v1\nkind: Service\nmetadata: {{name: play}}\nspec:\n  \
         selector: {{app: play}}\n  ports: [{ports}]\n"
    )
}

/// Load over HTTP/1.1 from before the deletion until clients that are late to hear of it have been served.
async fn loses_nothing_over_http(play: Play, port: &str) {
    let load = Load::start(Plan::mixed(play.client(port), 100.0));
    load.has_done(50, SOON).await;
    let deletion = play.pod.delete(play.grace);
    let draining = play.is_draining().await;
    eventually("late requests", SOON, || match load.so_far().since(draining).ok() {
        20.. => Ok(()),
        fewer => Err(fewer),
    })
    .await;
    let summary = load.stop().await;
    deletion.finished().await;
    summary.assert_clean();
    summary.assert_at_most_once(&play.pod.journal(0));
    play.ended_in_order();
}

/// At full length: what the documentation tells people to apply.
#[tokio::test]
async fn the_example_of_the_documentation_loses_nothing() {
    let read = |file: &str| std::fs::read_to_string(folder().join("../../../../deploy/example").join(file)).unwrap();
    let text = format!("{}---\n{}", read("deployment.yaml"), read("service.yaml"));
    loses_nothing_over_http(Play::start(&text).await, "http").await;
}

/// The name moves to ebbtide's port; the app's probe, which used it, still asks the app.
#[tokio::test]
async fn a_named_port_is_fronted_and_the_apps_probe_is_not() {
    let containers = "      - name: app\n        image: x\n        ports: [{name: http, containerPort: 8080}]\n        \
                      readinessProbe: {httpGet: {path: /, port: http}}\n";
    let text = injected(&manifest(12, containers, "{name: http, port: 80, targetPort: http}"));
    loses_nothing_over_http(Play::start(&text).await, "http").await;
}

/// Too short a grace period, a sleep for the endpoints, a number in the Service: all three are taken care of.
#[tokio::test]
async fn a_sleep_is_replaced_and_the_grace_period_raised() {
    let containers = "      - name: app\n        image: x\n        ports: [{containerPort: 8080}]\n        \
                      lifecycle: {preStop: {exec: {command: [sh, -c, sleep 3]}}}\n";
    let text = injected(&manifest(3, containers, "{name: http, port: 80, targetPort: 8080}"));
    let play = Play::start(&text).await;
    assert_eq!(play.grace, 12, "{text}");
    loses_nothing_over_http(play, "http").await;
}

#[tokio::test]
async fn grpc_loses_no_call() {
    let containers = "      - name: app\n        image: x\n        ports: [{name: grpc, containerPort: 8080}]\n";
    let text = injected(&manifest(12, containers, "{name: grpc, port: 9090, targetPort: grpc}"));
    let play = Play::start(&text).await;
    let load = H2Load::start(H2Plan::of(play.client("grpc"), 50.0, Call::unary(100)));
    load.has_done(25, SOON).await;
    let deletion = play.pod.delete(play.grace);
    let draining = play.is_draining().await;
    eventually("late calls", SOON, || match load.so_far().since(draining).ok() {
        10.. => Ok(()),
        fewer => Err(fewer),
    })
    .await;
    let summary = load.stop().await;
    deletion.finished().await;
    summary.assert_clean();
    summary.assert_at_most_once(&play.pod.journal(0));
    play.ended_in_order();
}

async fn echo(raw: &mut Raw, text: &str) {
    raw.send(text).await.expect("it goes out");
    assert_eq!(raw.read_exactly(text.len(), SOON).await.as_deref(), Ok(text.as_bytes()));
}

/// A port of a database, by its name: bytes pass until the drain's end, and then comes a FIN.
#[tokio::test]
async fn tcp_loses_no_byte() {
    let containers = "      - name: app\n        image: x\n        ports: [{name: postgres, containerPort: 8080}]\n";
    let text = injected(&manifest(12, containers, "{name: db, port: 5432, targetPort: 8080}"));
    let play = Play::start(&text).await;
    let mut clients = Vec::new();
    for _ in 0..10 {
        let mut raw = Raw::connect(play.client("db")).await.unwrap();
        echo(&mut raw, "before").await;
        clients.push(raw);
    }
    let deletion = play.pod.delete(play.grace);
    play.is_draining().await;
    for raw in &mut clients {
        echo(raw, "in the drain").await;
    }
    for raw in &mut clients {
        assert_eq!(raw.ending(SOON).await, (Vec::new(), Ending::Fin));
    }
    deletion.finished().await;
    play.ended_in_order();
}

/// Two containers that serve, each held until its own listener is done; the configuration is in EBBTIDE_CONFIG_YAML.
#[tokio::test]
async fn two_containers_lose_nothing_of_either() {
    let containers = "      - name: web\n        image: x\n        ports: [{name: http, containerPort: 8080}]\n      \
                      - name: rpc\n        image: z\n        ports: [{name: grpc, containerPort: 8081}]\n";
    let ports = "{name: http, port: 80, targetPort: http}, {name: grpc, port: 9090, targetPort: 8081}";
    let text = injected(&manifest(12, containers, ports));
    assert!(text.contains("EBBTIDE_CONFIG_YAML"), "{text}");
    let play = Play::start(&text).await;
    let http = Load::start(Plan::mixed(play.client("http"), 60.0));
    let grpc = H2Load::start(H2Plan::of(play.client("grpc"), 30.0, Call::unary(100)));
    http.has_done(30, SOON).await;
    grpc.has_done(15, SOON).await;
    let deletion = play.pod.delete(play.grace);
    let draining = play.is_draining().await;
    eventually("late requests and calls", SOON, || {
        match (http.so_far().since(draining).ok(), grpc.so_far().since(draining).ok()) {
            (10.., 5..) => Ok(()),
            fewer => Err(fewer),
        }
    })
    .await;
    let (http, grpc) = tokio::join!(http.stop(), grpc.stop());
    deletion.finished().await;
    http.assert_clean();
    grpc.assert_clean();
    http.assert_at_most_once(&play.pod.journal(0));
    grpc.assert_at_most_once(&play.pod.journal(1));
    play.ended_in_order();
}
