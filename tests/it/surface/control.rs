//! Owns tests of the control socket: drain and status, who may ask, and where it is.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::process::{Signal, getuid};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{long_hold, ready, serving};
use crate::harness::app::AppOptions;
use crate::harness::broker::Broker;
use crate::harness::client::{Request, send};
use crate::harness::ebbtide::{Config, Ebbtide};
use crate::harness::process::Exit;
use crate::harness::wait::Mono;
use crate::harness::{SOON, fresh_ip};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Bytes through an outbound listener and back.
async fn echoed(ebbtide: &Ebbtide) -> bool {
    let mut stream = TcpStream::connect(ebbtide.address("broker").await).await.unwrap();
    stream.write_all(b"ping").await.unwrap();
    let mut back = [0; 4];
    tokio::time::timeout(SOON, stream.read_exact(&mut back)).await.unwrap().is_ok() && back == *b"ping"
}

/// C11: the own hook means "begin the drain" and nothing else.
#[tokio::test]
async fn ten_drains_are_one_drain_and_only_a_signal_ends_the_process() {
    let broker = Broker::start().await;
    let address = std::net::SocketAddr::new(fresh_ip(), 8080);
    let config = Config::new().without("EBBTIDE_LISTEN").yaml(&format!(
        "mode: sidecar\ndrain: {{grace_period: 10m, hold: 5m}}\nlisteners:\n\
         - {{name: web, bind: '127.0.0.1:0', upstream: 'http://{address}'}}\n\
         - {{name: broker, direction: outbound, bind: '127.0.0.1:0', upstream: 'tcp://{}'}}\n",
        broker.address
    ));
    let app = AppOptions::at(address).start("app", config.dir()).await;
    let ebbtide = config.start().await;
    ready(&ebbtide).await;

    for _ in 0..5 {
        let output = ebbtide.drain().await;
        assert!(output.status.success(), "{output:?}");
        assert_eq!(text(&output.stdout), "holding\n");
    }
    let together = std::iter::repeat_n((), 5).map(|()| ebbtide.drain());
    let mut tasks = Vec::new();
    for drain in together {
        tasks.push(drain);
    }
    let (a, b, c, d, e) = {
        let mut tasks = tasks.into_iter();
        let mut next = || tasks.next().unwrap();
        tokio::join!(next(), next(), next(), next(), next())
    };
    for output in [a, b, c, d, e] {
        assert!(output.status.success(), "{output:?}");
    }
    for (event, times) in [
        ("own hook: the pod terminates", 1),
        ("one more witness of the same termination", 9),
        ("phase changed", 2),
        ("drain requested on the control socket", 10),
    ] {
        assert_eq!(ebbtide.logged(event, times).await.len(), times, "{event}");
    }
    assert!(ebbtide.process.is_running());
    let reply = send(ebbtide.address("web").await, &Request::echo(10), SOON).await.unwrap();
    assert_eq!(reply.status, 200, "new work is taken during the hold");
    assert!(echoed(&ebbtide).await);

    // The app is gone: nothing left to hold for, but outbound traffic may still be somebody's.
    app.process.signal(Signal::KILL);
    ebbtide.phase_becomes("lingering", SOON).await;
    assert!(ebbtide.drain().await.status.success());
    assert!(echoed(&ebbtide).await);
    assert!(ebbtide.process.is_running());
    ebbtide.signal(Signal::TERM);
    assert_eq!(ebbtide.exit(SOON).await, Exit::Code(0));
}

#[tokio::test]
async fn status_is_told_as_text_and_as_json() {
    let (_app, ebbtide) = serving(Config::new()).await;
    let output = ebbtide.run(&["status"]).await;
    assert!(output.status.success());
    let shown = text(&output.stdout);
    let lines = [
        "phase        serving for ",
        "ready        yes",
        "app          default: accepts",
        "app restarts 0 announced by its hook",
    ];
    for line in lines {
        assert!(shown.contains(line), "{shown}");
    }
    let output = ebbtide.run(&["status", "--output", "json"]).await;
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&status["phase"], &status["ready"]), (&"serving".into(), &true.into()));
    // The same as over HTTP, but for the time that has passed.
    let over_http = ebbtide.status().await;
    assert_eq!(
        status.as_object().unwrap().keys().collect::<Vec<_>>(),
        over_http.as_object().unwrap().keys().collect::<Vec<_>>()
    );
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 1);
}

#[tokio::test]
async fn nobody_there_is_told_after_a_second() {
    let config = Config::new();
    for verb in ["drain", "status"] {
        let began = Mono::now();
        let output = config.command(&[verb]).output().await.unwrap();
        let took = began.elapsed();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!((Duration::from_millis(900)..SOON).contains(&took), "{verb} took {took:?}");
        let said = text(&output.stderr);
        let path = config.get("EBBTIDE_CONTROL_SOCKET").unwrap();
        for part in ["no ebbtide answers on", path, "EBBTIDE_CONTROL_SOCKET", "--config"] {
            assert!(said.contains(part), "{said}");
        }
        assert!(output.stdout.is_empty());
    }
}

#[tokio::test]
async fn drain_waits_for_a_process_that_is_just_starting() {
    let config = long_hold().env("EBBTIDE_MODE", "sidecar").upstream("http://127.0.0.1:9");
    let mut drain = config.command(&["drain"]).kill_on_drop(true).spawn().unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let ebbtide = config.start().await;
    assert!(drain.wait().await.unwrap().success());
    // Its app never accepted: no hold.
    ebbtide.phase_becomes("lingering", SOON).await;
}

#[tokio::test]
async fn a_stale_socket_file_is_replaced_and_removed_at_the_end() {
    let config = Config::new().upstream("http://127.0.0.1:9");
    let path = config.path("control.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a closed listener leaves its file");
    let ebbtide = config.start().await;
    assert!(ebbtide.run(&["status"]).await.status.success());
    ebbtide.signal(Signal::TERM);
    assert_eq!(ebbtide.exit(SOON).await, Exit::Code(0));
    assert!(!path.exists());
}

#[tokio::test]
async fn no_other_file_is_removed() {
    let config = Config::new().upstream("http://127.0.0.1:9");
    let path = config.path("control.sock");
    std::fs::write(&path, "precious").unwrap();
    let output = config.command(&["run"]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains(&format!("{} is no socket", path.display())), "{output:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn a_second_process_does_not_take_a_living_socket() {
    let (_app, ebbtide) = serving(Config::new()).await;
    let output = ebbtide.run(&["run"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let path = ebbtide.config.get("EBBTIDE_CONTROL_SOCKET").unwrap();
    let expected = format!("another ebbtide answers on {path}: give this one another EBBTIDE_CONTROL_SOCKET");
    assert!(text(&output.stderr).contains(&expected), "{output:?}");
    assert!(ebbtide.run(&["status"]).await.status.success(), "the first one still answers");
    assert_eq!(ebbtide.status().await["phase"], "serving");
}

#[tokio::test]
async fn a_peer_of_another_user_is_refused_and_logged() {
    if !getuid().is_root() {
        eprintln!("skipped: only root can become somebody else");
        return;
    }
    let (_app, ebbtide) = serving(Config::new()).await;
    let config = &ebbtide.config;
    // Everything open but the check itself.
    let program = config.path("ebbtide");
    std::fs::copy(env!("CARGO_BIN_EXE_ebbtide"), &program).unwrap();
    for (path, mode) in [(config.dir(), 0o755), (&program, 0o755), (&config.path("control.sock"), 0o777)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    for verb in ["drain", "status"] {
        let socket = config.get("EBBTIDE_CONTROL_SOCKET").unwrap();
        let output = tokio::process::Command::new(&program)
            .args([verb, "--control-socket", socket])
            .env_clear()
            .uid(65534)
            .output()
            .await
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains("refused: not a process of this container"), "{output:?}");
    }
    let refused = ebbtide.logged("control request refused: not a process of this container", 2).await;
    assert_eq!(refused.len(), 2);
    assert_eq!(refused[0]["uid"], 65534);
    assert_eq!(ebbtide.status().await["phase"], "serving");
}

/// With a read-only root and no volume; in a pid namespace of its own, since the name follows from it.
#[tokio::test]
async fn without_a_place_for_a_file_the_socket_is_an_abstract_one() {
    let namespace = ["--mount", "--pid", "--fork", "--mount-proc"];
    let can = tokio::process::Command::new("unshare").args(namespace).arg("true").output().await;
    if !can.is_ok_and(|output| output.status.success()) || std::path::Path::new("/run/ebbtide").exists() {
        eprintln!("skipped: no namespaces here, or the default path can be written");
        return;
    }
    let script = "\"$0\" run & run=$!; \"$0\" status && \"$0\" drain && kill -TERM $run && wait $run";
    let config = Config::new()
        .without("EBBTIDE_CONTROL_SOCKET")
        .env("EBBTIDE_MODE", "sidecar")
        .env("EBBTIDE_LOG", "error")
        .upstream("http://127.0.0.1:9");
    let ready_made = config.command(&[]);
    let variables =
        ready_made.as_std().get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
    let output = tokio::process::Command::new("unshare")
        .args(namespace)
        .args(["sh", "-c", script, env!("CARGO_BIN_EXE_ebbtide")])
        .envs(variables)
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(SOON, output).await.unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    assert!(said.contains("phase        starting") && said.ends_with("lingering\n"), "{said}");
}
