//! Checks between listeners, the admin port and the control socket.

use std::net::{IpAddr, SocketAddr};

use super::error::{ConfigError, Fault, Origin};
use super::listeners::Placed;
use super::{ControlSocket, HostPort, UpstreamAddr};

/// Finds names and addresses used twice, and upstreams that lead back to ourselves.
pub(super) fn check(
    listeners: &[Placed],
    admin: SocketAddr,
    admin_origin: &Origin,
    control_socket: &ControlSocket,
    errors: &mut Vec<ConfigError>,
) {
    for (position, this) in listeners.iter().enumerate() {
        let shown = |field: &str| format!("listeners[{}].{field}", this.index);
        let earlier = listeners.iter().take(position);
        if let Some(other) = earlier.clone().find(|other| other.config.name == this.config.name) {
            let fault = Fault::new(format!("listeners[{}] has the same name", other.index))
                .hint("give each listener a name of its own");
            let name = Some(this.config.name.clone());
            errors.push(ConfigError::new(this.name_origin.clone(), shown("name"), name, fault));
        }
        let bind = this.config.bind;
        if let Some(other) = earlier.clone().find(|other| clash(other.config.bind, bind)) {
            let fault = taken(&format!("listener {}", other.config.name), other.config.bind);
            errors.push(ConfigError::new(this.bind_place().clone(), shown("bind"), Some(bind.to_string()), fault));
        }
        // Told at the place that somebody set: the default of the other side is not at fault.
        if clash(admin, bind) && *admin_origin != Origin::Default {
            let fault = taken(&format!("listener {}", this.config.name), bind);
            errors.push(ConfigError::new(admin_origin.clone(), "admin.bind", Some(admin.to_string()), fault));
        } else if clash(admin, bind) {
            let fault = taken("the admin port", admin);
            errors.push(ConfigError::new(this.bind_place().clone(), shown("bind"), Some(bind.to_string()), fault));
        }
        if let Some(whose) = leads_back(&this.config.upstream, listeners, admin, control_socket) {
            let fault = Fault::new(format!("leads back to {whose}"))
                .hint("give the port or socket that the app itself, or the service behind it, listens on");
            let upstream = Some(this.config.upstream.to_string());
            errors.push(ConfigError::new(this.upstream_origin.clone(), shown("upstream"), upstream, fault));
        }
    }
}

fn taken(by: &str, bind: SocketAddr) -> Fault {
    Fault::new(format!("clashes with {by} on {bind}")).hint("choose another port")
}

/// Whether the second of two such binds would fail. Port 0 gets a free port each time.
fn clash(a: SocketAddr, b: SocketAddr) -> bool {
    if a.port() != b.port() || a.port() == 0 {
        return false;
    }
    let (a, b) = (a.ip().to_canonical(), b.ip().to_canonical());
    // `[::]` is bound dual-stack, so it covers IPv4 as well; `0.0.0.0` covers IPv4 alone.
    let covers = |a: IpAddr, b: IpAddr| a.is_unspecified() && (a.is_ipv6() || b.is_ipv4());
    a == b || covers(a, b) || covers(b, a)
}

fn leads_back(
    upstream: &UpstreamAddr,
    listeners: &[Placed],
    admin: SocketAddr,
    control: &ControlSocket,
) -> Option<String> {
    if let UpstreamAddr::Unix(path) = upstream {
        let is_control = matches!(control, ControlSocket::Path(control) if control == path);
        return is_control.then(|| "our control socket".to_owned());
    }
    let reached = |bind| upstream.hosts().iter().any(|target| reaches(target, bind));
    if reached(admin) {
        return Some(format!("our admin port {admin}"));
    }
    let own = listeners.iter().find(|listener| reached(listener.config.bind))?;
    Some(format!("our own listener {} on {}", own.config.name, own.config.bind))
}

/// Whether a connection to the target ends at this bind, as far as the text tells: a name or a pod's IP may do so too.
fn reaches(target: &HostPort, bind: SocketAddr) -> bool {
    if target.port != bind.port() {
        return false;
    }
    let v4 = IpAddr::from([127, 0, 0, 1]);
    let v6 = IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1_u16]);
    let addresses = match target.host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        // Linux takes the unspecified address as a target for the loopback address of the same family.
        Ok(ip) if ip.is_unspecified() => vec![if ip.is_ipv4() { v4 } else { v6 }],
        Ok(ip) => vec![ip],
        Err(_) if target.host.trim_end_matches('.').eq_ignore_ascii_case("localhost") => vec![v4, v6],
        Err(_) => return false,
    };
    let bound = bind.ip().to_canonical();
    addresses.iter().any(|ip| {
        let everywhere = bound.is_unspecified() && ip.is_loopback() && (bound.is_ipv6() || ip.is_ipv4());
        bound == *ip || everywhere
    })
}
