//! Owns the table of workload shapes (`shapes/`): what is asked of `inject`, and what must come out.

/// One run of `inject` over one file.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) file: &'static str,
    pub(super) args: &'static [&'static str],
    /// By name; no other object gets an ebbtide.
    pub(super) workloads: &'static [Workload],
    /// `NAME/PORT` and the `targetPort` that it gets; all others stay.
    pub(super) services: &'static [(&'static str, u64)],
    /// What must be told on stderr.
    pub(super) says: &'static [&'static str],
}

#[derive(Debug)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    /// Seconds, afterwards.
    pub(super) grace: u64,
    /// Seconds.
    pub(super) hold: u64,
    /// `LISTENING-PORT UPSTREAM`, with `POD` for the pod's address.
    pub(super) listeners: &'static [&'static str],
    /// JSON Pointers into the template afterwards, and JSON; `""` is nothing.
    pub(super) facts: &'static [(&'static str, &'static str)],
}

/// A file, arguments, and a part of the message without which it is refused.
pub(super) const REFUSED: &[(&str, &[&str], &str)] = &[
    ("42-real-hook.yaml", &[], "preStop"),
    ("43-http-hook.yaml", &[], "preStop"),
    ("56-custom-resource.yaml", &[], "--template-path"),
    ("08-job.yaml", &[], "--outbound"),
    ("09-cronjob.yaml", &[], "--ports"),
];

pub(super) const SHAPES: &[Shape] = &[
    shape(
        "01-named-port.yaml",
        &[web("web").facts(&[PORT_MOVED, ("/spec/containers/0/readinessProbe/httpGet/port", "8080")])],
    ),
    shape("01-named-port.yaml", &[web("web").hold(12)]).args(&["--hold", "12s", "--app-stop", "3s"]),
    shape("02-numeric-service.yaml", &[web("api").grace(45)]).services(&[("api/443", 14080)]),
    shape("03-service-without-target-port.yaml", &[web("echo")]).services(&[("echo/8080", 14080)]),
    shape("04-statefulset-headless.yaml", &[workload("db", &["14080 tcp://POD:5432"]).grace(120)]).says(&["headless"]),
    shape("05-daemonset-host-port.yaml", &[web("edge")]),
    shape("06-daemonset-host-network.yaml", &[web("node-api")]).says(&["the node's network"]),
    shape("07-replicaset-indentless.yaml", &[web("legacy")]),
    shape("08-job.yaml", &[workload("migrate", &["5432 tcp://db.example:5432"])]).args(OUTBOUND),
    shape("09-cronjob.yaml", &[workload("nightly-sift", &["5432 tcp://db.example:5432"]).grace(90)]).args(OUTBOUND),
    shape("10-pod.yaml", &[web("lone").grace(60)]),
    shape("11-list.yaml", &[web("shop")]).services(&[("shop/80", 14080)]),
    shape("12-kubectl-get.yaml", &[web("cart").facts(&[("/metadata/creationTimestamp", "null")])]),
    shape("13-kubectl-get-list.yaml", &[web("front"), workload("back", &["14080 h2c://POD:9090"]).grace(24)])
        .services(&[("front/80", 14080)]),
    shape("14-many-documents.yaml", &[web("bank")]).services(&[("bank/80", 14080)]),
    shape("15-comments.yaml", &[web("notes").grace(24)]),
    shape("16-crlf.yaml", &[web("win").grace(24)]).services(&[("win/80", 14080)]),
    shape("17-bom.yaml", &[web("mark")]),
    shape("18-tabs-and-blanks.yaml", &[web("tabs")]),
    shape("19-indent-three.yaml", &[web("three")]),
    shape("20-indent-six.yaml", &[web("six").grace(40)]),
    shape("21-flow.yaml", &[web("flow").grace(24)]).services(&[("flow/80", 14080)]),
    shape("22-compact.json", &[web("compact")]),
    shape("23-tabbed.json", &[web("tabbed")]).services(&[("tabbed/80", 14080)]),
    shape("24-anchors.yaml", &[web("knots")]).services(&[("knots/80", 14080)]),
    shape("25-merge-keys.yaml", &[web("merged").grace(24)]),
    shape("26-shared-hook.yaml", &[web("twins").grace(60).hold(15)]),
    shape("27-block-scalars.yaml", &[web("blocks")]),
    shape("28-quoted.yaml", &[web("quoted").grace(24)]),
    shape("29-words.yaml", &[web("words").grace(50).facts(&[("/spec/volumes/0/secret/defaultMode", "288")])]),
    shape("30-empty-things.yaml", &[web("hollow")]),
    shape("31-probes.yaml", &[workload("probed", &["14080 http://POD:8080", "14081 h2c://POD:50051"])]),
    shape("32-istio-label.yaml", &[web("mesh").facts(&[(ISTIO, "\"15020,9102,14090\"")])]),
    shape("33-istio-native.yaml", &[web("meshed").facts(&[(ISTIO, "\"14090\"")])]),
    shape("34-linkerd-annotation.yaml", &[web("linked").facts(&[(LINKERD, "\"14090\"")])]),
    shape("35-linkerd-proxy.yaml", &[web("chained").facts(&[(LINKERD, "\"25,14090\"")])]),
    shape("36-cloud-sql-ordinary.yaml", &[web("ledger")]),
    shape("37-cloud-sql-native.yaml", &[web("vault")]),
    shape("38-vault-chain.yaml", &[web("secretive")]),
    shape(
        "39-sleep-action.yaml",
        &[web("sleeper").hold(15).facts(&[("/spec/containers/0/lifecycle/postStart/exec/command", "[\"warm-up\"]")])],
    )
    .says(&["sleep"]),
    shape("40-exec-sleep.yaml", &[web("dozer").grace(34).hold(20)]).says(&["sleep"]),
    shape("41-shell-sleep.yaml", &[web("napper")]).says(&["sleep"]),
    shape("42-real-hook.yaml", &[web("hooked")]).args(&["--replace-hook"]),
    shape("42-real-hook.yaml", &[web("hooked").facts(&[("/spec/containers/0/lifecycle/preStop/httpGet", "")])])
        .args(&["--keep-hook"])
        .says(&["SIGTERM"]),
    shape("43-http-hook.yaml", &[web("asked")]).args(&["--replace-hook"]),
    shape("44-short-grace.yaml", &[web("hasty").grace(24)]).says(&["terminationGracePeriodSeconds"]),
    shape("45-long-grace.yaml", &[web("patient").grace(3600)]),
    shape("46-no-grace.yaml", &[web("abrupt").grace(24)]).says(&["terminationGracePeriodSeconds"]),
    shape("47-udp.yaml", &[web("names")]).services(&[("names/80", 14080)]),
    shape("48-nameless-ports.yaml", &[workload("plain", &["14080 http://POD:8080"])]).says(&["targetPort: 14080"]),
    shape("49-http-and-grpc.yaml", &[workload("duo", &["14080 http://POD:8080", "14081 h2c://POD:9090"])])
        .services(&[("duo/9090", 14081)]),
    shape("49-http-and-grpc.yaml", &[web("duo")]).args(&["--ports", "http"]),
    shape(
        "50-databases.yaml",
        &[workload("stores", &["14080 tcp://POD:5432", "14081 tcp://POD:6379", "14082 tcp://POD:5672"])],
    )
    .services(&[("stores/6379", 14081)]),
    shape(
        "51-app-protocol.yaml",
        &[workload("spoken", &["14080 h2c://POD:7001", "14081 http://POD:7002", "14082 tcp://POD:7003"])],
    )
    .services(&[("spoken/7003", 14082)]),
    shape("52-ipv6.yaml", &[workload("six", &["14080 http://[POD]:8080"])]).services(&[("six/80", 14080)]),
    shape("53-many-services.yaml", &[web("many")]).services(&[("inside/80", 14080), ("outside/80", 14080)]),
    shape(
        "54-rich-pod.yaml",
        &[workload("rich", &["14080 http://POD:80"]).facts(&[("/spec/volumes/1/projected/defaultMode", "256")])],
    ),
    shape("55-rollout.yaml", &[web("canary")]),
    shape("56-custom-resource.yaml", &[web("arena").grace(300)]).args(&["--template-path", "/spec/podTemplate"]),
    shape("57-loopback.yaml", &[workload("shy", &["14080 http://127.0.0.1:8080"])])
        .args(&["--upstream-host", "127.0.0.1"]),
    shape(
        "58-options.yaml",
        &[web("opted").grace(44).hold(20).facts(&[
            ("/spec/initContainers/0/image", "\"registry.example.com/ebbtide:0.1.0\""),
            ("/spec/initContainers/0/resources/requests", "{\"cpu\": \"200m\", \"memory\": \"64Mi\"}"),
            ("/spec/initContainers/0/resources/limits", "{\"memory\": \"256Mi\"}"),
        ])],
    ),
    shape("59-taken-ports.yaml", &[workload("rival", &["14081 http://POD:8080"]).facts(&[ADMIN_MOVED])]),
];

/// Work without clients: its own connection is what must outlive it.
const OUTBOUND: &[&str] = &["--ports", "none", "--outbound", "db=127.0.0.1:5432=tcp://db.example:5432"];

const ISTIO: &str = "/metadata/annotations/traffic.sidecar.istio.io~1excludeInboundPorts";
const LINKERD: &str = "/metadata/annotations/config.linkerd.io~1skip-inbound-ports";
const ADMIN_MOVED: (&str, &str) = ("/spec/containers/0/lifecycle/preStop/httpGet/port", "14091");
const PORT_MOVED: (&str, &str) =
    ("/spec/containers/0/ports", "[{\"containerPort\": 8080}, {\"name\": \"http\", \"containerPort\": 14080}]");

const fn shape(file: &'static str, workloads: &'static [Workload]) -> Shape {
    Shape { file, args: &[], workloads, services: &[], says: &[] }
}

/// HTTP on port 8080, the stock grace period and hold.
const fn web(name: &'static str) -> Workload {
    workload(name, &["14080 http://POD:8080"])
}

const fn workload(name: &'static str, listeners: &'static [&'static str]) -> Workload {
    Workload { name, grace: 30, hold: 10, listeners, facts: &[] }
}

// === impl Shape ===

impl Shape {
    const fn args(mut self, args: &'static [&'static str]) -> Self {
        self.args = args;
        self
    }

    const fn services(mut self, services: &'static [(&'static str, u64)]) -> Self {
        self.services = services;
        self
    }

    const fn says(mut self, says: &'static [&'static str]) -> Self {
        self.says = says;
        self
    }
}

// === impl Workload ===

impl Workload {
    const fn grace(mut self, grace: u64) -> Self {
        self.grace = grace;
        self
    }

    const fn hold(mut self, hold: u64) -> Self {
        self.hold = hold;
        self
    }

    const fn facts(mut self, facts: &'static [(&'static str, &'static str)]) -> Self {
        self.facts = facts;
        self
    }
}
