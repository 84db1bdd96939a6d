//! What a hook or a signal means. Pure: the contract's table (§2), first match wins.
//!
//! The table rests on one fact: the kubelet signals a native sidecar while an app hook is still blocked only if the
//! grace period is used up, or if the sidecar alone is restarted.

use std::time::Duration;

use super::phase::Phase;
use crate::config::Mode;

/// Something that happened to the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Witness {
    /// `ebbtide drain` was called: our own preStop hook.
    OwnHook,
    /// `/app-stop` was called: an app container's preStop hook.
    AppHook,
    /// SIGTERM, SIGINT or SIGQUIT.
    Signal,
}

/// What is known at the moment of the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// What the pod spec around us looks like.
    pub mode: Mode,
    /// The listeners are bound.
    pub bound: bool,
    /// Where we stand.
    pub phase: Phase,
    /// The termination has begun.
    pub terminating: bool,
    /// Time since the own hook's first arrival.
    pub own_hook_age: Option<Duration>,
    /// An app hook is open and not released.
    pub app_hook_blocked: bool,
    /// There is an inbound listener.
    pub inbound: bool,
    /// An inbound upstream has accepted at some time.
    pub ever_accepted: bool,
    /// Every inbound upstream is gone (for an app hook: every one in its scope).
    pub gone: bool,
    /// Signals before this event.
    pub earlier_signals: u32,
}

/// What to make of it; the numbers are the table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Meaning {
    /// 1: nothing is served yet, leave.
    LeaveAtOnce,
    /// 2: one more witness of the same termination.
    Joins,
    /// 3, 14: a termination without anybody to hold for.
    NothingToHold,
    /// 4: the pod terminates.
    PodTermination,
    /// 5: nothing to wait for, the hook returns.
    HookReturns,
    /// 6: an app restart, unless another witness comes within the window.
    PerhapsRestart,
    /// 7: somebody is impatient.
    Hurry,
    /// 7: the second signal of a phase that is short anyway.
    Nothing,
    /// 8, 10: nothing left to do.
    Finish,
    /// 9, 12: the real grace period is used up.
    GraceUsedUp,
    /// 11: only ebbtide is restarted, the schedule of t0 stands.
    OnlySidecarRestarts,
    /// 13: the first signal of a termination that the own hook began.
    KeepSchedule,
    /// 15: termination by signal; in sidecar mode the own hook is missing.
    SignalTermination,
}

/// The shortest real grace period is 1 s: a signal earlier than this after the own hook is no expiry.
const OWN_HOOK_RESTART: Duration = Duration::from_millis(900);

/// Reads the table.
pub fn meaning(witness: Witness, facts: &Facts) -> Meaning {
    match witness {
        Witness::OwnHook => own_hook(facts),
        Witness::AppHook => app_hook(facts),
        Witness::Signal => signal(facts),
    }
}

fn own_hook(facts: &Facts) -> Meaning {
    if facts.terminating {
        Meaning::Joins
    } else if !facts.inbound || !facts.ever_accepted || facts.gone {
        Meaning::NothingToHold
    } else {
        Meaning::PodTermination
    }
}

fn app_hook(facts: &Facts) -> Meaning {
    if facts.terminating {
        Meaning::Joins
    } else if facts.gone {
        Meaning::HookReturns
    } else {
        Meaning::PerhapsRestart
    }
}

fn signal(facts: &Facts) -> Meaning {
    let sidecar = facts.mode == Mode::Sidecar;
    if !facts.bound {
        return Meaning::LeaveAtOnce;
    }
    if !sidecar && facts.earlier_signals > 0 {
        return match facts.phase {
            Phase::Holding | Phase::Draining => Meaning::Hurry,
            Phase::Starting | Phase::Serving | Phase::Closing | Phase::Lingering | Phase::Terminated => {
                Meaning::Nothing
            }
        };
    }
    if sidecar && facts.phase == Phase::Lingering {
        return Meaning::Finish;
    }
    if sidecar && facts.terminating && facts.app_hook_blocked {
        return Meaning::GraceUsedUp;
    }
    if facts.gone || (sidecar && (!facts.ever_accepted || !facts.inbound)) {
        return Meaning::Finish;
    }
    if sidecar && facts.own_hook_age.is_some_and(|age| age < OWN_HOOK_RESTART) {
        return Meaning::OnlySidecarRestarts;
    }
    match (sidecar, facts.terminating) {
        (true, true) => Meaning::GraceUsedUp,
        (false, true) => Meaning::KeepSchedule,
        (false, false) if !facts.inbound => Meaning::NothingToHold,
        (_, false) => Meaning::SignalTermination,
    }
}

#[cfg(test)]
mod tests;
