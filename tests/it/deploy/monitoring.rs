//! Owns tests of `deploy/monitoring`: rules that Prometheus takes and that fire when they should, a dashboard that is
//! complete, and neither naming what there is not.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::queries::{Names, names};
use super::{documents, output_of};
use crate::tidy::{self, assert_none, assert_part, root};

const OPERATOR: &str = "\
# Made of rules.yaml by the tests (UPDATE_EXPECT=1); change that one.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: ebbtide
spec:
";

fn folder() -> PathBuf {
    root().join("deploy/monitoring")
}

fn text(name: &str) -> String {
    tidy::read(&format!("deploy/monitoring/{name}"))
}

fn yaml(name: &str) -> Value {
    documents(&text(name)).remove(0)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}")).iter()
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no string: {value}"))
}

fn rules() -> Vec<Value> {
    list(&yaml("rules.yaml")["groups"]).flat_map(|group| list(&group["rules"]).cloned().collect::<Vec<_>>()).collect()
}

fn alerts() -> Vec<Value> {
    rules().into_iter().filter(|rule| rule["alert"].is_string()).collect()
}

fn records() -> BTreeSet<String> {
    rules().iter().filter_map(|rule| rule["record"].as_str().map(str::to_owned)).collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&text("dashboard.json")).unwrap()
}

/// The queries of the panels, each with the name of its place.
fn panel_queries() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let panels = list(&dashboard["panels"]).filter(|panel| panel["type"] != "row");
    let queries = panels.flat_map(|panel| {
        list(&panel["targets"]).map(move |target| {
            let place = format!("panel_{}:{}", panel["id"], string(&target["refId"]).to_lowercase());
            (place, string(&target["expr"]).to_owned())
        })
    });
    queries.collect()
}

/// `None` without promtool.
fn promtool(arguments: &[&str]) -> Option<String> {
    let output = output_of("promtool", arguments, &folder())?;
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "promtool {arguments:?}\n{told}");
    Some(told)
}

#[test]
fn promtool_takes_the_rules() {
    let Some(told) = promtool(&["check", "rules", "rules.yaml"]) else { return };
    assert!(told.contains(&format!("{} rules found", rules().len())), "{told}");
}

#[test]
fn every_alert_fires_when_it_should_and_only_then() {
    promtool(&["test", "rules", "tests.yaml"]);
}

#[test]
fn the_operator_gets_the_same_rules() {
    let rules = text("rules.yaml");
    let (_, groups) = rules.split_once("\ngroups:\n").unwrap();
    let lines = groups.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") });
    let expected = format!("{OPERATOR}  groups:\n{}", lines.collect::<String>());
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(folder().join("prometheusrule.yaml"), &expected).unwrap();
    }
    assert!(text("prometheusrule.yaml") == expected, "out of date; run the tests with UPDATE_EXPECT=1");
    assert_eq!(yaml("prometheusrule.yaml")["spec"], yaml("rules.yaml"));
}

/// Somebody reads them at night: what it is, what to do, and where there is more.
#[test]
fn every_alert_says_what_to_do_and_has_a_section() {
    let page = tidy::read("docs/user/troubleshooting.md");
    let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("### Ebbtide")).collect();
    let alerts = alerts();
    let named: Vec<&str> = alerts.iter().map(|alert| &string(&alert["alert"])["Ebbtide".len()..]).collect();
    assert_eq!(sections, named, "the sections are those of the alerts, in their order");
    for alert in &alerts {
        let name = string(&alert["alert"]);
        assert!(["info", "warning", "critical"].contains(&string(&alert["labels"]["severity"])), "{name}");
        let annotations = &alert["annotations"];
        let runbook = format!("docs/user/troubleshooting.md#{}", name.to_lowercase());
        assert_eq!(annotations["runbook_url"], runbook.as_str());
        assert!(string(&annotations["summary"]).contains("{{ $labels.namespace }}/{{ $labels.workload }}"), "{name}");
        assert!(string(&annotations["description"]).contains("$value"), "{name}");
    }
}

/// What promtool can't see: that no alert is left out, and that each has something near to it that does not fire.
#[test]
fn every_alert_has_a_test_that_fires_it_alone() {
    let tests = yaml("tests.yaml");
    for alert in alerts() {
        let name = string(&alert["alert"]);
        let test = list(&tests["tests"]).find(|test| test["name"] == name).unwrap_or_else(|| panic!("{name}: no test"));
        let series: Vec<&str> = list(&test["input_series"]).map(|one| string(&one["series"])).collect();
        for workload in ["bad", "fine"] {
            let label = format!("workload={workload:?}");
            assert!(series.iter().any(|one| one.contains(&label)), "{name}: no series of {workload}");
        }
        let fired: Vec<&str> = list(&test["promql_expr_test"])
            .inspect(|query| {
                assert_eq!(query["expr"], "ALERTS{alertstate=\"firing\"}", "{name}: all alerts are looked at")
            })
            .flat_map(|query| list(&query["exp_samples"]).map(|sample| string(&sample["labels"])))
            .collect();
        assert!(fired.iter().any(|one| one.contains("workload=\"bad\"")), "{name}: never fires");
        assert!(fired.iter().all(|one| one.contains(&format!("alertname={name:?}"))), "{name}: {fired:?}");
        assert!(fired.iter().all(|one| !one.contains("workload=\"fine\"")), "{name}: {fired:?}");
    }
}

#[test]
fn rules_and_panels_name_what_there_is() {
    let records = records();
    let of_rules = rules().into_iter().map(|rule| {
        let place = rule["alert"].as_str().or_else(|| rule["record"].as_str()).unwrap().to_owned();
        (place, string(&rule["expr"]).to_owned())
    });
    let dashboard = dashboard();
    let variables = list(&dashboard["templating"]["list"]).filter(|variable| variable["type"] == "query");
    let of_variables = variables.map(|it| (string(&it["name"]).to_owned(), string(&it["query"]["query"]).to_owned()));
    let all: Vec<_> = of_rules.chain(panel_queries()).chain(of_variables).collect();
    let wrong = all.iter().flat_map(|(place, expression)| {
        let Names { metrics, unknown, .. } = names(expression, &records);
        assert!(!metrics.is_empty(), "{place}: nothing of ebbtide in {expression}");
        unknown.into_iter().map(move |what| format!("{place}: {what}"))
    });
    assert_none("the table of metrics does not know", wrong.collect());
}

#[test]
fn annotations_use_the_labels_that_an_alert_has() {
    let (rules, records) = (rules(), records());
    for alert in alerts() {
        let of_alert = names(string(&alert["expr"]), &records);
        let mut labels = of_alert.labels;
        for record in
            rules.iter().filter(|rule| rule["record"].as_str().is_some_and(|it| of_alert.metrics.contains(it)))
        {
            labels.extend(names(string(&record["expr"]), &records).labels);
        }
        let text = alert["annotations"].to_string();
        for used in text.split("$labels.").skip(1) {
            let used = used.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
            assert!(labels.contains(used), "{}: {used} is not in {labels:?}", alert["alert"]);
        }
    }
}

#[test]
fn every_panel_can_be_understood() {
    let dashboard = dashboard();
    let mut ids = BTreeSet::new();
    for panel in list(&dashboard["panels"]) {
        let title = string(&panel["title"]);
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: the id is used twice");
        assert!(!title.is_empty());
        if panel["type"] == "row" {
            continue;
        }
        assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{title}: no description");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title}: no unit");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for target in list(&panel["targets"]) {
            for variable in ["namespace", "workload", "pod"] {
                let matcher = format!("{variable}=~\"${variable}\"");
                assert!(string(&target["expr"]).contains(&matcher), "{title}: {variable} does not select");
            }
        }
    }
    let variables = list(&dashboard["templating"]["list"]).map(|variable| string(&variable["name"]));
    assert_eq!(variables.collect::<Vec<_>>(), ["datasource", "namespace", "workload", "pod"]);
}

/// Grafana would only show an empty panel.
#[test]
fn promtool_can_read_the_panels() {
    let rules = panel_queries().into_iter().map(|(place, expression)| {
        let expression = expression.replace("$__rate_interval", "1m").replace("$__range", "30m");
        json!({"record": place, "expr": expression})
    });
    let rules: Vec<Value> = rules.collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    // JSON is YAML.
    std::fs::write(file.path(), json!({"groups": [{"name": "panels", "rules": rules}]}).to_string()).unwrap();
    promtool(&["check", "rules", file.path().to_str().unwrap()]);
}

/// Prometheus with the operator and without it give the same labels.
#[test]
fn both_ways_to_scrape_set_the_same_labels() {
    let monitor = yaml("podmonitor.yaml")["spec"]["podMetricsEndpoints"][0].clone();
    let job = yaml("prometheus.yaml")["scrape_configs"][0].clone();
    let camel = json!(monitor["relabelings"]).to_string();
    let snake = camel.replace("sourceLabels", "source_labels").replace("targetLabel", "target_label");
    let relabelings: Vec<Value> = serde_json::from_str(&snake).unwrap();
    assert!(!relabelings.is_empty() && job["relabel_configs"].as_array().unwrap().ends_with(&relabelings));
    assert_eq!(job["relabel_configs"][0]["regex"], monitor["port"]);
    assert_eq!((&job["scrape_interval"], &job["scrape_timeout"]), (&monitor["interval"], &monitor["scrapeTimeout"]));
}

#[test]
fn the_metrics_page_has_the_alerts() {
    let mut table = String::from("| Alert | Severity | For | Says |\n|---|---|---|---|\n");
    for alert in alerts() {
        let name = string(&alert["alert"]);
        let says = string(&alert["annotations"]["summary"]);
        let says = says.replace("{{ $labels.namespace }}/{{ $labels.workload }}", "`shop/web`");
        let severity = string(&alert["labels"]["severity"]);
        let length = alert["for"].as_str().unwrap_or("–");
        let section = format!("troubleshooting.md#{}", name.to_lowercase());
        table.push_str(&format!("| [{name}]({section}) | {severity} | {length} | {says} |\n"));
    }
    assert_part("docs/user/metrics.md", "alerts", &table);
}
