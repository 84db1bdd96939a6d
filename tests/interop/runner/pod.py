"""Owns the pod: an app with ebbtide in front, and the part of the kubelet that deletes it."""

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


class Pod:
    """`proxy` is `ebbtide`, or anything else for an app that clients reach directly."""

    def __init__(self, name, app, settings, scheme, logs, folder):
        self.name = name
        self.settings = settings
        self.logs = logs
        self.notes = {}
        self.ebbtide = None
        self.app = Child(f"{name}-app", [*app, "--pod", name], logs)
        self.address = self.app.event("listening", 10)["address"]
        if settings.proxy == "ebbtide":
            self._front(scheme, folder)

    def _front(self, scheme, folder):
        listen, self.admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.socket = folder / f"{self.name}.sock"
        command = [self.settings.ebbtide, "run", "--mode", "sidecar", "--listen", listen, "--admin", self.admin]
        command += ["--upstream", f"{scheme}://{self.address}", "--control-socket", self.socket]
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

    def delete(self):
        """killContainersWithSyncResult for these two containers. Returns when both are gone."""
        began = self.notes["t0"] = time.time()
        if self.ebbtide:
            hooks = [threading.Thread(target=self._hook), threading.Thread(target=self._drain)]
            for hook in hooks:
                hook.start()
            hooks[0].join(self.settings.grace)
            self.notes["hook_timed_out"] = hooks[0].is_alive()
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
        for child in filter(None, [self.ebbtide, self.app]):
            child.close()
