//! Where an outbound listener's connections go: one or more hosts, whose addresses are kept, so that no connection waits
//! for the resolver once it has answered.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use socket2::SockRef;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::connect::{DialError, Upstream, all_told};
use crate::config::{HostPort, ListenerConfig};
use crate::listener::bind::KEEPALIVE;
use crate::proxy::warnings::Warnings;
use crate::telemetry::logging::chain;
use crate::tls::client::{ClientTls, Offer};
use crate::transport::Transport;

/// One outbound listener's far end, as a worker knows it.
#[derive(Debug)]
pub struct Remote {
    /// The listener's name.
    listener: String,
    upstream: Upstream,
    /// About it.
    pub warnings: Warnings,
    connect_timeout: Duration,
    /// Of each host, as the resolver gave them.
    addresses: RefCell<Vec<Vec<SocketAddr>>>,
    /// When the latest look-up ended.
    looked_up: Cell<Option<Instant>>,
    looking: Cell<bool>,
    /// A look-up has brought addresses, or has ended.
    news: Notify,
    /// Where connections went because others had failed, as it was last logged.
    instead: Cell<Option<SocketAddr>>,
}

/// Addresses older than this are looked up again beside the connection that uses them.
const FRESH: Duration = Duration::from_secs(5);
/// Addresses older than this are not used before the resolver had a moment to bring new ones.
const OLD: Duration = Duration::from_secs(30);
/// Shortest time between two look-ups, however many connections fail.
const AGAIN: Duration = Duration::from_secs(1);
/// The next address is tried beside one that has not answered for this long (RFC 8305 §5).
const STAGGER: Duration = Duration::from_millis(250);
/// Longest look-up. Connections wait for it no longer than they would for the service.
const LOOK_UP: Duration = Duration::from_secs(30);

// === impl Remote ===

impl Remote {
    /// Names are looked up at once, so that the first connection finds their addresses.
    pub fn new(config: &ListenerConfig, tls: Option<ClientTls>) -> Rc<Self> {
        let ListenerConfig { name, upstream, connect_timeout, .. } = config;
        let literal = |host: &HostPort| literal(host).into_iter().collect();
        let remote = Rc::new(Self {
            listener: name.clone(),
            upstream: Upstream::new(upstream.clone(), tls),
            warnings: Warnings::default(),
            addresses: RefCell::new(upstream.hosts().iter().map(literal).collect()),
            connect_timeout: *connect_timeout,
            looked_up: Cell::new(None),
            looking: Cell::new(false),
            news: Notify::new(),
            instead: Cell::new(None),
        });
        remote.refresh();
        remote
    }

    /// The listener's name.
    pub fn listener(&self) -> &str {
        &self.listener
    }

    /// As it stands in the configuration.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Connects to the first address that answers, in their order, within the connect timeout. If all that are known
    /// fail, the names are looked up anew.
    ///
    /// # Errors
    /// [`DialError::Refused`] only if every address refused.
    pub async fn connect(self: &Rc<Self>) -> Result<Transport, DialError> {
        let deadline = Instant::now() + self.connect_timeout;
        let is_older = |age: Duration| self.looked_up.get().is_none_or(|at| at.elapsed() >= age);
        if is_older(FRESH) {
            self.refresh();
        }
        if is_older(OLD) && self.looking.get() {
            let _ = timeout_at(deadline.min(Instant::now() + STAGGER), self.news.notified()).await;
        }
        let mut tried = Vec::new();
        let mut dials = JoinSet::new();
        let mut errors = Vec::new();
        loop {
            let untried = self.untried(&tried);
            if let Some((order, address)) = untried {
                tried.push((order, address));
                let remote = Rc::clone(self);
                dials.spawn_local(async move {
                    let host = &remote.upstream.address.hosts()[order].host;
                    remote.upstream.connect_to(host, address, Offer::Nothing, deadline).await
                });
            } else if dials.is_empty() && !self.looking.get() {
                if !self.has_names() || !is_older(AGAIN) {
                    return Err(all_told(errors).unwrap_or_else(|| DialError::NoAddress(self.upstream.to_string())));
                }
                self.refresh();
            }
            let until = if untried.is_some() { deadline.min(Instant::now() + STAGGER) } else { deadline };
            tokio::select! {
                Some(dialled) = dials.join_next() => match dialled {
                    Ok(Ok(stream)) => {
                        self.tell_where(&stream, &errors);
                        return Ok(kept_alive(stream));
                    }
                    Ok(Err(error)) => errors.push(error),
                    Err(_) => {}
                },
                () = self.news.notified() => {}
                () = sleep_until(until) => {
                    if Instant::now() >= deadline {
                        return Err(all_told(errors).unwrap_or(DialError::TimedOut));
                    }
                }
            }
        }
    }

    /// The next address, with the number of its host.
    fn untried(&self, tried: &[(usize, SocketAddr)]) -> Option<(usize, SocketAddr)> {
        let addresses = self.addresses.borrow();
        let all = addresses.iter().enumerate().flat_map(|(order, all)| all.iter().map(move |one| (order, *one)));
        // Inside TLS the host's name counts as well.
        let is_known = |(order, address): (usize, SocketAddr)| {
            tried.iter().any(|(other, known)| *known == address && (*other == order || !self.upstream.address.is_tls()))
        };
        all.into_iter().find(|one| !is_known(*one))
    }

    fn has_names(&self) -> bool {
        self.upstream.address.hosts().iter().any(|host| literal(host).is_none())
    }

    /// Looks up all names, at the same time and off this thread, for whoever waits for [`Self::news`]. A host that is
    /// not found keeps its old addresses.
    fn refresh(self: &Rc<Self>) {
        if !self.has_names() || self.looking.replace(true) {
            return;
        }
        let remote = Rc::clone(self);
        drop(tokio::task::spawn_local(async move {
            let end = Instant::now() + LOOK_UP;
            let mut asked = JoinSet::new();
            for (order, host) in
                remote.upstream.address.hosts().iter().enumerate().filter(|(_, host)| literal(host).is_none())
            {
                let HostPort { host, port } = host.clone();
                asked.spawn_local(async move {
                    let found = timeout_at(end, tokio::net::lookup_host((host.as_str(), port))).await;
                    let found = found.map(|found| found.map(Iterator::collect::<Vec<_>>));
                    (order, host, found)
                });
            }
            while let Some(answer) = asked.join_next().await {
                let Ok((order, host, found)) = answer else { continue };
                remote.heard(order, &host, found);
            }
            remote.looked_up.set(Some(Instant::now()));
            remote.looking.set(false);
            remote.news.notify_waiters();
        }));
    }

    /// Whoever runs on a standby should know, once.
    fn tell_where(&self, transport: &Transport, errors: &[DialError]) {
        let Some(socket) = transport.tcp() else { return };
        let address = socket.peer_addr().ok().filter(|_| !errors.is_empty());
        if let (Some(address), Some(error)) = (address, errors.last())
            && self.instead.get() != Some(address)
        {
            tracing::warn!(listener = self.listener, %address, error = chain(error), "connected, after others had failed");
        }
        self.instead.set(address);
    }

    fn heard(&self, order: usize, host: &str, found: Result<io::Result<Vec<SocketAddr>>, Elapsed>) {
        let listener = &self.listener;
        match found {
            Ok(Ok(addresses)) if !addresses.is_empty() => {
                self.addresses.borrow_mut()[order] = addresses;
                self.news.notify_waiters();
            }
            Ok(Ok(_)) => tracing::warn!(listener, host, "the name has no address"),
            Ok(Err(error)) => tracing::warn!(listener, host, %error, "looking up the name failed"),
            Err(_) => tracing::warn!(listener, host, "the resolver does not answer"),
        }
    }
}

fn literal(host: &HostPort) -> Option<SocketAddr> {
    host.host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, host.port))
}

/// The app's own probes end at us: a service that is gone, or a forgetful router on the way, is ours to find out.
fn kept_alive(transport: Transport) -> Transport {
    if let Some(socket) = transport.tcp() {
        // Fails only on a socket that is already broken.
        let _ = SockRef::from(socket).set_tcp_keepalive(&KEEPALIVE);
    }
    transport
}
