//! Which source wins, and what the environment may hold.

use std::time::Duration;

use super::{WEB, good, render};
use crate::config::{
    ConfigError, ControlSocket, Direction, Environment, Hold, Loaded, Mode, Origin, clap_args, config_file,
    control_socket, flags_from, load,
};

fn env(variables: &[(&str, &str)]) -> Environment {
    variables.iter().copied().collect()
}

fn load_env(variables: &[(&str, &str)]) -> Result<Loaded, Vec<ConfigError>> {
    load(None, &env(variables), &[])
}

fn hold_of(text: &str, variables: &[(&str, &str)], flags: &[(&str, &str)]) -> Hold {
    let text = format!("{WEB}{text}");
    let variables = [&[("EBBTIDE_CONFIG_YAML", text.as_str())], variables].concat();
    let flags: Vec<_> = flags.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    load(None, &env(&variables), &flags).unwrap_or_else(|errors| panic!("{}", render(&errors))).config.drain.hold
}

#[test]
fn an_upstream_alone_is_enough() {
    let loaded = load_env(&[("EBBTIDE_UPSTREAM", "http://127.0.0.1:8080"), ("HOME", "/")]).unwrap();
    let [listener] = loaded.config.listeners.as_slice() else { panic!("one listener") };
    assert_eq!((listener.name.as_str(), listener.direction), ("default", Direction::Inbound));
    assert_eq!(listener.bind.to_string(), "[::]:14080");
    assert_eq!(listener.upstream.to_string(), "http://127.0.0.1:8080");
    assert_eq!(loaded.config.mode, Mode::Plain);
    assert_eq!(loaded.config.drain.grace_period, Duration::from_secs(10));
    assert_eq!(loaded.config.drain.app_stop, Duration::ZERO);
    let sidecar = load_env(&[("EBBTIDE_UPSTREAM", "http://127.0.0.1:8080"), ("EBBTIDE_MODE", "sidecar")]).unwrap();
    assert_eq!(sidecar.config.drain.grace_period, Duration::from_secs(30));
    assert_eq!(sidecar.config.drain.app_stop, Duration::from_secs(5));
}

#[test]
fn variables_set_the_first_inbound_listener_of_a_file() {
    let text = "listeners:\n  - {name: db, direction: outbound, bind: '127.0.0.1:1', upstream: 'tcp://db:1'}\n";
    let with_web = format!("{text}  - {{name: web, bind: ':2', upstream: 'http://app'}}\n");
    let set = [("EBBTIDE_LISTEN", ":3"), ("EBBTIDE_UPSTREAM", "http://other")];
    for (text, names) in [(with_web.as_str(), ["db", "web"]), (text, ["db", "default"])] {
        let loaded = load_env(&[&[("EBBTIDE_CONFIG_YAML", text)], set.as_slice()].concat()).unwrap();
        let listeners = &loaded.config.listeners;
        assert_eq!(listeners.iter().map(|listener| listener.name.as_str()).collect::<Vec<_>>(), names);
        assert_eq!(listeners[0].bind.to_string(), "127.0.0.1:1");
        assert_eq!(listeners[1].bind.to_string(), "[::]:3");
        assert_eq!(listeners[1].upstream.to_string(), "http://other:80");
    }
    let errors = load_env(&[("EBBTIDE_CONFIG_YAML", text), ("EBBTIDE_LISTEN", ":3")]).unwrap_err();
    assert_eq!(render(&errors), NO_UPSTREAM);
    assert_eq!(render(&load_env(&[("EBBTIDE_LISTEN", ":3")]).unwrap_err()), NO_UPSTREAM);
}

#[test]
fn an_empty_upstream_is_one_fault() {
    let errors = load_env(&[("EBBTIDE_UPSTREAM", ""), ("EBBTIDE_LISTEN", ":3")]).unwrap_err();
    let expected =
        "EBBTIDE_UPSTREAM: listeners[].upstream: is empty\n  help: give a value, or remove it for the default";
    assert_eq!(render(&errors), expected);
}

const NO_UPSTREAM: &str = "EBBTIDE_LISTEN: listeners[].bind = \":3\": there is no upstream for it\n  \
    help: set EBBTIDE_UPSTREAM (or --upstream) to the app, like http://127.0.0.1:8080";

#[test]
fn a_later_hold_replaces_an_earlier_one_of_the_other_form() {
    let seconds = Duration::from_secs;
    let adaptive = "drain: {hold: {min: 1s, quiet: 2s, max: 3s}}";
    let parts = [("EBBTIDE_HOLD_MIN", "4s"), ("EBBTIDE_HOLD_QUIET", "5s"), ("EBBTIDE_HOLD_MAX", "6s")];
    assert_eq!(hold_of("", &[], &[]), Hold::Fixed(seconds(10)));
    assert_eq!(hold_of(adaptive, &[], &[]), Hold::Adaptive { min: seconds(1), quiet: seconds(2), max: seconds(3) });
    assert_eq!(hold_of(adaptive, &[("EBBTIDE_HOLD", "7s")], &[]), Hold::Fixed(seconds(7)));
    assert_eq!(
        hold_of(adaptive, &[("EBBTIDE_HOLD_MAX", "6s")], &[]),
        Hold::Adaptive { min: seconds(1), quiet: seconds(2), max: seconds(6) }
    );
    assert_eq!(
        hold_of("drain: {hold: 9s}", &parts, &[]),
        Hold::Adaptive { min: seconds(4), quiet: seconds(5), max: seconds(6) }
    );
    assert_eq!(hold_of(adaptive, &parts, &[("drain.hold", "8s")]), Hold::Fixed(seconds(8)));
    let upstream = ("EBBTIDE_UPSTREAM", "http://app");
    let errors = load_env(&[&[upstream, ("EBBTIDE_HOLD", "1s")], parts.as_slice()].concat()).unwrap_err();
    assert_eq!(
        render(&errors),
        "EBBTIDE_HOLD: drain.hold = \"1s\": is set together with EBBTIDE_HOLD_MAX\n  \
         help: a hold is either fixed or adaptive; set one of the two"
    );
}

#[test]
fn a_fault_in_an_overridden_value_is_still_told() {
    let flags = [("log.level".to_owned(), "debug".to_owned())];
    let variables = env(&[("EBBTIDE_UPSTREAM", "http://app"), ("EBBTIDE_LOG", "loud"), ("EBBTIDE_HOLD", "")]);
    let errors = load(None, &variables, &flags).unwrap_err();
    assert_eq!(
        render(&errors),
        "EBBTIDE_HOLD: drain.hold: is empty\n  help: give a value, or remove it for the default\n\
         EBBTIDE_LOG: log.level = \"loud\": is not one of the possible values\n  \
         help: write error or warn or info or debug or trace"
    );
}

#[test]
fn a_later_file_replaces_the_list_of_listeners_and_single_keys() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/config/two-apps.yaml");
    let text = format!("{WEB}drain: {{margin: 1s}}");
    let variables = env(&[("EBBTIDE_CONFIG", path), ("EBBTIDE_CONFIG_YAML", &text)]);
    let loaded = load(None, &variables, &[]).unwrap();
    assert_eq!(loaded.config.mode, Mode::Sidecar);
    assert_eq!(loaded.config.listeners.len(), 1);
    let of = |key: &str| loaded.values.iter().find(|value| value.key == key).unwrap();
    assert_eq!(of("drain.margin").origin.to_string(), "EBBTIDE_CONFIG_YAML:2:17");
    assert_eq!(of("mode").origin, Origin::Text { name: path.to_owned(), line: 6, column: 7 });
    assert_eq!(of("listeners[0].bind").value, "[::]:1");
    let missing = load(Some("/nowhere.yaml".as_ref()), &variables, &[]).unwrap_err();
    assert_eq!(
        render(&missing),
        "/nowhere.yaml: can't be read: No such file or directory (os error 2)\n  \
         help: check the path given by --config or EBBTIDE_CONFIG"
    );
}

#[test]
fn unknown_variables() {
    let ignored = [
        ("EBBTIDE_UPSTREAM", "http://app"),
        ("EBBTIDE_SERVICE_HOST", "10.0.0.1"),
        ("EBBTIDE_SERVICE_PORT", "80"),
        ("EBBTIDE_SERVICE_PORT_HTTP", "80"),
        ("EBBTIDE_PORT", "tcp://10.0.0.1:80"),
        ("EBBTIDE_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("EBBTIDE_DEMO_SERVICE_HOST", "10.0.0.1"),
        ("EBBTIDE_DEMO_PORT", "tcp://10.0.0.1:80"),
        ("EBBTIDE_DEMO_PORT_80_TCP", "tcp://10.0.0.1:80"),
        ("EBBTIDE", "not ours"),
    ];
    load_env(&ignored).unwrap();
    let wrong = [
        ("EBBTIDE_UPSTREAM", "http://app"),
        ("EBBTIDE_HODL", "1s"),
        ("EBBTIDE_PORT", "8080"),
        ("EBBTIDE_SOMETHING_ELSE", "1"),
    ];
    assert_eq!(
        render(&load_env(&wrong).unwrap_err()),
        "EBBTIDE_HODL: unknown variable\n  help: did you mean EBBTIDE_HOLD?\n\
         EBBTIDE_PORT: unknown variable\n  \
         help: remove it, or set it under a name that does not start with EBBTIDE_\n\
         EBBTIDE_SOMETHING_ELSE: unknown variable\n  \
         help: remove it, or set it under a name that does not start with EBBTIDE_"
    );
}

#[test]
fn the_token_is_never_shown() {
    let variables = env(&[("EBBTIDE_UPSTREAM", "http://app"), ("EBBTIDE_ADMIN_TOKEN", "hush-hush")]);
    let loaded = load(None, &variables, &[]).unwrap();
    assert_eq!(loaded.config.admin.token.as_ref().map(|token| token.0.as_str()), Some("hush-hush"));
    let bad = load_env(&[("EBBTIDE_UPSTREAM", "http://app"), ("EBBTIDE_ADMIN_TOKEN", "hush-hush\n")]).unwrap_err();
    let shown = format!("{variables:?} {loaded:?} {bad:?} {}", render(&bad));
    assert!(!shown.contains("hush"), "{shown}");
    assert!(shown.contains("(set)"), "{shown}");
}

#[test]
fn app_stop_counts_as_nothing_in_plain_mode() {
    let loaded = good(&format!("{WEB}drain: {{app_stop: 5s}}"));
    assert_eq!(loaded.config.drain.app_stop, Duration::ZERO);
    assert!(!loaded.config.drain.set_by_user.app_stop);
    assert_eq!(
        loaded.warnings,
        [
            "test.yaml:2:19: drain.app_stop = \"5s\" counts as 0 in plain mode: nothing holds the app's SIGTERM back there"
        ]
    );
    assert!(good(&format!("{WEB}drain: {{app_stop: 0}}")).warnings.is_empty());
    assert!(good(&format!("mode: sidecar\n{WEB}drain: {{app_stop: 5s}}")).config.drain.set_by_user.app_stop);
}

#[test]
fn flags_come_back_as_a_source() {
    let command = clap::Command::new("run").args(clap_args());
    command.clone().debug_assert();
    let matches = command.get_matches_from(["run", "--upstream", "http://app", "--hold", "3s", "--config", "x.yaml"]);
    let flags = flags_from(&matches);
    let pair = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    assert_eq!(flags, [pair("listeners[].upstream", "http://app"), pair("drain.hold", "3s")]);
    assert_eq!(config_file(&matches), Some("x.yaml".into()));
    let loaded = load(None, &Environment::default(), &flags).unwrap();
    assert_eq!(loaded.config.drain.hold, Hold::Fixed(Duration::from_secs(3)));
    let bad = load(None, &Environment::default(), &[flags[0].clone(), pair("drain.hold", "3")]).unwrap_err();
    assert_eq!(
        render(&bad),
        "--hold: drain.hold = \"3\": has no unit\n  help: write 3s for seconds, 3ms for milliseconds"
    );
}

#[test]
fn the_control_socket_is_found_whatever_else_is_wrong() {
    let variables = env(&[("EBBTIDE_CONTROL_SOCKET", "/tmp/a.sock"), ("EBBTIDE_HOLD", "x")]);
    assert_eq!(control_socket(None, &variables, None), Ok(ControlSocket::Path("/tmp/a.sock".into())));
    assert_eq!(control_socket(None, &variables, Some("/tmp/b.sock")), Ok(ControlSocket::Path("/tmp/b.sock".into())));
    assert_eq!(control_socket(None, &Environment::default(), None), Ok(ControlSocket::Default));
    assert!(control_socket(None, &env(&[("EBBTIDE_CONTROL_SOCKET", "a.sock")]), None).is_err());
    assert!(control_socket(Some("/nowhere.yaml".as_ref()), &Environment::default(), None).is_err());
}

#[test]
fn a_device_is_not_read_for_ever() {
    let errors = load(Some("/dev/zero".as_ref()), &Environment::default(), &[]).unwrap_err();
    assert!(render(&errors).starts_with("/dev/zero: has more than 128 KiB"), "{}", render(&errors));
}
