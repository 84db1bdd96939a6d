//! Owns tests of `/metrics`: its form, its honesty through a deletion, and the page that explains it.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide::telemetry::metrics::TABLE;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;

use super::{MOMENT, serving, serving_as};
use crate::harness::SOON;
use crate::harness::app::{AppOptions, OnTerm};
use crate::harness::client::{Pool, Raw, Request, fresh_id, send};
use crate::harness::ebbtide::Config;
use crate::harness::ebbtide::metrics::Metrics;
use crate::harness::ebbtide::surface::get;
use crate::harness::pod::{Event, Pod, Who};
use crate::harness::process::Exit;
use crate::harness::wait::Mono;

/// The exposition obeys the table: every row with HELP and TYPE, and no sample that is not in it.
fn assert_form(text: &str) {
    let scrape = Metrics::parse(text);
    for row in TABLE {
        let of_certificates = row.label.is_some_and(|(_, values)| values.is_empty()) && row.name.contains("_tls_");
        if of_certificates && scrape.all(row.name, &[]).count() == 0 {
            // Nobody speaks TLS here.
            continue;
        }
        assert!(text.contains(&format!("# HELP {} {}\n", row.name, row.help)), "{} has no HELP\n{text}", row.name);
        assert!(text.contains(&format!("# TYPE {} {}\n", row.name, row.kind)), "{} has no TYPE\n{text}", row.name);
        let Some((label, values)) = row.label else {
            assert!(scrape.value(row.name, &[]).is_some(), "{} has no sample", row.name);
            continue;
        };
        let outer = row.outer.map_or(1, |(_, values)| values.len());
        for value in values {
            assert_eq!(scrape.all(row.name, &[(label, value)]).count(), outer, "{}{{{label}={value:?}}}", row.name);
        }
        let samples = scrape.all(row.name, &[]).count();
        let expected = values.len() * outer;
        assert!(samples == expected || (values.is_empty() && samples > 0), "{} has {samples} samples", row.name);
    }
    for name in scrape.names() {
        assert!(TABLE.iter().any(|row| row.name == name), "{name} is not in the table");
    }
    let phases: Vec<f64> = scrape.all("ebbtide_phase", &[]).map(|sample| sample.value).collect();
    assert_eq!(phases.iter().sum::<f64>(), 1.0, "one phase at a time: {phases:?}");
}

/// Every counter's samples, by name and label.
fn counters(scrape: &Metrics) -> BTreeMap<String, f64> {
    let rows = TABLE.iter().filter(|row| row.kind == "counter");
    rows.flat_map(|row| scrape.all(row.name, &[])).map(|s| (format!("{}{:?}", s.name, s.labels), s.value)).collect()
}

#[tokio::test]
async fn the_exposition_is_what_the_table_says() {
    let (_app, ebbtide) = serving(Config::new()).await;
    assert_form(&ebbtide.get("/metrics").await.unwrap().body);
    for row in TABLE {
        assert_eq!(row.kind == "counter", row.name.ends_with("_total"), "{}", row.name);
        assert!(row.name.starts_with("ebbtide_") && row.help.ends_with('.'), "{}", row.name);
    }
}

#[tokio::test]
async fn promtool_has_nothing_to_say() {
    let (_app, ebbtide) = serving(Config::new()).await;
    let text = ebbtide.get("/metrics").await.unwrap().body;
    let promtool = tokio::process::Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        eprintln!("skipped: no promtool here (it is in Debian's package prometheus)");
        return;
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).await.unwrap();
    let output = promtool.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (b"".as_slice(), b"".as_slice()));
}

/// C98: from start to exit somebody who scrapes sees the drain, and the report says the same.
#[tokio::test]
async fn scrapes_through_a_deletion_agree_with_the_clients_and_the_report() {
    let app = AppOptions { on_term: OnTerm::ExitAfter(Duration::from_secs(1)), ..AppOptions::default() };
    let pod = Pod::builder().grace(14).hold("2s").app_stop("2s").app(app).start().await;
    pod.ready().await;
    let ebbtide = pod.ebbtide();
    let admin = pod.admin();
    let scraping = tokio::spawn(async move {
        let mut scrapes = Vec::new();
        while let Ok(got) = get(admin, "/metrics", "Prometheus/3.0", SOON).await {
            assert_eq!(got.status, 200);
            scrapes.push((Mono::now(), got.body));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        scrapes
    });

    // The script: 30 requests before t0, 20 in the hold (one on a new connection), one app error, one client that
    // leaves, an idle connection.
    let pool = Pool::new(pod.address(), 5);
    for _ in 0..30 {
        assert!(pool.send(&Request::echo(100), &fresh_id(), SOON).await.1.is_some());
    }
    assert!(send(pod.address(), &Request::get("/status?code=500"), SOON).await.is_ok());
    let mut leaves = Raw::connect(pod.address()).await.unwrap();
    leaves.send("GET /chunks?n=1000&every_ms=20 HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    leaves.read_until(b"piece 1", SOON).await.unwrap();
    leaves.reset();
    ebbtide.metric_becomes("ebbtide_requests_total", &[("outcome", "abandoned")], SOON, |n| n == 1.0).await;
    let deletion = pod.delete(14);
    let t0 = pod.timeline().wait_for(Event::Deleting(14), SOON).await;
    tokio::time::sleep(MOMENT).await;
    for _ in 0..19 {
        assert!(pool.send(&Request::echo(100), &fresh_id(), SOON).await.1.is_some());
    }
    assert!(send(pod.address(), &Request::echo(100), SOON).await.is_ok());
    deletion.finished().await;
    let scrapes = scraping.await.unwrap();

    let (last_at, last) = scrapes.last().unwrap();
    let stopping = pod.timeline().at(Event::Signalled(Who::App(0), Signal::TERM));
    assert!(*last_at > stopping, "no scrape while the app ends\n{}", pod.timeline().table());
    let mut before = BTreeMap::new();
    let mut phases = Vec::new();
    for (_, text) in &scrapes {
        assert_form(text);
        let scrape = Metrics::parse(text);
        let now = counters(&scrape);
        for (name, value) in &before {
            assert!(now[name] >= *value, "{name} went from {value} to {}", now[name]);
        }
        before = now;
        phases.extend(scrape.all("ebbtide_phase", &[]).filter(|s| s.value == 1.0).map(|s| s.labels["phase"].clone()));
    }
    phases.dedup();
    // Seen only by a scrape in the very last moment.
    phases.retain(|phase| phase != "terminated");
    assert_eq!(phases, ["serving", "holding", "draining", "lingering"]);

    let last = Metrics::parse(last);
    let value = |name: &str, label: &[(&str, &str)]| last.value(name, label).unwrap();
    let by_outcome = |outcome| last.sum("ebbtide_requests_total", &[("outcome", outcome)]);
    assert_eq!([by_outcome("app_2xx"), by_outcome("app_5xx"), by_outcome("abandoned")], [50.0, 1.0, 1.0]);
    assert_eq!(last.sum("ebbtide_requests_total", &[]), 52.0);
    assert_eq!(last.sum("ebbtide_in_flight", &[]), 0.0);
    assert_eq!(last.sum("ebbtide_forced_endings_total", &[]), 0.0);
    assert_eq!(value("ebbtide_requests_after_termination_total", &[]), 20.0);
    let arrival = value("ebbtide_last_arrival_after_termination_seconds", &[]);
    assert!((0.2..4.0).contains(&arrival), "{arrival}");
    let connection = value("ebbtide_last_connection_after_termination_seconds", &[]);
    assert!((0.2..=arrival).contains(&connection), "{connection}");
    let hold = value("ebbtide_hold_duration_seconds", &[]);
    assert!((2.0..4.0).contains(&hold), "{hold}");
    let started = value("ebbtide_termination_start_time_seconds", &[]);
    let real = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((real - started - t0.elapsed().as_secs_f64()).abs() < 3.0, "{started}");
    assert_eq!(value("ebbtide_own_hook_missing", &[]) + value("ebbtide_app_hook_missing", &[]), 0.0);

    // The report, in the termination message and in the log, has the same numbers.
    let report = ebbtide.report(SOON).await;
    let logged = ebbtide.logged("termination report", 1).await;
    assert_eq!(logged.len(), 1);
    assert_eq!(serde_json::from_str::<serde_json::Value>(logged[0]["report"].as_str().unwrap()).unwrap(), report);
    assert_eq!(report["outcome"], "drained");
    let number = |key: &str| report[key].as_f64().unwrap();
    assert_eq!(number("hold_seconds"), hold);
    assert_eq!(number("drain_seconds"), value("ebbtide_drain_duration_seconds", &[]));
    assert_eq!(number("requests_after_termination"), 20.0);
    assert_eq!(number("late_arrivals"), value("ebbtide_late_arrivals_total", &[]));
    assert_eq!(number("late_refusals"), value("ebbtide_late_refusals_total", &[]));
    assert!((number("last_arrival_seconds") - arrival).abs() < 0.001);
    assert_eq!(number("hold_needed_seconds"), connection.ceil());
    assert_eq!(value("ebbtide_grace_used_up_after_seconds", &[]), 0.0);
    for (part, label, metric) in [
        ("requests", "outcome", "ebbtide_requests_total"),
        ("notices", "kind", "ebbtide_notices_total"),
        ("forced", "kind", "ebbtide_forced_endings_total"),
        ("budget", "part", "ebbtide_budget_seconds"),
    ] {
        for sample in
            last.all(metric, &[]).filter(|sample| sample.labels.get("protocol").is_none_or(|it| it == "http1"))
        {
            let told = report[part][&sample.labels[label]].as_f64().unwrap_or(0.0);
            assert_eq!(told, sample.value, "{part}.{}: {report}", sample.labels[label]);
        }
    }
}

/// `metrics.final_scrape`: the exit waits for one scrape that starts after the drain, but not for ever.
#[tokio::test]
async fn the_exit_waits_for_a_last_scrape_if_asked_to() {
    for scraped in [true, false] {
        let config = Config::new()
            .env("EBBTIDE_GRACE_PERIOD", "20s")
            .env("EBBTIDE_HOLD", "200ms")
            .yaml("metrics: {final_scrape: 6s}");
        let (_app, ebbtide) = serving_as("plain", config).await;
        ebbtide.metrics().await;
        ebbtide.signal(Signal::TERM);
        ebbtide.phase_becomes("lingering", SOON).await;
        let began = Mono::now();
        tokio::time::sleep(MOMENT).await;
        assert!(ebbtide.process.is_running(), "a scrape before the end of the drain does not count");
        if scraped {
            assert_eq!(ebbtide.metrics().await.value("ebbtide_phase", &[("phase", "lingering")]), Some(1.0));
        }
        assert_eq!(ebbtide.exit(SOON).await, Exit::Code(0));
        let took = began.elapsed();
        assert_eq!(took < Duration::from_secs(4), scraped, "took {took:?}");
    }
}
