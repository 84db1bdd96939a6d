//! From an entry of the list of listeners to a [`ListenerConfig`].

use std::time::Duration;

use super::error::{ConfigError, Fault, Origin};
use super::keys::{
    self, BIND, CONNECT_TIMEOUT, HALF_CLOSED_TIMEOUT, IDLE_TIMEOUT, PROTOCOL, PROXY_FROM, SEND_PROXY, UPSTREAM,
};
use super::source::{Item, Setting};
use super::value::Value;
use super::{Direction, ListenerConfig, Protocol, ResolvedValue, UpstreamAddr, tls, units};

/// A listener with the places of its parts, for the checks between them.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) index: usize,
    pub(super) config: ListenerConfig,
    pub(super) name_origin: Origin,
    bind_origin: Origin,
    pub(super) upstream_origin: Origin,
    /// Every part with its text and place, for `ebbtide config show`.
    shown: Vec<(&'static str, String, Origin)>,
}

/// What kind of traffic a listener has; which keys make sense follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traffic {
    InboundHttp,
    InboundTcp,
    Outbound,
}

/// Keys that only some traffic has.
const ONLY: [(&str, &[Traffic], &str); 5] = [
    (CONNECT_TIMEOUT, &[Traffic::Outbound], "an outbound listener"),
    (IDLE_TIMEOUT, &[Traffic::InboundTcp], "an inbound listener with protocol: tcp"),
    (HALF_CLOSED_TIMEOUT, &[Traffic::InboundTcp], "an inbound listener with protocol: tcp"),
    (PROXY_FROM, &[Traffic::InboundHttp, Traffic::InboundTcp], "an inbound listener"),
    (SEND_PROXY, &[Traffic::InboundTcp], "an inbound listener with protocol: tcp"),
];

/// Whether outbound listeners, or inbound ones, may have this key at all.
pub(super) fn may_have(path: &str, outbound: bool) -> bool {
    if outbound && tls::SERVER.contains(&path) {
        return false;
    }
    let only = ONLY.iter().find(|(only, ..)| *only == path);
    only.is_none_or(|(_, allowed, _)| allowed.iter().any(|traffic| (*traffic == Traffic::Outbound) == outbound))
}

// === impl Placed ===

impl Placed {
    /// Where a fault in the address is told; a default has no place of its own.
    pub(super) fn bind_place(&self) -> &Origin {
        if self.bind_origin == Origin::Default { &self.name_origin } else { &self.bind_origin }
    }

    /// One line for each part.
    pub(super) fn values(&self) -> impl Iterator<Item = ResolvedValue> {
        self.shown.iter().map(|(field, value, origin)| ResolvedValue {
            key: format!("listeners[{}].{field}", self.index),
            value: value.clone(),
            origin: origin.clone(),
        })
    }
}

/// Reads one entry; `None` if a part is missing or faulty, which has been reported then.
pub(super) fn read(index: usize, item: &Item, errors: &mut Vec<ConfigError>) -> Option<Placed> {
    let field = |path: &str| item.fields.get(path);
    let (name, upstream) = (field("listeners[].name"), field(UPSTREAM));
    let (direction, protocol) = (field("listeners[].direction"), field(PROTOCOL));
    let inbound = direction.is_none_or(|setting| setting.text.trim() != "outbound");
    let traffic = match (inbound, parsed(protocol), parsed(upstream)) {
        (false, _, _) => Traffic::Outbound,
        (true, Some(Value::Word("tcp")), _)
        | (true, None, Some(Value::Upstream(UpstreamAddr::Tcp(_) | UpstreamAddr::Tls(_)))) => Traffic::InboundTcp,
        (true, _, _) => Traffic::InboundHttp,
    };
    report_missing(index, item, traffic, errors);
    let wrong = upstream.and_then(|set| wrong_upstream(set, traffic));
    // What follows from a wrong upstream is no fault of its own.
    let fitting = upstream.filter(|_| wrong.is_none());
    errors.extend(wrong);
    errors.extend(protocol.filter(|_| traffic == Traffic::Outbound).and_then(wrong_protocol));
    // What traffic it is can't be told from a word that is none.
    let told = [direction, protocol].into_iter().flatten().all(|setting| setting.value.is_some());
    for (path, allowed, what) in ONLY {
        if let Some(setting) = field(path).filter(|_| told && !allowed.contains(&traffic)) {
            let may_be_tcp = traffic == Traffic::InboundHttp && allowed.contains(&Traffic::InboundTcp);
            let hint = if may_be_tcp { "remove it here, or write protocol: tcp" } else { "remove it here" };
            let fault = Fault::new(format!("is for {what} only")).hint(hint);
            errors.push(setting.error(fault));
        }
    }

    for setting in tls::SERVER.iter().filter_map(|path| field(path)).filter(|_| told && !inbound) {
        let fault = Fault::new("is for an inbound listener only");
        errors.push(setting.error(fault.hint("remove it here; TLS towards the service is upstream: tls://")));
    }
    if let (Some(setting), Some(Value::Upstream(UpstreamAddr::Tls(_)))) = (field(SEND_PROXY), parsed(upstream))
        && traffic == Traffic::InboundTcp
        && parsed(Some(setting)) == Some(&Value::Switch(true))
    {
        // Receivers look for it in front of the handshake, where only the app itself would speak TLS.
        let fault = Fault::new("does not go with an upstream of tls://");
        errors.push(setting.error(fault.hint("use tcp://, or remove this")));
    }
    let server_tls = if inbound { tls::server(item, errors) } else { None };
    let upstream_tls = tls::upstream(item, fitting, errors);

    let value = |path: &str| match (field(path), keys::find(path)) {
        (Some(setting), _) => setting.value.clone(),
        // What has no default here has been reported if it is missing.
        (None, Some(key)) if path != BIND || inbound => key.kind.parse(key.default).ok(),
        (None, _) => None,
    };
    let duration = |path: &str| if let Some(Value::Duration(length)) = value(path) { Some(length) } else { None };
    // What is faulty or missing has been reported; without all parts there is nothing to compare with others.
    let Some(Value::Name(name_value)) = value("listeners[].name") else {
        return None;
    };
    let Some(Value::Upstream(upstream_value)) = value(UPSTREAM) else {
        return None;
    };
    let Some(Value::Bind(bind_value)) = value(BIND) else {
        return None;
    };
    let of_entry =
        |setting: Option<&Setting>| setting.map_or_else(|| item.origin.clone(), |setting| setting.origin.clone());
    let config = ListenerConfig {
        name: name_value,
        direction: if inbound { Direction::Inbound } else { Direction::Outbound },
        protocol: if traffic == Traffic::InboundHttp { Protocol::Http } else { Protocol::Tcp },
        bind: bind_value,
        upstream: upstream_value,
        connect_timeout: duration(CONNECT_TIMEOUT).unwrap_or_default(),
        idle_timeout: duration(IDLE_TIMEOUT),
        half_closed_timeout: duration(HALF_CLOSED_TIMEOUT),
        proxy_protocol_from: if let Some(Value::Networks(networks)) = value(PROXY_FROM) {
            networks
        } else {
            Vec::new()
        },
        send_proxy_protocol: matches!(value(SEND_PROXY), Some(Value::Switch(true))),
        tls: server_tls,
        upstream_tls,
    };
    let or_default = |path: &str| field(path).map_or(Origin::Default, |setting| setting.origin.clone());
    let off = |length: Option<Duration>| length.map_or_else(|| "off".to_owned(), units::format_duration);
    let word = |is: bool, yes: &str, no: &str| if is { yes.to_owned() } else { no.to_owned() };
    let mut shown = vec![
        ("name", config.name.clone(), of_entry(name)),
        ("direction", word(inbound, "inbound", "outbound"), or_default("listeners[].direction")),
        ("protocol", word(config.protocol == Protocol::Http, "http", "tcp"), or_default(PROTOCOL)),
        ("bind", config.bind.to_string(), or_default(BIND)),
        ("upstream", config.upstream.to_string(), of_entry(upstream)),
    ];
    for (path, allowed, _) in ONLY {
        let text = match path {
            CONNECT_TIMEOUT => units::format_duration(config.connect_timeout),
            IDLE_TIMEOUT => off(config.idle_timeout),
            HALF_CLOSED_TIMEOUT => off(config.half_closed_timeout),
            PROXY_FROM if config.proxy_protocol_from.is_empty() => "(not set)".to_owned(),
            PROXY_FROM => Value::Networks(config.proxy_protocol_from.clone()).to_string(),
            _ => word(config.send_proxy_protocol, "on", "off"),
        };
        if allowed.contains(&traffic) {
            shown.push((path.trim_start_matches("listeners[]."), text, or_default(path)));
        }
    }
    let of_server = config.tls.iter().flat_map(|_| tls::SERVER);
    for path in of_server.chain(config.upstream_tls.iter().flat_map(|_| tls::UPSTREAM)) {
        shown.push((path.trim_start_matches("listeners[]."), tls::shown(item, path), or_default(path)));
    }
    Some(Placed {
        index,
        config,
        name_origin: of_entry(name),
        bind_origin: or_default(BIND),
        upstream_origin: of_entry(upstream),
        shown,
    })
}

fn parsed(setting: Option<&Setting>) -> Option<&Value> {
    setting.and_then(|setting| setting.value.as_ref())
}

fn report_missing(index: usize, item: &Item, traffic: Traffic, errors: &mut Vec<ConfigError>) {
    let mut missing = |path: &str, hint: &str| {
        if !item.fields.contains_key(path) {
            let shown = path.replace("[]", &format!("[{index}]"));
            errors.push(ConfigError::new(item.origin.clone(), shown, None, Fault::new("is missing").hint(hint)));
        }
    };
    missing("listeners[].name", "add one, like name: web");
    missing(
        UPSTREAM,
        match traffic {
            Traffic::InboundHttp => {
                "add where the app listens, like upstream: http://127.0.0.1:8080 (or set EBBTIDE_UPSTREAM for the first \
                 listener)"
            }
            Traffic::InboundTcp => "add where the app listens, like upstream: tcp://127.0.0.1:5432",
            Traffic::Outbound => "add where connections go, like upstream: tcp://db.example:5432",
        },
    );
    if traffic == Traffic::Outbound {
        missing(BIND, "an outbound listener has no default; add one, like bind: 127.0.0.1:5432");
    }
}

fn wrong_upstream(setting: &Setting, traffic: Traffic) -> Option<ConfigError> {
    let Some(Value::Upstream(upstream)) = &setting.value else {
        return None;
    };
    let fault = match (upstream, traffic) {
        (UpstreamAddr::Tcp(_) | UpstreamAddr::Tls(_), Traffic::Outbound) => return None,
        (UpstreamAddr::Unix(_), Traffic::InboundTcp) => return None,
        (UpstreamAddr::Tcp(all) | UpstreamAddr::Tls(all), Traffic::InboundTcp) if all.len() == 1 => return None,
        (UpstreamAddr::Tcp(_) | UpstreamAddr::Tls(_), Traffic::InboundTcp) => {
            Fault::new("has several hosts, and this pod has one app")
                .hint("give one; several are for outbound listeners")
        }
        (UpstreamAddr::Tcp(_) | UpstreamAddr::Tls(_), Traffic::InboundHttp) => Fault::new(
            "does not fit protocol: http",
        )
        .hint("use http://, https://, h2c://, auto:// or unix:// for an app that speaks HTTP, or write protocol: tcp"),
        (_, Traffic::InboundHttp) => return None,
        (_, Traffic::InboundTcp) => Fault::new("does not fit protocol: tcp")
            .hint("write it like tcp://127.0.0.1:5432, tls:// or unix:///run/app.sock, or remove protocol"),
        (_, Traffic::Outbound) => Fault::new("an outbound listener needs tcp:// or tls://")
            .hint("write it like tcp://db.example:5432, or remove direction: outbound"),
    };
    Some(setting.error(fault))
}

fn wrong_protocol(setting: &Setting) -> Option<ConfigError> {
    let Some(Value::Word("http")) = setting.value else {
        return None;
    };
    let fault = Fault::new("does not fit an outbound listener").hint("write tcp, or remove it: bytes go as they are");
    Some(setting.error(fault))
}
