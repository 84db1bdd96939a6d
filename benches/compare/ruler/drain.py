"""Owns S11: a proxy is stopped under load, in several ways, and what its clients lose is counted.

What the clients do, and what counts as a failure, is in src/tools/src/bin/loadc/drain.
"""

import json
import os
import signal
import subprocess
import time
import urllib.request

from peers import APP, BIN
from processes import LOAD_CPU, Proxy, kill, spawn

# The word of `can` that each needs, the mode of loadc, and how many connections.
NEEDS = {"S11": "h1", "S11h2": "h2c", "S11g": "grpc", "S11ws": "ws", "S11tcp": "tcp"}
MODES = {"S11": "drain-h1", "S11h2": "drain-h2", "S11g": "drain-grpc", "S11ws": "drain-ws", "S11tcp": "drain-tcp"}
CONNECTIONS = {"S11": 10000, "S11h2": 100, "S11g": 100, "S11ws": 1000, "S11tcp": 1000}
TITLES = {"S11": "HTTP/1", "S11h2": "HTTP/2", "S11g": "gRPC", "S11ws": "WebSocket", "S11tcp": "TCP"}
RATE = 2000
# What the kubelet gives, from the first step on.
GRACE = 20.0


def step(words, peer, pid):
    verb, _, argument = words.partition(" ")
    if verb == "sleep":
        time.sleep(float(argument))
    elif verb == "POST":
        url = f"http://127.0.0.1:{peer.port('admin')}{argument}"
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=5) as answer:
            assert answer.status == 200, answer.status
    else:
        os.kill(pid, getattr(signal, f"SIG{verb}"))


def measure(name, need, peer, how, rtt_ms):
    words = [BIN / "loadc", MODES[name], peer.address(need), CONNECTIONS[name], RATE, rtt_ms, APP]
    with Proxy(peer, peer.stop_env.get(how)) as proxy:
        client = spawn(words, LOAD_CPU, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            return {**ended(client, proxy, peer, peer.stop[how]), "rtt_ms": rtt_ms}
        finally:
            kill(client)


def ended(client, proxy, peer, steps):
    ready = client.stdout.readline().strip()
    if not ready:
        raise RuntimeError("the load client ended early")
    client.stdin.write("SIGNAL\n")
    client.stdin.flush()
    t0 = time.monotonic()
    for words in steps:
        step(words, peer, proxy.pid)
    while proxy.process.poll() is None and time.monotonic() - t0 < GRACE:
        time.sleep(0.02)
    killed = proxy.process.poll() is None
    gone = time.monotonic() - t0
    kill(proxy.process)
    client.stdin.write("GONE\n")
    text = client.communicate(timeout=60)[0]
    result = json.loads(text.strip().splitlines()[-1])
    return {**result, "ready": ready, "exit_s": gone, "killed": killed}
