//! An app hook without another witness: the app alone is restarted (contract §8). Pure.
//!
//! ```text
//! hook ─▶ Witnessing ─window─▶ Finishing ─before-hook work done, or wait − 0.5 s─▶ Paused ─nothing in flight,
//!                                                                                   or 0.5 s─▶ released
//! released ─first refused dial, or 0.5 s─▶ over
//! ```

use std::time::Duration;

use super::World;
use crate::lifecycle::tick::Tick;

/// The app hooks that wait for a second witness or for an app restart.
#[derive(Debug)]
pub(super) struct Restart {
    window: Duration,
    wait: Duration,
    hooks: Vec<Hook>,
    /// Beginning and scope of the latest pause: at most one a minute, whoever calls.
    last_pause: Option<(Tick, Option<usize>)>,
    seen: u32,
}

#[derive(Debug)]
struct Hook {
    id: u64,
    scope: Option<usize>,
    came: Tick,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A pod termination is still possible.
    Witnessing,
    /// Work from before the hook ends.
    Finishing,
    /// Forwarding is paused, the hook still held.
    Paused { since: Tick },
    /// The hook is answered, forwarding stays paused until the app refuses.
    Released { paused_since: Tick, at: Tick },
}

/// Both halves of a pause.
const PAUSE: Duration = Duration::from_millis(500);
const BETWEEN_PAUSES: Duration = Duration::from_secs(60);

// === impl Restart ===

impl Restart {
    pub(super) const fn new(window: Duration, wait: Duration) -> Self {
        Self { window, wait, hooks: Vec::new(), last_pause: None, seen: 0 }
    }

    pub(super) const fn seen(&self) -> u32 {
        self.seen
    }

    pub(super) fn is_active(&self) -> bool {
        !self.hooks.is_empty()
    }

    pub(super) fn hook_came(&mut self, id: u64, scope: Option<usize>, now: Tick) {
        self.hooks.push(Hook { id, scope, came: now, stage: Stage::Witnessing });
    }

    /// Arrival of the earliest hook that is still held and young enough to belong to a termination now.
    pub(super) fn earliest_open(&self, now: Tick) -> Option<Tick> {
        self.hooks
            .iter()
            .filter(|hook| hook.is_held() && now.since(hook.came) <= self.window)
            .map(|hook| hook.came)
            .min()
    }

    /// The pod terminates after all: forgets everything and hands over the hooks still held.
    pub(super) fn abandon(&mut self) -> Vec<(u64, Option<usize>)> {
        self.hooks.drain(..).filter(Hook::is_held).map(|hook| (hook.id, hook.scope)).collect()
    }

    /// Bit per inbound listener.
    pub(super) fn paused(&self) -> u64 {
        self.hooks
            .iter()
            .filter(|hook| matches!(hook.stage, Stage::Paused { .. } | Stage::Released { .. }))
            .map(|hook| hook.scope.map_or(u64::MAX, |index| 1_u64.checked_shl(index as u32).unwrap_or(0)))
            .fold(0, |mask, bits| mask | bits)
    }

    pub(super) fn advance(&mut self, now: Tick, world: &World<'_>, release: &mut Vec<u64>) {
        let (window, wait) = (self.window, self.wait);
        let last_pause = &mut self.last_pause;
        let seen = &mut self.seen;
        self.hooks.retain_mut(|hook| {
            let mut release_now = |hook: &Hook| release.push(hook.id);
            if hook.is_held() && world.gone(hook.scope, now) {
                release_now(hook);
                return false;
            }
            if hook.stage == Stage::Witnessing && now.since(hook.came) >= window {
                hook.stage = Stage::Finishing;
                *seen += 1;
            }
            if hook.stage == Stage::Finishing {
                let done = hook.sum(world, |u| u.in_flight_before_hook) == 0;
                if done || now.since(hook.came) + PAUSE >= wait.max(window) {
                    let since = match *last_pause {
                        // A hook that was delivered twice, or two containers of one app.
                        Some((last, scope)) if now.since(last) < PAUSE && scope == hook.scope => last,
                        Some((last, _)) if now.since(last) < BETWEEN_PAUSES => {
                            release_now(hook);
                            return false;
                        }
                        Some(_) | None => now,
                    };
                    *last_pause = Some((since, hook.scope));
                    hook.stage = Stage::Paused { since };
                    // What slips in beside the pause flag is only seen by a later reading of the counts.
                    return true;
                }
            }
            if let Stage::Paused { since } = hook.stage
                && (hook.sum(world, |u| u.in_flight) == 0 || now.since(since) >= PAUSE)
            {
                release_now(hook);
                hook.stage = Stage::Released { paused_since: since, at: now };
            }
            match hook.stage {
                Stage::Released { paused_since, at } => {
                    let refused = hook.upstreams(world).any(|u| u.refusing_since.is_some_and(|r| r >= paused_since));
                    !refused && now.since(at) < PAUSE
                }
                Stage::Witnessing | Stage::Finishing | Stage::Paused { .. } => true,
            }
        });
    }
}

// === impl Hook ===

impl Hook {
    const fn is_held(&self) -> bool {
        !matches!(self.stage, Stage::Released { .. })
    }

    fn upstreams<'w>(&self, world: &World<'w>) -> impl Iterator<Item = &'w super::UpstreamView> {
        let scope = self.scope;
        world
            .upstreams
            .iter()
            .enumerate()
            .filter(move |(index, _)| scope.is_none_or(|only| only == *index))
            .map(|(_, upstream)| upstream)
    }

    fn sum(&self, world: &World<'_>, count: impl Fn(&super::UpstreamView) -> u64) -> u64 {
        self.upstreams(world).map(count).sum()
    }
}
