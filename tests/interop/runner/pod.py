"""Owns the pod: an app with ebbtide in front, and the part of the kubelet that deletes it."""

import json
import signal
import socket
import threading
import time
import urllib.request

from process import Child, Failure, quick

# The kubelet lets a container have this long between SIGTERM and SIGKILL even if the grace period is used up.
FLOOR = 2
_next_port = [0]
_ports = threading.Lock()


def free_port():
    """A port below the range that the kernel gives to outgoing connections, so that nobody takes it meanwhile."""
    with _ports:
        for _ in range(2000):
            _next_port[0] = _next_port[0] + 1 if _next_port[0] else 15000 + int(time.time() * 10) % 9000
            port = 15000 + (_next_port[0] - 15000) % 15000
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", port))
                    return port
                except OSError:
                    continue
    raise Failure("no free port")


def await_ready(ebbtide, admin, logs):
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if ebbtide.wait(0):
            words = " ".join((logs / f"{ebbtide.name}.err").read_text().split())
            raise Failure(f"ebbtide did not start, exit code {ebbtide.code}: {words[:160]}")
        try:
            with urllib.request.urlopen(f"http://{admin}/readyz", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.05)
    raise Failure("ebbtide did not become ready in 10 s")


def _listener(row, tools, bind, upstream):
    """What can't be told by flags."""
    http = row.scheme not in ("tcp", "outbound")
    told = {"name": "only", "direction": "outbound" if row.consumes else "inbound", "protocol": "http" if http else "tcp"}
    told |= {"bind": bind, "upstream": f"{row.scheme if http else 'tcp'}://{upstream}"}
    if row.tls:
        told["tls"] = {"certificates": str(tools.tls / "server")}
    if row.mutual:
        told["tls"] |= {"client_ca": str(tools.tls / "ca.crt"), "client_auth": "required"}
    if row.scheme == "https":
        told["upstream_tls"] = {"ca": str(tools.tls / "ca.crt"), "server_name": "localhost"}
    return told


class Pod:
    """Without ebbtide clients reach the app directly, or through a relay that ends TLS where the app has none. An app
    without an inbound port reaches `broker` through its pod.
    """

    def __init__(self, name, row, tools, settings, logs, folder, broker=None):
        self.name, self.row, self.settings, self.logs, self.folder = name, row, settings, logs, folder
        self.notes = {}
        self.ebbtide = self.relay = None
        if broker:
            # Without ebbtide a relay as it is: told to stop when the app is told.
            self._front(row, tools, broker)
            self._start(row, tools, [self.address])
        else:
            self._start(row, tools, [])
            if settings.proxy == "ebbtide" or row.tls and row.scheme != "https":
                self._front(row, tools, self.address)

    def _start(self, row, tools, arguments):
        command, env = row.app(tools)
        command = [*command, *arguments, "--pod", self.name]
        self.app = Child(f"{self.name}-app", command, self.logs, {"TMPDIR": str(self.folder), **env})
        # Databases are made first.
        self.address = self.app.event("listening", 30)["address"]

    def _front(self, row, tools, upstream):
        if self.settings.proxy == "ebbtide":
            self._sidecar(row, tools, upstream)
            return
        command = [tools.go("balancer"), "--backends", upstream, *(["--tls", tools.tls] if row.tls else [])]
        self.relay = Child(f"{self.name}-relay", [*command, *(["--mutual"] if row.mutual else [])], self.logs)
        self.address = self.relay.event("listening", 10)["address"]

    def _sidecar(self, row, tools, upstream):
        listen, self.admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.socket = self.folder / f"{self.name}.sock"
        command = [self.settings.ebbtide, "run", "--mode", "sidecar", "--admin", self.admin, "--control-socket", self.socket]
        if row.tls or row.scheme in ("tcp", "outbound"):
            config = self.logs / f"{self.name}-ebbtide.yaml"
            # JSON is YAML.
            config.write_text(json.dumps({"listeners": [_listener(row, tools, listen, upstream)]}))
            command += ["--config", config]
        else:
            command += ["--listen", listen, "--upstream", f"{row.scheme}://{upstream}"]
        command += ["--grace-period", f"{self.settings.grace}s", "--hold", f"{self.settings.hold}s"]
        command += ["--app-stop", f"{self.settings.app_stop}s", "--termination-message-path", self.logs / f"{self.name}-report"]
        self.ebbtide = Child(f"{self.name}-ebbtide", command, self.logs)
        self.address = listen
        await_ready(self.ebbtide, self.admin, self.logs)

    def _hook(self):
        """The app's own hook: as with the kubelet, any answer frees it, and so does a failure."""
        try:
            urllib.request.urlopen(f"http://{self.admin}/app-stop", timeout=self.settings.grace).read()
            self.notes["hook"] = "ok"
        except OSError as error:
            self.notes["hook"] = str(error)
        self.notes["hook_at"] = time.time()

    def _drain(self):
        command = [self.settings.ebbtide, "drain", "--control-socket", self.socket]
        self.notes["drain_code"], _ = quick(f"{self.name}-drain", command, self.logs, self.settings.grace)

    def delete(self, released=lambda: None):
        """killContainersWithSyncResult for these two containers. Returns when both are gone."""
        began = self.notes["t0"] = time.time()
        if self.ebbtide:
            hooks = [threading.Thread(target=self._hook), threading.Thread(target=self._drain)]
            for hook in hooks:
                hook.start()
            hooks[0].join(self.settings.grace)
            self.notes["hook_timed_out"] = hooks[0].is_alive()
        released()
        if self.relay:
            self.relay.signal(signal.SIGTERM)
        self._stop(self.app, began, "app")
        if self.ebbtide:
            self._stop(self.ebbtide, began, "ebbtide")
            hooks[1].join(FLOOR)

    def _stop(self, child, began, who):
        self.notes[f"{who}_early"] = child.wait(0)
        self.notes[f"{who}_term"] = time.time()
        child.signal(signal.SIGTERM)
        left = max(began + self.settings.grace - time.time(), FLOOR)
        self.notes[f"{who}_killed"] = not child.wait(left)
        if self.notes[f"{who}_killed"]:
            child.close()
        self.notes[f"{who}_end"] = child.ended_at

    def after(self, note):
        """Seconds from t0 to a noted moment."""
        return round(self.notes[note] - self.notes["t0"], 2) if self.notes.get(note) else None

    def journal(self):
        """What the app itself counted; empty if it did not live to tell."""
        told = {event["event"]: event for event in self.app.events if "event" in event}
        return {"stop": told.get("sigterm"), "exit": told.get("exit")}

    def stop_app(self):
        """The end of a pod that nobody deletes, so that its app tells what it counted."""
        self.app.signal(signal.SIGTERM)
        self.app.wait(5)

    def close(self):
        for child in filter(None, [self.ebbtide, self.relay, self.app]):
            child.close()
