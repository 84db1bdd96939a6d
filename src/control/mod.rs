//! The control socket: `drain` and `status`, for processes in the same container only.

pub mod client;

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::admin::Admin;
use crate::admin::status::Status;
use crate::config::ControlSocket;

/// Where the socket is by default.
pub const DEFAULT_PATH: &str = "/run/ebbtide/control.sock";
/// A peer gets this long for its one line.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest verb with its newline, and then some.
const LONGEST_LINE: u64 = 64;

/// Why the control socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A living process has it.
    #[error("another ebbtide answers on {0}: give this one another EBBTIDE_CONTROL_SOCKET")]
    Taken(String),
    /// A file that is not ours to remove.
    #[error("{0} is no socket: remove it, or give another EBBTIDE_CONTROL_SOCKET")]
    NoSocket(String),
    /// Anything else.
    #[error("the control socket {0} can't be bound (EBBTIDE_CONTROL_SOCKET names another path)")]
    Io(String, #[source] io::Error),
}

/// Binds the socket. The default path falls back to an abstract socket, for a read-only root.
///
/// # Errors
/// If neither can be bound, or another process answers on it.
pub fn bind(socket: &ControlSocket) -> Result<StdListener, BindError> {
    match socket {
        ControlSocket::Path(path) => bind_path(path),
        ControlSocket::Default => bind_path(Path::new(DEFAULT_PATH)).or_else(|error| match error {
            BindError::Io(..) => bind_abstract(),
            BindError::Taken(_) | BindError::NoSocket(_) => Err(error),
        }),
    }
}

/// Where a bound socket is, for people: a path, or `@` and the name of an abstract socket.
pub fn describe(address: &SocketAddr) -> String {
    match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(name)) => format!("@{}", String::from_utf8_lossy(name)),
        (None, None) => String::new(),
    }
}

/// The addresses to look at, in order.
pub(crate) fn addresses(socket: &ControlSocket) -> io::Result<Vec<SocketAddr>> {
    match socket {
        ControlSocket::Path(path) => Ok(vec![SocketAddr::from_pathname(path)?]),
        ControlSocket::Default => Ok(vec![SocketAddr::from_pathname(DEFAULT_PATH)?, abstract_address()?]),
    }
}

/// A name that no other pod on the node can have: it holds the inode of our pid namespace.
fn abstract_address() -> io::Result<SocketAddr> {
    let namespace: PathBuf = std::fs::read_link("/proc/self/ns/pid")?;
    let inode: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    SocketAddr::from_abstract_name(format!("ebbtide-control-{inode}"))
}

fn bind_path(path: &Path) -> Result<StdListener, BindError> {
    let shown = || path.display().to_string();
    let failed = |error| BindError::Io(shown(), error);
    match StdListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if !std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
                return Err(BindError::NoSocket(shown()));
            }
            match StdStream::connect(path) {
                Ok(_) => Err(BindError::Taken(shown())),
                // A socket file that nobody answers on is left over from a process that was killed.
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path).and_then(|()| StdListener::bind(path)).map_err(failed)
                }
                Err(error) => Err(failed(error)),
            }
        }
        result => result.map_err(failed),
    }
}

fn bind_abstract() -> Result<StdListener, BindError> {
    let failed = |error| BindError::Io("in the abstract namespace".to_owned(), error);
    let address = abstract_address().map_err(failed)?;
    StdListener::bind_addr(&address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => BindError::Taken(describe(&address)),
        _ => BindError::Io(describe(&address), error),
    })
}

/// Answers until the process ends.
///
/// # Errors
/// If the socket can't be registered with the runtime.
pub fn serve(socket: StdListener, admin: &Rc<Admin>) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let socket = UnixListener::from_std(socket)?;
    let admin = Rc::clone(admin);
    drop(tokio::task::spawn_local(async move {
        loop {
            match socket.accept().await {
                Ok((stream, _)) => {
                    let admin = Rc::clone(&admin);
                    drop(tokio::task::spawn_local(async move {
                        // A peer that is gone needs no answer.
                        let _ = timeout(PATIENCE * 2, answer(stream, &admin)).await;
                    }));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }));
    Ok(())
}

async fn answer(mut stream: UnixStream, admin: &Admin) -> io::Result<()> {
    let peer = stream.peer_cred()?;
    let ours = rustix::process::getuid().as_raw();
    // Read first: a peer whose line is left unread sees a broken pipe instead of its answer.
    let (reader, mut writer) = stream.split();
    let mut line = String::new();
    timeout(PATIENCE, BufReader::new(reader.take(LONGEST_LINE)).read_line(&mut line)).await??;
    // pid 0: a process of another pid namespace, which has got hold of the socket through a shared volume.
    if peer.pid() == Some(0) || (peer.uid() != ours && peer.uid() != 0) {
        tracing::warn!(pid = peer.pid(), uid = peer.uid(), "control request refused: not a process of this container");
        return writer.write_all(b"{\"error\":\"refused: not a process of this container\"}\n").await;
    }
    let reply = match line.trim() {
        "drain" => {
            tracing::info!(pid = peer.pid(), uid = peer.uid(), "drain requested on the control socket");
            let mut watch = admin.lifecycle.watch();
            admin.lifecycle.own_hook();
            // The answer tells what became of it; the driver needs a moment to decide.
            let _ = timeout(PATIENCE, watch.wait_for(|snapshot| snapshot.t0.is_some())).await;
            Status::now(admin.lifecycle, admin.findings.get()).to_json()
        }
        "status" => Status::now(admin.lifecycle, admin.findings.get()).to_json(),
        _ => "{\"error\":\"unknown verb: drain or status\"}".to_owned(),
    };
    writer.write_all(format!("{reply}\n").as_bytes()).await
}
