//! Which moment of a window a connection gets. Pure.

use std::sync::atomic::{AtomicU32, Ordering};

/// Hands out shares of a window: any run of consecutive connections is spread evenly over it.
///
/// Steps of the golden ratio, the additive sequence with the smallest gaps; the start is random per process, so that
/// the pods of one rollout do not act in step.
#[derive(Debug)]
pub struct Spread {
    next: AtomicU32,
}

/// 2^32 divided by the golden ratio.
const STEP: u32 = 2_654_435_769;

// === impl Spread ===

impl Spread {
    /// A sequence that starts anywhere.
    pub fn new(seed: u32) -> Self {
        Self { next: AtomicU32::new(seed) }
    }

    /// The next share, 0.0 to 1.0.
    pub fn share(&self) -> f32 {
        // Relaxed: only the distribution matters, not the order.
        let value = self.next.fetch_add(STEP, Ordering::Relaxed);
        (f64::from(value) / f64::from(u32::MAX)) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_connections_fill_every_slice_evenly() {
        for seed in [0, 1, 77, u32::MAX] {
            let spread = Spread::new(seed);
            let mut slices = [0; 20];
            for _ in 0..1000 {
                slices[((spread.share() * 20.0) as usize).min(19)] += 1;
            }
            assert!(slices.iter().all(|n| (45..=55).contains(n)), "seed {seed}: {slices:?}");
        }
    }
}
