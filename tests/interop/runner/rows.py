"""Owns the list of rows: which client, which app, which kind of upstream, and what must become of its streams."""

import sys

from clients import HERE, Curl, CurlTls, EventCurl, H2load, Program, Psql
from pod import free_port

PYTHON = HERE / "python"
NODE = HERE / "node"


class Ends:
    """How streams end at the pod that is deleted, where all `kinds` must have been: with `code`, and not all at once if
    `spread`.
    """

    def __init__(self, *kinds, code, spread=False):
        self.kinds, self.code, self.spread = kinds, code, spread


# UNAVAILABLE.
GRPC = Ends("server", "bidi", code=14)
SESSIONS = Ends("session", code=1001, spread=True)


class Row:
    """`needs` are preparations of Tools; `scheme` is how ebbtide is told to speak to the app.

    With `again` a client may repeat what it got no answer to. With `sticky` the balancer knows clients by their address;
    with `stays` it sends new connections to the deleted pod until the app's hook is released. `consumes` is an app without
    an inbound port. With `tls` clients speak it, and with `mutual` they show a certificate; https is an app that speaks it.
    """

    def __init__(self, name, scheme, app, needs, client, about, ends=None, again=False, fewest=100,
                 sticky=False, stays=False, tls=False, mutual=False):
        self.name, self.scheme, self._app, self._needs = name, scheme, app, needs
        self.client, self.about = client, about
        self.ends, self.again, self.fewest, self.sticky, self.stays = ends, again, fewest, sticky, stays
        self.tls, self.mutual = tls or mutual, mutual
        self.consumes = scheme == "outbound"

    @property
    def needs(self):
        # The balancer is a Go program.
        return ["go", *(["tls"] if self.tls else []), *self._needs]

    def app(self, tools):
        """The command and what its environment has beside ours."""
        return self._app(tools)


def _go_app(name, tls=False):
    return lambda tools: ([tools.go(name), *(["-tls", tools.tls] if tls else [])], {})


def node_app(name):
    return lambda tools: (["node", NODE / f"{name}.js"], _packages(tools))


def _python_app(name):
    return lambda tools: ([tools.python, PYTHON / f"{name}.py"], {})


def redis_app(_):
    return [sys.executable, PYTHON / "redis_app.py", free_port()], {}


def _postgres_app(tools):
    return [sys.executable, PYTHON / "postgres_app.py", tools.postgres, free_port()], {}


def _consumer_app(_):
    return [sys.executable, PYTHON / "queue_consumer.py"], {}


def _packages(tools):
    return {"NODE_PATH": str(tools.node / "node_modules")}


def _go(name, *arguments):
    return lambda target, tools, logs: Program([tools.go(name), "-target", target, *arguments], logs)


def _go_tls(name, *arguments):
    return lambda target, tools, logs: _go(name, "-tls", tools.tls, *arguments)(target, tools, logs)


def _tonic(target, tools, logs):
    return Program([tools.rust("tonic_client"), target], logs)


def _python(name, *arguments):
    return lambda target, tools, logs: Program([tools.python, PYTHON / f"{name}.py", target, *arguments], logs)


def _plain_python(name):
    return lambda target, tools, logs: Program([sys.executable, PYTHON / f"{name}.py", target], logs)


def _python_tls(name):
    return lambda target, tools, logs: Program([sys.executable, PYTHON / f"{name}.py", target, tools.tls / "ca.crt"], logs)


def _node(name, *arguments):
    return lambda target, tools, logs: Program(["node", NODE / f"{name}.js", target, *arguments], logs, _packages(tools))


def _node_tls(name):
    return lambda target, tools, logs: _node(name, tools.tls / "ca.crt")(target, tools, logs)


def _psql(target, tools, logs):
    return Psql(target, logs, tools.postgres)


def _curl_tls(target, tools, logs):
    return CurlTls(target, logs, tools.tls)


def _loop(kind):
    return lambda target, _, logs: kind(target, logs)


GRPC_APP, HTTP_APP = _go_app("grpcapp"), _go_app("httpapp")

ROWS = [
    Row("grpc-go", "h2c", GRPC_APP, [], _go("grpcclient"), "grpc-go, upstream h2c://", GRPC),
    Row("tonic", "h2c", GRPC_APP, ["rust"], _tonic, "tonic, upstream h2c://", GRPC),
    Row("grpcio", "h2c", GRPC_APP, ["python"], _python("grpc_client"), "grpcio for Python, upstream h2c://", GRPC),
    Row("grpc-js", "h2c", GRPC_APP, ["node"], _node("grpc-client"), "@grpc/grpc-js, upstream h2c://", GRPC),
    Row("grpc-go-auto", "auto", GRPC_APP, [], _go("grpcclient"), "grpc-go, upstream auto://", GRPC),
    Row("go-http", "auto", HTTP_APP, [], _go("httpclient"), "Go net/http, upstream auto://"),
    Row("go-http-h1", "http", HTTP_APP, [], _go("httpclient"), "Go net/http, upstream http:// (HTTP/1.1)"),
    Row("curl", "http", HTTP_APP, ["curl"], _loop(Curl), "curl, upstream http://"),
    Row("h2load", "auto", HTTP_APP, ["h2load"], _loop(H2load), "h2load, upstream auto://"),
    Row("go-https", "auto", HTTP_APP, [], _go_tls("httpclient"), "Go net/http over TLS, HTTP/2 and HTTP/1.1 by ALPN", tls=True),
    Row("go-https-cert", "http", HTTP_APP, [], _go_tls("httpclient", "-mutual"),
        "the same with client certificates, upstream http://", mutual=True),
    Row("go-https-app", "https", _go_app("httpapp", tls=True), [], _go_tls("httpclient"),
        "Go net/http over TLS, upstream https://", tls=True),
    Row("grpc-go-tls", "h2c", GRPC_APP, [], _go_tls("grpcclient"), "grpc-go over TLS, upstream h2c://", GRPC, tls=True),
    Row("curl-https", "http", HTTP_APP, ["curl"], _curl_tls, "curl over TLS with client certificates, HTTP/2, 1.1 and 1.0",
        mutual=True),
    Row("python-https", "http", HTTP_APP, [], _python_tls("https_client"), "Python's http.client over TLS 1.2 and 1.3",
        Ends("busy", "idle", code="close_notify"), tls=True),
    Row("node-https", "auto", HTTP_APP, ["node"], _node_tls("https-client"), "Node's https and http2 over TLS 1.2 and 1.3", tls=True),
    Row("ws-node", "http", node_app("ws-app"), ["node"], _node("ws-client", 500, 1000),
        "Node's ws, 500 sessions", SESSIONS),
    Row("ws-python", "http", _python_app("ws_app"), ["python"], _python("ws_client", 40),
        "Python's websockets", SESSIONS),
    Row("socket.io", "http", node_app("socketio-app"), ["node"], _node("socketio-client", 20, "websocket"),
        "socket.io over WebSocket", SESSIONS, again=True),
    Row("socket.io-poll", "http", node_app("socketio-app"), ["node"], _node("socketio-client", 20, "polling,websocket"),
        "socket.io that polls first, with session affinity", SESSIONS, again=True, sticky=True),
    Row("sse-node", "http", node_app("sse-app"), ["node"], _node("sse-client"),
        "event streams to the package eventsource", Ends("events", "silent", code=0), stays=True),
    Row("sse-curl", "http", node_app("sse-app"), ["node", "curl"], _loop(EventCurl),
        "event streams to curl", Ends("events", code=0), stays=True),
    Row("postgres", "tcp", _postgres_app, ["postgres"], _psql,
        "psql and a PostgreSQL server, upstream tcp://", Ends("transaction", code=0), fewest=50),
    Row("redis", "tcp", redis_app, ["redis"], _plain_python("redis_client"),
        "pipelines, redis-cli and a Redis server, upstream tcp://", Ends("connection", code="FIN")),
    Row("queue", "outbound", _consumer_app, ["redis"], _plain_python("queue_producer"),
        "a queue consumer that settles in Redis, outbound", fewest=20),
]
