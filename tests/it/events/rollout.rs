//! Owns `EventSource` clients through a rollout: two pods behind a balancer, and no event lost or doubled.

use super::{MILLIS, SECONDS};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::balancer::Balancer;
use crate::harness::events::{EventSource, StreamEnd};
use crate::harness::pod::{Event, Pod, Who};
use crate::harness::process::Exit;

#[tokio::test]
async fn event_sources_live_through_a_rollout_without_missing_an_event() {
    let pod = || Pod::builder().grace(10).hold("1500ms").app_stop("1s").app(AppOptions::default()).start();
    let (old, new) = tokio::join!(pod(), pod());
    tokio::join!(old.ready(), new.ready());
    let balancer = Balancer::start(old.address()).await;
    let sources: Vec<_> = (0..20)
        .map(|number| {
            let path = format!("/events?every_ms={}&retry=20&eol=crlf", 3 + 2 * number);
            EventSource::start(balancer.address, &path, MILLIS(20))
        })
        .collect();
    for source in &sources {
        source.has_events(5, SOON).await;
    }
    let deletion = old.delete(10);
    old.ebbtide().phase_becomes("draining", SOON).await;
    // The balancer is late: they come back to the pod that leaves, and then to the other one.
    for source in &sources {
        source.has("a second stream", SOON, |heard| heard.attempts.len() >= 2).await;
    }
    balancer.switch(new.address());
    for source in &sources {
        let seen = source.so_far().events.len();
        source.has("events of the new pod", SECONDS(15), |heard| heard.events.len() >= seen + 20).await;
    }
    deletion.finished().await;
    old.timeline()
        .assert_order(&[Event::Exited(Who::App(0), Exit::Code(0)), Event::Exited(Who::Ebbtide, Exit::Code(0))]);
    assert_eq!(balancer.refused(), 0);
    for source in sources {
        assert!(!source.is_over(), "it has given up: {:?}", source.so_far().attempts);
        let heard = source.stop().await;
        heard.assert_gapless();
        assert!(heard.ends().iter().all(|end| *end == StreamEnd::Clean), "{:?}", heard.attempts);
    }
    let asked: usize = new.journal(0).lines("events").iter().filter(|line| line.get("after") != "0").count();
    assert!(asked >= 20, "they came with their last id: {asked}");
    let report = old.ebbtide().termination_text();
    assert!(report.contains("\"drained\""), "{report}");
}
