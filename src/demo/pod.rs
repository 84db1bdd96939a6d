//! The processes of one pod: started in the kubelet's order, killed when dropped.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use std::{env, fs, io};

use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::DemoError;
use super::http::get;
use super::scenario::{Plan, Which};
use super::workdir::{WorkDir, tail};

/// An app, alone or behind ebbtide.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) name: &'static str,
    /// Where its clients connect.
    pub(super) address: SocketAddr,
    /// Where those connect that speak the app's own protocol.
    pub(super) raw: SocketAddr,
    pub(super) app: Container,
    pub(super) sidecar: Option<Sidecar>,
}

/// The loopback addresses of one pod.
#[derive(Debug)]
struct Ports {
    app: SocketAddr,
    app_raw: SocketAddr,
    listen: SocketAddr,
    raw: SocketAddr,
    admin: SocketAddr,
}

/// ebbtide in front of the app.
#[derive(Debug)]
pub(super) struct Sidecar {
    pub(super) container: Container,
    pub(super) admin: SocketAddr,
    pub(super) control_socket: PathBuf,
    pub(super) report: PathBuf,
}

/// A child process, killed and reaped when dropped.
#[derive(Debug)]
pub(super) struct Container {
    name: String,
    child: Child,
    log: PathBuf,
}

// === impl Pod ===

impl Pod {
    /// Starts a pod and returns when it can serve: a sidecar first, the app when the sidecar has started.
    pub(super) async fn start(name: &'static str, plan: &Plan, which: Which, dir: &WorkDir) -> Result<Self, DemoError> {
        let ports = Ports::free()?;
        let mut sidecar = match which {
            Which::WithoutEbbtide => None,
            Which::WithEbbtide => Some(Sidecar::start(name, plan, &ports, dir).await?),
        };
        let mut command = own_binary()?;
        command.args(["demo-app", "--listen", &ports.app.to_string(), "--raw", &ports.app_raw.to_string()]);
        let app_name = format!("the app of {name}");
        let mut app = Container::spawn(app_name, command, dir.file(&format!("{name}-app-{}.log", ports.app.port())))?;
        app.wait_until("did not listen", async || TcpStream::connect(ports.app).await.is_ok()).await?;
        if let Some(sidecar) = &mut sidecar {
            sidecar.wait_for("/readyz").await?;
        }
        let (address, raw) = if sidecar.is_some() { (ports.listen, ports.raw) } else { (ports.app, ports.app_raw) };
        Ok(Self { name, address, raw, app, sidecar })
    }
}

// === impl Ports ===

impl Ports {
    fn free() -> Result<Self, DemoError> {
        let [app, app_raw, listen, raw, admin] = free_ports()?;
        Ok(Self { app, app_raw, listen, raw, admin })
    }
}

// === impl Sidecar ===

impl Sidecar {
    async fn start(pod: &str, plan: &Plan, ports: &Ports, dir: &WorkDir) -> Result<Self, DemoError> {
        let Ports { app, app_raw, listen, raw, admin } = *ports;
        let control_socket = dir.file(&format!("{pod}.sock"));
        let report = dir.file(&format!("{pod}-report.json"));
        let listeners = format!(
            "listeners:\n\
             - {{name: web, bind: '{listen}', upstream: 'auto://{app}'}}\n\
             - {{name: raw, protocol: tcp, bind: '{raw}', upstream: 'tcp://{app_raw}'}}\n"
        );
        let mut command = own_binary()?;
        command
            .arg("run")
            .env("EBBTIDE_CONFIG_YAML", listeners)
            .env("EBBTIDE_MODE", "sidecar")
            .env("EBBTIDE_ADMIN", admin.to_string())
            .env("EBBTIDE_CONTROL_SOCKET", &control_socket)
            .env("EBBTIDE_TERMINATION_MESSAGE_PATH", &report)
            .env("EBBTIDE_GRACE_PERIOD", seconds(plan.grace))
            .env("EBBTIDE_HOLD", seconds(plan.hold))
            .env("EBBTIDE_APP_STOP", seconds(plan.app_stop));
        let container =
            Container::spawn(format!("ebbtide in {pod}"), command, dir.file(&format!("{pod}-ebbtide.log")))?;
        let mut sidecar = Self { container, admin, control_socket, report };
        sidecar.wait_for("/startupz").await?;
        Ok(sidecar)
    }

    async fn wait_for(&mut self, path: &str) -> Result<(), DemoError> {
        let admin = self.admin;
        let what = format!("did not answer 200 on {path}");
        self.container.wait_until(&what, async || matches!(get(admin, path, "kube-probe/1.36").await, Ok(200))).await
    }

    /// The own hook, as the kubelet's exec would run it.
    pub(super) fn own_hook(&self, pod: &str) -> Result<Container, DemoError> {
        let mut command = own_binary()?;
        command.arg("drain").env("EBBTIDE_CONTROL_SOCKET", &self.control_socket);
        Container::spawn(format!("the own hook of {pod}"), command, self.control_socket.with_extension("hook.log"))
    }
}

// === impl Container ===

impl Container {
    fn spawn(name: String, mut command: Command, log: PathBuf) -> Result<Self, DemoError> {
        let failed = |source: io::Error| DemoError::Spawn { name: name.clone(), source };
        let output = File::create(&log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        // A process group of its own: Ctrl-C in a terminal would else reach it as well and look like a pod's signal.
        let child =
            command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0).spawn().map_err(failed)?;
        Ok(Self { name, child, log })
    }

    /// Its exit status, if it has ended.
    pub(super) fn try_ended(&mut self) -> Result<Option<ExitStatus>, DemoError> {
        self.child.try_wait().map_err(|source| DemoError::Stop { name: self.name.clone(), source })
    }

    /// Waits for its end.
    pub(super) async fn ended(&mut self) -> Result<ExitStatus, DemoError> {
        loop {
            if let Some(status) = self.try_ended()? {
                return Ok(status);
            }
            sleep(POLL).await;
        }
    }

    /// Signals it unless it has ended.
    pub(super) fn signal(&mut self, signal: Signal) -> Result<(), DemoError> {
        // An ended child stays a zombie until `try_ended` reaps it, so the id can't belong to another process.
        if self.try_ended()?.is_some() {
            return Ok(());
        }
        kill_process(Pid::from_child(&self.child), signal)
            .map_err(|errno| DemoError::Stop { name: self.name.clone(), source: errno.into() })
    }

    /// All that it wrote.
    pub(super) fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The last lines it wrote.
    pub(super) fn log_tail(&self) -> String {
        tail(&self.log)
    }

    async fn wait_until(&mut self, what: &str, ready: impl AsyncFn() -> bool) -> Result<(), DemoError> {
        let deadline = Instant::now() + START_TIMEOUT;
        while !ready().await {
            let what = match self.try_ended()? {
                Some(status) => format!("ended at once ({status})"),
                None if Instant::now() >= deadline => format!("{what} within {} s", START_TIMEOUT.as_secs()),
                None => {
                    sleep(POLL).await;
                    continue;
                }
            };
            return Err(DemoError::NotReady { name: self.name.clone(), what, log: self.log_tail() });
        }
        Ok(())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Both fail only if it has been reaped already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The running binary, without any setting of the caller's environment.
fn own_binary() -> Result<Command, DemoError> {
    let path = env::current_exe().map_err(|source| DemoError::Spawn { name: "this program".to_owned(), source })?;
    let mut command = Command::new(path);
    command.env_clear();
    Ok(command)
}

/// Loopback addresses nobody listens on.
///
/// They lie below the usual range for outgoing connections: a dial to a closed port inside that range can be given
/// the same port as its source and then connects to itself.
fn free_ports<const N: usize>() -> Result<[SocketAddr; N], DemoError> {
    let mut held = Vec::new();
    let mut addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    for address in &mut addresses {
        for attempt in 1.. {
            address.set_port(fastrand::u16(20_000..32_000));
            match TcpListener::bind(*address) {
                Ok(listener) => {
                    held.push(listener);
                    break;
                }
                Err(source) if attempt == 100 => return Err(DemoError::Port(source)),
                Err(_) => {}
            }
        }
    }
    Ok(addresses)
}

fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs())
}

const POLL: Duration = Duration::from_millis(10);

const START_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_different_and_can_be_bound() {
        let ports: [SocketAddr; 3] = free_ports().expect("must bind");
        assert!(ports[0] != ports[1] && ports[1] != ports[2] && ports[0] != ports[2]);
        TcpListener::bind(ports[0]).expect("must be free");
    }
}
