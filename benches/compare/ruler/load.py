"""Owns the load tools: their command lines, and what they print."""

import json
import re
import subprocess
import time

from peers import BIN, MESSAGE, WORK
from processes import LOAD_CPU, spawn

MICROSECONDS = {"us": 1, "ms": 1e3, "s": 1e6, "m": 6e7}
H2LOAD_LOG = WORK / "run" / "h2load.log"


def command(tool, arguments, address, seconds, rate=0):
    """`arguments` as in the table of scenarios; {u} is the peer's address."""
    values = {"u": address, "d": seconds, "log": H2LOAD_LOG, "message": MESSAGE, "rate": rate}
    words = [word.format(**values) for word in arguments]
    return {
        "wrk": ["wrk", "-t1", f"-d{seconds}s", "--latency", *words],
        "h2load": ["h2load", "-t1", "-c16", "-m32", "-D", seconds, "--log-file", H2LOAD_LOG, *words],
        "s_time": ["openssl", "s_time", "-new", "-tls1_3", "-time", seconds, *words],
        "loadc": [BIN / "loadc", *words],
    }[tool]


def micros(text):
    number, unit = re.match(r"([\d.]+)([a-z]+)", text).groups()
    return float(number) * MICROSECONDS[unit]


def parse_wrk(text):
    done, seconds = re.search(r"(\d+) requests in ([\d.]+\w+)", text).groups()
    errors = re.findall(r"(?:connect|read|write|timeout) (\d+)", text) + re.findall(r"3xx responses: (\d+)", text)
    share = lambda percent: micros(re.search(rf"^\s+{percent}%\s+(\S+)", text, re.M)[1])
    return {
        "done": int(done),
        "secs": micros(seconds) / 1e6,
        "p50": share(50),
        "p99": share(99),
        "errors": sum(map(int, errors)),
    }


def parse_h2load(text, log):
    """`log`: lines of start, status and microseconds."""
    done = int(re.search(r"(\d+) succeeded", text)[1])
    bad = sum(map(int, re.search(r"(\d+) failed, (\d+) errored, (\d+) timeout", text).groups()))
    bad += max(0, done - int(re.search(r"status codes: (\d+) 2xx", text)[1]))
    seconds = micros(re.search(r"finished in ([\d.]+\w+)", text)[1]) / 1e6
    latencies = sorted(int(line.split("\t")[2]) for line in log)
    share = lambda part: latencies[int((len(latencies) - 1) * part)] if latencies else 0
    return {"done": done, "secs": seconds, "p50": share(0.5), "p99": share(0.99), "errors": bad}


def parse_s_time(text):
    """Handshakes, each with a connection of its own; it tells no latencies."""
    done, seconds = re.search(r"(\d+) connections in (\d+) real seconds", text).groups()
    return {"done": int(done), "secs": max(1, int(seconds)), "p50": 0, "p99": 0, "errors": 0}


def parse_loadc(text):
    return json.loads(text.strip().splitlines()[-1])


class Load:
    """A running load tool. It measures from `began` on."""

    def __init__(self, tool, arguments, address, seconds, rate=0):
        self.tool, self.seconds = tool, seconds
        H2LOAD_LOG.unlink(missing_ok=True)
        self.process = spawn(
            command(tool, arguments, address, seconds, rate),
            LOAD_CPU,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        # With thousands of connections to open, the load begins long after the process.
        self.waits = tool == "loadc" and arguments[0] == "rate"
        self.ready = self.process.stdout.readline().strip() if self.waits else ""
        self.began = time.monotonic()

    def runs(self):
        return self.process.poll() is None and time.monotonic() - self.began < self.seconds - 0.3

    def result(self, at_end=lambda: None):
        """Waits. `at_end` is called when the load is over, where possible before the connections are closed."""
        line = ""
        if self.waits:
            line = self.process.stdout.readline()
            at_end()
        text = line + self.process.communicate(timeout=self.seconds + 30)[0]
        if not self.waits:
            at_end()
        try:
            match self.tool:
                case "wrk":
                    return parse_wrk(text)
                case "h2load":
                    with open(H2LOAD_LOG) as log:
                        return parse_h2load(text, log)
                case "s_time":
                    return parse_s_time(text)
                case _:
                    return parse_loadc(text)
        except (AttributeError, TypeError, ValueError, OSError) as error:
            raise RuntimeError(f"{self.tool} said: {text.strip()[-300:]}") from error
