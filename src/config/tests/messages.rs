//! The full text of what a user reads.

use super::{WEB, faults, good};
use crate::config::error::nearest;

/// The file that the user's documentation shows with its messages.
pub(super) const BROKEN: &str = r#"listeners:
  - name: web
    bind: "[::]:14080"
    upstream: http://127.0.0.1:14080
drain:
  hold: 10
  notice_aftr: 50%
"#;

#[test]
fn two_faults_are_both_told_with_their_places() {
    let text = format!("{WEB}drain:\n  hold: 10\n  margin: 2s\nlog:\n  level: loud\n");
    assert_eq!(
        faults(&text),
        "test.yaml:3:9: drain.hold = \"10\": has no unit\n  help: write 10s for seconds, 10ms for milliseconds\n\
         test.yaml:6:10: log.level = \"loud\": is not one of the possible values\n  \
         help: write error or warn or info or debug or trace"
    );
}

#[test]
fn unknown_and_later_keys() {
    for (text, message) in [
        ("drain: {hodl: 1s}", "test.yaml:2:9: drain.hodl: unknown key\n  help: did you mean drain.hold?"),
        ("drian: {hold: 1s}", "test.yaml:2:1: drian: unknown key\n  help: did you mean drain?"),
        ("hold: 1s", "test.yaml:2:1: hold: unknown key\n  help: did you mean drain.hold?"),
        ("log: {colour: on}", "test.yaml:2:7: log.colour: unknown key\n  help: possible here: format, level, access"),
        ("log: {lol: 1s}", "test.yaml:2:7: log.lol: unknown key\n  help: possible here: format, level, access"),
        (
            "admin: {token: hush}",
            "test.yaml:2:9: admin.token: is a secret and can't stand in a file\n  \
             help: set EBBTIDE_ADMIN_TOKEN from a Kubernetes Secret",
        ),
        (
            "config_yaml: x",
            "test.yaml:2:1: config_yaml: unknown key\n  help: possible here: mode, listeners, admin, control_socket, drain, parking, websocket, pass_on_close, limits, metrics, log, workers, termination_message_path",
        ),
    ] {
        assert_eq!(faults(&format!("{WEB}{text}\n")), message, "{text}");
    }
    assert_eq!(
        faults("listeners:\n  - {name: a, upstream: 'http://a', bnd: ':1'}\n"),
        "test.yaml:2:37: listeners[0].bnd: unknown key\n  help: did you mean listeners[0].bind?"
    );
    assert_eq!(nearest("FOO", ["LOG"]), None);
    assert_eq!(nearest("x".repeat(1000).as_str(), ["x"]), None);
}

#[test]
fn wrong_shapes() {
    for (text, message) in [
        ("a: [", "test.yaml:2:1: is not valid YAML: "),
        (
            "mode: plain\nmode: plain",
            "test.yaml:2:1: the key mode is given twice in one mapping\n  help: keep one of them",
        ),
        (
            "mode: plain\n---\nmode: plain",
            "test.yaml:3:1: has more than one document\n  help: keep one, without a second ---",
        ),
        ("just words", "test.yaml:1:1: the file must be a mapping\n  help: its keys are mode, listeners, "),
        ("drain: 10s", "test.yaml:1:8: drain: must be a mapping\n  help: its keys are grace_period, hold, "),
        ("mode: [plain]", "test.yaml:1:7: mode: must be a single value, not a list or mapping"),
        ("mode:", "test.yaml:1:5: mode: has no value\n  help: give one, or remove the key"),
        ("mode: !x plain", "test.yaml:1:7: mode: has a tag or value"),
        ("1: x", "test.yaml:1:1: has a key that is not a plain word"),
        (
            "listeners: {web: x}",
            "test.yaml:1:12: listeners: must be a list\n  help: start each listener with a dash: - name: web",
        ),
        (
            "listeners: [web]",
            "test.yaml:1:13: listeners[0]: must be a mapping\n  help: its keys are name, direction, protocol, bind, upstream",
        ),
        ("mode: *nobody", "test.yaml:1:7: is not valid YAML: "),
    ] {
        let given = faults(text);
        assert!(given.starts_with(message), "{text}\n{given}");
    }
}

#[test]
fn hostile_shapes_are_refused() {
    let deep = |open: &str, count: usize| format!("mode: {}", open.repeat(count));
    for text in [
        deep("[", 100_000),
        deep("{a: ", 30_000),
        deep("[? ", 30_000),
        deep("\n- ", 10),
        "- ".repeat(60_000),
        "? ".repeat(60_000),
    ] {
        assert!(!faults(&text).is_empty());
    }
    let stairs: String = (0..300).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    assert!(faults(&stairs).contains("test.yaml:66:1: is nested too deeply"));
    let returns = "- \r".repeat(40_000);
    assert!(!faults(&returns).is_empty());
    let anchors: String = (0..20).map(|n| format!("a{n}: &a{n} x\n")).collect();
    assert_eq!(faults(&anchors), "test.yaml:17:1: has more than 16 anchors");
    let laughs = "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
                  d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n";
    assert!(faults(laughs).contains("alias expansion exceeded"), "{}", faults(laughs));
    assert_eq!(faults(&"#".repeat(128 * 1024 + 1)), "test.yaml: has more than 128 KiB");
}

#[test]
fn values_between_keys() {
    let listener =
        |bind: &str, upstream: &str| format!("listeners: [{{name: web, bind: '{bind}', upstream: '{upstream}'}}]\n");
    for (text, message) in [
        ("mode: plain\n".to_owned(), "configuration: listeners: there is none\n  help: set EBBTIDE_UPSTREAM (or --upstream) to the app, like http://127.0.0.1:8080, or write a list of listeners in the file"),
        ("listeners: [{}]".to_owned(), "test.yaml:1:13: listeners[0].name: is missing\n  help: add one, like name: web\n\
            test.yaml:1:13: listeners[0].upstream: is missing\n  help: add where the app listens, like upstream: http://127.0.0.1:8080 (or set EBBTIDE_UPSTREAM for the first listener)"),
        ("listeners: [{name: db, direction: outbound, upstream: 'tcp://db:1'}]".to_owned(), "test.yaml:1:13: listeners[0].bind: is missing\n  help: an outbound listener has no default; add one, like bind: 127.0.0.1:5432"),
        (format!("{}{}", "listeners: [{name: web, bind: '[::]:14080', upstream: 'http://a'}, ", "{name: db, direction: outbound, upstream: 'tcp://db:1'}]"), "test.yaml:1:68: listeners[1].bind: is missing\n  help: an outbound listener has no default; add one, like bind: 127.0.0.1:5432"),
        (listener(":1", "http://$(POD_IP):80"), "test.yaml:1:47: listeners[0].upstream = \"http://$(POD_IP):80\": holds a variable's name instead of its value\n  help: Kubernetes did not replace $(POD_IP): define POD_IP above it in the same env list"),
        (listener(":1", "http://127.0.0.1:1"), "test.yaml:1:47: listeners[0].upstream = \"http://127.0.0.1:1\": leads back to our own listener web on [::]:1\n  help: give the port or socket that the app itself, or the service behind it, listens on"),
        (listener("0.0.0.0:1", "http://localhost:14090"), "test.yaml:1:54: listeners[0].upstream = \"http://localhost:14090\": leads back to our admin port [::]:14090\n  help: give the port or socket that the app itself, or the service behind it, listens on"),
        (format!("{}\n", "listeners: [{name: db, protocol: http, bind: ':1', upstream: 'tcp://db:1'}]"), "test.yaml:1:62: listeners[0].upstream = \"tcp://db:1\": does not fit protocol: http\n  help: use http://, https://, h2c://, auto:// or unix:// for an app that speaks HTTP, or write protocol: tcp"),
        (listener(":1", "tcp://db:1,db:2"), "test.yaml:1:47: listeners[0].upstream = \"tcp://db:1,db:2\": has several hosts, and this pod has one app\n  help: give one; several are for outbound listeners"),
        ("listeners: [{name: db, protocol: tcp, bind: ':1', upstream: 'http://db:1'}]".to_owned(), "test.yaml:1:61: listeners[0].upstream = \"http://db:1\": does not fit protocol: tcp\n  help: write it like tcp://127.0.0.1:5432, tls:// or unix:///run/app.sock, or remove protocol"),
        ("listeners: [{name: a, bind: ':1', upstream: 'http://a', idle_timeout: 1h}]".to_owned(), "test.yaml:1:71: listeners[0].idle_timeout = \"1h\": is for an inbound listener with protocol: tcp only\n  help: remove it here, or write protocol: tcp"),
        ("listeners: [{name: a, bind: ':1', upstream: 'http://a', proxy_protocol_from: [10.0.0.0/8, 10.0.0.0/33]}]".to_owned(), "test.yaml:1:78: listeners[0].proxy_protocol_from = \"10.0.0.0/8, 10.0.0.0/33\": has \"10.0.0.0/33\", which is no network\n  help: write it like 10.0.0.0/8 or 2001:db8::/32, with nothing behind the prefix"),
        ("listeners: [{name: a, bind: ':1', upstream: 'http://a'}]\nwebsocket: {close_code: 1006}".to_owned(), "test.yaml:2:25: websocket.close_code = \"1006\": is no close code for this\n  help: give 1000, 1001, 1012, 1013, or 3000 to 4999"),
        ("listeners: [{name: a, bind: ':1', upstream: 'http://a'}]\ndrain: {sse_after: soon}".to_owned(), "test.yaml:2:20: drain.sse_after = \"soon\": is not a duration\n  help: write it like 10s, 500ms, 1m30s or 2h, or hold"),
        (listener("127.0.0.1:14090", "http://app"), "test.yaml:1:31: listeners[0].bind = \"127.0.0.1:14090\": clashes with the admin port on [::]:14090\n  help: choose another port"),
        ("listeners:\n- {name: a, bind: ':1', upstream: 'http://a'}\n- {name: a, bind: '10.0.0.1:1', upstream: 'http://b', idle_timeout: 1h}".to_owned(),
            "test.yaml:3:10: listeners[1].name = \"a\": listeners[0] has the same name\n  help: give each listener a name of its own\n\
             test.yaml:3:19: listeners[1].bind = \"10.0.0.1:1\": clashes with listener a on [::]:1\n  help: choose another port\n\
             test.yaml:3:69: listeners[1].idle_timeout = \"1h\": is for an inbound listener with protocol: tcp only\n  help: remove it here, or write protocol: tcp"),
        (format!("{WEB}admin: {{bind: '0.0.0.0:1'}}"), "test.yaml:2:15: admin.bind = \"0.0.0.0:1\": clashes with listener web on [::]:1\n  help: choose another port"),
        (format!("{WEB}drain: {{hold: {{min: 9s, quiet: 8s, max: 5s}}}}"), "test.yaml:2:21: drain.hold.min = \"9s\": is longer than drain.hold.max, 5s\n  help: raise max or lower this one\n\
             test.yaml:2:32: drain.hold.quiet = \"8s\": is longer than drain.hold.max, 5s\n  help: raise max or lower this one"),
        (format!("{WEB}drain: {{hold: {{max: 5s}}}}"), "test.yaml:2:21: drain.hold.min: is missing\n  help: an adaptive hold needs min, quiet and max\n\
             test.yaml:2:21: drain.hold.quiet: is missing\n  help: an adaptive hold needs min, quiet and max"),
        (format!("{WEB}drain: {{grace_period: 900ms, notice_after: 0.5}}"), "test.yaml:2:23: drain.grace_period = \"900ms\": is shorter than 1s\n\
             test.yaml:2:44: drain.notice_after = \"0.5\": is not a percentage\n  help: write it like 50%"),
        (format!("{WEB}limits: {{header_bytes: 4KiB, max_connections: 0}}"), "test.yaml:2:24: limits.header_bytes = \"4KiB\": is out of range\n  help: give 8KiB to 1MiB\n\
             test.yaml:2:47: limits.max_connections = \"0\": is 0\n  help: give at least 1, or auto"),
        (format!("{WEB}log: {{access: 1}}\nmetrics: {{final_scrape: 5}}"), "test.yaml:2:15: log.access = \"1\": is no switch\n  help: write on or off\n\
             test.yaml:3:25: metrics.final_scrape = \"5\": has no unit\n  help: write 5s for seconds, 5ms for milliseconds, or off"),
        (format!("{WEB}workers: {}", "9".repeat(100)), "test.yaml:2:10: workers = \"99999999999999999999999999999999999999999999999999999999999999999999999999999999...\": is too large\n  help: or write auto"),
    ] {
        assert_eq!(faults(&text), message, "{text}");
    }
}

#[test]
fn values_are_shown_as_written() {
    let text = "# \u{e9}\u{1F600}\r\nworkers: 0x10 # hex\r\ndrain:\r\n  notice_after: &half 1.50\r\n  hold: *half\r\n";
    let text = format!("\u{feff}{text}pass_on_close: no\nlog: {{access: True, level: ' info '}}\n{WEB}");
    assert_eq!(
        faults(&text),
        "test.yaml:2:10: workers = \"0x10\": is not a whole number\n  help: give at least 1, or auto\n\
         test.yaml:4:17: drain.notice_after = \"1.5\": is not a percentage\n  help: write it like 50%\n\
         test.yaml:5:9: drain.hold = \"1.5\": has no unit\n  help: write 1.5s for seconds, 1.5ms for milliseconds\n\
         test.yaml:6:16: pass_on_close = \"no\": is no switch\n  help: write on or off"
    );
}

#[test]
fn a_message_never_has_more_than_two_lines() {
    let text = format!("{WEB}\"a\\nb\\e[31m\": 1\nmode: \"x\\ny\"\n");
    assert_eq!(
        faults(&text),
        "test.yaml:2:1: a b [31m: unknown key\n  help: possible here: mode, listeners, admin, control_socket, drain, parking, websocket, pass_on_close, limits, metrics, log, workers, termination_message_path\n\
         test.yaml:3:7: mode = \"x\\ny\": is not one of the possible values\n  help: write sidecar or plain"
    );
}

#[test]
fn an_upstream_on_the_same_port_elsewhere_is_fine() {
    for (bind, upstream) in [
        ("10.0.0.1:8080", "http://127.0.0.1:8080"),
        ("127.0.0.1:8080", "http://127.0.0.2:8080"),
        ("0.0.0.0:8080", "http://[::1]:8080"),
        (":8080", "http://app:8080"),
        (":0", "http://127.0.0.1:8080"),
    ] {
        good(&format!("listeners: [{{name: web, bind: '{bind}', upstream: '{upstream}'}}]"));
    }
    for (bind, upstream) in [
        ("127.0.0.1:8080", "http://0.0.0.0:8080"),
        ("[::1]:8080", "http://[::]:8080"),
        ("10.0.0.1:8080", "http://10.0.0.1:8080"),
        (":8080", "http://[::ffff:127.0.0.1]:8080"),
        ("[::1]:8080", "http://LOCALHOST.:8080"),
    ] {
        assert!(
            faults(&format!("listeners: [{{name: web, bind: '{bind}', upstream: '{upstream}'}}]"))
                .contains("leads back"),
            "{bind}"
        );
    }
    good(
        "admin: {bind: ':0'}\nlisteners: [{name: a, bind: ':0', upstream: 'http://a'}, {name: b, bind: ':0', upstream: 'http://b'}]",
    );
}
