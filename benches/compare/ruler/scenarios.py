"""Owns the scenarios: the table of them, and how each kind is measured, except the terminations (drain.py)."""

import dataclasses
import statistics
import subprocess
import time

import drain
from load import Load
from peers import BIN, sizes_mb
from processes import LOAD_CPU, PROXY_CPU, Proxy, core_busy_seconds, cpu_nanoseconds, kill, spawn

COMMON_RATE = 8000
SHARE_OF_SATURATION = 0.8


@dataclasses.dataclass
class Scenario:
    name: str
    title: str
    # A word of `can`; empty: whatever the peer has.
    need: str
    kind: str
    tool: str = ""
    arguments: tuple = ()
    rate: int = 0
    per: str = "request"


def loads(name, need, title, tool, *arguments, rate=0, per="request"):
    return Scenario(name, title, need, "load", tool, arguments, rate, per)


def at_rate(name, title, conns, rate=0):
    """Over so many connections at so many requests a second; 0 is found out when it is measured."""
    return loads(name, "h1", title, "loadc", "rate", "{u}", str(conns), "{rate}", "{d}", rate=rate)


H1 = "http://{u}/small"
CLOSE = ("-H", "Connection: close")
GRPC = ("-d", "{message}", "-H", "content-type:application/grpc", "-H", "te:trailers", "http://{u}/echo.Echo/Say")

TABLE = [
    loads("S1", "h1", "HTTP/1 keep-alive at saturation, 64 connections, 128 B", "wrk", "-c64", H1),
    at_rate("S1r", "HTTP/1 keep-alive at 4,000 requests/s, 64 connections", 64, 4000),
    loads("S2", "h1", "HTTP/1 keep-alive, 64 connections, 64 KiB", "wrk", "-c64", "http://{u}/big"),
    loads("S3", "h1", "HTTP/1, a new connection per request, 64 at a time", "wrk", "-c64", *CLOSE, H1),
    loads("S4", "h2c", "HTTP/2 without TLS to an app in HTTP/1, 16 connections × 32 streams, 128 B", "h2load", H1),
    loads("S5", "grpc", "gRPC-shaped unary calls, HTTP/2 both sides, 16 × 32 streams", "h2load", *GRPC),
    loads("S6a", "tls", "TLS, HTTP/1 keep-alive, 64 connections, 128 B", "wrk", "-c64", "https://{u}/small"),
    loads("S6b", "tls", "TLS, HTTP/2, 16 × 32 streams, 128 B", "h2load", "https://{u}/small"),
    loads(
        "S6c",
        "tls",
        "TLS 1.3, a new connection per request, 16 at a time, sessions resumed",
        "wrk",
        "-c16",
        *CLOSE,
        "https://{u}/small",
    ),
    loads("S6d", "tls", "TLS 1.3, full handshakes, one at a time", "s_time", "-connect", "{u}", per="handshake"),
    loads(
        "S8",
        "ws",
        "WebSocket echo, 64 connections, 128 B, both ways",
        "loadc",
        "ws",
        "{u}",
        "64",
        "{d}",
        "128",
        per="message",
    ),
    loads("S9a", "tcp", "TCP relay, 128 B (HTTP/1 keep-alive through it)", "wrk", "-c64", H1),
    loads("S9b", "tcp", "TCP relay, 64 KiB", "wrk", "-c64", "http://{u}/big"),
    loads("S9c", "tcp", "TCP relay, a new connection per request", "wrk", "-c64", *CLOSE, H1),
    *(
        at_rate(f"S12-{conns}", f"4,000 requests/s over {conns:,} open connections", conns, 4000)
        for conns in (10, 100, 1000, 10000)
    ),
    at_rate("S13", "Latency at 80 % of the peer's own saturation (its S1), 64 connections", 64),
    at_rate("S13c", f"Latency at {COMMON_RATE:,} requests/s for all, 64 connections", 64, COMMON_RATE),
    Scenario("S7", "10,000 idle keep-alive connections", "", "idle"),
    Scenario("S7t", "10,000 idle TLS connections", "tls", "idle"),
    Scenario("S10", "Start to the first answer; what is installed", "", "start"),
    *(
        Scenario(name, f"Failed during termination: {drain.TITLES[name]}", need, "drain")
        for name, need in drain.NEEDS.items()
    ),
]
SCENARIOS = {scenario.name: scenario for scenario in TABLE}


def applies(scenario, peer):
    if scenario.kind == "drain":
        return scenario.need in peer.can and bool(peer.stop)
    if scenario.kind in ("idle", "start"):
        return bool(peer.cmd) and (not scenario.need or scenario.need in peer.can)
    return scenario.need in peer.can


def saturation(peer, seconds, samples):
    """Requests per second of S1: what has been measured, else measured now."""
    known = [sample["rps"] for sample in samples if sample["scenario"] == "S1" and sample["peer"] == peer.name]
    return statistics.median(known) if known else load(SCENARIOS["S1"], peer, seconds, samples)["rps"]


def load(scenario, peer, seconds, samples):
    rate = scenario.rate
    if scenario.name == "S13":
        rate = int(SHARE_OF_SATURATION * saturation(peer, seconds, samples))
    with Proxy(peer) as proxy:
        rss_idle = proxy.memory()[0]
        address = peer.address(scenario.need)
        # The warm-up.
        Load(scenario.tool, scenario.arguments, address, 1, rate).result()
        run = Load(scenario.tool, scenario.arguments, address, seconds, rate)
        cpu, busy, load_busy = proxy.cpu(), core_busy_seconds(PROXY_CPU), core_busy_seconds(LOAD_CPU)
        peak = (0, 0)
        while run.runs():
            time.sleep(0.5)
            peak = max(peak, proxy.memory())
        end = {}

        def at_end():
            end["wall"] = time.monotonic() - run.began
            end["cpu"] = proxy.cpu_since(cpu)
            end["other"] = core_busy_seconds(PROXY_CPU) - busy - end["cpu"]
            end["load"] = core_busy_seconds(LOAD_CPU) - load_busy

        result = run.result(at_end)
        if not result["done"]:
            raise RuntimeError(f"nothing was answered: {result}")
        own = {
            "cpu_us": end["cpu"] * 1e6 / result["done"],
            "util": end["cpu"] / end["wall"],
            "rss_idle": rss_idle,
            "rss_load": peak[0],
            "pss_load": peak[1],
        }
        return {
            # `direct` has no process to measure.
            **(own if proxy.process else dict.fromkeys(own)),
            "rps": result["done"] / result["secs"],
            "p50": result["p50"],
            "p99": result["p99"],
            "errors": result["errors"],
            "target": rate,
            "load_util": end["load"] / end["wall"],
            "other": end["other"] / end["wall"],
        }


def idle(scenario, peer, seconds=5):
    need = scenario.need or ("h1" if "h1" in peer.can else "tcp")
    # A relay needs two descriptors for each.
    count = 9000 if need == "tcp" else 10000
    with Proxy(peer) as proxy:
        time.sleep(1)
        before = proxy.memory()
        quiet = cpu_share(proxy, 2)
        words = [BIN / "loadc", "idle", peer.address(need), count, *(["tls"] if need == "tls" else [])]
        client = spawn(words, LOAD_CPU, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            ready = client.stdout.readline().strip()
            # What is done some time after the last byte is done.
            time.sleep(3)
            busy = cpu_share(proxy, seconds)
            after = proxy.memory()
            if not ready.endswith("bad=0"):
                raise RuntimeError(f"not all connections were opened: {ready}")
        finally:
            kill(client)
        return {
            "conns": count,
            "rss_idle": before[0],
            "rss_10k": after[0],
            "pss_idle": before[1],
            "pss_10k": after[1],
            "kb_per_conn": (after[1] - before[1]) / count,
            "cpu_ms_per_s": quiet,
            "cpu_ms_per_s_10k": busy,
        }


def cpu_share(proxy, seconds):
    """Milliseconds of CPU a second."""
    before = cpu_nanoseconds(proxy.pid)
    time.sleep(seconds)
    return (cpu_nanoseconds(proxy.pid) - before) / 1e6 / seconds


def start(peer, times=10):
    took = []
    for _ in range(times):
        with Proxy(peer) as proxy:
            took.append(proxy.start_s * 1e3)
    binary, libraries = sizes_mb(peer)
    return {"start_ms": statistics.median(took), "worst_ms": max(took), "binary_mb": binary, "libraries_mb": libraries}


def jobs(scenario, peer, hows):
    """The ways in which this peer is measured here; only terminations have more than one."""
    if not applies(scenario, peer):
        return []
    if scenario.kind != "drain":
        return [None]
    return [how for how in peer.stop if not hows or how in hows]


def measure(scenario, peer, how, options, samples):
    match scenario.kind:
        case "load":
            return load(scenario, peer, options.secs, samples)
        case "idle":
            return idle(scenario, peer)
        case "start":
            return start(peer)
        case _:
            return drain.measure(scenario.name, scenario.need, peer, how, options.rtt)
