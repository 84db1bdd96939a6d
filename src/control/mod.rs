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

/// Binds the socket. The default path falls back to an abstract socket, for a read-only root.
///
/// # Errors
/// If neither can be bound, or another process answers on it.
pub fn bind(socket: &ControlSocket) -> io::Result<StdListener> {
    match socket {
        ControlSocket::Path(path) => bind_path(path),
        ControlSocket::Default => bind_path(Path::new(DEFAULT_PATH)).or_else(|error| {
            if error.kind() == io::ErrorKind::AddrInUse {
                return Err(error);
            }
            StdListener::bind_addr(&abstract_address()?)
        }),
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

fn bind_path(path: &Path) -> io::Result<StdListener> {
    match StdListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let nobody = StdStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
            if !nobody || !is_socket {
                return Err(error);
            }
            // A socket file that nobody answers on is left over from a process that was killed.
            std::fs::remove_file(path)?;
            StdListener::bind(path)
        }
        result => result,
    }
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
