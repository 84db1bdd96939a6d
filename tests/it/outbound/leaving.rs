//! Owns the app's last calls (C06, C08, C09): its network is there until it has exited, and a drain leaves no trace on it.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::SOON;
use crate::harness::app::journal::Line;
use crate::harness::app::{AppOptions, Flow, Listen, OnTerm};
use crate::harness::broker::Broker;
use crate::harness::client::Ending;
use crate::harness::pod::{Event, Hook, Pod, Who};
use crate::harness::process::Exit;
use crate::harness::stage::alone;

const OK: Exit = Exit::Code(0);
const BEAT: Duration = Duration::from_millis(50);

/// Beats of one kind around t0: all went well, over one connection, with the same head, and nobody was told anything.
fn assert_untouched(beats: &[Line], how: &str, t0: crate::harness::wait::Mono) {
    let beats: Vec<&Line> = beats.iter().filter(|line| line.get("how") == how).collect();
    let (before, after) = beats.iter().partition::<Vec<&Line>, _>(|line| line.at < t0);
    assert!(before.len() >= 3 && after.len() >= 20, "{how}: {} before t0, {} after", before.len(), after.len());
    for line in &beats {
        assert_eq!((line.get("ok"), line.get("conn")), ("true", "1"), "{line:?}");
        assert_eq!(line.get("head"), beats[0].get("head"), "{line:?}");
        assert!(matches!(line.get("notices"), "" | "0"), "{line:?}");
    }
}

/// Two apps: one makes new calls when it has got its SIGTERM, the other settles its last message on the connection that
/// it has held in silence since its start, and calls elsewhere all the time.
#[tokio::test]
async fn the_apps_network_stays_as_it_is_until_it_has_exited() {
    let broker = Broker::start().await;
    let (_web, web, _dir) = alone(AppOptions::default()).await;
    let Listen::Tcp(web) = web.listen else { panic!("it listens on TCP") };
    let pod = Pod::builder().grace(8).hold("1s");
    let ip = pod.ip();
    let (to_web, to_broker) = (SocketAddr::new(ip, 15080), SocketAddr::new(ip, 15432));
    let out = |name: &str, bind: SocketAddr, to: SocketAddr| {
        format!("  - {{name: {name}, direction: outbound, bind: \"{bind}\", upstream: \"tcp://{to}\"}}\n")
    };
    let yaml = format!(
        "drain: {{app_stop: 3s, close: 500ms, margin: 500ms, quiet: 300ms, close_spread: 300ms}}\nlisteners:\n  \
         - {{name: web, bind: \"{ip}:14080\", upstream: \"http://{ip}:8080\"}}\n  \
         - {{name: bytes, bind: \"{ip}:14081\", upstream: \"tcp://{ip}:8081\"}}\n{}{}",
        out("calls", to_web, web),
        out("broker", to_broker, broker.address),
    );
    let after = Duration::from_secs(1);
    let call = OnTerm::Call { after: after * 2, http: Some(to_web), tcp: Some(to_broker) };
    let caller = AppOptions { on_term: call, ..AppOptions::default() };
    let settler = AppOptions {
        on_term: OnTerm::Ack { after },
        held: Some(to_broker),
        beat: Some((to_web, BEAT)),
        beat_h2c: Some((to_web, BEAT)),
        ..AppOptions::default().tcp(Flow::Echo)
    };
    let pod = pod.app(caller).app_hook(Hook::get("/app-stop?listener=web"));
    let pod = pod.app(settler).app_hook(Hook::get("/app-stop?listener=bytes")).yaml(&yaml).start().await;
    pod.ready().await;
    pod.journal(1).wait("beat", 8, SOON).await;
    pod.delete(8).finished().await;

    let timeline = pod.timeline();
    for app in [Who::App(0), Who::App(1)] {
        timeline.assert_order(&[
            Event::Signalled(app, Signal::TERM),
            Event::Exited(app, OK),
            Event::Exited(Who::Ebbtide, OK),
        ]);
    }
    let ebbtide = timeline.between(Event::Signalled(Who::Ebbtide, Signal::TERM), Event::Exited(Who::Ebbtide, OK));
    assert!(ebbtide < Duration::from_secs(2), "{ebbtide:?}\n{}", timeline.table());
    let calls = pod.journal(0).lines("call");
    assert_eq!(calls.iter().map(|line| line.get("how")).collect::<Vec<_>>(), ["http", "tcp"]);
    assert!(calls.iter().all(|line| line.get("ok") == "true"), "{calls:?}");
    assert_eq!(pod.journal(1).lines("ack")[0].get("ok"), "true", "{}", pod.journal(1).tail(3));
    let t0 = timeline.at(Event::Deleting(8));
    let beats = pod.journal(1).lines("beat");
    assert_untouched(&beats, "http", t0);
    assert_untouched(&beats, "h2c", t0);

    let flows = broker.flows();
    assert_eq!(flows[0].received, b"ack\n", "the held connection");
    assert_eq!(flows[1].received, b"farewell\n", "the call at the end");
    let (ended, how) = flows[0].ended.expect("the app has exited");
    let term = timeline.at(Event::Signalled(Who::App(1), Signal::TERM));
    assert!(ended >= term + after && how == Ending::Fin, "{how:?}, {:?} after its SIGTERM", ended.since(term));
}
