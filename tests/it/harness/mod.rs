//! Owns what every integration test is built on: processes, a kubelet, an app, clients, a balancer.

#![expect(dead_code, unused_imports, reason = "the harness is a library; each test uses a part of it")]

pub(crate) mod wait;

pub(crate) mod http;

pub(crate) mod h2;

pub(crate) mod ws;

pub(crate) mod events;

pub(crate) mod process;

pub(crate) mod app;

pub(crate) mod client;

pub(crate) mod tls;

pub(crate) mod balancer;

pub(crate) mod broker;

pub(crate) mod ebbtide;

pub(crate) mod pod;

pub(crate) mod script;

pub(crate) mod stage;

pub(crate) mod manifest;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{Mutex, MutexGuard};

/// Keeps two heavy tests from running at once; light ones run beside a heavy one.
pub(crate) async fn heavy() -> MutexGuard<'static, ()> {
    static HEAVY: Mutex<()> = Mutex::const_new(());
    raise_open_files();
    HEAVY.lock().await
}

/// Raises the soft limit of open files to the hard one and answers it.
pub(crate) fn raise_open_files() -> u64 {
    static ONCE: Once = Once::new();
    let limit = getrlimit(Resource::Nofile);
    ONCE.call_once(|| {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).expect("the soft limit can be raised");
    });
    limit.maximum.unwrap_or(u64::MAX)
}

/// A loopback address of its own for each pod, as in a cluster.
///
/// Fixed ports on it survive a restart. Ports taken by clients belong to 127.0.0.1, so they can't
/// collide with a listener here, which a port picked beforehand on 127.0.0.1 would risk.
pub(crate) fn fresh_ip() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    let serial = NEXT.fetch_add(1, Ordering::Relaxed) % (250 * 64);
    let second = 64 + (process % 128);
    let third = (serial / 250) + 64 * ((process / 128) % 3);
    let fourth = 1 + serial % 250;
    IpAddr::V4(Ipv4Addr::new(127, second as u8, third as u8, fourth as u8))
}

/// The seed of this test run: `EBBTIDE_TEST_SEED` repeats one.
pub(crate) fn fresh_seed() -> u64 {
    std::env::var("EBBTIDE_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| fastrand::u64(..))
}

/// How often each value comes.
pub(crate) fn tally<T: Ord>(all: impl Iterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    for one in all {
        *counts.entry(one).or_default() += 1;
    }
    counts
}

/// The bound of waits that should take no time at all, generous for a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(10);
