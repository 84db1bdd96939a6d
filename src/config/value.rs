//! What kind of text each key takes, and the typed value it becomes.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::error::Fault;
use super::{CertificateFiles, Secret, SubjectName, UpstreamAddr, address, tls, units};
use ipnet::IpNet;

/// The form of a key's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// `10s`, `1m30s`; at least this long, at most 24 hours.
    Duration(Duration),
    /// A duration over 0, or `off`.
    DurationOrOff,
    /// A duration, or this word.
    DurationOr(&'static str),
    /// `0%` to `100%`.
    Percent,
    /// Bytes, `64KiB`; smallest and largest allowed.
    Size(usize, usize),
    /// A whole number of at least 1.
    Count,
    /// A whole number of at least 1, or `auto`.
    CountOrAuto,
    /// `on` or `off`, `true` or `false`.
    Switch,
    /// A WebSocket close code that a server may send.
    CloseCode,
    /// IP networks, separated by commas; in the file also as a list.
    Networks,
    /// A folder with `tls.crt` and `tls.key`, or `CHAIN.pem:KEY.pem`.
    Certificate,
    /// Several of them, likewise a list.
    Certificates,
    /// Subject alternative names, likewise a list.
    SubjectNames,
    /// A host name or IP address.
    ServerName,
    /// An IP address with a port to listen on.
    Bind,
    /// An upstream URL.
    Upstream,
    /// A path.
    Path,
    /// The absolute path of a Unix socket, or `default`.
    SocketOrDefault,
    /// One of these words.
    Word(&'static [&'static str]),
    /// `[a-z0-9-]`, at most 63 characters.
    Name,
    /// Never printed.
    Secret,
    /// The text of a whole configuration file.
    Text,
}

/// A key's text, read according to its [`Kind`].
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Duration(Duration),
    Percent(f64),
    Size(usize),
    Count(usize),
    Switch(bool),
    CloseCode(u16),
    Networks(Vec<IpNet>),
    Certificates(Vec<CertificateFiles>),
    SubjectNames(Vec<SubjectName>),
    Bind(SocketAddr),
    Upstream(UpstreamAddr),
    Path(PathBuf),
    Word(&'static str),
    Name(String),
    Secret(Secret),
    /// `auto`, `off` or `default`: nothing chosen.
    Unset(&'static str),
}

// === impl Kind ===

impl Kind {
    /// In the file it may be a list.
    pub(super) const fn is_list(self) -> bool {
        matches!(self, Self::Networks | Self::Certificates | Self::SubjectNames)
    }

    /// How the help text names the value.
    #[must_use]
    pub fn value_name(self) -> String {
        let name = match self {
            Self::Duration(_) => "DURATION",
            Self::DurationOrOff => "DURATION|off",
            Self::DurationOr(word) => return format!("DURATION|{word}"),
            Self::Percent => "PERCENT",
            Self::Size(..) => "SIZE",
            Self::Count => "N",
            Self::CountOrAuto => "N|auto",
            Self::Switch => "on|off",
            Self::CloseCode => "CODE",
            Self::Networks => "NETWORKS",
            Self::Certificate => "FOLDER|CHAIN:KEY",
            Self::Certificates => "FOLDER|CHAIN:KEY,...",
            Self::SubjectNames => "NAMES",
            Self::ServerName => "HOST",
            Self::Bind => "ADDRESS",
            Self::Upstream => "URL",
            Self::Path | Self::SocketOrDefault => "PATH",
            Self::Word(words) => return words.join("|"),
            Self::Name => "NAME",
            Self::Secret => "SECRET",
            Self::Text => "YAML",
        };
        name.to_owned()
    }

    pub(super) fn parse(self, text: &str) -> Result<Value, Fault> {
        // A blank around a value is a quoting accident and harmless; inside a secret it may be meant.
        let trimmed = if self == Self::Secret { text } else { text.trim() };
        if trimmed.is_empty() {
            return Err(Fault::new("is empty").hint("give a value, or remove it for the default"));
        }
        match self {
            Self::Duration(min) => at_least(min, units::parse_duration(trimmed)?).map(Value::Duration),
            Self::DurationOrOff if is_off(trimmed) => Ok(Value::Unset("off")),
            Self::DurationOrOff => {
                let duration = units::parse_duration(trimmed).map_err(|fault| fault.or_word("off"))?;
                if duration.is_zero() {
                    return Err(Fault::new("is 0").hint("write off"));
                }
                Ok(Value::Duration(duration))
            }
            Self::DurationOr(word) if trimmed == word => Ok(Value::Unset(word)),
            Self::DurationOr(word) => {
                units::parse_duration(trimmed).map(Value::Duration).map_err(|fault| fault.or_word(word))
            }
            Self::Percent => units::parse_percent(trimmed).map(Value::Percent),
            Self::Size(min, max) => within(min, max, units::parse_size(trimmed)?).map(Value::Size),
            Self::CountOrAuto if trimmed == "auto" => Ok(Value::Unset("auto")),
            Self::CountOrAuto => parse_count(trimmed).map_err(|fault| fault.or_word("auto")),
            Self::Count => parse_count(trimmed),
            Self::Switch => parse_switch(trimmed),
            Self::CloseCode => parse_close_code(trimmed),
            Self::Networks => parse_networks(trimmed),
            Self::Certificate => tls::parse_certificate(trimmed).map(|one| Value::Certificates(vec![one])),
            Self::Certificates => tls::parse_certificates(trimmed).map(Value::Certificates),
            Self::SubjectNames => tls::parse_names(trimmed).map(Value::SubjectNames),
            Self::ServerName => tls::parse_server_name(trimmed).map(Value::Name),
            Self::Bind | Self::Upstream if let Some(name) = left_as_written(trimmed) => {
                Err(Fault::new("holds a variable's name instead of its value")
                    .hint(format!("Kubernetes did not replace $({name}): define {name} above it in the same env list")))
            }
            Self::Bind => address::parse_bind(trimmed).map(Value::Bind),
            Self::Upstream => address::parse_upstream(trimmed).map(Value::Upstream),
            Self::Path if trimmed.contains('\0') => Err(Fault::new("holds a NUL byte")),
            Self::Path => Ok(Value::Path(PathBuf::from(trimmed))),
            Self::SocketOrDefault if trimmed == "default" => Ok(Value::Unset("default")),
            Self::SocketOrDefault => address::parse_socket_path(trimmed).map(Value::Path),
            Self::Word(words) => parse_word(trimmed, words),
            Self::Name => parse_name(trimmed),
            Self::Secret => parse_secret(trimmed),
            Self::Text => Err(Fault::new("can't stand here")),
        }
    }
}

/// The name in the first `$(NAME)`.
fn left_as_written(text: &str) -> Option<&str> {
    let (name, _) = text.split_once("$(")?.1.split_once(')')?;
    Some(name)
}

fn at_least(min: Duration, duration: Duration) -> Result<Duration, Fault> {
    if duration < min {
        return Err(Fault::new(format!("is shorter than {}", units::format_duration(min))));
    }
    Ok(duration)
}

fn within(min: usize, max: usize, size: usize) -> Result<usize, Fault> {
    if (min..=max).contains(&size) {
        return Ok(size);
    }
    let (min, max) = (units::format_size(min), units::format_size(max));
    Err(Fault::new("is out of range").hint(format!("give {min} to {max}")))
}

fn parse_count(text: &str) -> Result<Value, Fault> {
    match text.parse::<usize>() {
        Ok(0) => Err(Fault::new("is 0").hint("give at least 1")),
        Ok(count) => Ok(Value::Count(count)),
        Err(_) if text.bytes().all(|b| b.is_ascii_digit()) => Err(Fault::new("is too large")),
        Err(_) => Err(Fault::new("is not a whole number").hint("give at least 1")),
    }
}

fn parse_switch(text: &str) -> Result<Value, Fault> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "on" => Ok(Value::Switch(true)),
        "false" | "off" => Ok(Value::Switch(false)),
        _ => Err(Fault::new("is no switch").hint("write on or off")),
    }
}

/// RFC 6455 §7.4: codes below 1000 are not used, 1004 to 1006 and 1015 never stand in a frame, and the rest below 3000
/// says what the app alone can know.
fn parse_close_code(text: &str) -> Result<Value, Fault> {
    match text.parse::<u16>() {
        Ok(code @ (1000 | 1001 | 1012 | 1013 | 3000..=4999)) => Ok(Value::CloseCode(code)),
        _ => Err(Fault::new("is no close code for this").hint("give 1000, 1001, 1012, 1013, or 3000 to 4999")),
    }
}

fn parse_networks(text: &str) -> Result<Value, Fault> {
    let network = |part: &str| {
        let alone = || part.parse::<std::net::IpAddr>().map(IpNet::from);
        // A client's address is compared in its own family, and a host in a network's address says nothing.
        let usable = |network: &IpNet| network.trunc() == *network && network.addr().to_canonical() == network.addr();
        part.parse::<IpNet>().or_else(|_| alone()).ok().filter(usable)
    };
    let parts: Vec<_> = text.split(',').map(str::trim).collect();
    let bad: Vec<_> = parts.iter().filter(|part| network(part).is_none()).map(|part| format!("{part:?}")).collect();
    if bad.is_empty() {
        return Ok(Value::Networks(parts.into_iter().filter_map(network).collect()));
    }
    let which = if bad.len() == 1 { "which is no network" } else { "which are no networks" };
    Err(Fault::new(format!("has {}, {which}", bad.join(" and ")))
        .hint("write it like 10.0.0.0/8 or 2001:db8::/32, with nothing behind the prefix"))
}

fn is_off(text: &str) -> bool {
    // YAML 1.1 tools turn a bare `off` into `false` when they rewrite a file.
    matches!(text.to_ascii_lowercase().as_str(), "off" | "false")
}

fn parse_word(text: &str, words: &'static [&'static str]) -> Result<Value, Fault> {
    match words.iter().find(|word| **word == text) {
        Some(word) => Ok(Value::Word(word)),
        None => Err(Fault::new("is not one of the possible values").hint(format!("write {}", words.join(" or ")))),
    }
}

fn parse_name(text: &str) -> Result<Value, Fault> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if text.len() > 63 || !text.bytes().all(allowed) {
        return Err(Fault::new("is not a listener's name").hint("use a-z, 0-9 and -, at most 63 characters"));
    }
    Ok(Value::Name(text.to_owned()))
}

fn parse_secret(text: &str) -> Result<Value, Fault> {
    if text.len() > 256 || !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Fault::new("can't be sent in a header")
            .hint("use 1 to 256 visible ASCII characters; look for a newline at the end"));
    }
    Ok(Value::Secret(Secret(text.to_owned())))
}

fn list(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

// === impl Value ===

impl fmt::Display for Value {
    /// The shortest text that reads back as the same value; a secret only says that it is set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duration(duration) => f.write_str(&units::format_duration(*duration)),
            Self::Percent(share) => write!(f, "{}%", (share * 1e6).round() / 1e4),
            Self::Size(bytes) => f.write_str(&units::format_size(*bytes)),
            Self::Count(count) => write!(f, "{count}"),
            Self::Switch(true) => f.write_str("on"),
            Self::Switch(false) => f.write_str("off"),
            Self::CloseCode(code) => write!(f, "{code}"),
            Self::Networks(networks) => f.write_str(&list(networks)),
            Self::Certificates(files) => f.write_str(&list(files)),
            Self::SubjectNames(names) => f.write_str(&list(names)),
            Self::Bind(address) => write!(f, "{address}"),
            Self::Upstream(upstream) => write!(f, "{upstream}"),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Word(word) | Self::Unset(word) => f.write_str(word),
            Self::Name(name) => f.write_str(name),
            Self::Secret(_) => f.write_str("(set)"),
        }
    }
}

// === impl Fault ===

impl Fault {
    /// Adds a word to a hint such as "write it like 10s".
    fn or_word(self, word: &str) -> Self {
        let hint = match &self.hint {
            Some(hint) => format!("{hint}, or {word}"),
            None => format!("or write {word}"),
        };
        self.hint(hint)
    }
}
