"""Owns the clients: programs that speak for themselves, and command-line tools that are run in loops."""

import os
import re
import subprocess
import threading
import time
from pathlib import Path

from process import Child, Failure, follow, quick

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
        self.report = {"ok": 0, "failed": 0, "codes": {}, "errors": [], "streams": [], "sent": []}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._ready = threading.Semaphore(0)
        self._waiting = set(range(self.TASKS))
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
            self.ready(task)

    def ready(self, task):
        """A task that has had its first answer; a round is one at the latest when it is over."""
        with self._lock:
            if task not in self._waiting:
                return
            self._waiting.discard(task)
        self._ready.release()

    def good(self, count, sent=()):
        with self._lock:
            self.report["ok"] += count
            self.report["sent"] += sent

    def bad(self, count, code, text):
        with self._lock:
            self.report["failed"] += count
            self.report["codes"][code] = self.report["codes"].get(code, 0) + count
            self.report["errors"] = (self.report["errors"] + [text])[:5]

    def stream(self, told):
        with self._lock:
            self.report["streams"].append(told)

    @property
    def stopped(self):
        return self._stopped.is_set()

    def interrupt(self):
        """Ends rounds that would not end by themselves."""

    def wait_ready(self, seconds):
        for _ in self.threads:
            if not self._ready.acquire(timeout=seconds):
                raise Failure("the first round took too long")

    def finish(self, seconds):
        self._stopped.set()
        self.interrupt()
        for thread in self.threads:
            thread.join(seconds)
        return self.report

    def close(self):
        self.finish(20)


class Curl(Loop):
    """Each round is one process: many requests after each other on one connection, in one of the loops slow ones."""

    TASKS = 4
    SCHEME, MORE = "http", ""
    # Of the answers, "hello from POD" with what came.
    SHORTEST = 16

    def __init__(self, target, logs):
        told = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=False).stdout
        found = re.match(r"curl (\d+)", told)
        # Before 8.0 curl breaks the second request on such a connection, whatever the server: one a process then.
        self.keeps = bool(found) and int(found[1]) >= 8
        super().__init__(target, logs)

    def kind(self, task):
        """The options of a loop, the version of HTTP that it must get, and whether a connection carries many requests."""
        return ["--http2-prior-knowledge"], "2", self.keeps

    def round(self, task, number):
        slow = task == 0
        options, version, keeps = self.kind(task)
        requests = (3 if slow else 60) if keeps else 1
        url = f"{self.SCHEME}://{self.target}/?ms={700 if slow else 20}&n=[1-{requests}]{self.MORE}"
        command = ["curl", *options, "--silent", "--show-error", "--noproxy", "*", "--max-time", "30"]
        command += ["--output", os.devnull, "--write-out", "%{exitcode} %{http_code} %{http_version} %{size_download} %{errormsg}\\n"]
        if task % 2:
            command += ["--data", f"round-{number}"]
        _, out = quick(f"curl-{task}", [*command, url], self.logs, 60)
        lines = out.splitlines()
        for line in lines:
            if line.startswith(f"0 200 {version} ") and int(line.split(" ")[3]) >= self.SHORTEST:
                self.good(1)
            else:
                self.bad(1, line.split(" ")[0], line)
        if len(lines) < requests:
            self.bad(requests - len(lines), "none", "curl said nothing about some requests")


class CurlTls(Curl):
    """With client certificates. The loops of HTTP/1.0 get bodies that only the connection's end ends; whether that is
    close_notify, not every curl asks.
    """

    TASKS = 6
    SCHEME, MORE = "https", "&chunked"
    KINDS = [("--http1.1", "1.1"), ("--http2", "2"), ("--http1.0", "1")]

    def __init__(self, target, logs, folder):
        self._trust = ["--cacert", folder / "ca.crt"]
        self._shown = ["--cert", folder / "client" / "tls.crt", "--key", folder / "client" / "tls.key"]
        super().__init__(target, logs)
        code, _ = quick("curl-stranger", ["curl", "--silent", *self._trust, f"https://{target}/"], logs, 30)
        if code == 0:
            self.bad(1, "stranger", "an answer to a client without a certificate")

    def kind(self, task):
        option, version = self.KINDS[task // 2]
        oldest = ["--tls-max", "1.2"] if task % 2 else ["--tlsv1.3"]
        return [option, *oldest, *self._trust, *self._shown], version, version != "1"


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


class EventCurl(Loop):
    """Each round is one event stream, taken up where the one before it ended, as EventSource does it."""

    TASKS = 6

    def __init__(self, target, logs):
        self._last = {}
        self._running = {}
        super().__init__(target, logs)

    def interrupt(self):
        for process in list(self._running.values()):
            process.terminate()

    def round(self, task, number):
        command = ["curl", "--no-buffer", "--silent", "--show-error", "--fail", "--noproxy", "*"]
        command += ["--header", "Accept: text/event-stream"]
        if task in self._last:
            command += ["--header", f"Last-Event-ID: {self._last[task]}"]
        told = {"kind": "events", "pod": "", "messages": 0, "contiguous": True, "whole": True, "message": ""}
        fields = []

        def line(text):
            if text:
                fields.append(text.split(": ", 1))
            else:
                self._event(task, fields, told)
                fields.clear()

        command.append(f"http://{self.target}/events")
        code = follow(f"curl-{task}", command, self.logs, line, lambda process: self._begun(task, process))
        by_client = self.stopped
        if fields and not by_client:
            told["whole"] = False
        if told["pod"]:
            self.stream({**told, "code": code, "by_client": by_client, "end_ms": int(time.time() * 1000)})
        elif code and not by_client:
            # 22 is a status that would end an EventSource for good.
            self.bad(1, str(code), f"curl exited with {code}")
        if not by_client:
            time.sleep(0.2)

    def _begun(self, task, process):
        self._running[task] = process
        if self.stopped:
            process.terminate()

    def _event(self, task, fields, told):
        event = dict(fields)
        if event.get("event") == "hello":
            told["pod"] = event["data"]
            self.ready(task)
        elif "id" in event:
            number = int(event["id"])
            told["messages"] += 1
            told["contiguous"] = told["contiguous"] and number == self._last.get(task, number - 1) + 1
            data = [text for name, text in fields if name == "data"]
            told["whole"] = told["whole"] and data == [f"event {number}", f"from {told['pod']}"]
            self._last[task] = number
            self.good(1)


class Psql(Loop):
    """Each round is one psql with one transaction, in most of the loops one that takes long: some are at the old pod then."""

    TASKS = 8
    QUICK = 2
    # What runs at the deletion runs still when the hold ends.
    SLOW_SECONDS = 6

    def __init__(self, target, logs, programs):
        # Debian's own psql is a script that first looks for this one.
        self._psql = programs / "psql"
        super().__init__(target, logs)

    def round(self, task, number):
        slow = task >= self.QUICK and number > 0
        names = [f"psql-{task}-{number}-{part}" for part in ("first", "last")]
        insert = "INSERT INTO log VALUES ('{}')"
        steps = ["BEGIN", "SELECT current_setting('app.pod')", insert.format(names[0])]
        steps += [f"SELECT pg_sleep({self.SLOW_SECONDS if slow else 0.05})", insert.format(names[1]), "COMMIT"]
        host, port = self.target.rsplit(":", 1)
        command = [self._psql, "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]
        command += [f"postgresql://postgres@{host}:{port}/postgres?sslmode=disable&gssencmode=disable"]
        for step in steps:
            command += ["--command", step]
        began = int(time.time() * 1000)
        code, out = quick(f"psql-{task}", command, self.logs, 60)
        if code != 0:
            self.bad(1, str(code), f"psql exited with {code} ({'slow' if slow else 'quick'})")
        else:
            self.good(1, names)
        if slow and out:
            self.stream({
                "kind": "transaction", "pod": out.split()[0], "messages": 0, "contiguous": True, "whole": True, "message": "",
                "code": code, "by_client": code == 0, "begin_ms": began, "end_ms": int(time.time() * 1000),
            })
