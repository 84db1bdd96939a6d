//! Owns the ebbtide that is measured: started under callgrind, asked for its count, watched for when it sleeps.

use std::error::Error;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// For everything that must happen at all.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Ends with this value.
pub(crate) struct Ebbtide {
    child: Child,
    folder: TempDir,
    /// Where it serves.
    pub(crate) address: SocketAddr,
    pub(crate) threads: Arc<Threads>,
    dumps: usize,
    /// The file with the last count, by function.
    pub(crate) profile: PathBuf,
}

/// What of its threads can be seen from outside.
pub(crate) struct Threads {
    pid: Pid,
    states: Vec<File>,
    worker: PathBuf,
}

// === impl Ebbtide ===

impl Ebbtide {
    /// Starts it with one listener to this upstream and waits until it is ready.
    pub(crate) fn start(binary: &Path, upstream: &str, tls: Option<(&str, &str)>) -> Outcome<Self> {
        let folder = tempfile::tempdir()?;
        let (address, admin) = (free_address()?, free_address()?);
        let mut config = format!(
            "mode: plain\n\
             workers: 1\n\
             admin: {{bind: \"{admin}\"}}\n\
             control_socket: \"{socket}\"\n\
             log: {{level: warn}}\n\
             listeners:\n\
             - name: web\n  bind: \"{address}\"\n  upstream: \"{upstream}\"\n",
            socket = folder.path().join("control.sock").display(),
        );
        if let Some((chain, key)) = tls {
            let (chain_file, key_file) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
            fs::write(&chain_file, chain)?;
            fs::write(&key_file, key)?;
            config += &format!("  tls: {{certificates: \"{}:{}\"}}\n", chain_file.display(), key_file.display());
        }
        fs::write(folder.path().join("ebbtide.yaml"), config)?;
        let log = File::create(folder.path().join("log"))?;
        let child = Command::new("valgrind")
            .args(["--tool=callgrind", "--separate-threads=yes", vgdb_prefix(&folder).as_str()])
            .arg(format!("--callgrind-out-file={}", folder.path().join("callgrind.out").display()))
            .arg(binary)
            .args(["run", "--config"])
            .arg(folder.path().join("ebbtide.yaml"))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|error| format!("valgrind can't be started ({error}); it is in the package valgrind"))?;
        let mut ebbtide =
            Self { child, folder, address, threads: Arc::new(Threads::none()), dumps: 0, profile: PathBuf::new() };
        ebbtide.wait_until_ready(admin)?;
        ebbtide.threads = Arc::new(Threads::of(&ebbtide.child)?);
        Ok(ebbtide)
    }

    fn wait_until_ready(&mut self, admin: SocketAddr) -> Outcome<()> {
        let limit = Instant::now() + SOON;
        while Instant::now() < limit {
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("ebbtide ended ({status}): {}", self.log()).into());
            }
            if is_ready(admin).unwrap_or(false) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(format!("ebbtide does not get ready: {}", self.log()).into())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Instructions of its worker since the last call, or since the start. Other threads work by the clock alone.
    pub(crate) fn count(&mut self) -> Outcome<u64> {
        self.threads.wait_until_asleep()?;
        self.dumps += 1;
        let said = Command::new("vgdb")
            .arg(vgdb_prefix(&self.folder))
            .arg(format!("--pid={}", self.child.id()))
            .arg("dump")
            .stdin(Stdio::null())
            .output()?;
        // A file for each thread. But for the main thread's, which is the first, those of the others are as good as empty.
        let ending = format!(".{}-", self.dumps);
        let mut counts = Vec::new();
        for entry in fs::read_dir(self.folder.path())? {
            let path = entry?.path();
            if path.to_string_lossy().contains(&ending) && !path.to_string_lossy().ends_with("-01") {
                let text = fs::read_to_string(&path)?;
                let total = text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
                counts.push((total.unwrap_or(0), path));
            }
        }
        let Some((count, path)) = counts.into_iter().max() else {
            let said = String::from_utf8_lossy(&said.stderr);
            return Err(format!("callgrind has not counted: {said}{}", self.log()).into());
        };
        self.profile = path;
        Ok(count)
    }
}

impl Drop for Ebbtide {
    fn drop(&mut self) {
        // It has nothing to lose any more, and its end is not measured.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

// === impl Threads ===

impl Threads {
    fn none() -> Self {
        Self { pid: Pid::INIT, states: Vec::new(), worker: PathBuf::new() }
    }

    fn of(child: &Child) -> Outcome<Self> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("no such process")?;
        let mut threads = Self { pid, ..Self::none() };
        for entry in fs::read_dir(format!("/proc/{}/task", child.id()))? {
            let path = entry?.path();
            threads.states.push(File::open(path.join("stat"))?);
            if fs::read_to_string(path.join("comm"))?.starts_with("worker") {
                threads.worker = path;
            }
        }
        Ok(threads)
    }

    /// Until ebbtide has done all that it can do by itself. What it is sent next is then the only reason why it wakes
    /// up, however fast it or this process may be: that makes counts repeatable.
    pub(crate) fn wait_until_asleep(&self) -> Outcome<()> {
        let limit = Instant::now() + SOON;
        // Twice: a thread that has just handed work to another looks asleep before the other has been looked at.
        let mut before = false;
        while Instant::now() < limit {
            let now = self.are_asleep()?;
            if before && now {
                return Ok(());
            }
            before = now;
            if !now {
                thread::yield_now();
            }
        }
        Err("ebbtide does not go to sleep".into())
    }

    fn are_asleep(&self) -> Outcome<bool> {
        let mut text = [0; 64];
        for state in &self.states {
            let length = state.read_at(&mut text, 0)?;
            // "PID (NAME) STATE ...", where the name may hold anything.
            let end = text[..length].iter().rposition(|byte| *byte == b')').ok_or("no state")?;
            if text.get(end + 2) != Some(&b'S') {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Until the worker has woken up by itself and is asleep again.
    pub(crate) fn wait_for_sweep(&self) -> Outcome<()> {
        let (before, limit) = (self.naps()?, Instant::now() + SOON);
        while Instant::now() < limit {
            if self.naps()? != before {
                return self.wait_until_asleep();
            }
            thread::sleep(Duration::from_micros(200));
        }
        Err("the worker does nothing by itself".into())
    }

    /// How often the worker has gone to sleep.
    fn naps(&self) -> Outcome<String> {
        let text = fs::read_to_string(self.worker.join("status"))?;
        let line = text.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
        Ok(line.ok_or("no such line")?.to_owned())
    }

    /// Does this while ebbtide is stopped: it sees all of it at once, or nothing.
    pub(crate) fn at_once<T>(&self, act: impl FnOnce() -> T) -> Outcome<T> {
        kill_process(self.pid, Signal::STOP)?;
        let done = act();
        kill_process(self.pid, Signal::CONT)?;
        Ok(done)
    }
}

// Not in the temp folder that valgrind would take: the two must agree.
fn vgdb_prefix(folder: &TempDir) -> String {
    format!("--vgdb-prefix={}", folder.path().join("vgdb").display())
}

/// Where nobody listens, and hardly anybody will before we do.
fn free_address() -> Outcome<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn is_ready(admin: SocketAddr) -> Outcome<bool> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(SOON))?;
    write!(stream, "GET /readyz HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.1 200 "))
}
