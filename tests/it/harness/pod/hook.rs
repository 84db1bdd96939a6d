//! Owns preStop hooks, run as the kubelet runs them.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::harness::ebbtide::Config;
use crate::harness::http::{Framing, Wire};

/// A preStop hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// The spec has none.
    None,
    /// exec: `ebbtide drain` with the pod's environment.
    Drain,
    /// httpGet of this path on the admin port, e.g. `/app-stop`.
    Get(String),
    /// exec of anything.
    Exec(Vec<String>),
    /// Fails at once.
    Fails,
    /// A slow hook: waits, then does the other.
    Late(Duration, Box<Self>),
}

/// What hooks need to know of their pod.
#[derive(Clone, Debug)]
pub(super) struct HookContext {
    pub(super) admin: SocketAddr,
    pub(super) config: Option<Config>,
}

// === impl Hook ===

impl Hook {
    pub(crate) fn get(path: &str) -> Self {
        Self::Get(path.to_owned())
    }

    pub(crate) fn exec(words: &[&str]) -> Self {
        Self::Exec(words.iter().map(|&word| word.to_owned()).collect())
    }

    #[must_use]
    pub(crate) fn late(self, delay: Duration) -> Self {
        Self::Late(delay, Box::new(self))
    }

    /// Runs to its end, however long; the caller owns the grace.
    pub(super) async fn run(self, context: HookContext) -> Result<(), String> {
        match self {
            Self::None => Ok(()),
            Self::Drain => {
                let config = context.config.ok_or("this pod has no ebbtide")?;
                exec(config.command(&["drain"])).await
            }
            Self::Get(path) => http_get(context.admin, &path).await,
            Self::Exec(words) => {
                let (program, arguments) = words.split_first().ok_or("an empty command")?;
                let mut command = Command::new(program);
                command.args(arguments);
                exec(command).await
            }
            Self::Fails => Err("made to fail".to_owned()),
            Self::Late(delay, hook) => {
                tokio::time::sleep(delay).await;
                Box::pin(hook.run(context)).await
            }
        }
    }
}

async fn exec(mut command: Command) -> Result<(), String> {
    let output = command.kill_on_drop(true).output().await;
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(format!("{}: {said}", output.status))
    }
}

/// The kubelet's client: no timeout, the status is ignored, only transport errors count, and a body
/// that may be short (or has no length) is awaited up to 10 KiB, its errors ignored.
async fn http_get(address: SocketAddr, path: &str) -> Result<(), String> {
    let debug = |error: std::io::Error| error.to_string();
    let stream = TcpStream::connect(address).await.map_err(debug)?;
    let mut wire = Wire::new(stream);
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: {AGENT}\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n\r\n"
    );
    wire.get_mut().write_all(request.as_bytes()).await.map_err(debug)?;
    let head = wire.head().await.map_err(|fault| format!("{fault:?}"))?;
    head.status().map_err(|fault| format!("{fault:?}"))?;
    let framing = head.response_framing("GET");
    if !matches!(framing, Framing::Length(length) if length > BODY_READ) {
        let mut read = 0;
        let full = tokio::sync::Notify::new();
        let body = wire.body(framing, |piece| {
            read += piece.len() as u64;
            if read >= BODY_READ {
                full.notify_one();
            }
        });
        tokio::select! { _ = body => {} () = full.notified() => {} }
    }
    // The kubelet's connection stays idle in its pool until the server closes it.
    tokio::spawn(async move {
        let mut rest = [0; 64];
        while matches!(wire.get_mut().read(&mut rest).await, Ok(1..)) {}
    });
    Ok(())
}

/// Of the kubelet's hooks.
pub(crate) const AGENT: &str = "kube-lifecycle/1.34";

const BODY_READ: u64 = 10 * 1024;
