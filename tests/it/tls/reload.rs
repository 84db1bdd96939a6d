//! Owns certificates that change while connections are open (C80): the new one soon, a bad one never, and nobody harmed.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::BOTH;
use super::front::{Front, NAME};
use crate::harness::app::{AppOptions, Flow};
use crate::harness::client::{Connection, Failure, How, Lane, Load, Plan, Raw, Request};
use crate::harness::ebbtide::Ebbtide;
use crate::harness::ebbtide::surface::field;
use crate::harness::stage::{alone, listener, terminate, tls};
use crate::harness::tls::{Authority, Leaf, Pair, SecretDir, Target, TlsPlan};
use crate::harness::wait::{Mono, eventually_async};
use crate::harness::{SOON, heavy};

const TAKEN_UP: &str = "certificates taken up anew";
const REFUSED: &str = "changed certificates can't be used, the old ones stay";

/// The serial of the certificate that a new handshake is shown.
pub(super) async fn served(target: &Target) -> Result<u64, Failure> {
    let raw = Raw::connect(target).await?;
    Ok(raw.socket().peer_serial().expect("a certificate"))
}

/// Waits until a new handshake is shown this certificate, and no other than the one before meanwhile.
pub(super) async fn comes(target: &Target, pair: &Pair, before: u64) {
    eventually_async("the new certificate", SOON, || async {
        match served(target).await.expect("no handshake fails") {
            serial if serial == pair.serial => Ok(()),
            serial => {
                assert_eq!(serial, before, "neither the old one nor the new one");
                Err(serial)
            }
        }
    })
    .await;
}

pub(super) async fn reloads(px: &Ebbtide, result: &str) -> f64 {
    px.metrics().await.sum("ebbtide_tls_reloads_total", &[("result", result)])
}

pub(super) async fn has_reloaded(px: &Ebbtide, result: &str, count: usize) {
    let labels = [("result", result)];
    px.metric_becomes("ebbtide_tls_reloads_total", &labels, SOON, |n| n == count as f64).await;
}

async fn expiry(px: &Ebbtide, listener: &str, path: &Path) -> Option<f64> {
    let path = path.display().to_string();
    let labels = [("listener", listener), ("path", &path)];
    px.metrics().await.value("ebbtide_tls_certificate_expiry_timestamp_seconds", &labels)
}

/// Many connections, each with one answer.
async fn open(target: &Target, count: usize) -> Vec<Connection> {
    let turns = Arc::new(Semaphore::new(50));
    let mut openings = JoinSet::new();
    for _ in 0..count {
        let (target, turns) = (target.clone(), turns.clone());
        openings.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            let mut connection = Connection::open(&target, SOON).await.expect("it opens");
            connection.exchange(&Request::get("/"), "-", SOON).await.expect("an answer");
            connection
        });
    }
    openings.join_all().await
}

/// Whole handshakes at a rate, each with one request.
fn handshakes(front: &Front, rate: f64) -> Load {
    let lane = Lane { how: How::Fresh, share: 1, request: Request::echo(64) };
    let to = front.plan().never_resumes().to(front.address);
    Load::start(Plan { lanes: vec![lane], ..Plan::pooled(to, rate, 1) })
}

#[tokio::test]
async fn twenty_swaps_disturb_nobody() {
    const OPEN: usize = 2000;
    const SWAPS: usize = 20;
    let _heavy = heavy().await;
    let front = Front::start("", "").await;
    let mut connections = open(&front.target(), OPEN).await;
    front.px.metric_becomes("ebbtide_connections", &[], SOON, |n| n == OPEN as f64).await;
    let whole = handshakes(&front, 40.0);
    let mixed = Load::start(Plan::mixed(front.target(), 40.0));
    let fresh = front.plan().never_resumes().to(front.address);
    let (mut before, mut longest) = (front.pair.serial, Duration::ZERO);
    for number in 0..SWAPS {
        let pair = front.ca.pair(&[NAME]);
        front.secret.swap(&pair);
        let began = Mono::now();
        comes(&fresh, &pair, before).await;
        longest = longest.max(began.elapsed());
        before = pair.serial;
        // Some of the old ones go on meanwhile.
        let each = OPEN / SWAPS;
        for connection in &mut connections[number * each..(number + 1) * each] {
            let reply = connection.exchange(&Request::echo(64), "amid", SOON).await;
            assert_eq!(reply.expect("an answer").status, 200);
        }
    }
    eprintln!("at most {longest:?} from a swap to the new certificate");
    assert!(longest < Duration::from_secs(5), "2 s are enough where nothing else runs: {longest:?}");
    for load in [whole, mixed] {
        let summary = load.stop().await;
        assert!(summary.total() > SWAPS, "{}", summary.total());
        summary.assert_clean();
    }
    for connection in &mut connections {
        let reply = connection.exchange(&Request::echo(64), "after", SOON).await;
        assert_eq!(reply.expect("an answer").verdict(), Ok(200));
    }
    assert_eq!((reloads(&front.px, "ok").await, reloads(&front.px, "refused").await), (SWAPS as f64, 0.0));
    assert_eq!(front.px.logged(TAKEN_UP, SWAPS).await.len(), SWAPS);
    let metrics = front.px.metrics().await;
    assert_eq!(metrics.sum("ebbtide_tls_handshakes_total", &[("result", "failed")]), 0.0);
    assert_eq!(metrics.sum("ebbtide_connections_rejected_total", &[]), 0.0);
}

/// Faster than anybody looks, so that looks fall into the middle of a swap; the serials say which change each one saw.
#[tokio::test]
async fn swaps_in_a_hurry_never_mix_two_pairs() {
    let front = Front::start("", "").await;
    let load = handshakes(&front, 40.0);
    let target = front.plan().never_resumes().to(front.address);
    let (mut seen, mut last) = (BTreeSet::new(), front.pair.clone());
    let mut order = vec![front.pair.serial];
    for number in 0..400 {
        last = front.ca.pair(&[NAME]);
        order.push(last.serial);
        front.secret.swap(&last);
        if number % 4 == 0 {
            let serial = served(&target).await.expect("no handshake fails");
            let place = order.iter().position(|one| *one == serial).expect("one of ours");
            assert!(seen.last().is_none_or(|latest| *latest <= place), "an older one has come back");
            seen.insert(place);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    eventually_async("the last one", SOON, || async {
        let serial = served(&target).await.expect("no handshake fails");
        if serial == last.serial { Ok(()) } else { Err(serial) }
    })
    .await;
    load.stop().await.assert_clean();
    assert_eq!(reloads(&front.px, "refused").await, 0.0, "{}", front.px.log_text());
    assert!(seen.len() > 1, "none was taken up meanwhile");
}

/// Bad pairs among fifty swaps, with another listener to tell how often has been looked.
#[tokio::test]
async fn a_bad_pair_is_refused_once_and_the_old_one_stays() {
    let front =
        Front::with(AppOptions::default(), |secret, upstream| listener("web", upstream, &tls(secret, ""))).await;
    let load = handshakes(&front, 40.0);
    let target = front.plan().never_resumes().to(front.address);
    let mut good = front.pair.clone();
    let (mut refused, mut taken) = (0, 0);
    for (number, bad) in ["mixed", "cut", "empty", "no PEM", "gone"].into_iter().enumerate() {
        // Nine good ones in a row, of which the last is seen.
        for _ in 0..9 {
            let next = front.ca.pair(&[NAME]);
            front.secret.swap(&next);
            let before = std::mem::replace(&mut good, next);
            if number == 0 {
                comes(&target, &good, before.serial).await;
                taken += 1;
            }
        }
        eventually_async("the ninth", SOON, || async {
            let serial = served(&target).await.expect("no handshake fails");
            if serial == good.serial { Ok(()) } else { Err(serial) }
        })
        .await;
        let next = front.ca.pair(&[NAME]);
        match bad {
            "mixed" => front.secret.swap_mismatched(&next, &good),
            "cut" => front.secret.overwrite("tls.crt", &next.chain, next.chain.len() / 2),
            "empty" => front.secret.overwrite("tls.key", "", 0),
            "no PEM" => front.secret.swap_files(&[("tls.crt", "nonsense"), ("tls.key", "nonsense")]),
            _ => front.secret.swap_files(&[("tls.crt", &next.chain)]),
        }
        refused += 1;
        has_reloaded(&front.px, "refused", refused).await;
        assert_eq!(served(&target).await, Ok(good.serial), "{bad}");
    }
    assert!(reloads(&front.px, "ok").await >= f64::from(taken));
    let told = front.px.logged(REFUSED, refused).await;
    for (event, reason) in
        told.iter().zip(["is not the key of", "PEM", "no private key", "no certificate", "can't be read"])
    {
        let text = field(event, "error").unwrap().as_str().unwrap();
        assert!(text.contains(reason) && text.contains(&front.secret.path().display().to_string()), "{text}");
    }
    let next = front.ca.pair(&[NAME]);
    front.secret.swap(&next);
    comes(&target, &next, good.serial).await;
    load.stop().await.assert_clean();
    assert_eq!(reloads(&front.px, "refused").await, refused as f64);
    assert_eq!(front.px.log_events(REFUSED).len(), refused);
}

#[tokio::test]
async fn what_stays_bad_is_told_only_once() {
    let clock = Authority::new("clock");
    let first = clock.pair(&[NAME]);
    let second = SecretDir::new(&first);
    let front = Front::with(AppOptions::default(), |secret, upstream| {
        listener("web", upstream, &tls(secret, "")) + &listener("clock", upstream, &tls(&second, ""))
    })
    .await;
    front.secret.swap_mismatched(&front.ca.pair(&[NAME]), &front.pair);
    has_reloaded(&front.px, "refused", 1).await;
    let clock_target = TlsPlan::new(clock.pem(), NAME).never_resumes().to(front.px.address("clock").await);
    let mut before = first.serial;
    // Each is a look at the bad one as well.
    for _ in 0..3 {
        let next = clock.pair(&[NAME]);
        second.swap(&next);
        comes(&clock_target, &next, before).await;
        before = next.serial;
        assert_eq!(served(&front.target()).await, Ok(front.pair.serial));
    }
    assert_eq!((reloads(&front.px, "refused").await, reloads(&front.px, "ok").await), (1.0, 3.0));
    assert_eq!(front.px.log_events(REFUSED).len(), 1);
    let metrics = front.px.metrics().await;
    let refused = |name| metrics.value("ebbtide_tls_files_refused", &[("listener", name)]);
    assert_eq!((refused("web"), refused("clock")), (Some(1.0), Some(0.0)));
    // Another fault is news.
    front.secret.overwrite("tls.key", "", 0);
    has_reloaded(&front.px, "refused", 2).await;
    front.secret.swap(&front.pair);
    has_reloaded(&front.px, "ok", 4).await;
    front.px.metric_becomes("ebbtide_tls_files_refused", &[], SOON, |n| n == 0.0).await;
    assert_eq!(front.px.log_events(REFUSED).len(), 2);
}

#[tokio::test]
async fn all_listeners_have_the_new_one_and_tell_until_when_during_a_hold_too() {
    let echo = alone(AppOptions::default().tcp(Flow::Echo)).await;
    let front = Front::with(AppOptions::default(), |secret, upstream| {
        let pair = format!("{}:{}", secret.file("tls.crt").display(), secret.file("tls.key").display());
        let files = format!(", tls: {{certificates: \"{pair}\"}}");
        listener("web", upstream, &tls(secret, ""))
            + &listener("files", upstream, &files)
            + &listener("db", &echo.1.upstream(), &tls(secret, ""))
    })
    .await;
    let names = ["web", "files", "db"];
    let mut pair = front.pair.clone();
    for (life, serves) in ["serving", "holding"].into_iter().zip([0, 3]) {
        if life == "holding" {
            terminate(&front.px).await;
        }
        let day = Duration::from_secs(24 * 3600);
        let now = SystemTime::now();
        let leaf = Leaf::new(&[NAME]).valid(now - day, now + day * (10 + serves as u32));
        let before = std::mem::replace(&mut pair, front.ca.issue(&leaf));
        front.secret.swap(&pair);
        for name in names {
            let address = front.px.address(name).await;
            let plan = front.plan().alpn(&[]).never_resumes();
            for versions in BOTH {
                comes(&plan.clone().versions(versions).to(address), &pair, before.serial).await;
            }
        }
        has_reloaded(&front.px, "ok", serves + 3).await;
        front.px.phase_becomes(life, SOON).await;
        for (name, path) in names.into_iter().zip([
            front.secret.path().to_owned(),
            format!("{}:{}", front.secret.file("tls.crt").display(), front.secret.file("tls.key").display()).into(),
            front.secret.path().to_owned(),
        ]) {
            assert_eq!(expiry(&front.px, name, &path).await, Some(pair.expires as f64), "{name}");
        }
    }
}
