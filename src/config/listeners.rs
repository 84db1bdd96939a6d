//! From an entry of the list of listeners to a [`ListenerConfig`].

use super::error::{ConfigError, Fault, Origin};
use super::keys::{self, BIND, UPSTREAM};
use super::source::{Item, Setting};
use super::value::Value;
use super::{Direction, ListenerConfig, ResolvedValue, UpstreamAddr};

/// A listener with the places of its parts, for the checks between them.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) index: usize,
    pub(super) config: ListenerConfig,
    pub(super) name_origin: Origin,
    bind_origin: Origin,
    pub(super) upstream_origin: Origin,
    direction_origin: Origin,
}

// === impl Placed ===

impl Placed {
    /// Where a fault in the address is told; a default has no place of its own.
    pub(super) fn bind_place(&self) -> &Origin {
        if self.bind_origin == Origin::Default { &self.name_origin } else { &self.bind_origin }
    }

    /// One line for each part, for `ebbtide config show`.
    pub(super) fn values(&self) -> [ResolvedValue; 4] {
        let direction = match self.config.direction {
            Direction::Inbound => "inbound",
            Direction::Outbound => "outbound",
        };
        [
            ("name", self.config.name.clone(), &self.name_origin),
            ("direction", direction.to_owned(), &self.direction_origin),
            ("bind", self.config.bind.to_string(), &self.bind_origin),
            ("upstream", self.config.upstream.to_string(), &self.upstream_origin),
        ]
        .map(|(field, value, origin)| ResolvedValue {
            key: format!("listeners[{}].{field}", self.index),
            value,
            origin: origin.clone(),
        })
    }
}

/// Reads one entry; `None` if a part is missing or faulty, which has been reported then.
pub(super) fn read(index: usize, item: &Item, errors: &mut Vec<ConfigError>) -> Option<Placed> {
    let shown = |field: &str| format!("listeners[{index}].{field}");
    let mut missing = |field: &str, hint: &str| {
        let fault = Fault::new("is missing").hint(hint);
        errors.push(ConfigError::new(item.origin.clone(), shown(field), None, fault));
    };
    let field = |path: &str| item.fields.get(path);
    let (name, bind, upstream) = (field("listeners[].name"), field(BIND), field(UPSTREAM));
    let (direction, protocol) = (field("listeners[].direction"), field("listeners[].protocol"));
    let inbound = direction.is_none_or(|setting| setting.text.trim() != "outbound");
    if name.is_none() {
        missing("name", "add one, like name: web");
    }
    if upstream.is_none() {
        let hint = if inbound {
            "add where the app listens, like upstream: http://127.0.0.1:8080 (or set EBBTIDE_UPSTREAM for the first listener)"
        } else {
            "add where connections go, like upstream: tcp://db.example:5432"
        };
        missing("upstream", hint);
    }
    if bind.is_none() && !inbound {
        missing("bind", "an outbound listener has no default; add one, like bind: 127.0.0.1:5432");
    }
    errors.extend(
        [upstream.and_then(|set| wrong_scheme(set, inbound)), protocol.and_then(|set| wrong_protocol(set, inbound))]
            .into_iter()
            .flatten(),
    );

    let default_bind = keys::find(BIND).filter(|_| inbound).and_then(|key| key.kind.parse(key.default).ok());
    let value = |setting: Option<&Setting>| setting.and_then(|setting| setting.value.clone());
    // What is faulty or missing has been reported; without all parts there is nothing to compare with others.
    let Some(Value::Name(name_value)) = value(name) else {
        return None;
    };
    let Some(Value::Upstream(upstream_value)) = value(upstream) else {
        return None;
    };
    let Some(Value::Bind(bind_value)) = (if bind.is_some() { value(bind) } else { default_bind }) else {
        return None;
    };
    let origin =
        |setting: Option<&Setting>| setting.map_or_else(|| item.origin.clone(), |setting| setting.origin.clone());
    Some(Placed {
        index,
        config: ListenerConfig {
            name: name_value,
            direction: if inbound { Direction::Inbound } else { Direction::Outbound },
            bind: bind_value,
            upstream: upstream_value,
        },
        name_origin: origin(name),
        bind_origin: bind.map_or(Origin::Default, |setting| setting.origin.clone()),
        upstream_origin: origin(upstream),
        direction_origin: direction.map_or(Origin::Default, |setting| setting.origin.clone()),
    })
}

fn wrong_scheme(setting: &Setting, inbound: bool) -> Option<ConfigError> {
    let Some(Value::Upstream(upstream)) = &setting.value else {
        return None;
    };
    let fault = match (upstream, inbound) {
        (UpstreamAddr::Tcp(_), true) => Fault::new("tcp:// is for outbound listeners only, so far")
            .hint("use http://, h2c://, auto:// or unix:// for the app, or add direction: outbound"),
        (_, false) if !matches!(upstream, UpstreamAddr::Tcp(_)) => Fault::new("an outbound listener needs tcp://")
            .hint("write it like tcp://db.example:5432, or remove direction: outbound"),
        _ => return None,
    };
    Some(setting.error(fault))
}

fn wrong_protocol(setting: &Setting, inbound: bool) -> Option<ConfigError> {
    let fits = if inbound { "http" } else { "tcp" };
    let direction = if inbound { "inbound" } else { "outbound" };
    let Some(Value::Word(word)) = setting.value else {
        return None;
    };
    (word != fits).then(|| {
        let fault =
            Fault::new(format!("does not fit an {direction} listener")).hint(format!("write {fits}, or remove it"));
        setting.error(fault)
    })
}
