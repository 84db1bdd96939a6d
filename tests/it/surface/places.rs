//! Owns tests of the admin port under many callers: every hook is held, every probe answered, every place given back.

use std::time::Duration;

use rustix::process::Signal;

use super::{MOMENT, long_hold, serving};
use crate::harness::client::{Failure, Raw};
use crate::harness::ebbtide::{Config, Ebbtide};
use crate::harness::process::Exit;
use crate::harness::wait::{Mono, eventually};
use crate::harness::{SOON, heavy};

const JOINED: &str = "one more witness of the same termination";

async fn hooks(ebbtide: &Ebbtide, count: usize, headers: &str) -> Vec<Raw> {
    let mut open = Vec::new();
    for _ in 0..count {
        let mut raw = Raw::connect(ebbtide.admin).await.unwrap();
        raw.send(format!("GET /app-stop HTTP/1.1\r\nHost: a\r\n{headers}\r\n")).await.unwrap();
        open.push(raw);
    }
    open
}

async fn held(ebbtide: &Ebbtide, count: usize) {
    ebbtide.metric_becomes("ebbtide_app_hooks_open", &[], SOON, |open| open == count as f64).await;
}

/// The lifecycle has been told of so many, and no more.
async fn joined(ebbtide: &Ebbtide, count: usize) {
    eventually("hooks told to the lifecycle", SOON, || match ebbtide.log_events(JOINED).len() {
        told if told == count => Ok(()),
        other => Err(other),
    })
    .await;
}

async fn probes_are_answered(ebbtide: &Ebbtide) {
    for path in ["/livez", "/readyz", "/startupz", "/status", "/metrics"] {
        let began = Mono::now();
        assert_eq!(ebbtide.code(path).await, 200, "{path}");
        assert!(began.elapsed() < Duration::from_secs(1), "{path} took {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn more_hooks_than_places_are_all_held_and_all_released() {
    let _heavy = heavy().await;
    let (_app, ebbtide) = serving(long_hold()).await;
    ebbtide.drain().await;
    let mut open = hooks(&ebbtide, 1024, "").await;
    held(&ebbtide, 1024).await;
    joined(&ebbtide, 1024).await;
    open.extend(hooks(&ebbtide, 500, "").await);
    held(&ebbtide, 1524).await;
    probes_are_answered(&ebbtide).await;
    joined(&ebbtide, 1024).await;
    for raw in open.iter_mut().rev().take(20) {
        assert_eq!(raw.reply("GET", Duration::from_millis(20)).await.err(), Some(Failure::Timeout));
    }

    ebbtide.signal(Signal::TERM);
    for raw in &mut open {
        assert_eq!(raw.reply("GET", SOON).await.unwrap().status, 200);
    }
    assert_eq!(ebbtide.exit(SOON).await, Exit::Code(0));
}

#[tokio::test]
async fn callers_who_hang_up_do_not_use_up_the_places() {
    let _heavy = heavy().await;
    let (_app, ebbtide) = serving(long_hold()).await;
    let open = hooks(&ebbtide, 1100, "").await;
    held(&ebbtide, 1100).await;
    open.into_iter().for_each(Raw::reset);
    held(&ebbtide, 0).await;
    // It waits for the release of those whose callers are gone, as one call too many.
    let mut late = hooks(&ebbtide, 1, "").await;
    assert_eq!(late[0].reply("GET", MOMENT).await.err(), Some(Failure::Timeout));
    assert_eq!(late[0].reply("GET", SOON).await.unwrap().status, 200);

    ebbtide.drain().await;
    let _joins = hooks(&ebbtide, 1, "").await;
    joined(&ebbtide, 1).await;
}

#[tokio::test]
async fn the_token_has_places_of_its_own() {
    let _heavy = heavy().await;
    let (_app, ebbtide) = serving(long_hold().env("EBBTIDE_ADMIN_TOKEN", "correct-horse-battery")).await;
    ebbtide.drain().await;
    let mut open = hooks(&ebbtide, 970, "").await;
    open.extend(hooks(&ebbtide, 5, "X-Ebbtide-Token: correct-horse-batterx\r\n").await);
    held(&ebbtide, 975).await;
    joined(&ebbtide, 960).await;
    open.extend(hooks(&ebbtide, 64, "X-Ebbtide-Token: correct-horse-battery\r\n").await);
    held(&ebbtide, 1039).await;
    joined(&ebbtide, 1024).await;
}

#[tokio::test]
async fn silent_and_slow_callers_do_not_stand_in_a_probes_way() {
    let (_app, ebbtide) = serving(Config::new()).await;
    let mut idle = Vec::new();
    for number in 0..240 {
        let mut raw = Raw::connect(ebbtide.admin).await.unwrap();
        if number % 2 == 0 {
            raw.send("GET /met").await.unwrap();
        }
        idle.push(raw);
    }
    for path in ["/livez", "/readyz", "/startupz"] {
        let began = Mono::now();
        assert_eq!(ebbtide.code(path).await, 200, "{path}");
        assert!(began.elapsed() < Duration::from_secs(1), "{path} took {:?}", began.elapsed());
    }
    // Those that only a probe may use are cut off soon.
    let last = idle.last_mut().unwrap();
    let (_, ending) = last.ending(Duration::from_secs(5)).await;
    assert_ne!(ending, crate::harness::client::Ending::StillOpen);
}
