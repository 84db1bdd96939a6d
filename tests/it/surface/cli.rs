//! Owns tests of the command line: help, faults, exit codes, output forms.

use std::process::Stdio;

use serde_json::Value;
use tokio::io::AsyncReadExt;

use super::serving;
use crate::harness::ebbtide::Config;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Exit code, stdout, stderr.
pub(super) async fn run(config: &Config, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = config.command(arguments).kill_on_drop(true).output().await.unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn the_help_of_every_command_has_an_example() {
    let config = Config::new();
    let commands: [&[&str]; 12] = [
        &[],
        &["run"],
        &["drain"],
        &["status"],
        &["config"],
        &["config", "check"],
        &["config", "show"],
        &["config", "schema"],
        &["inject"],
        &["check"],
        &["budget"],
        &["demo"],
    ];
    for command in commands {
        let (code, out, err) = run(&config, &[command, &["--help"]].concat()).await;
        assert_eq!((code, err.as_str()), (Some(0), ""), "{command:?}");
        assert!(out.contains("Example") && out.contains("ebbtide "), "{command:?}\n{out}");
    }
    let (code, out, _) = run(&config, &["--version"]).await;
    assert_eq!((code, out), (Some(0), format!("ebbtide {}\n", env!("CARGO_PKG_VERSION"))));
}

#[tokio::test]
async fn bad_usage_is_exit_code_2() {
    let config = Config::new();
    let faults: [&[&str]; 10] = [
        &[],
        &["--no-such-flag"],
        &["no-such-command"],
        &["run", "--no-such-flag"],
        &["run", "surplus"],
        &["status", "--output", "xml"],
        &["config", "check"],
        &["config", "show", "--no-such-flag"],
        &["config", "schema", "surplus"],
        &["demo", "--hold", "16s"],
    ];
    for arguments in faults {
        let (code, out, err) = run(&config, arguments).await;
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(err.contains("--help") || err.contains("Usage"), "{arguments:?}\n{err}");
    }
}

#[tokio::test]
async fn all_faults_of_a_configuration_come_at_once() {
    let config = Config::new()
        .yaml("mode: sidecar\nlisteners: [{name: web, upstream: 'ftp://a'}]\ndrain: {hold: 10, quit: 1s}\n")
        .env("EBBTIDE_GRACE_PERIOD", "half a minute")
        .env("EBBTIDE_HOLDD", "10s");
    for command in [&["run", "--margin", "lots"] as &[&str], &["config", "show", "--margin", "lots"]] {
        let (code, out, err) = run(&config, command).await;
        assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
        for part in [
            "listeners[0].upstream",
            "EBBTIDE_CONFIG_YAML:3:15: drain.hold = \"10\": has no unit",
            "drain.quit: unknown key",
            "EBBTIDE_GRACE_PERIOD",
            "EBBTIDE_HOLDD: unknown variable",
            "did you mean EBBTIDE_HOLD?",
            "--margin: drain.margin = \"lots\"",
        ] {
            assert!(err.contains(part), "no {part:?} in\n{err}");
        }
    }
    let (code, _, err) = run(&Config::new(), &["run", "--hold", "-5s"]).await;
    assert!(code == Some(2) && err.contains("--hold: drain.hold = \"-5s\""), "{err}");
}

#[tokio::test]
async fn config_check_takes_every_example_and_names_a_fault() {
    let config = Config::new();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let mut checked = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path().display().to_string();
        if !path.ends_with(".yaml") {
            continue;
        }
        let (code, out, err) = run(&config, &["config", "check", &path]).await;
        assert_eq!((code, out, err), (Some(0), format!("{path}: ok\n"), String::new()));
        checked += 1;
    }
    assert!(checked >= 6);

    let path = config.path("bad.yaml");
    std::fs::write(&path, "listeners: [{name: web}]\nlog: {level: loud}\n").unwrap();
    let path = path.display().to_string();
    let (code, out, err) = run(&config, &["config", "check", &path]).await;
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.contains("bad.yaml:2:14: log.level") && err.contains("upstream"), "{err}");
    let (code, out, _) = run(&config, &["config", "check", &path, "--output", "json"]).await;
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, answer["errors"].as_array().unwrap().len()), (Some(2), 2), "{answer}");
    let (code, _, err) = run(&config, &["config", "check", "/no/such/file"]).await;
    assert_eq!(code, Some(1), "{err}");
}

#[tokio::test]
async fn drain_answers_json_as_well() {
    let (_app, ebbtide) = serving(Config::new()).await;
    let output = ebbtide.run(&["drain", "--output", "json"]).await;
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["phase"], "holding");
    assert!(status["seconds_since_t0"].as_f64().unwrap() < 1.0);
}

#[tokio::test]
async fn a_reader_that_has_had_enough_is_no_failure() {
    let (_app, ebbtide) = serving(Config::new()).await;
    for arguments in [
        &["--help"] as &[&str],
        &["run", "--help"],
        &["config", "show"],
        &["config", "schema"],
        &["status"],
        &["drain"],
    ] {
        let mut command = ebbtide.config.command(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        drop(child.stdout.take());
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).await.unwrap();
        assert_eq!((child.wait().await.unwrap().code(), said.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[tokio::test]
async fn the_demo_plays_every_kind_of_client_and_loses_nothing_with_ebbtide() {
    let config = Config::new();
    let arguments = ["demo", "--rate", "200", "--hold", "2", "--lag", "1", "--output", "json"];
    let (code, out, progress) = run(&config, &arguments).await;
    let outcome: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}\n{progress}"));
    assert_eq!((code, outcome["lost_nothing"].as_bool()), (Some(0), Some(true)), "{outcome:#}");
    let (without, with) = (&outcome["without_ebbtide"]["loads"], &outcome["with_ebbtide"]["loads"]);
    let endless = ["grpc_stream", "web_socket", "event_stream", "raw_tcp"];
    let kinds = ["keep_alive_post", "new_connection", "slow_request", "http2_request", "grpc_unary"];
    for kind in kinds.into_iter().chain(endless) {
        assert!(with[kind]["requests"].as_u64() > Some(0), "{kind}: {outcome:#}");
    }
    for kind in endless {
        // What the same clients come to without anybody who tells them.
        assert!(without[kind]["failed"].as_u64() > Some(0), "{kind}: {outcome:#}");
        assert!(with[kind]["told"].as_u64() > Some(0), "{kind}: {outcome:#}");
        // An app that dies between two bursts looks to its TCP clients as if it had closed in order.
        assert!(kind == "raw_tcp" || without[kind]["told"].as_u64() == Some(0), "{kind}: {outcome:#}");
    }
}
