use super::*;

fn request(method: &str, target: &str, version: Version, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder().method(method).uri(target).version(version);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

fn prepare_it(request: &mut Request<()>, speaks: Speaks, ends: &Ends<'_>) -> Result<UpgradeRequest, Unacceptable> {
    let found = Found::in_headers(request.headers());
    prepare(request, &found, speaks, ends)
}

fn client() -> Ends<'static> {
    static ADDRESS: HeaderValue = HeaderValue::from_static("192.0.2.7");
    Ends { client: &ADDRESS, identity: None, vouched_here: false, app_over_tls: false }
}

fn prepared(headers: &[(&str, &str)]) -> (UpgradeRequest, HeaderMap) {
    let mut request = request("GET", "/a?b", Version::HTTP_11, headers);
    let upgrade = prepare_it(&mut request, Speaks::Http1, &client()).unwrap();
    (upgrade, request.headers().clone())
}

fn get<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

#[test]
fn hop_by_hop_headers_and_those_named_by_connection_are_gone() {
    let (upgrade, headers) = prepared(&[
        ("host", "app.example"),
        ("connection", "keep-alive, X-Private"),
        ("x-private", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("transfer-encoding", "chunked"),
        ("te", "trailers, gzip"),
        ("expect", "100-continue"),
        ("cookie", "kept"),
    ]);
    assert_eq!(upgrade, UpgradeRequest::No);
    for name in ["connection", "x-private", "keep-alive", "proxy-connection", "transfer-encoding", "expect"] {
        assert_eq!(get(&headers, name), None, "{name}");
    }
    assert_eq!(get(&headers, "te"), Some("trailers"));
    assert_eq!(get(&headers, "cookie"), Some("kept"));
}

#[test]
fn connection_can_not_name_away_host_or_content_length() {
    let (_, headers) = prepared(&[("host", "a"), ("connection", "Host, Content-Length"), ("content-length", "3")]);
    assert_eq!(get(&headers, "host"), Some("a"));
    assert_eq!(get(&headers, "content-length"), Some("3"));
}

#[test]
fn forwarded_headers_are_set_and_chains_are_kept() {
    let (_, headers) = prepared(&[("host", "app.example")]);
    assert_eq!(get(&headers, "x-forwarded-for"), Some("192.0.2.7"));
    assert_eq!(get(&headers, "x-forwarded-proto"), Some("http"));
    assert_eq!(get(&headers, "x-forwarded-host"), Some("app.example"));

    let (_, headers) = prepared(&[
        ("host", "inside"),
        ("x-forwarded-for", "203.0.113.1"),
        ("x-forwarded-for", "198.51.100.2"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "outside"),
    ]);
    assert_eq!(get(&headers, "x-forwarded-for"), Some("203.0.113.1, 198.51.100.2, 192.0.2.7"));
    assert_eq!(headers.get_all("x-forwarded-for").iter().count(), 1);
    assert_eq!(get(&headers, "x-forwarded-proto"), Some("https"));
    assert_eq!(get(&headers, "x-forwarded-host"), Some("outside"));
}

#[test]
fn upgrades_pass_but_h2c_does_not() {
    let upgrade = |value: &str| prepared(&[("host", "a"), ("connection", "Upgrade"), ("upgrade", value)]);
    let (kind, headers) = upgrade("websocket");
    assert_eq!(kind, UpgradeRequest::To(HeaderValue::from_static("websocket")));
    assert_eq!(get(&headers, "connection"), Some("upgrade"));
    assert_eq!(get(&headers, "upgrade"), Some("websocket"));

    let (kind, headers) = prepared(&[
        ("host", "a"),
        ("connection", "Upgrade, HTTP2-Settings"),
        ("upgrade", "h2c"),
        ("http2-settings", "AAMAAABkAAQAAP__"),
    ]);
    assert_eq!(kind, UpgradeRequest::No);
    for name in ["connection", "upgrade", "http2-settings"] {
        assert_eq!(get(&headers, name), None, "{name}");
    }

    let (kind, _) = upgrade("h2c, websocket");
    assert_eq!(kind, UpgradeRequest::To(HeaderValue::from_static("websocket")));
    // Without the Connection token Upgrade means nothing (RFC 9110 §7.8).
    let (kind, headers) = prepared(&[("host", "a"), ("upgrade", "websocket")]);
    assert_eq!(kind, UpgradeRequest::No);
    assert_eq!(get(&headers, "upgrade"), None);
}

#[test]
fn host_must_be_there_exactly_once() {
    let mut none = request("GET", "/", Version::HTTP_11, &[]);
    assert_eq!(prepare_it(&mut none, Speaks::Http1, &client()), Err(Unacceptable::Host));
    let mut two = request("GET", "/", Version::HTTP_11, &[("host", "a"), ("host", "b")]);
    assert_eq!(prepare_it(&mut two, Speaks::Http1, &client()), Err(Unacceptable::Host));
    let mut old = request("GET", "/", Version::HTTP_10, &[]);
    assert_eq!(prepare_it(&mut old, Speaks::Http1, &client()), Ok(UpgradeRequest::No));
    assert_eq!(old.version(), Version::HTTP_11);
    assert_eq!(get(old.headers(), "host"), Some("localhost"));
}

#[test]
fn absolute_form_becomes_origin_form_and_its_authority_wins() {
    let mut absolute = request("GET", "http://user@real.example:81/p?q", Version::HTTP_11, &[("host", "other")]);
    prepare_it(&mut absolute, Speaks::Http1, &client()).unwrap();
    assert_eq!(absolute.uri(), "/p?q");
    assert_eq!(get(absolute.headers(), "host"), Some("real.example:81"));

    let mut star = request("OPTIONS", "*", Version::HTTP_11, &[("host", "a")]);
    prepare_it(&mut star, Speaks::Http1, &client()).unwrap();
    assert_eq!(star.uri(), "*");
}

#[test]
fn a_response_takes_the_clients_version_and_loses_hop_by_hop_headers() {
    let mut response = Response::builder()
        .version(Version::HTTP_10)
        .header("connection", "close, x-internal")
        .header("x-internal", "1")
        .header("keep-alive", "timeout=2, max=100")
        .header("server", "legacy")
        .body(())
        .unwrap();
    assert_eq!(keep_alive_timeout(response.headers()), Some(2));
    let found = Found::in_headers(response.headers());
    assert!(found.closes && found.keep_alive && !found.coded);
    prepare_response(&mut response, &found, Version::HTTP_11);
    assert_eq!(response.version(), Version::HTTP_11);
    assert_eq!(response.headers().len(), 1);
    assert_eq!(get(response.headers(), "server"), Some("legacy"));
}

#[test]
fn probes_are_known_by_their_user_agent() {
    let agent = |value: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert("user-agent", HeaderValue::from_static(value));
        is_probe(&headers)
    };
    assert!(agent("kube-probe/1.34"));
    assert!(agent("ELB-HealthChecker/2.0"));
    assert!(agent("GoogleHC/1.0"));
    assert!(!agent("curl/8 kube-probe/1.34"));
    assert!(!is_probe(&HeaderMap::new()));
}

fn over_http2(uri: &str) -> Request<()> {
    let mut request = Request::new(());
    *request.uri_mut() = uri.parse().unwrap();
    *request.version_mut() = Version::HTTP_2;
    request
}

#[test]
fn an_authority_becomes_host_for_an_http1_app_and_cookies_are_joined() {
    let mut request = over_http2("http://app.example:8080/a?b=c");
    for crumb in ["a=1", "b=2"] {
        request.headers_mut().append(COOKIE, HeaderValue::from_static(crumb));
    }
    prepare_it(&mut request, Speaks::Http1, &client()).unwrap();
    assert_eq!((request.uri().to_string().as_str(), request.version()), ("/a?b=c", Version::HTTP_11));
    assert_eq!(request.headers()["host"], "app.example:8080");
    assert_eq!(request.headers().get_all(COOKIE).iter().collect::<Vec<_>>(), ["a=1; b=2"]);
    assert_eq!(request.headers()["x-forwarded-host"], "app.example:8080");
}

#[test]
fn an_authority_stays_one_for_an_http2_app_and_host_becomes_one() {
    let mut request = over_http2("http://app.example:8080/a?b=c");
    request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
    prepare_it(&mut request, Speaks::Http2, &client()).unwrap();
    assert_eq!(request.uri().to_string(), "http://app.example:8080/a?b=c");
    assert_eq!(request.headers()["te"], "trailers");

    let mut request = over_http2("/a");
    request.headers_mut().insert(HOST, HeaderValue::from_static("app.example"));
    *request.version_mut() = Version::HTTP_11;
    prepare_it(&mut request, Speaks::Http2, &client()).unwrap();
    assert_eq!(request.uri().to_string(), "http://app.example/a");
    assert!(!request.headers().contains_key(HOST));
    assert_eq!(request.headers()["x-forwarded-host"], "app.example");
}

#[test]
fn without_any_name_for_the_app_nothing_is_forwarded() {
    for speaks in [Speaks::Http1, Speaks::Http2] {
        assert_eq!(prepare_it(&mut over_http2("/a"), speaks, &client()), Err(Unacceptable::Host));
    }
}

fn seen_by_app(client: &Ends<'_>, headers: &[(&str, &str)]) -> HeaderMap {
    let mut request = request("GET", "/", Version::HTTP_11, headers);
    prepare_it(&mut request, Speaks::Http1, client).unwrap();
    request.headers().clone()
}

#[test]
fn over_tls_the_scheme_is_https_unless_an_earlier_hop_knew_better() {
    let secure = Ends { identity: Some(&Identity { certificate: None }), ..client() };
    let headers = seen_by_app(&secure, &[("host", "a")]);
    assert_eq!(get(&headers, "x-forwarded-proto"), Some("https"));
    let headers = seen_by_app(&secure, &[("host", "a"), ("x-forwarded-proto", "http")]);
    assert_eq!(get(&headers, "x-forwarded-proto"), Some("http"));
}

#[test]
fn who_a_client_is_only_its_certificate_says() {
    let forged = [("host", "a"), ("x-forwarded-client-cert", "Subject=root"), ("x-forwarded-client-cert", "URI=x")];
    let odd = [("host", "a"), ("X_Forwarded-client_cert", "Subject=root")];
    let all = |client: &Ends<'_>, headers: &[(&str, &str)]| {
        let headers = seen_by_app(client, headers);
        headers.get_all("x-forwarded-client-cert").iter().cloned().collect::<Vec<_>>()
    };
    assert_eq!(all(&client(), &forged).len(), 2, "nobody is asked in this pod: it is an earlier hop's word");
    let certificate = Some(HeaderValue::from_static("Subject=\"CN=a\""));
    let (nobody, somebody) = (Identity { certificate: None }, Identity { certificate });
    for identity in [None, Some(&nobody)] {
        assert!(all(&Ends { identity, vouched_here: true, ..client() }, &forged).is_empty());
    }
    let nobody_shown = Ends { vouched_here: true, ..client() };
    assert!(seen_by_app(&nobody_shown, &odd).keys().all(|name| !name.as_str().contains("client")));
    let shown = Ends { identity: Some(&somebody), vouched_here: true, ..client() };
    for headers in [&forged[..], &forged[..1]] {
        assert_eq!(all(&shown, headers), ["Subject=\"CN=a\""]);
    }
}

#[test]
fn an_app_inside_tls_hears_of_the_scheme_that_it_speaks() {
    for (app_over_tls, scheme) in [(false, "http"), (true, "https")] {
        let mut request = request("GET", "/a", Version::HTTP_11, &[("host", "app.example")]);
        prepare_it(&mut request, Speaks::Http2, &Ends { app_over_tls, ..client() }).unwrap();
        assert_eq!(request.uri().to_string(), format!("{scheme}://app.example/a"));
    }
}
