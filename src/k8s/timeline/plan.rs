//! What ebbtide does when its pod is deleted, as far as the manifest tells.

use std::time::Duration;

use super::{Phases, round, spaced};
use crate::config::{self, Config, ConfigError, Direction, DrainConfig, Environment, Mode, Origin};
use crate::k8s::hook;
use crate::k8s::workload::{self, Place, Settings, Workload, is_ebbtide};
use crate::lifecycle::budget::{self, Budget, Deadlines};
use crate::lifecycle::tick::Tick;

/// ebbtide's part.
pub(super) struct Plan<'w> {
    pub(super) place: Place<'w>,
    pub(super) course: Course,
}

/// How it goes.
pub(super) enum Course {
    /// Hold, drain, close; the app hooks are blocked meanwhile.
    Drains(Box<Drain>),
    /// No inbound listener: nothing to wait for.
    Lingers,
    /// Without its own hook it takes the app hooks for a restart of the app: released between these.
    Restart(Duration, Duration),
    /// It would not start.
    Refused,
}

/// A drain's times.
pub(super) struct Drain {
    pub(super) config: Config,
    pub(super) budget: Budget,
    pub(super) deadlines: Deadlines,
    /// The port of the app hooks; `None` if the manifest does not tell.
    pub(super) admin: Option<u16>,
}

/// ebbtide's plan; `None` without ebbtide, and where no time is given to anybody.
pub(super) fn plan<'w>(
    workload: &'w Workload<'_>,
    misfits: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> Option<Plan<'w>> {
    let place = find(workload, warnings).filter(|_| !workload.grace().is_zero())?;
    let settings = workload::settings(place.container);
    let config = match config(workload, place, &settings) {
        Ok(config) => config,
        Err(errors) => {
            misfits.extend(errors.into_iter().map(|error| format!("ebbtide would not start: {error}")));
            return Some(Plan { place, course: Course::Refused });
        }
    };
    if let Some(place) = settings.unseen {
        warnings.push(format!("ebbtide's configuration stands in {place}, which is not seen; defaults are drawn"));
    }
    let course = course(workload, place, config, settings.unseen.is_none(), misfits, warnings);
    Some(Plan { place, course })
}

/// The one that runs beside the app; an ordinary one only if there is no other.
fn find<'w>(workload: &'w Workload<'_>, warnings: &mut Vec<String>) -> Option<Place<'w>> {
    let all = || workload.containers().filter(|place| is_ebbtide(place.container));
    let runs = || all().filter(|place| workload::is_proxy(place.container));
    let found = runs().find(Place::is_native_sidecar).or_else(|| workload.ordinary().find(|place| is_run(*place)));
    if let (None, Some(other)) = (found, all().next()) {
        let why = match runs().next() {
            Some(_) => "an init container without restartPolicy: Always",
            None => "not told to run",
        };
        warnings.push(format!("{} is {why}: no ebbtide stands beside the app", other.container.name));
    }
    found
}

fn is_run(place: Place<'_>) -> bool {
    is_ebbtide(place.container) && workload::is_proxy(place.container)
}

/// What it runs with; where parts of it are not seen, with defaults in their place.
fn config(workload: &Workload<'_>, place: Place<'_>, settings: &Settings) -> Result<Config, Vec<String>> {
    if let Some(message) = &settings.refused {
        return Err(vec![format!("its flags are not understood: {message}")]);
    }
    let errors = match &settings.loaded {
        Ok(loaded) if settings.unseen.is_none() => return Ok(loaded.config.clone()),
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().filter(|error| settings.unseen.is_none() || is_certain(place, error)).collect(),
    };
    if !errors.is_empty() {
        return Err(errors.into_iter().map(ToString::to_string).collect());
    }
    let told: Vec<_> = workload::variables(place.container)
        .into_iter()
        .filter(|(name, value)| name != "EBBTIDE_CONFIG" && !value.contains("$(") && value != "unknown")
        .collect();
    let mode = if place.is_native_sidecar() { "sidecar" } else { "plain" };
    let grace = format!("{}s", workload.grace().as_secs());
    let assumed = [("EBBTIDE_MODE", mode.to_owned()), ("EBBTIDE_GRACE_PERIOD", grace)];
    let assumed: Vec<_> = assumed.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let upstream = vec![("EBBTIDE_UPSTREAM".to_owned(), "http://192.0.2.1:8080".to_owned())];
    // What is told wins, being later; with the least that starts at the end of the list.
    let tries = [
        [assumed.clone(), told.clone()].concat(),
        [assumed.clone(), upstream.clone(), told].concat(),
        [assumed, upstream].concat(),
    ];
    let mut errors = Vec::new();
    for variables in tries {
        match config::load(None, &variables.into_iter().collect::<Environment>(), &[]) {
            Ok(loaded) => return Ok(loaded.config),
            Err(all) => errors = all,
        }
    }
    Err(errors.iter().map(ToString::to_string).collect())
}

/// Whether nothing that is not seen can mend an error.
fn is_certain(place: Place<'_>, error: &ConfigError) -> bool {
    match &error.origin {
        Origin::Flag(_) | Origin::Text { .. } => true,
        Origin::Variable(name) => {
            let known = workload::variables(place.container).into_iter().rfind(|(known, _)| known == name);
            known.is_some_and(|(_, value)| !value.contains("$(") && value != "unknown")
        }
        Origin::Default | Origin::Whole(_) => false,
    }
}

fn course(
    workload: &Workload<'_>,
    place: Place<'_>,
    config: Config,
    is_seen: bool,
    misfits: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> Course {
    let is_native = place.is_native_sidecar();
    if !is_native {
        let what = "ebbtide is no native sidecar here: it gets SIGTERM when the others do; see ebbtide check";
        warnings.push(what.to_owned());
    }
    if config.mode == Mode::Plain {
        let what = if is_native {
            "EBBTIDE_MODE is not sidecar, so ebbtide keeps no time for the apps to stop, and does not wait for them"
        } else {
            "EBBTIDE_MODE is not sidecar, so ebbtide takes SIGTERM for the beginning of the termination"
        };
        warnings.push(what.to_owned());
    }
    let has_hook = has_own_hook(place);
    if is_native && !has_hook {
        let DrainConfig { witness_window, app_restart_wait, .. } = config.drain;
        warnings.push(format!(
            "ebbtide has no preStop hook of its own (exec /ebbtide drain), so it does not know that the pod terminates: it \
             takes a call of /app-stop for a restart of the app, and releases it after {} to {} s; nothing is held or drained",
            round(witness_window.as_secs_f64()),
            round(app_restart_wait.max(witness_window).as_secs_f64()),
        ));
        return Course::Restart(witness_window, app_restart_wait.max(witness_window));
    }
    if config.listeners.iter().all(|listener| listener.direction == Direction::Outbound) {
        return Course::Lingers;
    }
    let (told, grace) = (config.drain.grace_period, workload.grace());
    if told != grace {
        warnings.push(format!(
            "ebbtide is told a grace period of {} s and the pod has {} s",
            round(told.as_secs_f64()),
            grace.as_secs(),
        ));
    }
    let budget = budget::divide(config.mode, &config.drain);
    misfits.extend(budget.shrunk.as_ref().map(|shrunk| spaced(&shrunk.message)));
    warnings.extend(budget.too_late().iter().map(|line| spaced(line)));
    let deadlines = budget.deadlines(Tick::default());
    let admin = is_seen.then(|| config.admin.bind.port());
    Course::Drains(Box::new(Drain { config, budget, deadlines, admin }))
}

/// Whether its preStop hook tells it that the pod terminates.
pub(super) fn has_own_hook(place: Place<'_>) -> bool {
    let command = hook::of(place.container).and_then(|hook| hook.exec.as_ref()?.command.as_deref());
    command.unwrap_or_default().iter().any(|word| word == "drain" || word.ends_with("ebbtide drain"))
}

// === impl Plan ===

impl Plan<'_> {
    pub(super) fn drain(&self) -> Option<&Drain> {
        match &self.course {
            Course::Drains(drain) => Some(drain),
            Course::Lingers | Course::Restart(..) | Course::Refused => None,
        }
    }

    pub(super) fn phases(&self) -> Option<Phases> {
        match &self.course {
            Course::Drains(drain) => Some(drain.phases()),
            Course::Lingers => Some(Phases::default()),
            Course::Restart(..) | Course::Refused => None,
        }
    }
}

// === impl Drain ===

impl Drain {
    fn phases(&self) -> Phases {
        let at = |tick: Tick| round(tick.since_start().as_secs_f64());
        Phases {
            notice: at(self.deadlines.notice.start),
            hold_min: at(self.deadlines.hold_min),
            hold_end: at(self.deadlines.hold_end),
            drain_deadline: at(self.deadlines.drain_deadline),
            hooks_released: at(self.deadlines.close_deadline),
        }
    }

    /// When the app hooks are released at the earliest: nothing is in flight, idle connections have been closed (where
    /// `idle_after` leaves them open, by their clients), and nothing new has come for a while.
    pub(super) fn earliest(&self) -> f64 {
        let wait = self.budget.close_spread.max(self.budget.quiet);
        (self.deadlines.hold_min + wait).since_start().as_secs_f64().min(self.released())
    }

    /// At the latest.
    pub(super) fn released(&self) -> f64 {
        self.deadlines.close_deadline.since_start().as_secs_f64()
    }

    /// What is kept for the apps.
    pub(super) fn app_stop(&self) -> f64 {
        self.budget.app_stop.as_secs_f64()
    }
}
