"""Owns the row of closes: OpenSSL's s_client must see close_notify at the end of whatever ebbtide ends (case C78)."""

import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import verdict
from pod import Pod
from process import Failure, forget, spawn
from rows import Row, node_app

VERSIONS = {"TLSv1.2": "-tls1_2", "TLSv1.3": "-tls1_3"}
SECONDS = 20
# The first byte of a WebSocket Close; nothing else that the app sends has it.
CLOSE = b"\x88"
ANSWER = b"HTTP/1.1 426"


class Closes:
    name = "tls-closes"
    about = "openssl s_client sees close_notify on five ways to close, TLS 1.2 and 1.3"
    needs = ["go", "node", "tls"]


class Client:
    """One s_client. What it says of OpenSSL's mind goes to a file, what the server says is kept."""

    def __init__(self, name, version, address, tools, logs):
        self.name, self.version, self.got, self.ended_at = f"{name} {version}", version, b"", 0
        self._told = logs / f"{name}-{version}.err"
        self._news = threading.Condition()
        command = ["openssl", "s_client", "-connect", address, "-brief", "-ign_eof", VERSIONS[version]]
        command += ["-CAfile", tools.tls / "ca.crt", "-verify_return_error", "-verify_ip", "127.0.0.1"]
        with open(self._told, "w") as errors:
            self.process = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        while data := self.process.stdout.read1():
            with self._news:
                self.got += data
                self._news.notify_all()
        self.process.wait()
        self.ended_at = time.time()
        forget(self.process)
        with self._news:
            self._news.notify_all()

    def await_handshake(self):
        until = time.monotonic() + SECONDS
        while "CONNECTION ESTABLISHED" not in self.told:
            if time.monotonic() > until or self.process.poll() is not None:
                raise Failure(f"{self.name}: no handshake")
            time.sleep(0.02)

    def wait_for(self, wanted, count=1):
        """False if the connection ended before."""
        with self._news:
            self._news.wait_for(lambda: self.got.count(wanted) >= count or self.process.poll() is not None, SECONDS)
            return self.got.count(wanted) >= count

    def send(self, data):
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except OSError:
            pass

    def get(self, header=""):
        self.send(f"GET /?every=100000 HTTP/1.1\r\nHost: localhost\r\n{header}\r\n".encode())

    @property
    def told(self):
        return self._told.read_text(errors="replace")

    def fault(self):
        """What is wrong with how it ended: OpenSSL exits with 0 after close_notify only."""
        self._reader.join(SECONDS)
        if self._reader.is_alive():
            return f"{self.name}: was not closed"
        if f"Protocol version: {self.version}" not in self.told:
            return f"{self.name}: another version"
        last = [line.split(":error:")[-1] for line in self.told.splitlines() if ":error:" in line or "errno" in line][-1:]
        if last or self.process.returncode:
            return f"{self.name}: {' '.join(last)[:70]}, exit code {self.process.returncode}"
        return None

    def announced(self):
        """Whether the way to close was the one that its name says."""
        sign = {"marked": b"\r\nconnection: close\r\n", "websocket": CLOSE}.get(self.name.split()[0])
        return (sign is None and b"connection: close" not in self.got.lower()) or (sign is not None and sign in self.got.lower())

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self._reader.join(5)


def idle(client):
    """Has had its answer and waits."""
    client.get()
    return client.wait_for(ANSWER)


def marked(client):
    """Asks until an answer says that it is the last."""
    number = 0
    while b"connection: close" not in client.got.lower():
        number += 1
        client.get()
        if not client.wait_for(b"\r\n\r\n", number):
            return
        time.sleep(0.1)


def websocket(client):
    key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    client.get(f"Connection: Upgrade\r\nUpgrade: websocket\r\n{key}")
    if client.wait_for(CLOSE):
        client.send(b"\x88\x82\x00\x00\x00\x00\x03\xe9")


def run(row, settings, tools):
    logs = settings.logs / row.name
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    cast, clients, playing = [], [], []
    try:
        for scheme in ("http", "tcp"):
            folder = settings.sockets / f"closes-{scheme}"
            folder.mkdir()
            cast.append(Pod(scheme, Row(scheme, scheme, node_app("ws-app"), [], None, "", tls=True), tools, settings, logs, folder))
        http, tcp = cast

        def begin(name, pod, part):
            for version in VERSIONS:
                client = Client(name, version, pod.address, tools, logs)
                clients.append(client)
                client.await_handshake()
                thread = threading.Thread(target=part, args=[client])
                thread.start()
                playing.append(thread)

        begin("idle", http, idle)
        begin("marked", http, marked)
        begin("websocket", http, websocket)
        begin("tcp", tcp, idle)
        for client in clients:
            client.wait_for(b"\r\n\r\n")
        faults = []
        if settings.proxy != "calm":
            # Comes too late for an answer of the app, and asks for none: the exit of the process finds it.
            last = lambda: begin("exit", http, lambda _: None)
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda pod: pod.delete(last) if pod is http else pod.delete(), cast))
            faults += [fault for fault in [client.fault() for client in clients] if fault]
            faults += [f"{client.name}: no end was announced" for client in clients if not client.announced()]
            told = http.notes["ebbtide_term" if http.ebbtide else "t0"]
            faults += [f"{client.name}: ended before the process was told to go" for client in clients[-2:] if client.ended_at < told]
        failed = len({fault.split(":")[0] for fault in faults})
        if settings.proxy == "ebbtide":
            faults += [fault for pod in cast for fault in verdict.ebbtide(pod.row, settings, pod)]
        return {
            "row": row.name, "result": "FAILED" if faults else "passed", "ok": len(clients) - failed, "failed": failed,
            "codes": {}, "ended": {}, "streams": 0, "messages": 0, "released": http.after("hook_at"),
            "gone": http.after("ebbtide_end") or http.after("app_end"), "faults": faults, "errors": [], "stream_messages": [],
        }
    finally:
        for one in reversed([*cast, *clients]):
            one.close()
        for thread in playing:
            thread.join()
