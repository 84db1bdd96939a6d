//! A timeline as text: bars on a scale of seconds, then what happens in words.

use std::fmt;

use super::{Phases, Role, Stop, Timeline};

/// Columns of the scale.
const WIDE: usize = 60;

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = if self.namespace.is_empty() { String::new() } else { format!(" in {}", self.namespace) };
        writeln!(f, "{}{namespace}: {} s from the deletion to SIGKILL\n", self.object, self.grace_period)?;
        let name = self.containers.iter().map(|stop| stop.name.chars().count()).max().unwrap_or(0).max(7);
        writeln!(f, "{:name$}  {}", "seconds", self.scale())?;
        for stop in &self.containers {
            writeln!(f, "{:name$}  {}", stop.name, self.bar(stop))?;
        }
        writeln!(f, "\n  {}\n", self.legend())?;
        let who = self.events.iter().map(|event| event.who.chars().count()).max().unwrap_or(0);
        for event in &self.events {
            writeln!(f, "{:>7}  {:who$}  {}", format!("{} s", event.at), event.who, event.what)?;
        }
        match self.left_over {
            left if left >= 0.0 => writeln!(f, "\nLeft over at the worst: {left} s.")?,
            short => writeln!(f, "\nMissing at the worst: {} s.", -short)?,
        }
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        Ok(())
    }
}

impl Timeline {
    fn column(&self, seconds: f64) -> usize {
        let share = if self.grace_period > 0.0 { seconds / self.grace_period } else { 0.0 };
        // In range by construction: 0 to WIDE.
        ((share * WIDE as f64).round().clamp(0.0, WIDE as f64)) as usize
    }

    /// Five or six round marks, and the end.
    fn scale(&self) -> String {
        let steps = [1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0];
        let step = steps.into_iter().find(|step| self.grace_period / step <= 7.0).unwrap_or(36_000.0);
        let mut text = String::new();
        let mut at = 0.0;
        while at < self.grace_period {
            let column = self.column(at);
            // Not so close to the end that the numbers would run into each other.
            if column + 4 <= WIDE || at == 0.0 {
                text = format!("{text:<column$}{at}");
            }
            at += step;
        }
        format!("{text:<WIDE$}{}", self.grace_period)
    }

    fn bar(&self, stop: &Stop) -> String {
        let sigterm = self.column(stop.sigterm_latest);
        let earliest = self.column(stop.sigterm_earliest);
        let bar: String = (0..=WIDE)
            .map(|column| match (stop.role, &self.ebbtide) {
                (Role::Ebbtide, Some(phases)) => self.phase(phases, column),
                _ if column == WIDE => 'K',
                _ if column == sigterm => 'T',
                _ if column < earliest => '=',
                _ if column < sigterm => '-',
                _ => '.',
            })
            .collect();
        bar
    }

    fn phase(&self, phases: &Phases, column: usize) -> char {
        match column {
            WIDE => 'K',
            _ if column < self.column(phases.notice) => 'H',
            _ if column < self.column(phases.hold_end) => 'N',
            _ if column < self.column(phases.drain_deadline) => 'D',
            _ if column < self.column(phases.hooks_released) => 'C',
            _ => 'L',
        }
    }

    fn legend(&self) -> &'static str {
        if self.ebbtide.is_some() {
            "H hold, N hold while clients are told to go, D drain, C forced endings, L linger\n  \
             = hook blocks, - hook may be released, T SIGTERM at the latest, . stops, K SIGKILL"
        } else {
            "= hook blocks, - hook may return, T SIGTERM at the latest, . stops, K SIGKILL"
        }
    }
}
