//! The process serves and ends in time although something around it hangs.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::Command;

use crate::harness::app::AppOptions;
use crate::harness::client::{Request, send};
use crate::harness::wait::{eventually_async, within};
use crate::harness::{SOON, fresh_ip};

/// §3, the watchdog's reason: a pipe takes 64 KiB, and then a write to it waits for ever.
#[tokio::test]
async fn a_log_that_nobody_reads_stops_neither_traffic_nor_the_exit() {
    let ip = fresh_ip();
    let dir = TempDir::new().unwrap();
    let options = AppOptions::at(SocketAddr::new(ip, 8080));
    let _app = options.start("app", dir.path()).await;
    let address = SocketAddr::new(ip, 14080);
    let mut ebbtide = Command::new(env!("CARGO_BIN_EXE_ebbtide"))
        .arg("run")
        .args(["--upstream", &options.upstream()])
        .args(["--listen", &address.to_string(), "--admin", &SocketAddr::new(ip, 14090).to_string()])
        .args(["--control-socket", &dir.path().join("control.sock").display().to_string()])
        .args(["--grace-period", "3s", "--hold", "100ms"])
        .env("EBBTIDE_CONFIG_YAML", "log: {access: on}")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let request = Request::get("/");
    eventually_async("an answer", SOON, || send(address, &request, SOON)).await;

    let long = format!("/{}", "x".repeat(1000));
    for number in 0..300 {
        let reply = send(address, &Request::get(&long), SOON).await;
        assert!(reply.is_ok(), "request {number} beside a full pipe: {reply:?}");
    }
    let pid = ebbtide.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let exit = within("the exit", Duration::from_secs(8), ebbtide.wait()).await.unwrap();
    assert_eq!(exit.code(), Some(0));
}
