//! Reads the manifests that `inject`, `check` and `budget` are given.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::k8s::document::{self, Document, Fault};

/// Which manifests are meant.
#[derive(Debug, Args)]
pub struct Files {
    /// File, folder (its *.yaml, *.yml and *.json) or - for the standard input; may be given several times
    #[arg(short = 'f', long = "filename", value_name = "FILE|-|DIR", required = true)]
    pub files: Vec<PathBuf>,
    /// With folders: those inside them as well
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Where kinds that ebbtide does not know keep their pod template, as /spec/template
    #[arg(long, value_name = "POINTER", value_parser = pointer)]
    pub template_path: Option<String>,
}

/// One file that was read.
#[derive(Debug)]
pub struct File {
    /// `None` for the standard input.
    pub path: Option<PathBuf>,
    /// Its documents.
    pub documents: Vec<Document>,
}

impl Files {
    /// All of them, in the order given and within folders by name.
    ///
    /// # Errors
    /// Everything that can't be read, of all files.
    pub fn read(&self) -> Result<Vec<File>, Vec<Fault>> {
        let mut files = Vec::new();
        let mut faults = Vec::new();
        for given in &self.files {
            match self.paths(given) {
                Ok(paths) if paths.is_empty() => {
                    faults.push(Fault::whole(&given.display().to_string(), "holds no *.yaml, *.yml or *.json"));
                }
                Ok(paths) => paths.into_iter().for_each(|path| match read(path.as_deref()) {
                    Ok(documents) => files.push(File { path, documents }),
                    Err(fault) => faults.push(fault),
                }),
                Err(error) => faults.push(unreadable(given, &error)),
            }
        }
        if faults.is_empty() { Ok(files) } else { Err(faults) }
    }

    /// The documents of all of them.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn documents(&self) -> Result<Vec<Document>, Vec<Fault>> {
        Ok(self.read()?.into_iter().flat_map(|file| file.documents).collect())
    }

    fn paths(&self, given: &Path) -> io::Result<Vec<Option<PathBuf>>> {
        if given == Path::new("-") {
            return Ok(vec![None]);
        }
        if !fs::metadata(given)?.is_dir() {
            return Ok(vec![Some(given.to_owned())]);
        }
        let mut paths = Vec::new();
        let mut folders = vec![given.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                let (path, kind) = (entry.path(), entry.file_type()?);
                let is_manifest =
                    path.extension().is_some_and(|ending| ["yaml", "yml", "json"].iter().any(|one| ending == *one));
                // Tells kustomize what to do with the others, and holds no object.
                let is_manifest = is_manifest && path.file_stem().is_none_or(|stem| stem != "kustomization");
                if kind.is_dir() && self.recursive {
                    folders.push(path);
                } else if is_manifest && path.is_file() {
                    paths.push(path);
                }
            }
        }
        paths.sort();
        Ok(paths.into_iter().map(Some).collect())
    }
}

fn read(path: Option<&Path>) -> Result<Vec<Document>, Fault> {
    let name = path.map_or_else(|| "stdin".to_owned(), |path| path.display().to_string());
    let limit = u64::try_from(document::LARGEST + 1).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    let result = match path {
        Some(path) => fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)),
        None => io::stdin().lock().take(limit).read_to_end(&mut bytes),
    };
    result.map_err(|error| Fault::whole(&name, format!("can't be read: {error}")))?;
    document::read(&name, &bytes)
}

fn unreadable(path: &Path, error: &io::Error) -> Fault {
    Fault::whole(&path.display().to_string(), format!("can't be read: {error}"))
}

fn pointer(text: &str) -> Result<String, String> {
    if text.starts_with('/') && !text.ends_with('/') {
        Ok(text.to_owned())
    } else {
        Err("must be a JSON Pointer, like /spec/template".to_owned())
    }
}
