//! What a word means in YAML that kubectl reads (YAML 1.1, as Go's yaml.v2 resolves it), and how text is written so
//! that it stays text.

use serde_json::{Number, Value};

/// The value of a plain (unquoted) word: `yes` is true and `0440` is 288, other than in YAML 1.2.
pub(super) fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Value::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Value::Bool(false);
        }
        _ => {}
    }
    number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number)
}

fn number(text: &str) -> Option<Number> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return None;
    }
    let text = text.replace('_', "");
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(&text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        _ if lower.len() > 1 && lower.starts_with('0') => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    let is_whole = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    if is_whole {
        let signed = i64::from_str_radix(&format!("{sign}{digits}"), radix).ok().map(Number::from);
        let unsigned = || u64::from_str_radix(digits, radix).ok().filter(|_| sign.is_empty()).map(Number::from);
        if let Some(number) = signed.or_else(unsigned) {
            return Some(number);
        }
    }
    if !is_float(&lower) {
        return None;
    }
    let float: f64 = format!("{sign}{lower}").parse().ok()?;
    let whole = float as i64;
    if whole as f64 == float && float.abs() < 9e15 { Some(Number::from(whole)) } else { Number::from_f64(float) }
}

/// `(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_float(text: &str) -> bool {
    let (mantissa, exponent) =
        text.split_once('e').map_or((text, None), |(mantissa, exponent)| (mantissa, Some(exponent)));
    let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    let mantissa_fits = match mantissa.split_once('.') {
        Some((whole, fraction)) => digits(whole) && digits(fraction) && mantissa.len() > 1,
        None => !mantissa.is_empty() && digits(mantissa),
    };
    let exponent_fits = exponent.is_none_or(|exponent| {
        let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        !exponent.is_empty() && digits(exponent)
    });
    mantissa_fits && exponent_fits
}
