//! The JSON Schema of the file, made from the table of keys.
//!
//! It refuses nothing that the documentation allows. What it can't see is left to the parser: how a number is written,
//! what is compared between keys, and what a variable may still add.
//!
//! Its patterns keep to what every dialect of regular expressions has, RE2 included: no look-around.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::keys::{self, BIND, HOLD, KEYS, Key, TLS_CLIENT_AUTH, TLS_CLIENT_CA, TLS_CLIENT_NAMES, UPSTREAM};
use super::listeners;
use super::units;
use super::value::Kind;
use super::yaml::{NEVER_EMPTY, join};

/// The JSON Schema (draft 2020-12) of the configuration file.
#[must_use]
pub fn schema() -> Value {
    let mut root = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of ebbtide",
        "description": "Kept to the text alone; `ebbtide config check FILE` also compares the keys with each other.",
    });
    extend(&mut root, section(""));
    let mut forms = Map::new();
    for key in KEYS.iter().filter(|key| key.in_file) {
        if let Some(name) = form_name(key.kind) {
            forms.entry(name).or_insert_with(|| {
                let mut form = form(key.kind);
                let examples = examples(key.kind);
                if !examples.is_empty() {
                    extend(&mut form, json!({ "examples": examples }));
                }
                form
            });
        }
    }
    extend(&mut root, json!({ "$defs": forms }));
    root
}

/// A mapping of the file, or the whole file for an empty path.
fn section(path: &str) -> Value {
    let all = keys::section_keys(path).map(|name| (name.to_owned(), property(&join(path, name))));
    let properties: Map<_, _> = all.collect();
    let names: Vec<_> = properties.keys().cloned().collect();
    // A section whose keys are all commented out is null.
    let mut section = json!({"type": ["object", "null"], "additionalProperties": false, "properties": properties});
    if NEVER_EMPTY.contains(&path) {
        extend(&mut section, json!({"type": "object", "minProperties": 1}));
    }
    match path {
        HOLD => extend(&mut section, json!({ "required": names })),
        "listeners[]" => extend(&mut section, listener()),
        "listeners[].tls" => {
            let client_ca = [last(TLS_CLIENT_CA)];
            let needs = json!({last(TLS_CLIENT_AUTH): client_ca, last(TLS_CLIENT_NAMES): client_ca});
            extend(&mut section, json!({ "dependentRequired": needs }));
        }
        _ => {}
    }
    section
}

fn property(path: &str) -> Value {
    match keys::find(path) {
        Some(key) if path == HOLD => {
            let mut hold = json!({"oneOf": [reference(key.kind), section(path)]});
            extend(&mut hold, annotations(key));
            hold
        }
        Some(key) => {
            let mut property = reference(key.kind);
            extend(&mut property, annotations(key));
            property
        }
        None if path == "listeners" => json!({"type": ["array", "null"], "items": section("listeners[]")}),
        None => section(path),
    }
}

/// What the direction decides. Upstream and certificates of the first inbound listener may come from a variable.
fn listener() -> Value {
    let refused = |outbound: bool| -> Map<_, _> {
        let names = keys::section_keys("listeners[]").filter(|name| {
            let path = format!("listeners[].{name}");
            let below = format!("{path}.");
            let mut keys = KEYS.iter().filter(|key| key.path == path || key.path.starts_with(&below));
            keys.all(|key| !listeners::may_have(key.path, outbound))
        });
        names.map(|name| (name.to_owned(), Value::Bool(false))).collect()
    };
    let mut outbound = refused(true);
    outbound.insert("protocol".to_owned(), json!({"const": "tcp"}));
    // Strict validators want it named here too.
    outbound.insert(last(BIND).to_owned(), json!(true));
    outbound.insert(last(UPSTREAM).to_owned(), json!({"type": "string", "pattern": r"^\s*(tcp|tls)://"}));
    json!({
        "type": "object",
        "required": ["name"],
        "if": {"properties": {"direction": {"const": "outbound"}}, "required": ["direction"]},
        "then": {"required": [last(BIND), last(UPSTREAM)], "properties": outbound},
        "else": {"properties": refused(false)},
    })
}

/// What an editor shows.
fn annotations(key: &Key) -> Value {
    let mut description = key.doc.to_owned();
    if let Some(plain) = key.default_plain {
        description.push_str(&format!(" In plain mode the default is {plain}."));
    }
    match (key.env, key.flag) {
        (Some(env), Some(flag)) => description.push_str(&format!(" Also {env}, --{flag}.")),
        (Some(env), None) => description.push_str(&format!(" Also {env}.")),
        (None, _) => {}
    }
    let is_number = matches!(key.kind, Kind::Count | Kind::CountOrAuto | Kind::CloseCode);
    match key.default.parse::<u64>() {
        _ if key.default.is_empty() => json!({ "description": description }),
        Ok(number) if is_number => json!({"description": description, "default": number}),
        _ => json!({"description": description, "default": key.default}),
    }
}

fn reference(kind: Kind) -> Value {
    form_name(kind).map_or_else(|| form(kind), |name| json!({"$ref": format!("#/$defs/{name}")}))
}

/// Words stand where they are used.
fn form_name(kind: Kind) -> Option<String> {
    let name = match kind {
        Kind::Word(_) => return None,
        Kind::Duration(min) if min.is_zero() => "duration",
        Kind::Duration(min) => return Some(format!("duration_from_{}", units::format_duration(min))),
        Kind::DurationOrOff => "duration_or_off",
        Kind::DurationOr(word) => return Some(format!("duration_or_{word}")),
        Kind::Percent => "percent",
        Kind::Size(min, max) => {
            return Some(format!("size_{}_to_{}", units::format_size(min), units::format_size(max)));
        }
        Kind::Count => "count",
        Kind::CountOrAuto => "count_or_auto",
        Kind::Switch => "switch",
        Kind::CloseCode => "close_code",
        Kind::Networks => "networks",
        Kind::Certificate => "certificate",
        Kind::Certificates => "certificates",
        Kind::SubjectNames => "subject_names",
        Kind::ServerName => "server_name",
        Kind::Bind => "bind",
        Kind::Upstream => "upstream",
        Kind::Path => "path",
        Kind::SocketOrDefault => "socket",
        Kind::Name => "name",
        Kind::Secret => "secret",
        Kind::Text => "text",
    };
    Some(name.to_owned())
}

/// What [`Kind::parse`] takes. A value that YAML reads as a number or a boolean counts as it is written.
fn form(kind: Kind) -> Value {
    let form = match kind {
        Kind::Duration(min) => duration(min),
        Kind::DurationOrOff => json!({"anyOf": [{"enum": ["off", false]}, duration(Duration::from_millis(1))]}),
        Kind::DurationOr(word) => json!({"anyOf": [{"const": word}, duration(Duration::ZERO)]}),
        Kind::Percent => {
            let over = format!(r"^\s*0*({}[.%]|100\.0*[1-9])", above(100));
            bounded(r"([0-9]+\.?[0-9]*|\.[0-9]+)%", &over)
        }
        Kind::Size(min, max) => size(min, max),
        Kind::Count => whole_number(""),
        Kind::CountOrAuto => whole_number("auto|"),
        Kind::Switch => json!({"enum": ["on", "off", true, false]}),
        Kind::CloseCode => json!({"anyOf": [
            {"enum": [1000, 1001, 1012, 1013]},
            {"type": "integer", "minimum": 3000, "maximum": 4999},
            text("0*(1000|1001|1012|1013|[34][0-9]{3})"),
        ]}),
        Kind::Word(words) => {
            let numbers = words.iter().filter_map(|word| word.parse::<f64>().ok()).map(Value::from);
            json!({"enum": words.iter().map(|word| json!(word)).chain(numbers).collect::<Vec<_>>()})
        }
        Kind::Networks => text(&several(&format!("{IPV4}(/{PREFIX_V4})?|{IPV6}(/{PREFIX_V6})?"))),
        Kind::Certificate => scalar(&certificate("")),
        Kind::Certificates => scalar(&several(&certificate(","))),
        Kind::SubjectNames => {
            scalar(&several(&format!(r"(\*\.)?{HOST_NAME}|{IPV6}|[^,* \t]*:[^,* \t]*([^,* \t:/]/+\*)?")))
        }
        Kind::ServerName => {
            let mut name = text(&format!(r"{LABEL}(\.{LABEL})*\.?|{IPV6}"));
            extend(&mut name, json!({"type": ["string", "boolean"]}));
            name
        }
        Kind::Bind => {
            let address = format!(r"({IPV4}|\[[0-9A-Fa-f:.]+(%[0-9]+)?\])?:[0-9]+");
            bounded(&address, &format!(r"{}\s*$", above(65535)))
        }
        Kind::Upstream => upstream(),
        Kind::Path => scalar(r"[^\x00]*[^\s\x00][^\x00]*"),
        Kind::SocketOrDefault => text(&format!("default|{SOCKET}")),
        Kind::Name => {
            let mut name = text("[a-z0-9-]{1,63}");
            extend(&mut name, json!({"type": ["string", "integer", "boolean"]}));
            name
        }
        // Neither stands in the file.
        Kind::Secret | Kind::Text => Value::Bool(false),
    };
    if kind.is_list() { json!({"anyOf": [form, {"type": "array", "minItems": 1, "items": form}]}) } else { form }
}

/// What an editor offers.
fn examples(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Duration(_) => &["10s", "1m30s", "1500ms"],
        Kind::DurationOrOff => &["off", "10s", "1h"],
        Kind::DurationOr(_) => &["hold", "10s"],
        Kind::Percent => &["50%"],
        Kind::Size(..) => &["64KiB"],
        Kind::CountOrAuto => &["auto"],
        Kind::Networks => &["10.0.0.0/8", "2001:db8::/32"],
        Kind::Certificate | Kind::Certificates => &["/etc/ebbtide/tls", "/etc/tls/chain.pem:/etc/tls/key.pem"],
        Kind::SubjectNames => &["client.example", "*.client.example", "spiffe://cluster.local/ns/shop/*"],
        Kind::ServerName => &["app.example"],
        Kind::Bind => &["[::]:14080", "0.0.0.0:14080", "127.0.0.1:5432"],
        Kind::Upstream => {
            &["http://127.0.0.1:8080", "h2c://127.0.0.1:50051", "unix:///run/app.sock", "tcp://db.example:5432"]
        }
        Kind::SocketOrDefault => &["default", "/run/ebbtide/control.sock"],
        Kind::Name => &["web"],
        Kind::Count | Kind::Switch | Kind::CloseCode | Kind::Path | Kind::Word(_) | Kind::Secret | Kind::Text => &[],
    }
}

fn duration(min: Duration) -> Value {
    let form = "[0-9]+h([0-9]+m)?([0-9]+s)?([0-9]+ms)?|[0-9]+m([0-9]+s)?([0-9]+ms)?|[0-9]+s([0-9]+ms)?|[0-9]+ms";
    let longest = units::LONGEST.as_secs();
    let (h, m, s, ms) = (above(longest / 3600), above(longest / 60), above(longest), above(longest * 1000));
    let too_long = format!("{h}h|{}h.*[1-9]|{m}m([0-9]|\\s*$)|{s}s|{ms}ms", longest / 3600);
    let Some(min) = u64::try_from(min.as_millis()).ok().filter(|min| *min > 0) else {
        return json!({"anyOf": [bounded(&format!("0|{form}"), &too_long), {"const": 0}]});
    };
    bounded(form, &format!(r"^\s*(0+h)?(0+m)?(0+s)?({}ms)?\s*$|{too_long}", below(min)))
}

fn size(min: usize, max: usize) -> Value {
    let mut wrong = Vec::new();
    for (unit, factor) in [("B?", 1), ("KiB", 1 << 10), ("MiB", 1 << 20)] {
        let number = format!(r"^\s*{}|{}", below(min.div_ceil(factor) as u64), above((max / factor) as u64));
        wrong.push(format!(r"({number})\s*{unit}\s*$"));
    }
    let mut form = bounded(r"[0-9]+\s*(B|KiB|MiB)?", &wrong.join("|"));
    extend(&mut form, json!({"type": ["string", "integer"], "minimum": min, "maximum": max}));
    form
}

fn whole_number(or: &str) -> Value {
    let mut form = text(&format!("{or}0*[1-9][0-9]*"));
    extend(&mut form, json!({"type": ["string", "integer"], "minimum": 1}));
    form
}

fn certificate(separator: &str) -> String {
    let path = format!(r"[^:\x00{separator}]*[^:\s\x00{separator}][^:\x00{separator}]*");
    format!("{path}(:{path})?")
}

fn upstream() -> Value {
    let host = format!(r"({HOST_NAME}|\[[0-9A-Fa-f:.]+\])");
    let of_one = format!("(http|h2c|auto|https)://{host}(:[0-9]+)?/?");
    let of_several = |scheme: &str| {
        let place = format!("({scheme})*{host}:[0-9]+/?");
        format!(r"{scheme}{place}(\s*,\s*{place})*")
    };
    let all = [of_one, of_several("tcp://"), of_several("tls://"), format!("unix://{SOCKET}")];
    let bad_port = format!(r"^\s*[a-z0-9]+://[^/].*:(0+|0*{})/?\s*(,|$)", above(65535));
    bounded(&all.join("|"), &bad_port)
}

/// Text of this form, whatever blanks are around it.
fn text(pattern: &str) -> Value {
    json!({"type": "string", "pattern": format!(r"^\s*({pattern})\s*$")})
}

/// The same, or anything else that YAML knows: it counts as it is written.
fn scalar(pattern: &str) -> Value {
    let mut form = text(pattern);
    extend(&mut form, json!({"type": ["string", "number", "boolean"]}));
    form
}

/// Text of this form that has nothing of the other.
fn bounded(pattern: &str, never: &str) -> Value {
    let mut form = text(pattern);
    extend(&mut form, json!({"not": {"type": "string", "pattern": never}}));
    form
}

fn several(pattern: &str) -> String {
    format!(r"({pattern})(\s*,\s*({pattern}))*")
}

/// Matches the end of every decimal number above this one, and of no other.
fn above(number: u64) -> String {
    let digits = number.to_string();
    let mut all = vec![format!("[1-9][0-9]{{{},}}", digits.len())];
    for (at, digit) in digits.bytes().enumerate().filter(|(_, digit)| *digit < b'9') {
        all.push(format!("{}[{}-9]{}", &digits[..at], char::from(digit + 1), any_digits(digits.len() - at - 1)));
    }
    format!("({})", all.join("|"))
}

/// Matches the decimal numbers below this one, as a whole.
fn below(number: u64) -> String {
    let digits = number.to_string();
    let mut all = vec![format!("[0-9]{{0,{}}}", digits.len() - 1)];
    for (at, digit) in digits.bytes().enumerate().filter(|(_, digit)| *digit > b'0') {
        all.push(format!("{}[0-{}]{}", &digits[..at], char::from(digit - 1), any_digits(digits.len() - at - 1)));
    }
    format!("0*({})", all.join("|"))
}

fn any_digits(count: usize) -> String {
    if count == 0 { String::new() } else { format!("[0-9]{{{count}}}") }
}

fn last(path: &'static str) -> &'static str {
    path.rsplit('.').next().unwrap_or(path)
}

/// Keys of the second one win.
pub(super) fn extend(object: &mut Value, more: Value) {
    if let (Value::Object(object), Value::Object(more)) = (object, more) {
        object.extend(more);
    }
}

const IPV4: &str = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(\.(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])){3}";

/// Its inner order is left to the parser.
const IPV6: &str = "[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*";

const PREFIX_V4: &str = "(3[0-2]|[0-2]?[0-9])";
const PREFIX_V6: &str = "(12[0-8]|1[01][0-9]|0?[0-9]{1,2})";

const HOST_NAME: &str = "[A-Za-z0-9._-]{1,253}";
const LABEL: &str = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?";

/// An absolute path of at most 107 characters that does not end with a slash.
const SOCKET: &str = r"/[^\x00]{0,105}[^/\x00]";
