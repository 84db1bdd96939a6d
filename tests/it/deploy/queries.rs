//! Owns the reading of PromQL, as far as names go: whether there are the metrics, labels and values that it names.

use std::collections::BTreeSet;

use ebbtide::telemetry::metrics::{Row, TABLE};

/// What a scrape adds by itself, or by our relabelings.
const OF_THE_TARGET: &[&str] = &["cluster", "namespace", "workload", "pod"];

/// What an expression names.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Metrics and recorded series of ebbtide.
    pub(super) metrics: BTreeSet<String>,
    /// What is grouped or matched by.
    pub(super) labels: BTreeSet<String>,
    /// What there is not.
    pub(super) unknown: Vec<String>,
}

enum Token<'a> {
    Word(&'a str),
    Text(&'a str),
    Sign(char),
}

fn tokens(expression: &str) -> Vec<Token<'_>> {
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '$');
    let mut tokens = Vec::new();
    let mut rest = expression.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = if let Some(text) = rest.strip_prefix('"') {
            let end = text.find('"').expect("a closing quote");
            tokens.push(Token::Text(&text[..end]));
            end + 2
        } else if word(first) {
            let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
            tokens.push(Token::Word(&rest[..end]));
            end
        } else {
            tokens.push(Token::Sign(first));
            first.len_utf8()
        };
        rest = rest[end..].trim_start();
    }
    tokens
}

/// Reads an expression; `records` are the names of recorded series.
pub(super) fn names(expression: &str, records: &BTreeSet<String>) -> Names {
    let tokens = tokens(expression);
    let mut names = Names::default();
    let mut rows: Vec<&Row> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let next_is = |sign| matches!(tokens.get(at + 1), Some(Token::Sign(next)) if *next == sign);
        match tokens[at] {
            Token::Word("by" | "without" | "on" | "ignoring") if next_is('(') => {
                at += 2;
                while !matches!(tokens[at], Token::Sign(')')) {
                    if let Token::Word(label) = tokens[at] {
                        names.labels.insert(label.to_owned());
                    }
                    at += 1;
                }
            }
            Token::Word(metric) if metric.contains("ebbtide_") => {
                names.metrics.insert(metric.to_owned());
                // What is recorded has the labels of what it was recorded from.
                let of_it: Vec<&Row> = TABLE.iter().filter(|row| row.name == metric).collect();
                let of_it = if records.contains(metric) { TABLE.iter().collect() } else { of_it };
                if of_it.is_empty() {
                    names.unknown.push(metric.to_owned());
                }
                if next_is('{') {
                    let length = tokens[at..].iter().position(|token| matches!(token, Token::Sign('}'))).unwrap();
                    names.unknown.extend(unknown_matchers(&tokens[at + 2..at + length], &of_it, metric));
                    at += length;
                }
                rows.extend(of_it);
            }
            _ => {}
        }
        at += 1;
    }
    let strange = names.labels.iter().filter(|label| !has_label(&rows, label));
    let strange: Vec<String> = strange.map(|label| format!("no metric here has {label}")).collect();
    names.unknown.extend(strange);
    names
}

fn values<'a>(rows: &'a [&Row], label: &'a str) -> impl Iterator<Item = &'static [&'static str]> + 'a {
    rows.iter().flat_map(|row| [row.label, row.outer]).flatten().filter(move |(name, _)| *name == label).map(|it| it.1)
}

fn has_label(rows: &[&Row], label: &str) -> bool {
    OF_THE_TARGET.contains(&label) || values(rows, label).next().is_some()
}

/// `label="value"` and the like, with commas between them.
fn unknown_matchers(tokens: &[Token<'_>], rows: &[&Row], metric: &str) -> Vec<String> {
    let mut unknown = Vec::new();
    let mut label = "";
    for token in tokens {
        match token {
            Token::Word(name) => {
                label = name;
                if !has_label(rows, label) {
                    unknown.push(format!("{metric} has no {label}"));
                }
            }
            Token::Text(text) if !OF_THE_TARGET.contains(&label) => {
                for value in text.split('|') {
                    let mut known = values(rows, label);
                    if !known.any(|values| values.is_empty() || values.contains(&value)) {
                        unknown.push(format!("{metric} has no {label}={value:?}"));
                    }
                }
            }
            Token::Text(_) | Token::Sign(_) => {}
        }
    }
    unknown
}

#[test]
fn what_there_is_not_is_found() {
    let records = BTreeSet::from(["workload:ebbtide_forced_endings:max1h".to_owned()]);
    let unknown = |expression| names(expression, &records).unknown.join("; ");
    for good in [
        r#"sum by (namespace, kind) (max_over_time(ebbtide_forced_endings_total{kind!~"tunnel|session"}[1h])) > 0"#,
        r#"workload:ebbtide_forced_endings:max1h{kind="tunnel",pod=~"$pod"}"#,
        r#"ebbtide_upstream_up{listener="whatever"} and ignoring (listener, phase) ebbtide_phase{phase="serving"}"#,
        r#"sum by (protocol, outcome) (rate(ebbtide_requests_total[$__rate_interval]))"#,
    ] {
        assert_eq!(unknown(good), "", "{good}");
    }
    for (bad, found) in [
        ("ebbtide_forced_ending_total", "ebbtide_forced_ending_total"),
        (
            r#"ebbtide_in_flight{type="request"}"#,
            "ebbtide_in_flight has no type; ebbtide_in_flight has no type=\"request\"",
        ),
        (r#"ebbtide_in_flight{kind=~"request|call"}"#, "ebbtide_in_flight has no kind=\"call\""),
        ("sum by (kind) (ebbtide_requests_total)", "no metric here has kind"),
        ("workload:ebbtide_forced_endings:max2h", "workload:ebbtide_forced_endings:max2h"),
    ] {
        assert_eq!(unknown(bad), found, "{bad}");
    }
}
