//! Where an outbound listener's connections go: one or more hosts, whose addresses are kept, so that no connection waits
//! for the resolver once it has answered.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use socket2::SockRef;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::connect::{DialError, Stream, all_told, dial_address};
use crate::config::{HostPort, UpstreamAddr};
use crate::listener::bind::KEEPALIVE;
use crate::telemetry::logging::chain;

/// One outbound listener's far end, as a worker knows it.
#[derive(Debug)]
pub struct Remote {
    upstream: UpstreamAddr,
    hosts: Vec<HostPort>,
    connect_timeout: Duration,
    /// Of each host, as the resolver gave them.
    addresses: RefCell<Vec<Vec<SocketAddr>>>,
    looked_up: Cell<Option<Instant>>,
    looking: Cell<bool>,
    turn: Semaphore,
}

/// Addresses older than this are looked up again behind the connection that uses them.
const FRESH: Duration = Duration::from_secs(5);
/// Shortest time between two look-ups for connections that failed.
const AGAIN: Duration = Duration::from_secs(1);
/// The next address is tried beside one that has not answered for this long (RFC 8305 §5).
const STAGGER: Duration = Duration::from_millis(250);
/// Longest wait for the resolver where no connection waits for it.
const LOOK_UP: Duration = Duration::from_secs(30);

// === impl Remote ===

impl Remote {
    /// Names are looked up at once, so that the first connection finds their addresses.
    pub fn new(upstream: &UpstreamAddr, connect_timeout: Duration) -> Rc<Self> {
        let hosts = if let UpstreamAddr::Tcp(hosts) = upstream { hosts.clone() } else { Vec::new() };
        let remote = Rc::new(Self {
            upstream: upstream.clone(),
            addresses: RefCell::new(vec![Vec::new(); hosts.len()]),
            hosts,
            connect_timeout,
            looked_up: Cell::new(None),
            looking: Cell::new(false),
            turn: Semaphore::new(1),
        });
        remote.refresh();
        remote
    }

    /// As it stands in the configuration.
    pub fn upstream(&self) -> &UpstreamAddr {
        &self.upstream
    }

    /// Connects to the first address that answers, in their order, within the connect timeout.
    ///
    /// # Errors
    /// [`DialError::Refused`] only if every address refused, also after the names were looked up anew.
    pub async fn connect(self: &Rc<Self>) -> Result<Stream, DialError> {
        let deadline = Instant::now() + self.connect_timeout;
        let known = self.addresses.borrow().concat();
        if !known.is_empty() {
            if self.looked_up.get().is_none_or(|at| at.elapsed() >= FRESH) {
                self.refresh();
            }
            let result = race(&known, deadline).await;
            if result.is_ok() || !self.has_names() {
                return result;
            }
            // They may have moved since.
            return match timeout_at(deadline, self.look_up_again()).await {
                Ok(Ok(fresh)) if fresh != known => race(&fresh, deadline).await,
                _ => result,
            };
        }
        let fresh = timeout_at(deadline, self.look_up_again()).await.map_err(|_| DialError::TimedOut)??;
        race(&fresh, deadline).await
    }

    /// One look-up for all who want one; an app that tries again and again does not have the resolver asked each time.
    async fn look_up_again(&self) -> Result<Vec<SocketAddr>, DialError> {
        // Never closed.
        let _turn = self.turn.acquire().await;
        let known = self.addresses.borrow().concat();
        match self.looked_up.get() {
            Some(at) if at.elapsed() < AGAIN && !known.is_empty() => Ok(known),
            _ => self.look_up().await,
        }
    }

    fn has_names(&self) -> bool {
        self.hosts.iter().any(|host| host.host.parse::<IpAddr>().is_err())
    }

    fn refresh(self: &Rc<Self>) {
        if self.looking.replace(true) {
            return;
        }
        let remote = Rc::clone(self);
        drop(tokio::task::spawn_local(async move {
            let result = timeout_at(Instant::now() + LOOK_UP, remote.look_up()).await;
            let upstream = &remote.upstream;
            match result {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!(%upstream, error = chain(&error), "looking up the address failed"),
                Err(_) => tracing::warn!(%upstream, "looking up the address takes very long"),
            }
            remote.looking.set(false);
        }));
    }

    /// All hosts at the same time, off this thread. A host that is not found keeps its old addresses.
    async fn look_up(&self) -> Result<Vec<SocketAddr>, DialError> {
        let mut asked = JoinSet::new();
        for (order, HostPort { host, port }) in self.hosts.iter().cloned().enumerate() {
            asked.spawn_local(async move {
                let found = match host.parse::<IpAddr>() {
                    Ok(ip) => Ok(vec![SocketAddr::new(ip, port)]),
                    Err(_) => tokio::net::lookup_host((host.as_str(), port)).await.map(Iterator::collect),
                };
                (order, host, found)
            });
        }
        let mut failed = None;
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok((order, _, Ok(addresses))) if !addresses.is_empty() => {
                    self.addresses.borrow_mut()[order] = addresses;
                }
                Ok((_, host, Ok(_))) => failed = Some(DialError::NoAddress(host)),
                Ok((_, _, Err(error))) => failed = Some(DialError::Failed(error)),
                Err(_) => {}
            }
        }
        self.looked_up.set(Some(Instant::now()));
        let addresses = self.addresses.borrow().concat();
        if addresses.is_empty() {
            return Err(failed.unwrap_or_else(|| DialError::NoAddress(self.upstream.to_string())));
        }
        Ok(addresses)
    }
}

/// The first that answers; the next one starts when the one before has failed, or has been silent for a moment.
async fn race(addresses: &[SocketAddr], deadline: Instant) -> Result<Stream, DialError> {
    let mut waiting: VecDeque<_> = addresses.iter().copied().collect();
    let mut dials = JoinSet::new();
    let mut errors = Vec::new();
    loop {
        let last = waiting.is_empty();
        if let Some(address) = waiting.pop_front() {
            dials.spawn_local(dial_address(address, deadline));
        }
        let until = if last { deadline + STAGGER } else { Instant::now() + STAGGER };
        match timeout_at(until, dials.join_next()).await {
            Ok(Some(Ok(Ok(stream)))) => {
                // The app's own probes end at us: a service that is gone, or a forgetful router on the way, is ours to
                // find out. Fails only on a socket that is already broken.
                if let Stream::Tcp(socket) = &stream {
                    let _ = SockRef::from(socket).set_tcp_keepalive(&KEEPALIVE);
                }
                return Ok(stream);
            }
            Ok(Some(Ok(Err(error)))) => errors.push(error),
            Ok(Some(Err(_))) => {}
            Ok(None) | Err(_) if last => break,
            Err(_) => {}
            Ok(None) => {}
        }
    }
    Err(all_told(errors).unwrap_or(DialError::TimedOut))
}
