//! What the machine around the process allows: descriptors, memory, processors.

use std::fs;
use std::num::NonZeroUsize;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::disable_transparent_huge_pages;

/// Descriptors kept for listeners, the admin port, logs and the runtime.
const RESERVED_DESCRIPTORS: u64 = 256;
/// Planned for: most connections are idle (4 KiB), one in eight is busy with full buffers on both sides (128 KiB).
const BYTES_PER_CONNECTION: u64 = 20 * 1024;
/// What TLS keeps beside that: 15 KiB of an idle connection, and up to 100 KiB of one whose client takes nothing.
const BYTES_PER_TLS: u64 = 28 * 1024;
/// Never less, however little memory there is.
const FEWEST_CONNECTIONS: u64 = 128;

/// Asks the kernel for no huge pages where it gives them to everybody (`always` in `transparent_hugepage/enabled`): the
/// allocator spreads its small blocks over regions of which most is never used, and RSS would be several times as large.
pub fn decline_huge_pages() {
    // A kernel without them refuses, and has none to give.
    let _ = disable_transparent_huge_pages(true);
}

/// Raises RLIMIT_NOFILE to its hard limit and returns what is in force.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // A refusal leaves the old limit, which is what is returned then.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Most downstream connections at once, given the descriptors and the cgroup's memory limit in bytes; with `tls` any of
/// them may speak it.
pub fn max_connections(descriptors: u64, memory: Option<u64>, tls: bool) -> usize {
    // A busy one needs a descriptor towards the app as well; never more than every second one is busy.
    let by_descriptors = descriptors.saturating_sub(RESERVED_DESCRIPTORS) * 2 / 3;
    // A quarter of the memory is for everything else.
    let each = BYTES_PER_CONNECTION + if tls { BYTES_PER_TLS } else { 0 };
    let by_memory = memory.map_or(u64::MAX, |bytes| bytes / 4 * 3 / each);
    let most = by_descriptors.min(by_memory).max(FEWEST_CONNECTIONS.min(by_descriptors.max(1)));
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// The cgroup's memory limit in bytes, if there is one.
pub fn memory_limit() -> Option<u64> {
    read_number("/sys/fs/cgroup/memory.max")
        .or_else(|| read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
        // cgroup v1 writes "no limit" as a huge number.
        .filter(|bytes| *bytes < 1 << 60)
}

/// Worker threads: the cgroup's CPU limit, rounded up; 1 where there is none.
pub fn default_workers() -> NonZeroUsize {
    let limit = cpu_limit_v2(&read("/sys/fs/cgroup/cpu.max")).or_else(|| {
        let quota = read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")?;
        let period = read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us")?;
        Some(quota.div_ceil(period.max(1)))
    });
    let workers = limit.and_then(|cores| usize::try_from(cores).ok()).and_then(NonZeroUsize::new);
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    workers.unwrap_or(NonZeroUsize::MIN).min(cores)
}

/// `cpu.max` holds quota and period in microseconds, or `max` for no quota.
fn cpu_limit_v2(text: &str) -> Option<u64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let quota: u64 = quota.parse().ok()?;
    let period: u64 = period.parse().ok()?;
    Some(quota.div_ceil(period.max(1)))
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn read_number(path: &str) -> Option<u64> {
    read(path).trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_of_a_core_is_one_worker() {
        assert_eq!(cpu_limit_v2("50000 100000\n"), Some(1));
        assert_eq!(cpu_limit_v2("150000 100000\n"), Some(2));
        assert_eq!(cpu_limit_v2("max 100000\n"), None);
        assert_eq!(cpu_limit_v2(""), None);
    }

    #[test]
    fn connections_follow_the_scarcer_of_descriptors_and_memory() {
        assert_eq!(max_connections(15_256, None, true), 10_000);
        assert_eq!(max_connections(1_000_000, Some(64 << 20), false), 2457);
        assert_eq!(max_connections(1_000_000, Some(64 << 20), true), 1024);
        assert_eq!(max_connections(1_000_000, Some(1 << 20), false), 128);
        assert_eq!(max_connections(300, Some(1 << 20), false), 29);
    }
}
