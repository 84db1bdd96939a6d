//! A private directory for the demo's sockets, logs and reports, removed at the end.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::{env, io, process};

use super::DemoError;

/// Removed with all its content when dropped.
#[derive(Debug)]
pub(super) struct WorkDir(PathBuf);

impl WorkDir {
    /// Creates it under the system's directory for temporary files, for this user only.
    pub(super) fn create() -> Result<Self, DemoError> {
        loop {
            let path = env::temp_dir().join(format!("ebbtide-demo-{}-{:04x}", process::id(), fastrand::u16(..)));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                // Left over from an earlier process with this id, or put there by someone else: not ours to use.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(DemoError::WorkDir { path, source }),
            }
        }
    }

    /// The path of a file in it.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// The last lines of a text file, indented; says so if there are none.
pub(super) fn tail(path: &Path) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    match lines[lines.len().saturating_sub(TAIL_LINES)..] {
        [] => "    (its log is empty)".to_owned(),
        ref last => last.iter().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n"),
    }
}

const TAIL_LINES: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_lines_and_the_directory_goes() {
        let dir = WorkDir::create().expect("must create");
        let log = dir.file("log");
        assert_eq!(tail(&log), "    (its log is empty)");
        let lines: Vec<String> = (0..20).map(|line| line.to_string()).collect();
        fs::write(&log, lines.join("\n")).expect("must write");
        assert!(tail(&log).starts_with("    5\n"));
        assert!(tail(&log).ends_with("    19"));
        drop(dir);
        assert!(!log.exists());
    }
}
