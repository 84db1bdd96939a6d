"""What the Python programs share: lines of JSON, streamed messages, the report of a client, the journal of an app."""

import json
import sys
import threading
import time
from collections import Counter

CHUNK = 3072
ALPHABET = b"abcdefghijklmnopqrstuvwxyz"
PATTERN = ALPHABET * (CHUNK // 26 + 2)

_printing = threading.Lock()


def say(fields):
    with _printing:
        print(json.dumps(fields), flush=True)


def now():
    """The wall clock in milliseconds, which the runner compares between processes."""
    return int(time.time() * 1000)


def listening(port):
    say({"event": "listening", "address": f"127.0.0.1:{port}"})


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


def chunk(seq, name):
    """One streamed message: "SEQ NAME " and then a pattern that depends on the sequence number and the position."""
    head = f"{seq} {name} ".encode()
    start = (seq + len(head)) % 26
    return head + PATTERN[start:start + CHUNK - len(head)]


def check(data):
    """The sequence number and the name of a chunk, or None if a byte is missing or wrong."""
    head = data[:64].split(b" ", 2)
    if len(data) != CHUNK or len(head) != 3 or not head[0].isdigit():
        return None
    seq, name = int(head[0]), head[1].decode()
    return (seq, name) if data == chunk(seq, name) else None


class Stream:
    """One stream as the report has it: streams of all kinds are judged alike."""

    def __init__(self, kind):
        self.told = {"kind": kind, "pod": "", "code": 0, "message": "", "messages": 0, "contiguous": True, "whole": True}

    def chunk(self, data):
        told, checked = self.told, check(data)
        told["messages"] += 1
        told["whole"] = told["whole"] and checked is not None
        told["contiguous"] = told["contiguous"] and checked is not None and checked[0] == told["messages"]
        told["pod"] = checked[1] if checked else told["pod"]

    def end(self, by_client, **fields):
        return {**self.told, **fields, "by_client": by_client, "end_ms": now()}


class Report:
    """What a client counts. It works until its standard input ends."""

    def __init__(self, client):
        # In `sent` are the ids of which the client takes it that they have arrived.
        self.told = {"client": client, "ok": 0, "failed": 0, "codes": {}, "errors": [], "streams": [], "sent": []}
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._waiting = set()

    def expect(self, task):
        """Called for each task before any of them begins."""
        self._waiting.add(task)

    def first_answer(self, task):
        with self._lock:
            if task not in self._waiting:
                return
            self._waiting.discard(task)
            ready = not self._waiting
        if ready:
            say({"event": "ready"})

    def good(self, sent=None):
        with self._lock:
            self.told["ok"] += 1
            if sent is not None:
                self.told["sent"].append(sent)

    def fail(self, code, text):
        with self._lock:
            self.told["failed"] += 1
            self.told["codes"][code] = self.told["codes"].get(code, 0) + 1
            self.told["errors"] = (self.told["errors"] + [text])[:5]

    def stream(self, told):
        with self._lock:
            self.told["streams"].append(told)

    def wait_for_end(self):
        sys.stdin.read()
        self.stopped.set()

    def say(self):
        with self._lock:
            say(self.told)


class Journal:
    """What reached an app: messages by id, sessions as `open`."""

    def __init__(self):
        self.told = {"calls": 0, "late": 0, "twice": 0, "damaged": 0}
        self.codes = Counter()
        self.ids = set()
        self.open = 0
        self.stopped = False

    def begin(self):
        self.open += 1
        if self.stopped:
            self.told["late"] += 1

    def end(self, code):
        self.open -= 1
        self.codes[code] += 1

    def message(self, name):
        self.told["calls"] += 1
        self.told["late"] += self.stopped
        self.told["twice"] += name in self.ids
        self.ids.add(name)

    def chunk(self, data):
        """A chunk from a client counts under its name and number."""
        checked = check(data)
        if checked is None:
            self.told["damaged"] += 1
        else:
            self.message(f"{checked[1]}-{checked[0]}")

    def stop(self):
        self.stopped = True
        say({"event": "sigterm", "at_ms": now(), "calls": self.told["calls"], "open": self.open})

    def exit(self):
        say({"event": "exit", "at_ms": now(), **self.told, "codes": self.codes, "ids": sorted(self.ids)})
