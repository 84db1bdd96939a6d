//! Owns when streams end: in a window of their own, spread, silent ones like busy ones, and never in the way of the exit.

use super::{MILLIS, ONCE, SECONDS};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::events::{EventSource, Heard, StreamEnd};
use crate::harness::stage::{app, front, plain, terminate};
use crate::harness::wait::{Mono, densest};

/// When the only stream of each client ended, which must have been in good order.
fn ends(all: &[Heard]) -> Vec<Mono> {
    let end = |heard: &Heard| {
        let (at, end) = heard.attempts[0].ended.expect("it has ended");
        assert_eq!((end, heard.attempts.len()), (StreamEnd::Clean, 1), "{:?}", heard.attempts);
        at
    };
    all.iter().map(end).collect()
}

/// C72: silence neither blocks the end nor brings it early; without `sse_after` the window opens with the hold's end.
#[tokio::test]
async fn silent_and_busy_streams_end_alike_in_their_own_window() {
    for (drain, first) in [("hold: 2s, sse_after: 3s", SECONDS(3)), ("hold: 1500ms", MILLIS(1500))] {
        let (_app, upstream, _dir) = app(AppOptions::default()).await;
        let drain = format!("grace_period: 12s, {drain}, close_spread: 3s, quiet: 300ms, close: 1s, margin: 500ms");
        let (px, address) = front(plain(&drain), &format!("http://{upstream}")).await;
        let start = |path| (0..50).map(|_| EventSource::start(address, path, ONCE)).collect::<Vec<_>>();
        let sources = [start("/events?silent=1"), start("/events?every_ms=50")];
        for source in sources.iter().flatten() {
            source.opened(SOON).await;
        }
        let t0 = Mono::now();
        terminate(&px).await;
        let mut moments = Vec::new();
        for (sources, busy) in sources.into_iter().zip([false, true]) {
            let mut heard = Vec::new();
            for source in sources {
                heard.push(source.has("the end of the stream", SOON, |heard| !heard.ends().is_empty()).await);
            }
            assert!(heard.iter().all(|one| one.events.is_empty() != busy));
            if busy {
                heard.iter().for_each(Heard::assert_gapless);
            }
            let ends = ends(&heard);
            // Of a window of three seconds: all at once would be 50.
            assert!(densest(ends.iter().copied(), MILLIS(750)) <= 30, "busy: {busy}, {ends:?}");
            moments.extend(ends);
        }
        let early = moments.iter().filter(|at| at.since(t0) < first).count();
        assert_eq!(early, 0, "streams that ended before {first:?}");
        let report = px.report_at_exit(SOON).await;
        let exited = px.exited_at().unwrap();
        assert!(moments.iter().all(|at| *at < exited));
        assert_eq!(report["outcome"], "drained", "{report}");
        assert_eq!(report["notices"]["events_end"], 100, "{report}");
        assert_eq!(report["requests"]["ended"], 100, "{report}");
    }
}
