//! Certificates change while the process runs: their files are looked at every second, and what they come to is
//! published to all workers at once, or refused as a whole.
//!
//! Looked at, not watched: a watch on a file follows the file, and the kubelet swaps the link above it.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::server::VerifierBuilderError;
use rustls::{ClientConfig, ServerConfig};
use tokio::sync::watch;
use tokio::time::Instant;

use super::client::{self, ClientTls};
use super::credentials::{FileError, Standing, Validity, paths};
use super::server::{self, Served};
use crate::config::{CertificateFiles, ListenerConfig, Protocol, ServerTlsConfig, UpstreamTlsConfig};
use crate::telemetry::logging::chain;
use crate::telemetry::metrics::{Metrics, Reload, unix_now};

/// What a listener speaks TLS with, as long as the process runs.
#[derive(Debug, Clone, Default)]
pub struct ListenerTls {
    /// Towards clients.
    pub server: Option<watch::Receiver<Arc<ServerConfig>>>,
    /// Towards the upstream.
    pub client: Option<ClientTls>,
}

/// Looks after the files of all listeners.
#[derive(Debug, Default)]
pub struct Keeper(Vec<Kept>);

/// Why a listener can't speak TLS.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Files that can't be used.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Files(Vec<FileError>),
    /// What stands in the files, all together.
    #[error("the TLS library refuses it")]
    Rustls(#[from] rustls::Error),
    /// The authorities of clients.
    #[error("the authorities of clients can't be used")]
    Clients(#[from] VerifierBuilderError),
}

/// One listener that could not be given what it needs.
#[derive(Debug, thiserror::Error)]
#[error("listener {listener:?}: {side}: {}", chain(error))]
pub struct ListenerError {
    listener: String,
    side: &'static str,
    error: LoadError,
}

/// One side of one listener.
#[derive(Debug)]
struct Kept {
    listener: String,
    files: Files,
    /// The latest refusal, as it was logged.
    refused: Option<String>,
    /// What was last told of how long the certificates are good, and when.
    told_of: Standing,
    told: Instant,
    side: Side,
}

/// Files, and how they looked when they were last looked at.
#[derive(Debug)]
struct Files {
    paths: Vec<PathBuf>,
    seen: Vec<Option<Mark>>,
}

#[derive(Debug)]
enum Side {
    Server { tls: ServerTlsConfig, protocol: Protocol, now: Served, publish: watch::Sender<Arc<ServerConfig>> },
    Client { tls: UpstreamTlsConfig, validity: Option<Validity>, publish: watch::Sender<Arc<ClientConfig>> },
}

/// A file that has not changed looks like this again: device, inode, seconds and nanoseconds of its last change, length.
type Mark = (u64, u64, i64, i64, u64);

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two warnings of a certificate that nobody renews.
const NAG: Duration = Duration::from_secs(24 * 3600);

/// Reads everything for the first time; for each listener what it speaks TLS with.
///
/// # Errors
/// Every listener whose files can't be used.
pub fn load(listeners: &[ListenerConfig]) -> Result<(Keeper, Vec<ListenerTls>), Vec<ListenerError>> {
    let mut keeper = Keeper::default();
    let mut errors = Vec::new();
    let mut all = Vec::new();
    for config in listeners {
        let mut tls = ListenerTls::default();
        let mut fail = |side, error| errors.push(ListenerError { listener: config.name.clone(), side, error });
        if let Some(wanted) = &config.tls {
            let files = Files::of_server(wanted);
            match server::load(wanted, config.protocol, None) {
                Ok(now) => {
                    let (publish, latest) = watch::channel(Arc::clone(&now.config));
                    tls.server = Some(latest);
                    let side = Side::Server { tls: wanted.clone(), protocol: config.protocol, now, publish };
                    keeper.0.push(Kept::new(&config.name, files, side));
                }
                Err(error) => fail("tls", error),
            }
        }
        if let Some(wanted) = &config.upstream_tls {
            let files = Files::of_upstream(wanted);
            match client::config(wanted) {
                Ok((now, validity)) => {
                    let (publish, latest) = watch::channel(Arc::new(now));
                    tls.client = Some(ClientTls::new(latest, wanted));
                    let side = Side::Client { tls: wanted.clone(), validity, publish };
                    keeper.0.push(Kept::new(&config.name, files, side));
                }
                Err(error) => fail("upstream_tls", error),
            }
        }
        all.push(tls);
    }
    if errors.is_empty() { Ok((keeper, all)) } else { Err(errors) }
}

/// Unix time, in seconds.
fn now() -> i64 {
    unix_now() as i64
}

// === impl Files ===

impl Files {
    fn of_server(tls: &ServerTlsConfig) -> Self {
        let ca = tls.clients.iter().map(|clients| clients.ca.clone());
        Self::seen_now(tls.certificates.iter().flat_map(paths).chain(ca).collect())
    }

    fn of_upstream(tls: &UpstreamTlsConfig) -> Self {
        Self::seen_now(tls.certificate.iter().flat_map(paths).chain(tls.ca.clone()).collect())
    }

    fn seen_now(paths: Vec<PathBuf>) -> Self {
        let mut files = Self { paths, seen: Vec::new() };
        files.seen = files.look();
        files
    }

    fn look(&self) -> Vec<Option<Mark>> {
        let mark = |path: &PathBuf| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.dev(), found.ino(), found.ctime(), found.ctime_nsec(), found.len()))
        };
        self.paths.iter().map(mark).collect()
    }

    /// Some file is another one than at the last look.
    fn have_changed(&mut self) -> bool {
        let now = self.look();
        let changed = now != self.seen;
        self.seen = now;
        changed
    }
}

// === impl ListenerTls ===

impl ListenerTls {
    /// Workers share nothing that could make one wait for another.
    pub fn for_worker(&self) -> Self {
        Self { server: self.server.clone(), client: self.client.as_ref().map(ClientTls::for_worker) }
    }
}

// === impl Keeper ===

impl Keeper {
    /// Looks for ever, on a thread where files that don't answer keep nobody.
    pub async fn run(mut self, metrics: &'static Metrics) {
        for kept in &mut self.0 {
            kept.tell(metrics);
        }
        self.tell_refusals(metrics);
        while !self.0.is_empty() {
            tokio::time::sleep(PAUSE).await;
            let looking = tokio::task::spawn_blocking(move || {
                self.look_again(metrics);
                self
            });
            // An error comes only with the end of the process.
            let Ok(keeper) = looking.await else { return };
            self = keeper;
        }
    }

    fn look_again(&mut self, metrics: &Metrics) {
        for kept in &mut self.0 {
            kept.look_again(metrics);
            if kept.standing() != kept.told_of || kept.told.elapsed() >= NAG {
                kept.tell(metrics);
            }
        }
        self.tell_refusals(metrics);
    }

    /// A listener may have two sides.
    fn tell_refusals(&self, metrics: &Metrics) {
        for kept in &self.0 {
            let refused = self.0.iter().any(|one| one.listener == kept.listener && one.refused.is_some());
            metrics.set_files_refused(&kept.listener, refused);
        }
    }
}

// === impl Kept ===

impl Kept {
    fn new(listener: &str, files: Files, side: Side) -> Self {
        Self {
            listener: listener.to_owned(),
            files,
            refused: None,
            told_of: Standing::Good,
            told: Instant::now(),
            side,
        }
    }

    /// What was refused is tried again at each look: the other half of a pair may come a moment later.
    fn look_again(&mut self, metrics: &Metrics) {
        let is_news = self.files.have_changed();
        if !is_news && self.refused.is_none() {
            return;
        }
        match self.side.reload() {
            Ok(()) => {
                self.refused = None;
                metrics.tls_reloads.add(Reload::Ok as usize);
                let hours_left = self.side.validities().iter().map(|(_, validity)| validity.hours_left(now())).min();
                let (listener, side) = (&self.listener, self.side.name());
                tracing::info!(listener, side, hours_left, "certificates taken up anew");
                self.tell(metrics);
            }
            // They have changed again meanwhile: what was read may be of neither moment.
            Err(_) if self.files.look() != self.files.seen => self.files.seen.clear(),
            Err(error) => {
                let error = chain(&error);
                if is_news || self.refused.as_ref() != Some(&error) {
                    metrics.tls_reloads.add(Reload::Refused as usize);
                    let (listener, side) = (&self.listener, self.side.name());
                    tracing::warn!(listener, side, error, "changed certificates can't be used, the old ones stay");
                }
                self.refused = Some(error);
            }
        }
    }

    /// How long each certificate is good, for the metric and, if that is not long, for the log.
    fn tell(&mut self, metrics: &Metrics) {
        self.told = Instant::now();
        self.told_of = self.standing();
        let now = now();
        for (files, validity) in self.side.validities() {
            let path = files.to_string();
            metrics.set_certificate_expiry(&self.listener, &path, validity.until as f64);
            let (listener, hours_left) = (&self.listener, validity.hours_left(now));
            match validity.standing(now) {
                Standing::Good => {}
                Standing::NearlyOver => {
                    tracing::warn!(
                        listener,
                        path,
                        hours_left,
                        "the certificate expires soon, and nobody has renewed it"
                    );
                }
                Standing::Over => tracing::warn!(listener, path, "the certificate has expired"),
            }
        }
    }

    /// Of the worst certificate.
    fn standing(&self) -> Standing {
        let now = now();
        self.side.validities().iter().map(|(_, validity)| validity.standing(now)).max().unwrap_or(Standing::Good)
    }
}

// === impl Side ===

impl Side {
    const fn name(&self) -> &'static str {
        match self {
            Self::Server { .. } => "tls",
            Self::Client { .. } => "upstream_tls",
        }
    }

    /// All or nothing: connections from now on have the new files, those that are open keep what they have.
    fn reload(&mut self) -> Result<(), LoadError> {
        match self {
            Self::Server { tls, protocol, now, publish } => {
                *now = server::load(tls, *protocol, Some(now))?;
                publish.send_replace(Arc::clone(&now.config));
            }
            Self::Client { tls, validity, publish } => {
                let (config, new) = client::config(tls)?;
                *validity = new;
                publish.send_replace(Arc::new(config));
            }
        }
        Ok(())
    }

    fn validities(&self) -> Vec<(&CertificateFiles, Validity)> {
        match self {
            Self::Server { tls, now, .. } => tls.certificates.iter().zip(now.validities.iter().copied()).collect(),
            Self::Client { tls, validity, .. } => tls.certificate.iter().zip(*validity).collect(),
        }
    }
}
