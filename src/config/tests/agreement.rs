//! The schema and the parser agree, but for what each alone can see.

use super::WEB;
use super::schema::{as_json, validator};
use crate::config::check_text;

#[test]
fn both_take_what_is_good() {
    assert_taken(GOOD, true, true);
}

#[test]
fn both_refuse_what_is_bad() {
    assert_taken(BAD, false, false);
}

#[test]
fn only_the_parser_compares_and_sees_what_is_written() {
    assert_taken(PARSER_ALONE, true, false);
    let validator = validator();
    // What is missing may come from a variable.
    for file in ["", "mode: sidecar", "listeners:", "listeners: []", "listeners: [{name: web}]"] {
        assert!(validator.is_valid(&as_json(file)) && check_text("test.yaml", file).is_err(), "{file}");
    }
    for file in [format!("{WEB}{WEB}"), format!("{WEB}---\n{WEB}")] {
        assert!(check_text("test.yaml", &file).is_err(), "{file}");
    }
}

#[test]
fn only_the_schema_refuses_what_the_documentation_does_not_allow() {
    assert_taken(SCHEMA_ALONE, false, true);
}

/// The whole file for a snippet: `- ` begins what one listener has beside its name, anything else what the file has
/// beside a listener.
fn file_of(snippet: &str) -> String {
    match snippet.strip_prefix("- ") {
        Some(fields) if fields.contains("upstream: ") => format!("listeners: [{{name: web, {fields}}}]\n"),
        Some(fields) => format!("listeners: [{{name: web, upstream: 'http://127.0.0.1:2', {fields}}}]\n"),
        None if snippet.starts_with("listeners:") => snippet.to_owned(),
        None => format!("{WEB}{snippet}\n"),
    }
}

/// `by_schema` and `by_parser` say who takes all of the snippets.
fn assert_taken(snippets: &[&str], by_schema: bool, by_parser: bool) {
    let validator = validator();
    let wrong = snippets.iter().filter_map(|snippet| {
        let file = file_of(snippet);
        let schema = validator.is_valid(&as_json(&file));
        let parser = check_text("test.yaml", &file).is_ok();
        ((schema, parser) != (by_schema, by_parser)).then(|| format!("{snippet}: schema {schema}, parser {parser}"))
    });
    assert_eq!(wrong.collect::<Vec<_>>(), Vec::<String>::new());
}

const GOOD: &[&str] = &[
    "mode: sidecar",
    "drain:",
    "admin: {}",
    "admin: {bind: ':0'}",
    "drain: {hold: 0}",
    "drain: {hold: 1h2m3s4ms}",
    "drain: {hold: {min: 1s, quiet: 0, max: 24h}}",
    "drain: {grace_period: 1000ms}",
    "drain: {grace_period: '1m'}",
    "drain: {notice_after: 12.5%}",
    "drain: {notice_after: 100%}",
    "drain: {websocket_after: hold, sse_after: 0s}",
    "drain:\n  quiet: >\n    1s\n",
    "parking: {max_requests: 1}",
    "parking: {max_requests: '8'}",
    "websocket: {close_code: 3999, over_http2: true}",
    "websocket: {close_code: '1012', close_timeout: 100ms}",
    "pass_on_close: off",
    "limits: {header_bytes: 8192, max_connections: auto}",
    "limits: {header_bytes: 1 MiB}",
    "limits: {header_bytes: 1024KiB, max_connections: 5}",
    "metrics: {final_scrape: false}",
    "metrics: {final_scrape: 5s}",
    "log: {format: text, level: trace, access: on}",
    "workers: 2",
    "control_socket: /run/a.sock",
    "control_socket: default",
    "termination_message_path: /dev/null",
    "- bind: '0.0.0.0:00080'",
    "- bind: '[fe80::1%2]:80'",
    "- upstream: 'http://app'",
    "- upstream: 'https://[::1]/', upstream_tls: {ca: ca.pem, server_name: 192.0.2.1}",
    "- upstream: 'h2c://app:65535'",
    "- upstream: 'tcp://[::1]:5432'",
    "- upstream: 'unix:///run/a:99999'",
    "- upstream: 'unix:///run/a', protocol: tcp, idle_timeout: 1s, send_proxy_protocol: on",
    "- direction: outbound, bind: ':1', upstream: 'tcp://a:1, tcp://b:2', connect_timeout: 1ms, protocol: tcp",
    "- direction: outbound, bind: ':1', upstream: 'tls://a:1', upstream_tls: {insecure_skip_verify: on}",
    "- proxy_protocol_from: 10.0.0.0/8",
    "- proxy_protocol_from: [192.0.2.1, '2001:db8::/32']",
    "- tls: {certificates: /a, min_version: 1.2}",
    "- tls: {certificates: '/a, /b.pem:/c.pem', min_version: '1.3'}",
    "- tls: {certificates: [/a], client_ca: b, client_names: ['*.a', a.b, 'spiffe://x/*', '::1']}",
    "- tls: {certificates: [5, true], client_ca: 5, client_names: 7}",
    "listeners: [{name: 5, upstream: 'http://app'}]",
];

const BAD: &[&str] = &[
    "x: 1",
    "drains: {}",
    "drain: {quit: 1s}",
    "drain: {hold.min: 1s}",
    "1: 2",
    "mode: side",
    "mode: true",
    "mode:",
    "drain: 5s",
    "drain: []",
    "admin: {token: abc}",
    "config: a.yaml",
    "drain: {hold: 10}",
    "drain: {hold: -5s}",
    "drain: {hold: 1.5s}",
    "drain: {hold: 1s1m}",
    "drain: {hold: 25h}",
    "drain: {hold: 1441m}",
    "drain: {hold: 24h1ms}",
    "drain: {hold: 99999999999999999999s}",
    "drain: {hold: [1s]}",
    "drain: {hold:}",
    "drain: {hold: {}}",
    "drain: {hold: {max: 5s}}",
    "drain: {hold: {min: 1s, quiet: 1s, max: 2s, mid: 1s}}",
    "drain: {grace_period: 0}",
    "drain: {grace_period: 0h0s999ms}",
    "drain: {notice_after: 0.5}",
    "drain: {notice_after: 100.1%}",
    "drain: {notice_after: 101%}",
    "drain: {readiness_fails: never}",
    "drain: {websocket_after: off}",
    "parking: {max_requests: 0}",
    "parking: {max_requests: auto}",
    "websocket: {close_code: 1006}",
    "websocket: {close_code: 5000}",
    "websocket: {close_timeout: 99ms}",
    "pass_on_close: yes",
    "pass_on_close: 1",
    "limits: {header_bytes: 4KiB}",
    "limits: {header_bytes: 8191}",
    "limits: {header_bytes: '1048577'}",
    "limits: {header_bytes: 2MiB}",
    "limits: {header_bytes: 64KB}",
    "limits: {header_timeout: 0}",
    "metrics: {final_scrape: 0s}",
    "metrics: {final_scrape: on}",
    "workers: 1.5",
    "control_socket: run/a.sock",
    "control_socket: /run/",
    "termination_message_path: ''",
    "- x: 1",
    "listeners: [{name: Web, upstream: 'http://app'}]",
    "listeners: [{upstream: 'http://app'}]",
    "listeners: {name: web}",
    "listeners: [web]",
    "- bind: 14080",
    "- bind: 'localhost:80'",
    "- bind: ':65536'",
    "- bind: '256.0.0.1:1'",
    "- upstream: 'app:8080'",
    "- upstream: 'http://app/path'",
    "- upstream: 'http://app:0'",
    "- upstream: 'http://app:65536/'",
    "- upstream: 'tcp://db'",
    "- upstream: 'tcp://a:1,tls://b:2', direction: outbound, bind: ':1'",
    "- upstream: 'unix://run/a'",
    "- upstream: 'http://$(POD_IP):8080'",
    "- upstream: 'http://app', direction: outbound, bind: ':1'",
    "- upstream: 'tcp://a:1', direction: outbound",
    "- upstream: 'tcp://a:1', direction: outbound, bind: ':1', protocol: http",
    "- upstream: 'tcp://a:1', direction: outbound, bind: ':1', idle_timeout: 1s",
    "- upstream: 'tcp://a:1', direction: outbound, bind: ':1', tls: {certificates: a}",
    "- connect_timeout: 5s",
    "- direction: both",
    "- proxy_protocol_from: 10.0.0.0/33",
    "- proxy_protocol_from: []",
    "- proxy_protocol_from: [[192.0.2.1]]",
    "- tls: {}",
    "- tls:",
    "- tls: {certificates: '/a,,/b'}",
    "- tls: {certificates: 'a:b:c'}",
    "- tls: {certificates: a, min_version: 1.1}",
    "- tls: {certificates: a, client_auth: optional}",
    "- tls: {certificates: a, client_ca: b, client_names: 'spiffe://*'}",
    "- upstream: 'https://app', upstream_tls: {ca: a, server_name: 'a b'}",
];

const PARSER_ALONE: &[&str] = &[
    // Between keys.
    "drain: {hold: {min: 9s, quiet: 1s, max: 5s}}",
    "admin: {bind: ':1'}",
    "- bind: ':14090'",
    "- bind: ':2'",
    "- upstream: 'tcp://a:1', protocol: http",
    "- upstream: 'tcp://a:1,b:2'",
    "- idle_timeout: 1s",
    "- send_proxy_protocol: on",
    "- upstream: 'https://app'",
    "- upstream_tls: {ca: a}",
    "- upstream: 'https://app', upstream_tls: {ca: a, insecure_skip_verify: on}",
    "- tls: {min_version: '1.3'}",
    "listeners: [{name: a, upstream: 'http://a', bind: ':1'}, {name: a, upstream: 'http://b', bind: ':3'}]",
    // How a number is written.
    "workers: 0x10",
    "workers: 4.0",
    "drain: {hold: 0.0}",
    "- tls: {certificates: a, min_version: 1.20}",
    // What takes more than a pattern.
    "drain: {hold: 23h60m1s}",
    "workers: '99999999999999999999'",
    "- bind: '[1:2]:80'",
    "- proxy_protocol_from: 10.0.0.1/8",
    "- proxy_protocol_from: '::ffff:10.0.0.1'",
    "- upstream: 'https://app', upstream_tls: {ca: a, server_name: '1.2.3'}",
];

const SCHEMA_ALONE: &[&str] = &[
    "mode: ' sidecar '",
    "pass_on_close: Off",
    "pass_on_close: 'true'",
    "metrics: {final_scrape: OFF}",
    "workers: '+2'",
    "- upstream: 'HTTP://app'",
];
