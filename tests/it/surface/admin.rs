//! Owns tests of the admin port's paths: GET only, probes in every phase, and no way to a drain.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use rustix::process::Signal;

use super::{MOMENT, long_hold, ready, serving};
use crate::harness::app::{AppOptions, OnTerm};
use crate::harness::client::{Raw, Request, send};
use crate::harness::ebbtide::Config;
use crate::harness::ebbtide::surface::get;
use crate::harness::http::Head;
use crate::harness::pod::{Event, Pod, Who};
use crate::harness::wait::{Mono, eventually_async};
use crate::harness::{SOON, fresh_ip};

const PATHS: [&str; 5] = ["/livez", "/readyz", "/startupz", "/metrics", "/status"];
const OTHER_METHODS: [&str; 8] = ["HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "DRAIN"];

/// Status and head of one request with any method and headers.
async fn ask(address: SocketAddr, method: &str, path: &str, headers: &str) -> (u16, Head) {
    let mut raw = Raw::connect(address).await.unwrap();
    raw.send(format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{headers}Connection: close\r\n\r\n")).await.unwrap();
    let reply = raw.reply(method, SOON).await.unwrap_or_else(|failure| panic!("{method} {path}: {failure:?}"));
    (reply.status, reply.head)
}

#[tokio::test]
async fn get_is_answered_on_every_path_and_nothing_else_is_taken() {
    let (_app, ebbtide) = serving(Config::new()).await;
    let types = ["text/plain", "text/plain", "text/plain", "text/plain; version=0.0.4", "application/json"];
    for (path, content_type) in PATHS.into_iter().zip(types) {
        let (status, head) = ask(ebbtide.admin, "GET", path, "").await;
        assert_eq!(status, 200, "{path}");
        assert!(head.get("content-type").unwrap().starts_with(content_type), "{path}: {}", head.text);
        assert_eq!(head.get("cache-control"), Some("no-store"), "{path}");
    }
    for method in OTHER_METHODS {
        for path in PATHS.into_iter().chain(["/app-stop", "/nowhere"]) {
            let (status, head) = ask(ebbtide.admin, method, path, "").await;
            assert_eq!((status, head.get("allow")), (405, Some("GET")), "{method} {path}");
        }
    }
    for path in ["/", "/drain", "/quitquitquit", "/healthcheck/fail", "/livez/", "/metrics/x"] {
        assert_eq!(ask(ebbtide.admin, "GET", path, "").await.0, 404, "{path}");
    }
}

/// C99: whoever asks, however, from wherever: the process goes on serving.
#[tokio::test]
async fn no_request_over_the_network_starts_a_drain() {
    let config = Config::new()
        .env("EBBTIDE_LISTEN", "[::]:0")
        .env("EBBTIDE_ADMIN", "[::]:0")
        .env("EBBTIDE_ADMIN_TOKEN", "a-token-of-some-length");
    let (_app, ebbtide) = serving(config).await;
    let own = ["", "X-Ebbtide-Token: a-token-of-some-length\r\n", "X-Ebbtide-Token: wrong\r\n"];
    let forged = ["Origin: http://evil.example\r\n", "X-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\n"];
    let inbound = ebbtide.inbound().await.port();
    for ip in [fresh_ip(), [127, 0, 0, 1].into(), Ipv6Addr::LOCALHOST.into()] {
        for headers in own.into_iter().chain(forged) {
            for method in ["GET", "POST", "PUT", "DELETE", "DRAIN"] {
                for path in ["/drain", "/status?drain=1", "/readyz?fail", "/quit", "/control"] {
                    ask(SocketAddr::new(ip, ebbtide.admin.port()), method, path, headers).await;
                }
            }
            // To the app's own port it is a request like any other.
            assert_eq!(ask(SocketAddr::new(ip, inbound), "GET", "/drain", headers).await.0, 200);
        }
    }
    let status = ebbtide.status().await;
    assert_eq!(status["phase"], "serving", "{status}");
    assert_eq!(status["seconds_since_t0"], serde_json::Value::Null);
    assert_eq!(ebbtide.code("/readyz").await, 200);
    assert_eq!(ebbtide.logged("phase changed", 1).await.len(), 1, "{}", ebbtide.log_text());
}

/// The most a hook from anywhere can do is to pause forwarding for a moment.
#[tokio::test]
async fn a_forged_hook_loses_no_request() {
    let config = Config::new().env("EBBTIDE_GRACE_PERIOD", "30s");
    let (_app, ebbtide) = serving(config).await;
    let inbound = ebbtide.inbound().await;
    let began = Mono::now();
    let forged = tokio::spawn(get(ebbtide.admin, "/app-stop?listener=no-such-one", "anybody", Duration::from_secs(20)));
    let mut slowest = Duration::ZERO;
    while !forged.is_finished() {
        let sent = Mono::now();
        let reply = send(inbound, &Request::echo(64), SOON).await.unwrap();
        assert_eq!(reply.status, 200);
        slowest = slowest.max(sent.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(forged.await.unwrap().unwrap().status, 200);
    let held = began.elapsed();
    assert!(held >= Duration::from_secs(2), "held {held:?}: another witness may come for 2 s");
    assert!(held < Duration::from_secs(7), "held {held:?}");
    assert!(slowest < Duration::from_secs(3), "a request took {slowest:?}");
    assert_eq!(ebbtide.status().await["phase"], "serving");
}

#[tokio::test]
async fn startup_does_not_wait_for_the_app_and_readiness_does() {
    let address = SocketAddr::new(fresh_ip(), 8080);
    let config = Config::new().env("EBBTIDE_MODE", "sidecar").upstream(&format!("http://{address}"));
    let ebbtide = config.start().await;
    assert_eq!(ebbtide.code("/startupz").await, 200);
    assert_eq!(ebbtide.code("/livez").await, 200);
    assert_eq!(ebbtide.code("/readyz").await, 503);
    let app = AppOptions::at(address).start("app", config.dir()).await;
    ready(&ebbtide).await;

    app.process.signal(Signal::KILL);
    app.process.exit(SOON).await;
    eventually_async("readiness lost with the app", SOON, || async {
        let got = ebbtide.get("/readyz").await?;
        if got.status == 503 { Ok(()) } else { Err(format!("{got:?}")) }
    })
    .await;
    let got = ebbtide.get("/readyz").await.unwrap();
    assert!(got.body.contains("listener default"), "{got:?}");
    let _app = AppOptions::at(address).start("app", config.dir()).await;
    ready(&ebbtide).await;
    assert_eq!(ebbtide.code("/startupz").await, 200);
}

#[tokio::test]
async fn over_a_whole_deletion_livez_never_fails_and_readyz_turns_once() {
    let app = AppOptions { on_term: OnTerm::ExitAfter(MOMENT), ..AppOptions::default() };
    let pod = Pod::builder().grace(14).hold("4s").app_stop("1s").app(app).start().await;
    pod.ready().await;
    let admin = pod.admin();
    let watch = tokio::spawn(async move {
        let mut readings = Vec::new();
        loop {
            let at = Mono::now();
            let mut codes = Vec::new();
            for path in ["/livez", "/startupz", "/readyz"] {
                match get(admin, path, "kube-probe/1.36", SOON).await {
                    Ok(got) => codes.push(got.status),
                    Err(why) => return (readings, Mono::now(), why),
                }
            }
            readings.push((at, codes));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    tokio::time::sleep(MOMENT).await;
    pod.delete(14).finished().await;
    let (readings, failed_at, why) = watch.await.unwrap();

    let signal = pod.timeline().at(Event::Signalled(Who::Ebbtide, Signal::TERM));
    assert!(failed_at > signal, "a probe failed before the signal: {why}\n{}", pod.timeline().table());
    assert!(readings.iter().all(|(_, codes)| codes[..2] == [200, 200]), "{readings:?}");
    let mut turns: Vec<u16> = readings.iter().map(|(_, codes)| codes[2]).collect();
    turns.dedup();
    assert_eq!(turns, [200, 503], "{readings:?}");
    let turned = readings.iter().find(|(_, codes)| codes[2] == 503).unwrap().0;
    let after = turned.since(pod.timeline().at(Event::Deleting(14)));
    // Not before the middle of the hold, and long before its end.
    assert!((Duration::from_secs(2)..Duration::from_secs(4)).contains(&after), "{after:?}");
}

#[tokio::test]
async fn status_tells_the_schedule_and_the_work() {
    let (_app, ebbtide) = serving(long_hold()).await;
    let inbound = ebbtide.inbound().await;
    let slow = tokio::spawn(async move { send(inbound, &Request::get("/slow?ms=1500"), SOON).await.map(|r| r.status) });
    eventually_async("a request in flight", SOON, || async {
        let status = ebbtide.status().await;
        if status["in_flight"]["request"] == 1 { Ok(()) } else { Err(status) }
    })
    .await;
    ebbtide.drain().await;
    let status = ebbtide.status().await;
    assert_eq!((&status["phase"], &status["ready"]), (&"holding".into(), &true.into()), "{status}");
    // grace 600 = hold 300 + drain 291 + close 2 + app stop 5 + margin 2
    let deadlines = [("hold_end", 300.0), ("drain_deadline", 591.0), ("hook_release", 593.0)];
    for (name, at) in deadlines {
        assert_eq!(status["deadlines"][name].as_f64(), Some(at), "{status}");
    }
    assert!(status["seconds_since_t0"].as_f64().unwrap() < 10.0);
    let body = ebbtide.get("/status").await.unwrap().body;
    assert!(body.ends_with("}\n"), "{body:?}");
    let places = deadlines.map(|(name, _)| body.find(name).unwrap());
    assert!(places.is_sorted(), "in the order of time: {body}");
    assert_eq!(status["upstreams"]["default"], true);
    assert_eq!(slow.await.unwrap(), Ok(200));
}
