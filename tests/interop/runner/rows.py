"""Owns the list of rows: which client, which app, which kind of upstream."""

from clients import HERE, Curl, H2load, Program


class Row:
    """`needs` are preparations of Tools; `scheme` is how ebbtide is told to speak to the app."""

    def __init__(self, name, scheme, app, needs, client, about):
        self.name, self.scheme, self._app, self._needs = name, scheme, app, needs
        self.client, self.about = client, about
        self.streams = app == "grpcapp"

    @property
    def needs(self):
        # App and balancer are Go programs.
        return ["go", *self._needs]

    def app(self, tools):
        return [tools.go(self._app)]


def _go(name):
    return lambda target, tools, logs: Program([tools.go(name), "-target", target], logs)


def _tonic(target, tools, logs):
    return Program([tools.rust("tonic_client"), target], logs)


def _python(target, tools, logs):
    return Program([tools.python, HERE / "python" / "grpc_client.py", target], logs)


def _node(target, tools, logs):
    return Program(["node", HERE / "node" / "grpc-client.js", target], logs, {"NODE_PATH": str(tools.node / "node_modules")})


ROWS = [
    Row("grpc-go", "h2c", "grpcapp", [], _go("grpcclient"), "grpc-go, upstream h2c://"),
    Row("tonic", "h2c", "grpcapp", ["rust"], _tonic, "tonic, upstream h2c://"),
    Row("grpcio", "h2c", "grpcapp", ["python"], _python, "grpcio for Python, upstream h2c://"),
    Row("grpc-js", "h2c", "grpcapp", ["node"], _node, "@grpc/grpc-js, upstream h2c://"),
    Row("grpc-go-auto", "auto", "grpcapp", [], _go("grpcclient"), "grpc-go, upstream auto://"),
    Row("go-http", "auto", "httpapp", [], _go("httpclient"), "Go net/http, upstream auto://"),
    Row("go-http-h1", "http", "httpapp", [], _go("httpclient"), "Go net/http, upstream http:// (HTTP/1.1)"),
    Row("curl", "http", "httpapp", ["curl"], lambda target, _, logs: Curl(target, logs), "curl, upstream http://"),
    Row("h2load", "auto", "httpapp", ["h2load"], lambda target, _, logs: H2load(target, logs), "h2load, upstream auto://"),
]
