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
            try:
                self.round(task, rounds)
            except Failure:
                # The whole run is being ended.
                return
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
    """Each round is one process: many requests after each other on one connection, in one of the loops slow ones."""

    TASKS = 4

    def __init__(self, target, logs):
        told = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=False).stdout
        found = re.match(r"curl (\d+)", told)
        # Before 8.0 curl breaks the second request on such a connection, whatever the server: one a process then.
        self.keeps = bool(found) and int(found[1]) >= 8
        super().__init__(target, logs)

    def round(self, task, number):
        slow = task == 0
        requests = (3 if slow else 60) if self.keeps else 1
        url = f"http://{self.target}/?ms={700 if slow else 20}&n=[1-{requests}]"
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
        if len(lines) < requests:
            self.bad(requests - len(lines), "none", "curl said nothing about some requests")


class H2load(Loop):
    """Each round is one process with one connection and many streams at once.

    h2load opens no second connection: after a GOAWAY it gives up what it has not sent, and reports that as failed. So a
    round's own numbers can't be the verdict. Lost is what the server left unfinished, what got another status than 200,
    and a whole round that got nothing; what an app executed without the client hearing of it is counted by the verdict.
    """

    TASKS = 3
    REQUESTS = 600

    def round(self, task, number):
        command = ["h2load", "--clients=1", "--threads=1", "--max-concurrent-streams=8", f"--requests={self.REQUESTS}"]
        code, out = quick(f"h2load-{task}", [*command, f"http://{self.target}/?ms=20"], self.logs, 60)
        requests = re.search(r"(\d+) started, (\d+) done, (\d+) succeeded", out)
        statuses = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", out)
        if code != 0 or not requests or not statuses:
            self.bad(1, "exit", f"h2load exited with {code}")
            return
        started, done, _ = map(int, requests.groups())
        good, *other = map(int, statuses.groups())
        self.good(good)
        if started > done:
            self.bad(started - done, "cut", requests[0])
        if sum(other):
            self.bad(sum(other), "status", statuses[0])
        if not good:
            self.bad(1, "nothing", "a whole round got no answer")
