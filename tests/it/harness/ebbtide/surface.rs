//! Owns what ebbtide shows from outside: admin port, control socket, log, termination message.

use std::net::SocketAddr;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::Config;
use super::metrics::Metrics;
use crate::harness::SOON;
use crate::harness::http::{Fault, Wire};
use crate::harness::process::log_from;
use crate::harness::wait::{eventually, eventually_async, within};

/// The places where one ebbtide can be asked.
#[derive(Clone, Debug)]
pub(crate) struct Surface {
    pub(crate) config: Config,
    pub(crate) admin: SocketAddr,
    log_start: u64,
}

/// What a GET answered.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// One GET as the kubelet's probes send it, on a connection of its own.
pub(crate) async fn get(address: SocketAddr, path: &str, agent: &str, deadline: Duration) -> Result<Got, String> {
    let work = async {
        let stream = TcpStream::connect(address).await.map_err(Fault::Io)?;
        let mut wire = Wire::new(stream);
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: {agent}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        );
        wire.get_mut().write_all(request.as_bytes()).await.map_err(Fault::Io)?;
        let head = wire.head().await?;
        let mut body = Vec::new();
        wire.body(head.response_framing("GET"), |piece| {
            body.extend_from_slice(piece);
        })
        .await?;
        Ok(Got { status: head.status()?, body: String::from_utf8_lossy(&body).into_owned() })
    };
    match tokio::time::timeout(deadline, work).await {
        Ok(result) => result.map_err(|fault: Fault| format!("{fault:?}")),
        Err(_) => Err(format!("no answer within {deadline:?}")),
    }
}

/// The address in the event `listening` of this listener.
pub(crate) fn listening_address(log: &str, listener: &str) -> Option<SocketAddr> {
    events(log).into_iter().find_map(|event| {
        let is = |key: &str, value: &str| field(&event, key).and_then(Value::as_str) == Some(value);
        if is("message", "listening") && is("listener", listener) {
            field(&event, "address")?.as_str()?.parse().ok()
        } else {
            None
        }
    })
}

/// A field of a log event, whether the format is flat or nested.
pub(crate) fn field<'a>(event: &'a Value, key: &str) -> Option<&'a Value> {
    event.get(key).or_else(|| event.get("fields").and_then(|fields| fields.get(key)))
}

fn events(log: &str) -> Vec<Value> {
    log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

// === impl Surface ===

impl Surface {
    pub(crate) const fn new(config: Config, admin: SocketAddr, log_start: u64) -> Self {
        Self { config, admin, log_start }
    }

    /// The bound address of a listener, from the log of the current life.
    pub(crate) async fn address(&self, listener: &str) -> SocketAddr {
        eventually(&format!("address of listener {listener}"), SOON, || {
            let log = self.log_text();
            listening_address(&log, listener).ok_or(log)
        })
        .await
    }

    /// The first listener that is not the admin port: the one `EBBTIDE_LISTEN` makes.
    pub(crate) async fn inbound(&self) -> SocketAddr {
        eventually("address of the inbound listener", SOON, || {
            self.log_events("listening")
                .iter()
                .filter(|event| field(event, "listener").is_none_or(|name| name != "admin"))
                .find_map(|event| field(event, "address")?.as_str()?.parse().ok())
                .ok_or_else(|| self.log_text())
        })
        .await
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Got, String> {
        get(self.admin, path, "ebbtide-test", SOON).await
    }

    /// The status of an endpoint; panics if there is no answer.
    pub(crate) async fn code(&self, path: &str) -> u16 {
        self.get(path).await.unwrap_or_else(|error| panic!("GET {path}: {error}")).status
    }

    pub(crate) async fn metrics(&self) -> Metrics {
        let got = self.get("/metrics").await.expect("metrics are answered");
        Metrics::parse(&got.body)
    }

    /// Polls the metrics until one sample has the value.
    pub(crate) async fn metric_becomes(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        deadline: Duration,
        wanted: impl Fn(f64) -> bool,
    ) -> f64 {
        eventually_async(&format!("metric {name}{labels:?}"), deadline, || async {
            let got = self.get("/metrics").await?;
            let value = Metrics::parse(&got.body).sum(name, labels);
            if wanted(value) { Ok(value) } else { Err(value.to_string()) }
        })
        .await
    }

    /// The body of `/status`.
    pub(crate) async fn status(&self) -> Value {
        let got = self.get("/status").await.expect("the status is answered");
        serde_json::from_str(&got.body).expect("the status is JSON")
    }

    /// Waits until this phase has come; the log still knows of one that was over before anybody looked.
    pub(crate) async fn phase_becomes(&self, phase: &str, deadline: Duration) {
        eventually_async(&format!("phase {phase}"), deadline, || async {
            if self.has_changed_phase(|event| field(event, "to").and_then(Value::as_str) == Some(phase)) {
                return Ok(());
            }
            let got = self.get("/status").await?;
            let status: Value = serde_json::from_str(&got.body).map_err(|_| got.body)?;
            match status.get("phase").and_then(Value::as_str) {
                Some(now) if now.eq_ignore_ascii_case(phase) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// Whether the log tells of such a change of the phase.
    pub(crate) fn has_changed_phase(&self, wanted: impl Fn(&Value) -> bool) -> bool {
        self.log_events("phase changed").iter().any(wanted)
    }

    /// Runs `ebbtide` with the same environment, e.g. `["status", "--output", "json"]`.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.config.command(arguments);
        let output = command.kill_on_drop(true).output();
        within(&format!("ebbtide {arguments:?}"), SOON, output).await.expect("the command can be started")
    }

    /// The own hook, by hand.
    pub(crate) async fn drain(&self) -> Output {
        self.run(&["drain"]).await
    }

    /// Both output streams of the current life.
    pub(crate) fn log_text(&self) -> String {
        log_from(&self.config.log(), self.log_start)
    }

    /// The JSON log events with this message.
    pub(crate) fn log_events(&self, message: &str) -> Vec<Value> {
        events(&self.log_text())
            .into_iter()
            .filter(|event| field(event, "message").and_then(Value::as_str) == Some(message))
            .collect()
    }

    /// Likewise, once there are at least so many: the log is written by a thread of its own, behind what it tells of.
    pub(crate) async fn logged(&self, message: &str, times: usize) -> Vec<Value> {
        eventually(message, SOON, || {
            let events = self.log_events(message);
            if events.len() >= times { Ok(events) } else { Err(events.len()) }
        })
        .await
    }

    /// The termination message as it stands; empty if nothing was written.
    pub(crate) fn termination_text(&self) -> String {
        let path = self.config.get("EBBTIDE_TERMINATION_MESSAGE_PATH");
        path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
    }

    /// The report; waits for it, since it is written when the drain ends.
    pub(crate) async fn report(&self, deadline: Duration) -> Value {
        eventually("a report in the termination message", deadline, || {
            let text = self.termination_text();
            serde_json::from_str(&text).map_err(|_| text)
        })
        .await
    }
}
