//! Durations, sizes and percentages as text.

use std::time::Duration;

use super::error::Fault;

/// Reads `10s`, `500ms`, `1m30s`, `2h` or `0`; at most 24 hours.
pub(super) fn parse_duration(text: &str) -> Result<Duration, Fault> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.parse::<f64>().is_ok_and(f64::is_finite) {
        return Err(Fault::new("has no unit").hint(format!("write {text}s for seconds, {text}ms for milliseconds")));
    }
    let malformed = || Fault::new("is not a duration").hint("write it like 10s, 500ms, 1m30s or 2h");
    let mut total = 0_u64;
    let mut smallest = u64::MAX;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(malformed)?;
        let (number, tail) = rest.split_at(digits);
        let (unit, next) = tail.split_at(tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len()));
        let factor = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(malformed)?.1;
        // `30s1m` and `1s1s` are mistakes more often than sums.
        if number.is_empty() || factor >= smallest {
            return Err(malformed());
        }
        smallest = factor;
        let millis = number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor));
        total = millis.and_then(|n| total.checked_add(n)).ok_or_else(too_long)?;
        rest = next;
    }
    if text.is_empty() {
        return Err(malformed());
    }
    let duration = Duration::from_millis(total);
    if duration > LONGEST { Err(too_long()) } else { Ok(duration) }
}

/// Writes a duration the way [`parse_duration`] reads it, in whole milliseconds.
pub(super) fn format_duration(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (name, factor) in UNITS {
        if rest >= *factor {
            text.push_str(&format!("{}{name}", rest / factor));
            rest %= factor;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Reads bytes: `65536`, `64KiB`, `1MiB`.
pub(super) fn parse_size(text: &str) -> Result<usize, Fault> {
    let malformed = || Fault::new("is not a size").hint("write it in bytes or like 64KiB or 1MiB");
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit.trim_start() {
        "" | "B" => 1,
        "KiB" => 1024,
        "MiB" => 1024 * 1024,
        "k" | "K" | "kB" | "KB" | "kb" | "Ki" | "kib" => {
            return Err(Fault::new("has an unknown unit").hint(format!("write {number}KiB")));
        }
        "m" | "M" | "mB" | "MB" | "mb" | "Mi" | "mib" => {
            return Err(Fault::new("has an unknown unit").hint(format!("write {number}MiB")));
        }
        _ => return Err(malformed()),
    };
    if number.is_empty() {
        return Err(malformed());
    }
    let bytes = number.parse::<usize>().ok().and_then(|n| n.checked_mul(factor));
    bytes.ok_or_else(|| Fault::new("is too large"))
}

/// Writes a size in the largest unit that needs no fraction.
pub(super) fn format_size(bytes: usize) -> String {
    const KIB: usize = 1024;
    const MIB: usize = KIB * KIB;
    match bytes {
        0 => "0".to_owned(),
        n if n % MIB == 0 => format!("{}MiB", n / MIB),
        n if n % KIB == 0 => format!("{}KiB", n / KIB),
        n => n.to_string(),
    }
}

/// Reads `50%` as 0.5; from 0% to 100%.
pub(super) fn parse_percent(text: &str) -> Result<f64, Fault> {
    let Some(number) = text.strip_suffix('%') else {
        return Err(Fault::new("is not a percentage").hint("write it like 50%"));
    };
    let plain = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || c == '.');
    match number.parse::<f64>() {
        Ok(percent) if plain && percent <= 100.0 => Ok(percent / 100.0),
        Ok(_) => Err(Fault::new("is out of range").hint("give 0% to 100%")),
        Err(_) => Err(Fault::new("is not a percentage").hint("write it like 50%")),
    }
}

fn too_long() -> Fault {
    Fault::new("is longer than 24h").hint("no part of a pod's end takes that long; check the unit")
}

/// Milliseconds in each unit, largest first.
const UNITS: &[(&str, u64)] = &[("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

pub(super) const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
