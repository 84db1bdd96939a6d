//! Owns a mounted Secret as the kubelet writes it: every change is one rename.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use super::authority::Pair;

/// The files lie in `..2026_11_30_….N`, `..data` leads there, and `tls.crt` to `..data/tls.crt`.
#[derive(Debug)]
pub(crate) struct SecretDir {
    dir: TempDir,
}

// === impl SecretDir ===

impl SecretDir {
    /// As mounted when the pod starts.
    pub(crate) fn new(pair: &Pair) -> Self {
        let secret = Self::empty();
        secret.swap(pair);
        secret
    }

    /// An optional Secret that does not exist yet.
    pub(crate) fn empty() -> Self {
        Self { dir: TempDir::new().expect("a temporary directory") }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The visible name of one file.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The Secret has been changed.
    pub(crate) fn swap(&self, pair: &Pair) {
        self.swap_files(&[(CHAIN, &pair.chain), (KEY, &pair.key)]);
    }

    /// The same with a `ca.crt` beside the pair.
    pub(crate) fn swap_with_ca(&self, pair: &Pair, ca: &str) {
        self.swap_files(&[(CHAIN, &pair.chain), (KEY, &pair.key), (CA, ca)]);
    }

    /// A change by somebody who mixed up two pairs.
    pub(crate) fn swap_mismatched(&self, chain: &Pair, key: &Pair) {
        self.swap_files(&[(CHAIN, &chain.chain), (KEY, &key.key)]);
    }

    /// Any files: the steps are those of the kubelet's `AtomicWriter`.
    pub(crate) fn swap_files(&self, files: &[(&str, &str)]) {
        let root = self.dir.path();
        let data = root.join("..data");
        let old = fs::read_link(&data).ok();
        let new = stamp();
        fs::create_dir(root.join(&new)).expect("a new folder");
        for (name, text) in files {
            fs::write(root.join(&new).join(name), text).expect("a new file");
        }
        let link = root.join("..data_tmp");
        symlink(&new, &link).expect("a new link");
        fs::rename(&link, &data).expect("one rename");
        for (name, _) in files {
            if !root.join(name).is_symlink() {
                symlink(Path::new("..data").join(name), root.join(name)).expect("a visible name");
            }
        }
        for entry in fs::read_dir(root).expect("the folder").flatten() {
            let name = entry.file_name().into_string().expect("a name of ours");
            if !name.starts_with("..") && !files.iter().any(|(known, _)| *known == name) {
                fs::remove_file(entry.path()).expect("a visible name goes");
            }
        }
        if let Some(old) = old {
            fs::remove_dir_all(root.join(old)).expect("the old folder goes");
        }
    }

    /// One file in its place, cut off after so many bytes, as a writer without a rename leaves it for a moment.
    pub(crate) fn overwrite(&self, name: &str, text: &str, bytes: usize) {
        fs::write(self.file(name), &text[..bytes]).expect("the file can be written");
    }
}

/// A name that no earlier change has had.
fn stamp() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("not long ago");
    let (day, second) = (now.as_secs() / 86_400, now.as_secs() % 86_400);
    let (year, month, day) = date(day);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("..{year}_{month:02}_{day:02}_{hour:02}_{minute:02}_{second:02}.{}", fastrand::u32(..))
}

/// Of a day since 1970, by the calendar that begins its years in March.
const fn date(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (in_month, next) = (day - (153 * month + 2) / 5 + 1, month >= 10);
    (era * 400 + year + next as u64, if next { month - 9 } else { month + 3 }, in_month)
}

const CHAIN: &str = "tls.crt";
const KEY: &str = "tls.key";
const CA: &str = "ca.crt";
