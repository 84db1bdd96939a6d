//! Owns tests of the process: its start, its end, its log.

use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::serving;
use crate::harness::client::{Request, send};
use crate::harness::ebbtide::Config;
use crate::harness::ebbtide::surface::get;
use crate::harness::process::Exit;
use crate::harness::wait::{Mono, eventually_async};
use crate::harness::{SOON, fresh_ip};

#[tokio::test]
async fn a_taken_port_is_named_with_the_setting_that_changes_it() {
    let taken: Vec<TcpListener> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<String> = taken.iter().map(|one| one.local_addr().unwrap().to_string()).collect();
    let config = Config::new()
        .env("EBBTIDE_LISTEN", &addresses[0])
        .env("EBBTIDE_ADMIN", &addresses[1])
        .upstream("http://127.0.0.1:9");
    let output = config.command(&["run"]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    for part in [&addresses[0], &addresses[1], "EBBTIDE_LISTEN", "EBBTIDE_ADMIN", "another process has this port"] {
        assert!(said.contains(part), "no {part} in {said}");
    }
}

#[tokio::test]
async fn a_signal_before_the_app_is_up_ends_it_at_once() {
    for mode in ["sidecar", "plain"] {
        for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
            let config = Config::new().env("EBBTIDE_MODE", mode).upstream("http://127.0.0.1:9");
            let ebbtide = config.start().await;
            let began = Mono::now();
            ebbtide.signal(signal);
            assert_eq!(ebbtide.exit(SOON).await, Exit::Code(0), "{mode} {signal:?}");
            assert!(began.elapsed() < Duration::from_secs(2), "{mode} {signal:?}: {:?}", began.elapsed());
        }
    }
}

/// From the very first moment on; there is no time at which a signal kills.
#[tokio::test]
async fn a_signal_during_the_start_is_no_failure() {
    for delay in [5, 10, 20, 40, 80] {
        let config = Config::new().env("EBBTIDE_MODE", "sidecar").upstream("http://127.0.0.1:9");
        let process = config.spawn(|_, _| {});
        tokio::time::sleep(Duration::from_millis(delay)).await;
        process.signal(Signal::TERM);
        let exit = process.exit(SOON).await;
        // Before main nobody can handle it; such a process has written nothing yet.
        let too_early = exit == Exit::Signal(15) && process.log_text().is_empty();
        assert!(exit == Exit::Code(0) || too_early, "{delay} ms: {exit}\n{}", process.log_text());
    }
}

#[tokio::test]
async fn every_line_of_the_json_log_is_an_object() {
    let (_app, ebbtide) = serving(Config::new().env("EBBTIDE_LOG", "trace").env("EBBTIDE_HOLD", "100ms")).await;
    assert_eq!(send(ebbtide.inbound().await, &Request::echo(10), SOON).await.unwrap().status, 200);
    ebbtide.drain().await;
    ebbtide.phase_becomes("lingering", SOON).await;
    ebbtide.signal(Signal::TERM);
    assert_eq!(ebbtide.exit(SOON).await, Exit::Code(0));
    let log = ebbtide.log_text();
    for line in log.lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for key in ["timestamp", "level", "message"] {
            assert!(event[key].is_string(), "{line}");
        }
    }
    for message in ["ebbtide starts", "listening", "phase changed", "termination report", "exiting"] {
        assert!(!ebbtide.log_events(message).is_empty(), "no {message:?} in\n{log}");
    }
}

#[tokio::test]
async fn the_text_log_is_for_people() {
    let config = Config::new()
        .env("EBBTIDE_LOG_FORMAT", "text")
        .env("EBBTIDE_LOG", "warn")
        .env("EBBTIDE_GRACE_PERIOD", "10s")
        .env("EBBTIDE_HOLD", "10s")
        .upstream("http://127.0.0.1:9");
    let process = config.spawn(|_, _| {});
    crate::harness::wait::eventually("the warning of a hold that does not fit", SOON, || {
        let log = process.log_text();
        if log.contains("exceed the grace period of 10s") { Ok(()) } else { Err(log) }
    })
    .await;
    process.signal(Signal::TERM);
    assert_eq!(process.exit(SOON).await, Exit::Code(0));
    let log = process.log_text();
    assert!(log.lines().all(|line| line.contains(" WARN ")), "only warnings were asked for: {log}");
    assert!(!log.contains('\u{1b}'), "no colours in a file: {log}");
}

#[tokio::test]
async fn no_secret_is_ever_logged() {
    let secret = "a-secret-of-the-house";
    let config = Config::new()
        .env("EBBTIDE_LOG", "trace")
        .env("EBBTIDE_ADMIN_TOKEN", secret)
        .env("EBBTIDE_GRACE_PERIOD", "10m")
        .yaml("log: {access: on}");
    let (_app, ebbtide) = serving(config).await;
    let inbound = ebbtide.inbound().await;
    let request = Request::get(&format!("/headers?token={secret}"))
        .header("Authorization", secret)
        .header("Cookie", secret)
        .header("X-Ebbtide-Token", secret);
    assert_eq!(send(inbound, &request, SOON).await.unwrap().status, 200);
    ebbtide.drain().await;
    let hook = send(ebbtide.admin, &Request::get("/app-stop").header("X-Ebbtide-Token", secret), super::MOMENT).await;
    assert!(hook.is_err(), "the hook is held");
    ebbtide.signal(Signal::TERM);
    ebbtide.exit(SOON).await;
    assert_eq!(ebbtide.logged("request", 1).await.len(), 1, "{}", ebbtide.log_text());
    assert!(!ebbtide.log_text().contains(secret), "{}", ebbtide.log_text());
    assert!(!ebbtide.termination_text().contains(secret));

    let faulty = Config::new().env("EBBTIDE_ADMIN_TOKEN", &format!("{secret} \t")).upstream("http://127.0.0.1:9");
    let output = faulty.command(&["config", "show"]).output().await.unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains(secret), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains(secret), "{output:?}");
}

#[tokio::test]
async fn a_log_that_nobody_reads_stops_nothing() {
    let admin = SocketAddr::new(fresh_ip(), 14090);
    let config = Config::new().env("EBBTIDE_ADMIN", &admin.to_string()).upstream("http://127.0.0.1:9");
    let mut command = config.command(&["run"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    drop(child.stdout.take());
    drop(child.stderr.take());
    eventually_async("an answer", SOON, || get(admin, "/startupz", "kube-probe/1.36", SOON)).await;
    let pid = rustix::process::Pid::from_raw(child.id().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn the_kubelets_file_is_written_and_no_other_is_made() {
    let config = Config::new().without("EBBTIDE_TERMINATION_MESSAGE_PATH").upstream("http://127.0.0.1:9");
    let default = std::path::Path::new("/dev/termination-log");
    if default.exists() {
        eprintln!("skipped: this machine has a {}", default.display());
        return;
    }
    let ebbtide = config.start().await;
    ebbtide.signal(Signal::TERM);
    assert_eq!(ebbtide.exit(SOON).await, Exit::Code(0));
    assert!(!default.exists());
}
