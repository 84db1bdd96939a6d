//! Owns what clients that take their streams back can do to others by way of the connections to the app, which they
//! share.

use rustix::process::Signal;

use super::{LONG, MILLIS, Stage, plain};
use crate::harness::SOON;
use crate::harness::app::AppOptions;
use crate::harness::h2::{Call, Frame, H2Client, Held, code, request};
use crate::harness::wait::eventually;

/// An app that pauses (to collect garbage, say) while callers lose patience finds requests and their resets at once
/// when it goes on. Many servers, h2 among them, take more than twenty of these for an attack and end the connection.
#[tokio::test]
async fn callers_that_lose_patience_with_a_pausing_app_do_not_hurt_others() {
    let config = plain(LONG).env("EBBTIDE_WORKERS", "1");
    let stage = Stage::with(AppOptions::default().h2c(), config).await;
    let client = H2Client::new(stage.address, 2);
    let streaming = Held::start(&client, &Call::server_stream(None, MILLIS(20), 20), 10);
    streaming.all_have(3, SOON).await;
    let mut impatient = stage.open().await;
    for round in 0..3 {
        let waiting = Held::start(&client, &Call::slow_unary(100, MILLIS(1000)), 10);
        stage.has_seen(10 + 10 * (round + 1) + round).await;
        stage.app.process.stop().await;
        let streams: Vec<u32> = (0..80).map(|_| impatient.fresh_stream()).collect();
        let heads: Vec<Frame> =
            streams.iter().map(|stream| request(*stream, "GET", "/hang", &[]).end_stream()).collect();
        impatient.frames(&heads).await.unwrap();
        let forwarded = 80.0 + 20.0;
        let labels = [("kind", "stream")];
        stage.px.metric_becomes("ebbtide_in_flight", &labels, SOON, |count| count >= forwarded).await;
        // They have been written to the app's socket when this comes back.
        impatient.round_trip().await.unwrap();
        let resets: Vec<Frame> = streams.iter().map(|stream| Frame::reset(*stream, code::CANCEL)).collect();
        impatient.frames(&resets).await.unwrap();
        stage.px.metric_becomes("ebbtide_in_flight", &labels, SOON, |count| count <= 20.0).await;
        stage.app.process.signal(Signal::CONT);
        waiting.ended(SOON).await.assert_clean();
        let after = client.call(&Call::unary(10), SOON).await;
        assert_eq!(after.result, Ok(0));
    }
    assert_eq!(streaming.open(), 10);
    streaming.cancel();
    eventually("all streams of the app are over", SOON, || {
        let (begun, over) = (stage.app.journal.count("req"), stage.app.journal.count("done"));
        let given_up = stage.app.journal.count("cancel") + stage.app.journal.count("lost");
        if begun == over + given_up { Ok(()) } else { Err((begun, over, given_up)) }
    })
    .await;
}
