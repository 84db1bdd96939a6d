//! The process of `ebbtide run`: binds everything first, then starts the parts, and waits for the lifecycle's end.
//!
//! Threads: the caller's (lifecycle, probes, admin port, control socket), one per worker, and the watchdog.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::admin::Admin;
use crate::config::{Config, Direction, ListenerConfig, Loaded, Mode, UpstreamAddr};
use crate::lifecycle::Lifecycle;
use crate::lifecycle::budget::{self, Budget, seconds};
use crate::lifecycle::driver::{Driver, Observer};
use crate::lifecycle::machine::{Findings, Rules, Snapshot};
use crate::lifecycle::phase::Outcome;
use crate::lifecycle::signal::Signals;
use crate::lifecycle::watchdog::Watchdog;
use crate::listener::bind::bind;
use crate::telemetry::logging::chain;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::report::Report;
use crate::tls::reload::{self, ListenerTls};
use crate::upstream::probe;
use crate::worker::{Bound, Worker};
use crate::{control, system};

/// Why the process could not run. Exit code 1.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// One or more sockets could not be bound; one line each.
    #[error("{}", lines(.0))]
    Bind(Vec<BindError>),
    /// The files of one or more listeners can't be used; one line each.
    #[error("{}", lines(.0))]
    Tls(Vec<reload::ListenerError>),
    /// The control socket could not be bound.
    #[error(transparent)]
    Control(#[from] control::BindError),
    /// The operating system would not give threads, signals or a runtime.
    #[error("starting failed")]
    System(#[from] io::Error),
}

/// One socket that could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("{what} can't listen on {address}: {reason}; change {way_out}")]
pub struct BindError {
    what: String,
    address: SocketAddr,
    reason: String,
    way_out: String,
}

/// Keeps the rest of the process informed of the machine's state.
struct Reporter {
    lifecycle: Lifecycle,
    admin: Rc<Admin>,
    metrics: &'static Metrics,
    config: Arc<Config>,
    budget: Budget,
    /// Endings by force that the latest report knows of.
    forced: u64,
}

/// For the last answers: of the workers to what waits in their accept queues, of the admin port to released hooks.
const LAST_ANSWERS: Duration = Duration::from_millis(600);

/// Workers get this long to start.
const WORKERS_START: Duration = Duration::from_secs(10);

fn lines(errors: &[impl ToString]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Runs ebbtide until it has drained.
///
/// # Errors
/// If it could not start.
pub fn run(loaded: Loaded) -> Result<Outcome, AppError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())?;
    let result = runtime.block_on(async {
        // Before any other work: a signal that comes now must not end the process by its default action.
        let signals = Signals::install()?;
        start(loaded, signals).await
    });
    // A name that is being looked up must not keep the process.
    runtime.shutdown_background();
    result
}

async fn start(loaded: Loaded, mut signals: Signals) -> Result<Outcome, AppError> {
    let config = Arc::new(loaded.config);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let budget = budget::divide(config.mode, &config.drain);
    log_start(&config, &budget);
    system::decline_huge_pages();
    let descriptors = system::raise_descriptor_limit();
    let max_connections = max_connections(&config, descriptors);
    let metrics: &'static Metrics =
        Box::leak(Box::new(Metrics::new(&budget, max_connections, config.mode == Mode::Sidecar)));
    let watchdog = Watchdog::start(expired)?;
    let names = inbound(&config).map(|listener| listener.name.clone()).collect();
    let (driver, lifecycle) = Driver::new(Rules::new(&config, budget.clone()), names, watchdog);
    let (keeper, tls) = reload::load(&config.listeners).map_err(AppError::Tls)?;
    let (sockets, admin_socket) = bind_all(&config).map_err(AppError::Bind)?;
    let control_socket = control::bind(&config.control_socket)?;
    let workers = start_workers(lifecycle, metrics, &config, max_connections, &tls, &sockets)?;
    log_addresses(&config, &sockets, &admin_socket);
    let control_address = control_socket.local_addr().map_or_else(|_| String::new(), |a| control::describe(&a));
    tracing::info!(listener = "control", address = control_address, "listening");
    // From here on they are the workers' alone: the last of them closes a socket in the moment in which it is empty.
    drop(sockets);
    let admin = Admin::new(lifecycle, metrics, &config, descriptors);
    control::serve(control_socket, &admin)?;
    drop(tokio::task::spawn_local(keeper.run(metrics)));
    let upstreams: Vec<UpstreamAddr> = inbound(&config).map(|listener| listener.upstream.clone()).collect();
    for (number, listener) in inbound(&config).enumerate() {
        drop(tokio::task::spawn_local(probe::run(lifecycle, number, listener.clone())));
    }
    // A signal from before the listeners were bound is heard first.
    tokio::task::yield_now().await;
    tokio::select! {
        biased;
        name = signals.next() => lifecycle.signal(name),
        () = std::future::ready(()) => {}
    }
    drop(tokio::task::spawn_local(async move {
        loop {
            let name = signals.next().await;
            probe::at_a_signal(lifecycle, &upstreams).await;
            lifecycle.signal(name);
        }
    }));
    lifecycle.bound();
    admin.serve(admin_socket)?;
    let mut reporter = Reporter { lifecycle, admin, metrics, config: Arc::clone(&config), budget, forced: 0 };
    let mut outcome = driver.run(&mut reporter).await;
    wait_for(workers, metrics).await;
    if reporter.has_missed_an_ending() {
        // A worker came late to what had to end; everything is over now.
        let findings = reporter.admin.findings.get();
        reporter.report(&lifecycle.snapshot(), &findings);
        outcome = Outcome::Forced;
    }
    remove_socket_file(&config);
    tracing::info!(outcome = outcome.name(), "exiting");
    Ok(outcome)
}

fn inbound(config: &Config) -> impl Iterator<Item = &ListenerConfig> {
    config.listeners.iter().filter(|listener| listener.direction == Direction::Inbound)
}

fn max_connections(config: &Config, descriptors: u64) -> usize {
    let tls = config.listeners.iter().any(|listener| listener.tls.is_some());
    let possible = system::max_connections(descriptors, system::memory_limit(), tls);
    let Some(wanted) = config.limits.max_connections else { return possible };
    let by_descriptors = system::max_connections(descriptors, None, tls);
    if wanted > by_descriptors {
        tracing::warn!(
            "limits.max_connections {wanted} needs more descriptors than the limit of {descriptors} gives; \
             {by_descriptors} are used: raise the container's RLIMIT_NOFILE"
        );
    }
    wanted.min(by_descriptors)
}

fn bind_all(config: &Config) -> Result<(Vec<Bound>, TcpListener), Vec<BindError>> {
    let mut errors = Vec::new();
    let mut sockets = Vec::new();
    for (index, listener) in config.listeners.iter().enumerate() {
        match bind(listener.bind) {
            Ok(socket) => sockets.push((index, socket)),
            Err(error) => errors.push(BindError::new(
                format!("listener {:?}", listener.name),
                listener.bind,
                &error,
                "EBBTIDE_LISTEN, or bind of this listener in the file",
            )),
        }
    }
    match bind(config.admin.bind) {
        Ok(socket) if errors.is_empty() => return Ok((sockets, socket)),
        Ok(_) => {}
        Err(error) => {
            errors.push(BindError::new(
                "the admin port".into(),
                config.admin.bind,
                &error,
                "EBBTIDE_ADMIN or admin.bind",
            ));
        }
    }
    Err(errors)
}

fn start_workers(
    lifecycle: Lifecycle,
    metrics: &'static Metrics,
    config: &Arc<Config>,
    max_connections: usize,
    tls: &[ListenerTls],
    sockets: &[Bound],
) -> io::Result<Vec<std::thread::JoinHandle<()>>> {
    let count = config.workers.unwrap_or_else(system::default_workers).get();
    let (ready, outcomes) = mpsc::channel();
    let workers = (0..count)
        .map(|number| {
            let config = Arc::clone(config);
            let ready = ready.clone();
            let tls = tls.iter().map(ListenerTls::for_worker).collect();
            let sockets: Vec<Bound> =
                sockets.iter().map(|(index, socket)| Ok((*index, socket.try_clone()?))).collect::<io::Result<_>>()?;
            std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                let started = ready.clone();
                let report = move || drop(started.send(Ok(())));
                if let Err(error) = Worker::run(lifecycle, metrics, config, max_connections, tls, sockets, report) {
                    // The receiver is gone only if another worker has failed already.
                    drop(ready.send(Err(error)));
                }
            })
        })
        .collect::<io::Result<Vec<_>>>()?;
    for _ in 0..count {
        // A process that says it is started must serve.
        outcomes.recv_timeout(WORKERS_START).map_err(io::Error::other)??;
    }
    Ok(workers)
}

/// Not joined without a limit: a worker that hangs must not keep the process.
async fn wait_for(workers: Vec<std::thread::JoinHandle<()>>, metrics: &Metrics) {
    let end = tokio::time::Instant::now() + LAST_ANSWERS;
    let answering =
        || workers.iter().any(|worker| !worker.is_finished()) || metrics.app_hooks_open.load(Ordering::Relaxed) > 0;
    while answering() && tokio::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn remove_socket_file(config: &Config) {
    let path = match &config.control_socket {
        crate::config::ControlSocket::Default => std::path::Path::new(control::DEFAULT_PATH),
        crate::config::ControlSocket::Path(path) => path,
    };
    // Where the fallback was used there is no file.
    let _ = std::fs::remove_file(path);
}

fn log_start(config: &Config, budget: &Budget) {
    let parts: Vec<String> =
        budget.parts().iter().map(|(name, length)| format!("{name} {}", seconds(*length))).collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        mode = match config.mode {
            Mode::Sidecar => "sidecar",
            Mode::Plain => "plain",
        },
        budget = parts.join(", "),
        "ebbtide starts"
    );
    // Defaults that had to shrink are nobody's mistake, and the line above has them.
    if let Some(shrunk) = budget.shrunk.as_ref().filter(|shrunk| shrunk.user_set) {
        tracing::warn!("{}", shrunk.message);
    }
    for late in budget.too_late() {
        tracing::warn!("{late}");
    }
}

fn log_addresses(config: &Config, sockets: &[Bound], admin: &TcpListener) {
    let local = |socket: &TcpListener| socket.local_addr().map_or_else(|_| String::new(), |a| a.to_string());
    for (index, socket) in sockets {
        let listener = &config.listeners[*index];
        let tls = listener.tls.is_some();
        tracing::info!(listener = listener.name, address = local(socket), upstream = %listener.upstream, tls, "listening");
    }
    tracing::info!(listener = "admin", address = local(admin), "listening");
}

/// The watchdog's last word.
#[expect(clippy::disallowed_methods, reason = "every runtime hangs: there is nobody to return to")]
fn expired() {
    tracing::error!("the deadline has passed and the process hangs: exiting by force");
    // The log has a thread of its own; it gets a moment, and no more.
    std::thread::sleep(Duration::from_millis(50));
    std::process::exit(0);
}

// === impl BindError ===

impl BindError {
    fn new(what: String, address: SocketAddr, error: &io::Error, way_out: &str) -> Self {
        let reason = match error.kind() {
            io::ErrorKind::AddrInUse => "another process has this port".to_owned(),
            io::ErrorKind::PermissionDenied => "a port below 1024 needs a privilege".to_owned(),
            io::ErrorKind::AddrNotAvailable => "no interface has this address".to_owned(),
            _ => error.to_string(),
        };
        Self { what, address, reason, way_out: way_out.to_owned() }
    }
}

// === impl Reporter ===

impl Reporter {
    /// The latest report knows less of endings by force than there have been.
    fn has_missed_an_ending(&self) -> bool {
        self.lifecycle.tallies().forced.load(Ordering::SeqCst) > self.forced
    }
}

impl Observer for Reporter {
    fn changed(&mut self, _snapshot: &Snapshot, findings: &Findings) {
        self.admin.findings.set(*findings);
    }

    fn report(&mut self, snapshot: &Snapshot, findings: &Findings) {
        self.admin.findings.set(*findings);
        self.forced = self.lifecycle.tallies().forced.load(Ordering::SeqCst);
        let report = Report::new(self.lifecycle, self.config.mode, &self.budget, self.metrics, snapshot, findings);
        if let Err(error) = report.publish(&self.config.termination_message_path) {
            let path = self.config.termination_message_path.display();
            tracing::debug!(error = chain(&error), "the report could not be left in {path}");
        }
    }
}
