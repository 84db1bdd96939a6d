//! A timeline as text: bars on a scale of seconds, then what happens in words.

use std::fmt;

use super::{Phases, Role, Stop, Timeline};

/// Columns of the scale.
const WIDE: usize = 60;

/// Letters of a container's name.
const NAME: usize = 24;

/// What the bars are made of.
const LEGEND: [[(char, &str); 5]; 2] = [
    [
        ('H', "hold"),
        ('N', "hold while clients are told to go"),
        ('D', "drain"),
        ('C', "forced endings"),
        ('L', "linger"),
    ],
    [
        ('=', "hook or other containers hold SIGTERM back"),
        ('-', "SIGTERM may come"),
        ('T', "SIGTERM at the latest"),
        ('.', "stops"),
        ('K', "SIGKILL"),
    ],
];

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = if self.namespace.is_empty() { String::new() } else { format!(" in {}", self.namespace) };
        let more = if self.sigkill > self.grace_period { ", 2 s more if SIGTERM comes only then" } else { "" };
        writeln!(f, "{}{namespace}: {} s from the deletion to SIGKILL{more}\n", self.object, self.grace_period)?;
        let names: Vec<String> = self.containers.iter().map(|stop| short(&stop.name)).collect();
        let name = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(7);
        writeln!(f, "{:name$}  {}", "seconds", self.scale())?;
        let bars: Vec<String> = self.containers.iter().map(|stop| self.bar(stop)).collect();
        for (container, bar) in names.iter().zip(&bars) {
            writeln!(f, "{container:name$}  {bar}")?;
        }
        writeln!(f)?;
        for line in LEGEND {
            let drawn = line.iter().filter(|(letter, _)| bars.iter().any(|bar| bar.contains(*letter)));
            let drawn: Vec<_> = drawn.map(|(letter, what)| format!("{letter} {what}")).collect();
            if !drawn.is_empty() {
                writeln!(f, "  {}", drawn.join(", "))?;
            }
        }
        writeln!(f)?;
        let times: Vec<String> = self.events.iter().map(|event| format!("{} s", event.at)).collect();
        let time = times.iter().map(String::len).max().unwrap_or(0).max(7);
        let who = self.events.iter().map(|event| short(&event.who).chars().count()).max().unwrap_or(0);
        for (at, event) in times.iter().zip(&self.events) {
            writeln!(f, "{at:>time$}  {:who$}  {}", short(&event.who), event.what)?;
        }
        match self.left_over {
            short if short < 0.0 => writeln!(f, "\nMissing at the worst: {} s.", -short)?,
            left if self.fits => writeln!(f, "\nLeft over at the worst: {left} s.")?,
            _ => writeln!(f)?,
        }
        for misfit in &self.misfits {
            writeln!(f, "does not fit: {misfit}")?;
        }
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        Ok(())
    }
}

impl Timeline {
    fn column(&self, seconds: f64) -> usize {
        let share = if self.sigkill > 0.0 { seconds / self.sigkill } else { 0.0 };
        // In range by construction: 0 to WIDE.
        ((share * WIDE as f64).round().clamp(0.0, WIDE as f64)) as usize
    }

    /// Five or six round marks, and the end.
    fn scale(&self) -> String {
        let steps = [1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0];
        let step = steps.into_iter().find(|step| self.sigkill / step <= 7.0).unwrap_or(self.sigkill / 4.0).round();
        let mut text = String::new();
        let mut at = 0.0;
        while at < self.sigkill {
            let column = self.column(at);
            // Not so close to the end that the numbers would run into each other.
            if column + at.to_string().len() < WIDE {
                text = format!("{text:<column$}{at}");
            }
            at += step;
        }
        format!("{text:<WIDE$}{}", self.sigkill)
    }

    fn bar(&self, stop: &Stop) -> String {
        if let (Role::Ebbtide, Some(phases)) = (stop.role, &self.ebbtide) {
            let ends = self.ends(phases);
            let letter = |column| ends.iter().find(|(_, _, end)| column < *end).map_or('L', |(letter, ..)| *letter);
            return (0..WIDE).map(letter).chain(['K']).collect();
        }
        let sigterm = self.column_of(stop.sigterm_latest);
        let earliest = self.column_of(stop.sigterm_earliest);
        let letter = |column| match column {
            _ if column == sigterm => 'T',
            _ if column < earliest => '=',
            _ if column < sigterm => '-',
            _ => '.',
        };
        (0..WIDE).map(letter).chain(['K']).collect()
    }

    /// Where something is drawn, never under the SIGKILL; at the end of a phase, where that is.
    fn column_of(&self, seconds: f64) -> usize {
        let ends = self.ebbtide.as_ref().map(|phases| self.ends(phases)).unwrap_or_default();
        let end = ends.iter().rfind(|(_, at, _)| (at - seconds).abs() < 0.001 && seconds > 0.0);
        end.map_or_else(|| self.column(seconds), |(.., column)| *column).min(WIDE - 1)
    }

    /// Each phase that takes any time with its end, in seconds and as column; at least one column wide.
    fn ends(&self, phases: &Phases) -> Vec<(char, f64, usize)> {
        let grace = self.grace_period;
        let mut planned = vec![
            ('H', phases.notice),
            ('N', phases.hold_end),
            ('D', phases.drain_deadline),
            ('C', phases.hooks_released),
            ('L', self.sigkill),
        ];
        if phases.hooks_released > grace {
            // SIGTERM before its time: what is left is for forced endings.
            planned.retain(|(letter, _)| !['C', 'L'].contains(letter));
            planned.iter_mut().for_each(|(_, end)| *end = end.min(grace));
            planned.push(('C', self.sigkill));
        }
        let mut ends: Vec<(char, f64, usize)> = Vec::new();
        for (letter, end) in planned {
            let (before, last) = ends.last().map_or((0.0, 0), |(_, end, column)| (*end, *column));
            if end > before {
                ends.push((letter, end, self.column(end).max(last + 1)));
            }
        }
        let mut most = WIDE;
        for (.., column) in ends.iter_mut().rev() {
            *column = (*column).min(most);
            most = column.saturating_sub(1);
        }
        ends
    }
}

/// A name as it is drawn.
fn short(name: &str) -> String {
    if name.chars().count() <= NAME {
        return name.to_owned();
    }
    name.chars().take(NAME - 1).chain(['…']).collect()
}
