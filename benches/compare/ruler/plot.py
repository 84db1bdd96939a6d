"""Draws compare.png and compare.svg from results.json in the folder that is given. Needs matplotlib."""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter

from samples import by_pair, figure
from scenarios import SCENARIOS
from tables import is_floor, order

# In the order of the panels. Each has its own scale, from zero.
CPU = ["S1", "S1r", "S2", "S3", "S4", "S5", "S6a", "S6b", "S6c", "S6d", "S8", "S9a", "S9b", "S9c"]
TITLES = {
    "S1": "HTTP/1 at saturation, 128 B",
    "S1r": "HTTP/1 at 4,000 requests/s",
    "S2": "HTTP/1, 64 KiB",
    "S3": "HTTP/1, new connection each",
    "S4": "HTTP/2 to HTTP/1",
    "S5": "gRPC-shaped unary",
    "S6a": "TLS, HTTP/1",
    "S6b": "TLS, HTTP/2",
    "S6c": "TLS, new connection each",
    "S6d": "TLS, full handshake",
    "S8": "WebSocket echo, 128 B",
    "S9a": "TCP relay, 128 B",
    "S9b": "TCP relay, 64 KiB",
    "S9c": "TCP relay, new connection each",
}
COSTS = [
    ("S7", "kb_per_conn", 1, "Memory per idle connection", "KB"),
    ("S7t", "kb_per_conn", 1, "Memory per idle TLS connection", "KB"),
    ("S7", "rss_idle", 1 / 1024, "Memory at rest (RSS)", "MiB"),
    ("S10", "start_ms", 1, "Start to first answer", "ms"),
]
DRAINS = {
    "S11": ("HTTP/1", "requests"),
    "S11h2": ("HTTP/2", "requests"),
    "S11g": ("gRPC", "calls"),
    "S11ws": ("WebSocket", "sessions"),
    "S11tcp": ("TCP", "connections"),
}
MARKERS = "osD^vP*X<>"


def style(peer):
    """Told apart without colours: ours is black, the bounds are hatched."""
    if peer == "ebbtide":
        return {"color": "black"}
    if is_floor(peer):
        return {"facecolor": "white", "edgecolor": "0.4", "hatch": "////", "linewidth": 0.7}
    return {"color": "0.68"}


def bars(axes, pairs, scenario, name, factor, title, unit, failures=False):
    values = [(peer, figure(pairs, scenario, peer, name)) for peer in order(pairs.get(scenario, {}))]
    values = [(peer, value * factor) for peer, value in values if value is not None]
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel(unit, fontsize=8)
    if not values:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color="0.5", fontsize=8)
        axes.set_xticks([])
        return axes.set_yticks([])
    peers, heights = zip(*values)
    for at, (peer, height) in enumerate(values):
        axes.barh(at, height, height=0.72, **style(peer))
        text = f"{height:,.0f}" if failures or height >= 100 else f"{height:.1f}"
        axes.text(height, at, " " + text, va="center", fontsize=7, fontweight="bold" if peer == "ebbtide" else None)
    axes.set_yticks(range(len(peers)), peers, fontsize=8)
    axes.invert_yaxis()
    if failures:
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(0, max(max(heights), 10) * 30)
        axes.set_xticks([0, 10, 1000, 100000], ["0", "10", "1,000", ""])
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, max(heights) * 1.22)
    axes.tick_params(axis="x", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def flat(axes, pairs):
    """Cost against the number of open connections."""
    counts = [10, 100, 1000, 10000]
    peers = [peer for peer in order(pairs.get("S12-10", {})) if peer != "direct"]
    for index, peer in enumerate(peers):
        values = [figure(pairs, f"S12-{count}", peer, "cpu_us") for count in counts]
        ours = peer == "ebbtide"
        axes.plot(
            counts,
            [value if value is not None else float("nan") for value in values],
            marker=MARKERS[index % len(MARKERS)],
            markersize=4,
            color="black" if ours else "0.45",
            linewidth=2.2 if ours else 0.9,
            linestyle="-" if ours or not is_floor(peer) else "--",
            label=peer,
        )
    axes.set_title("CPU by open connections, 4,000/s", fontsize=9, loc="left")
    axes.set_xlabel("open connections", fontsize=8)
    axes.set_ylabel("µs per request", fontsize=8)
    axes.set_xscale("log")
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    if peers:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * 1.45)
        axes.legend(fontsize=6, ncol=3, frameon=False, loc="upper left")


def draw(document):
    pairs, machine = by_pair(document["samples"]), document["machine"]
    picture = plt.figure(figsize=(13, 17), layout="constrained")
    upper, lower = picture.subfigures(2, 1, height_ratios=[5, 1])
    places = list(upper.subplots(5, 4).flat)
    for axes, scenario in zip(places, CPU):
        bars(axes, pairs, scenario, "cpu_us", 1, TITLES[scenario], f"CPU µs per {SCENARIOS[scenario].per}")
    flat(places[14], pairs)
    bars(places[15], pairs, "S13", "p99", 1e-3, "p99 at 80 % of its saturation", "ms")
    for axes, (scenario, name, factor, title, unit) in zip(places[16:], COSTS):
        bars(axes, pairs, scenario, name, factor, title, unit)
    for axes, (scenario, (title, unit)) in zip(lower.subplots(1, 5), DRAINS.items()):
        bars(axes, pairs, scenario, "failed", 1, f"Lost at termination: {title}", unit, failures=True)
    picture.suptitle(
        "ebbtide beside other proxies: CPU, memory, and what clients lose at termination\n"
        f"less is better everywhere; medians, one worker on a core of its own, {machine.get('cpu', '')}; "
        "hatched: bounds, not proxies one would use instead",
        fontsize=11,
    )
    return picture


def main(folder):
    document = json.loads((folder / "results.json").read_text())
    # The same text for the same figures, so that a commit shows only what has changed.
    matplotlib.rcParams["svg.hashsalt"] = "compare"
    picture = draw(document)
    picture.savefig(folder / "compare.png", dpi=110)
    picture.savefig(folder / "compare.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
