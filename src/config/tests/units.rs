//! Single values.

use std::time::Duration;

use crate::config::units::{format_duration, format_size, parse_duration, parse_percent, parse_size};
use crate::config::{Kind, UpstreamAddr, address};

#[test]
fn durations() {
    let good = [
        ("0", 0, "0s"),
        ("0s", 0, "0s"),
        ("10s", 10_000, "10s"),
        ("500ms", 500, "500ms"),
        ("1m30s", 90_000, "1m30s"),
        ("90s", 90_000, "1m30s"),
        ("2h", 7_200_000, "2h"),
        ("24h", 86_400_000, "24h"),
        ("1h1m1s1ms", 3_661_001, "1h1m1s1ms"),
    ];
    for (text, millis, shown) in good {
        assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        assert_eq!(format_duration(Duration::from_millis(millis)), shown, "{text}");
    }
    let bad = [
        ("10", "has no unit"),
        ("1.5", "has no unit"),
        ("", "is not a duration"),
        ("s", "is not a duration"),
        ("10 s", "is not a duration"),
        ("1.5s", "is not a duration"),
        ("-1s", "is not a duration"),
        ("10x", "is not a duration"),
        ("10sec", "is not a duration"),
        ("1s1m", "is not a duration"),
        ("1s1s", "is not a duration"),
        ("1m30", "is not a duration"),
        ("10µs", "is not a duration"),
        ("nan", "is not a duration"),
        ("24h1ms", "is longer than 24h"),
        ("99999999999999999999h", "is longer than 24h"),
        ("18446744073709551615h", "is longer than 24h"),
    ];
    for (text, reason) in bad {
        assert_eq!(parse_duration(text).unwrap_err().reason, reason, "{text}");
    }
}

#[test]
fn sizes() {
    let good = [
        ("0", 0, "0"),
        ("1000", 1000, "1000"),
        ("64KiB", 65536, "64KiB"),
        ("1 MiB", 1 << 20, "1MiB"),
        ("2048B", 2048, "2KiB"),
    ];
    for (text, bytes, shown) in good {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
        assert_eq!(format_size(bytes), shown, "{text}");
    }
    for text in ["", "KiB", "64KB", "64k", "1G", "-1", "1.5MiB", "99999999999999999999", "99999999999999999MiB"] {
        assert!(parse_size(text).is_err(), "{text}");
    }
}

#[test]
fn percentages() {
    for (text, share) in [("0%", 0.0), ("50%", 0.5), ("12.5%", 0.125), ("100%", 1.0)] {
        assert_eq!(parse_percent(text), Ok(share), "{text}");
    }
    for text in ["", "%", "50", "0.5", "101%", "-1%", "NaN%", "inf%", "1e1%", "+1%", "1.1.1%"] {
        assert!(parse_percent(text).is_err(), "{text}");
    }
}

#[test]
fn binds() {
    for (text, shown) in [
        ("0.0.0.0:14080", "0.0.0.0:14080"),
        ("[::]:14080", "[::]:14080"),
        (":14080", "[::]:14080"),
        ("127.0.0.1:0", "127.0.0.1:0"),
    ] {
        assert_eq!(address::parse_bind(text).unwrap().to_string(), shown);
    }
    for (text, reason, hint) in [
        ("14080", "is a port without an address", "write :14080 to listen on all addresses"),
        ("99999", "has no valid port", "the port must be 0 to 65535"),
        ("[::]:65536", "has no valid port", "the port must be 0 to 65535"),
        ("0.0.0.0", "has no port", "write it like 0.0.0.0:14080 or [::]:14080"),
        ("[::]", "has no port", "write it like 0.0.0.0:14080 or [::]:14080"),
        ("localhost:80", "needs an IP address, not a name", "write 127.0.0.1:80"),
        ("web.example:80", "needs an IP address, not a name", "write 0.0.0.0:80"),
        ("*:80", "is not an address to listen on", "write it like 0.0.0.0:14080, [::]:14080 or :14080"),
        (":99999", "has no valid port", "the port must be 0 to 65535"),
        (":+80", "is not an address to listen on", "write it like 0.0.0.0:14080, [::]:14080 or :14080"),
        (":", "is not an address to listen on", "write it like 0.0.0.0:14080, [::]:14080 or :14080"),
    ] {
        let fault = address::parse_bind(text).unwrap_err();
        assert_eq!((fault.reason.as_str(), fault.hint.as_deref()), (reason, Some(hint)), "{text}");
    }
}

#[test]
fn upstreams() {
    for (text, shown) in [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("HTTP://app", "http://app:80"),
        ("http://app:8080/", "http://app:8080"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("http://[::1]", "http://[::1]:80"),
        ("unix:///run/app.sock", "unix:///run/app.sock"),
        ("tcp://db.example.svc:5432", "tcp://db.example.svc:5432"),
        ("https://app", "https://app:443"),
        ("tls://a:1, tls://[::1]:2,c:3", "tls://a:1,[::1]:2,c:3"),
    ] {
        assert_eq!(address::parse_upstream(text).unwrap().to_string(), shown);
    }
    assert!(matches!(address::parse_upstream("http://[::1]").unwrap(), UpstreamAddr::Http(at) if at.host == "::1"));
    for (text, message) in [
        ("127.0.0.1:8080", "has no scheme; write http://127.0.0.1:8080"),
        ("8080", "has no scheme; write http://127.0.0.1:8080"),
        ("/run/app.sock", "has no scheme; write unix:///run/app.sock"),
        ("unix:/run/app.sock", "has no scheme; write unix:///run/app.sock, with three slashes"),
        ("unix://run/app.sock", "needs an absolute path; write unix:///run/app.sock, with three slashes"),
        ("http://app/api", "has a path or query; give host and port only; requests keep their own path"),
        ("http://app?x=1", "has a path or query; give host and port only; requests keep their own path"),
        ("http://me@app", "has a user name; give host and port only"),
        ("http://", "has no valid host; give a host name or an IP address"),
        ("http://:80", "has no valid host; give a host name or an IP address"),
        ("http://a b", "has no valid host; give a host name or an IP address"),
        ("http://::1", "has an IPv6 address without brackets; write [::1]"),
        ("http://[::1", "has no valid IPv6 address; write it like [::1]:8080"),
        ("http://[nope]:1", "has no valid IPv6 address; write it like [::1]:8080"),
        ("http://app:0", "has no valid port; give a port from 1 to 65535"),
        ("http://app:", "has no valid port; give a port from 1 to 65535"),
        ("http://app:65536", "has no valid port; give a port from 1 to 65535"),
        ("tcp://db", "has no port; add it, like db:5432"),
        ("tls://a:1,b", "has no port; add it, like b:5432"),
        ("ftp://app", "has an unknown scheme; use http://, https://, h2c://, auto://, unix://, tcp:// or tls://"),
    ] {
        let fault = address::parse_upstream(text).unwrap_err();
        assert_eq!(format!("{}; {}", fault.reason, fault.hint.unwrap_or_default()), message, "{text}");
    }
}

#[test]
fn switches_and_percentages_as_text() {
    for (kind, text, shown) in [
        (Kind::Switch, "True", "on"),
        (Kind::Switch, "OFF", "off"),
        (Kind::DurationOrOff, "false", "off"),
        (Kind::Percent, "7%", "7%"),
        (Kind::Percent, "12.5%", "12.5%"),
        (Kind::CountOrAuto, "auto", "auto"),
    ] {
        assert_eq!(kind.parse(text).unwrap().to_string(), shown, "{text}");
    }
}
