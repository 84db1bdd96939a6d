//! The result: the table of both sides, ebbtide's report, and the verdict.

use std::io::{self, Write};

use serde::Serialize;

use super::outcome::{Counts, Failure, LoadKind, Outcome, SidecarEnd};

/// Everything that `--output json` prints.
#[derive(Debug, Serialize)]
struct Document<'a> {
    lost_nothing: bool,
    verdict: String,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// The result as one JSON document.
pub(super) fn write_json(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    let document = Document { lost_nothing: outcome.lost_nothing(), verdict: outcome.verdict(), outcome };
    serde_json::to_writer_pretty(&mut *out, &document).map_err(io::Error::from)?;
    writeln!(out)
}

/// The result for people.
pub(super) fn write_text(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    writeln!(out)?;
    table(out, outcome)?;
    if let Some(end) = &outcome.with_ebbtide.ebbtide {
        report(out, end)?;
    }
    writeln!(out, "\n{}", outcome.verdict())
}

fn table(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    let (without, with) = (&outcome.without_ebbtide, &outcome.with_ebbtide);
    writeln!(out, "{:27}{:>22}    {:>22}", "", "without ebbtide", "with ebbtide")?;
    writeln!(out, "{:27}{:>12}{:>10}    {:>12}{:>10}", "", "requests", "failed", "requests", "failed")?;
    rule(out)?;
    for kind in LoadKind::ALL {
        let (left, right) = (without.counts(kind), with.counts(kind));
        counts(out, kind.label(), (left.requests, left.failed), (right.requests, right.failed))?;
        for failure in Failure::ALL {
            breakdown(out, failure, &left, &right)?;
        }
    }
    rule(out)?;
    counts(out, "all", without.totals(), with.totals())?;
    writeln!(out)?;
    let late = [without, with].map(|side| grouped(side.flows.to_a_late));
    fact(out, "late connections to pod A", &late)?;
    fact(out, "refused unseen, sent again", &[without, with].map(|side| grouped(side.again().0)))?;
    fact(out, "told to connect again", &[without, with].map(|side| grouped(side.again().1)))?;
    fact(out, "pod A gone after", &[without, with].map(|side| format!("{:.2} s", side.pod_gone_seconds)))
}

/// A line about each side that counts no requests.
fn fact(out: &mut dyn Write, label: &str, [left, right]: &[String; 2]) -> io::Result<()> {
    writeln!(out, "{label:27}{left:>22}    {right:>22}")
}

fn rule(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{:-<75}", "")
}

fn counts(out: &mut dyn Write, label: &str, left: (u64, u64), right: (u64, u64)) -> io::Result<()> {
    let [a, b, c, d] = [left.0, left.1, right.0, right.1].map(grouped);
    writeln!(out, "{label:27}{a:>12}{b:>10}    {c:>12}{d:>10}")
}

/// One kind of failure, if either side has seen it.
fn breakdown(out: &mut dyn Write, failure: Failure, left: &Counts, right: &Counts) -> io::Result<()> {
    let [left, right] = [left, right].map(|counts| counts.failures.get(&failure).copied().unwrap_or(0));
    if left == 0 && right == 0 {
        return Ok(());
    }
    let [left, right] = [left, right].map(|count| if count == 0 { "-".to_owned() } else { grouped(count) });
    writeln!(out, "    {:23}{left:>22}    {right:>22}", failure.label())
}

fn report(out: &mut dyn Write, end: &SidecarEnd) -> io::Result<()> {
    match &end.report {
        Some(serde_json::Value::String(text)) => writeln!(out, "\nebbtide's report:\n{text}")?,
        Some(report) => writeln!(out, "\nebbtide's report:\n{report:#}")?,
        None => writeln!(out, "\nebbtide left no report.")?,
    }
    match &end.log_tail {
        Some(tail) => writeln!(out, "\nThe end of ebbtide's log:\n{tail}"),
        None => Ok(()),
    }
}

/// A number with commas between groups of three digits.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::outcome::{Flows, Side};
    use super::*;

    fn outcome() -> Outcome {
        let mut without = Side::default();
        let mut with = Side { flows: Flows { to_a: 1, to_a_late: 1, to_b: 1 }, ..Side::default() };
        for kind in LoadKind::ALL {
            without.loads.insert(kind, Counts { requests: 1_234_567, ..Counts::default() });
            with.loads.insert(kind, Counts { requests: 1000, ..Counts::default() });
        }
        for _ in 0..1234 {
            without.loads.entry(LoadKind::NewConnection).or_default().record(Err(Failure::Refused));
        }
        with.loads.entry(LoadKind::GrpcStream).or_default().told = 4;
        with.ebbtide = Some(SidecarEnd { exit_code: Some(0), ..SidecarEnd::default() });
        Outcome { without_ebbtide: without, with_ebbtide: with }
    }

    #[test]
    fn the_table_names_the_kinds_that_occurred() {
        let mut out = Vec::new();
        write_text(&mut out, &outcome()).expect("must write");
        let text = String::from_utf8(out).expect("must be text");
        let expected = "
                                  without ebbtide              with ebbtide
                               requests    failed        requests    failed
---------------------------------------------------------------------------
keep-alive POST               1,234,567         0           1,000         0
new connection                1,235,801     1,234           1,000         0
    connection refused                      1,234                         -
slow request                  1,234,567         0           1,000         0
HTTP/2 request                1,234,567         0           1,000         0
gRPC unary call               1,234,567         0           1,000         0
gRPC server stream            1,234,567         0           1,000         0
WebSocket session             1,234,567         0           1,000         0
server-sent events            1,234,567         0           1,000         0
raw TCP request               1,234,567         0           1,000         0
---------------------------------------------------------------------------
all                          11,112,337     1,234           9,000         0

late connections to pod A                       0                         1
refused unseen, sent again                      0                         0
told to connect again                           0                         4
pod A gone after                           0.00 s                    0.00 s

ebbtide left no report.

Lost without ebbtide: 1,234 of 11,112,337 requests; with ebbtide: none of 9,000.
";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.len() <= 100));
    }

    #[test]
    fn json_is_one_document_with_the_verdict() {
        let mut out = Vec::new();
        write_json(&mut out, &outcome()).expect("must write");
        let json: serde_json::Value = serde_json::from_slice(&out).expect("must parse");
        assert_eq!(json["lost_nothing"], true);
        assert_eq!(json["without_ebbtide"]["loads"]["new_connection"]["failures"]["refused"], 1234);
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!(["0", "999", "1,000", "12,345", "123,456"], [0, 999, 1000, 12_345, 123_456].map(grouped).as_slice());
    }
}
