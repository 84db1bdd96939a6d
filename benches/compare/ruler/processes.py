"""Owns processes: starting and ending them, their CPU time and memory, how busy a core is, and our own limits."""

import os
import re
import resource
import signal
import socket
import subprocess
import time

HZ = os.sysconf("SC_CLK_TCK")
LOAD_CPU, PROXY_CPU = "0", "1"
OPEN_FILES = 20000


def tree(pid):
    """A process and all its descendants."""
    pids = [pid]
    for one in pids:
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children") as file:
                    pids += map(int, file.read().split())
        except OSError:
            pass
    return pids


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def cpu_seconds(pid):
    """User and system time of the tree so far."""
    ticks = 0
    for one in tree(pid):
        fields = read(f"/proc/{one}/stat").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12]) if fields else 0
    return ticks / HZ


def cpu_nanoseconds(pid):
    """The same by the scheduler's clock, which sees nearly idle processes too, and short spans."""
    spent = 0
    for one in tree(pid):
        try:
            tasks = os.listdir(f"/proc/{one}/task")
        except OSError:
            continue
        spent += sum(int((read(f"/proc/{one}/task/{task}/schedstat") or "0").split()[0]) for task in tasks)
    return spent


def memory_kb(pid):
    """RSS and PSS of the tree; PSS does not count shared pages twice."""
    rss = pss = 0
    for one in tree(pid):
        found = dict(re.findall(r"^(Rss|Pss):\s+(\d+)", read(f"/proc/{one}/smaps_rollup"), re.M))
        rss += int(found.get("Rss", 0))
        pss += int(found.get("Pss", 0))
    return rss, pss


def core_busy_seconds(cpu):
    line = next(line for line in read("/proc/stat").splitlines() if line.startswith(f"cpu{cpu} "))
    values = list(map(int, line.split()[1:9]))
    return (sum(values) - values[3] - values[4]) / HZ


def spawn(command, cpu, env=None, **pipes):
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **pipes}
    return subprocess.Popen(["taskset", "-c", cpu, *map(str, command)], env={**os.environ, **(env or {})}, **pipes)


def kill(process):
    """Ends a process that we started, and its children."""
    if process.poll() is None:
        for pid in reversed(tree(process.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
    process.wait()


def answers(port, patience=1.0):
    """Whether HTTP on this port says 200."""
    try:
        with socket.create_connection(("127.0.0.1", port), patience) as stream:
            stream.settimeout(patience)
            stream.sendall(b"GET /small HTTP/1.1\r\nhost: app.local\r\nconnection: close\r\n\r\n")
            return stream.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def is_taken(port):
    with socket.socket() as stream:
        return stream.connect_ex(("127.0.0.1", port)) == 0


class Proxy:
    """A started peer that answers; nothing for `direct`."""

    def __init__(self, peer, env=None):
        self.peer, self.process = peer, None
        if not peer.cmd:
            return
        probe = peer.port("h1" if "h1" in peer.can else "tcp")
        # The children of one that was killed may hold it for a moment.
        patience = time.monotonic() + 5
        while is_taken(probe) and time.monotonic() < patience:
            time.sleep(0.05)
        if is_taken(probe):
            raise RuntimeError(f"port {probe} is taken (BENCH_BASE moves all ports)")
        began = time.monotonic()
        self.process = spawn(peer.cmd, PROXY_CPU, {**peer.env, **(env or {})})
        while not answers(probe):
            if self.process.poll() is not None or time.monotonic() - began > 15:
                kill(self.process)
                raise RuntimeError(f"does not answer; try: {' '.join(peer.cmd)}")
            time.sleep(0.0005)
        self.start_s = time.monotonic() - began

    @property
    def pid(self):
        return self.process.pid

    def cpu(self):
        """Seconds by both clocks."""
        return (cpu_seconds(self.pid), cpu_nanoseconds(self.pid) / 1e9) if self.process else (0.0, 0.0)

    def cpu_since(self, before):
        """Seconds. The scheduler's clock is the finer one, but forgets threads that have ended."""
        ticks, fine = (now - then for now, then in zip(self.cpu(), before))
        return fine if abs(fine - ticks) <= 0.025 + 0.02 * ticks else ticks

    def memory(self):
        """RSS and PSS in KB."""
        return memory_kb(self.pid) if self.process else (0, 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process:
            kill(self.process)


def few_descriptors():
    """A warning if 10,000 connections do not fit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (max(hard, 65536), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
            break
        except (ValueError, OSError):
            continue
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"only {limit} descriptors may be open; rows with 10,000 connections need {OPEN_FILES}"
        if limit < OPEN_FILES
        else ""
    )


def pin():
    os.sched_setaffinity(0, {int(LOAD_CPU)})
