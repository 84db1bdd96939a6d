"""Owns the clients: programs that speak for themselves, and command-line tools that are run in loops."""

import os
import re
import subprocess
import threading
from pathlib import Path

from process import Child, Failure, quick

HERE = Path(__file__).resolve().parent.parent


class Program:
    """A program that says `ready`, works until its standard input ends, and then prints its report."""

    def __init__(self, command, logs, env=None):
        self.child = Child("client", command, logs, env=env)

    def wait_ready(self, seconds):
        self.child.event("ready", seconds)

    def finish(self, seconds):
        self.child.close_stdin()
        return self.child.wait_for(lambda event: "client" in event, seconds)

    def close(self):
        self.child.close()


class Loop:
    """The same command over and over, in several threads. A row's class says what one round shows."""

    def __init__(self, target, logs):
        self.target, self.logs = target, logs
        self.report = {"ok": 0, "failed": 0, "codes": {}, "errors": [], "streams": []}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._ready = threading.Semaphore(0)
        self.threads = [threading.Thread(target=self._loop, args=(number,)) for number in range(self.TASKS)]
        for thread in self.threads:
            thread.start()

    def _loop(self, task):
        rounds = 0
        while not self._stopped.is_set():
            self.round(task, rounds)
            rounds += 1
            if rounds == 1:
                self._ready.release()

    def good(self, count):
        with self._lock:
            self.report["ok"] += count

    def bad(self, count, code, text):
        with self._lock:
            self.report["failed"] += count
            self.report["codes"][code] = self.report["codes"].get(code, 0) + count
            self.report["errors"] = (self.report["errors"] + [text])[:5]

    def wait_ready(self, seconds):
        for _ in self.threads:
            if not self._ready.acquire(timeout=seconds):
                raise Failure("the first round took too long")

    def finish(self, seconds):
        self._stopped.set()
        for thread in self.threads:
            thread.join(seconds)
        return self.report

    def close(self):
        self.finish(20)


class Curl(Loop):
    """Each round is one process with one connection: many requests after each other, one kind of them slow."""

    TASKS = 4
    REQUESTS = {False: 60, True: 3}

    def round(self, task, number):
        slow = task == 0
        url = f"http://{self.target}/?ms={700 if slow else 20}&n=[1-{self.REQUESTS[slow]}]"
        command = ["curl", "--http2-prior-knowledge", "--silent", "--show-error", "--noproxy", "*", "--max-time", "30"]
        command += ["--output", os.devnull, "--write-out", "%{http_code} %{http_version} %{errormsg}\\n"]
        if task % 2:
            command += ["--data", f"round-{number}"]
        _, out = quick(f"curl-{task}", [*command, url], self.logs, 60)
        lines = out.splitlines()
        for line in lines:
            if line.startswith("200 2 "):
                self.good(1)
            else:
                self.bad(1, line.split(" ")[0], line)
        if len(lines) < self.REQUESTS[slow]:
            self.bad(self.REQUESTS[slow] - len(lines), "none", "curl said nothing about some requests")


class H2load(Loop):
    """Short rounds with a bounded number of requests, many streams at once on each connection."""

    TASKS = 1
    REQUESTS = 400

    def round(self, task, number):
        command = ["h2load", "--clients=4", "--max-concurrent-streams=8", f"--requests={self.REQUESTS}"]
        code, out = quick("h2load", [*command, f"http://{self.target}/?ms=20"], self.logs, 60)
        found = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", out)
        statuses = re.search(r"status codes: (\d+) 2xx", out)
        if code != 0 or not found or not statuses:
            self.bad(self.REQUESTS, "h2load", f"h2load exited with {code}")
            return
        good = min(int(found[1]), int(statuses[1]))
        self.good(good)
        if good < self.REQUESTS:
            self.bad(self.REQUESTS - good, "h2load", found[0])


def version_of(command):
    """The first line of what a tool says of itself."""
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    return (out.stdout or out.stderr).splitlines()[0].strip() if out.stdout or out.stderr else "?"
