"""Owns results.md: the summary, one row for each scenario, and the details of each."""

import collections

import limits
from samples import best_how, by_pair, figure, how_of, median, spread
from scenarios import SCENARIOS, TABLE
from tables import number, order, rivals, table

AGAINST = ["haproxy", "nginx", "envoy", "hyper"]
# Scenario, figure, factor to its unit, digits, label. What a row of the summary shows.
CPU = [
    (one.name, "cpu_us", 1, 1, f"{one.title}: CPU µs per {one.per}")
    for one in TABLE
    if one.kind == "load" and not one.name.startswith("S13")
]
OTHER = [
    ("S13", "p99", 1e-3, 2, f"{SCENARIOS['S13'].title}: p99 ms"),
    ("S13c", "p99", 1e-3, 2, f"{SCENARIOS['S13c'].title}: p99 ms"),
    ("S7", "rss_idle", 1 / 1024, 1, "RSS idle, MiB"),
    ("S1", "rss_load", 1 / 1024, 1, "RSS under the load of S1, MiB"),
    ("S7", "kb_per_conn", 1, 2, "Memory per idle connection, KB"),
    ("S7t", "kb_per_conn", 1, 2, "Memory per idle TLS connection, KB"),
    ("S10", "start_ms", 1, 0, "Start to the first answer, ms"),
    ("S10", "binary_mb", 1, 1, "Binary, MB"),
    ("S10", "libraries_mb", 1, 1, "Shared libraries, MB"),
]
DRAINS = [(one.name, "failed", 1, 0, one.title) for one in TABLE if one.kind == "drain"]
SUMMARY = CPU + OTHER + DRAINS


def best_peer(pairs, scenario, name):
    """(name, figure) of the best of the proxies that one would use instead."""
    values = rivals(pairs, scenario, name)
    return min(values.items(), key=lambda item: item[1]) if values else (None, None)


def against_best(pairs, scenario, name):
    ours, (peer, theirs) = figure(pairs, scenario, "ebbtide", name), best_peer(pairs, scenario, name)
    if ours is None or theirs is None:
        return "–"
    # Counts of failures have no ratio worth a look, and not everybody has libraries.
    return f"{ours / theirs:.2f} ({peer})" if theirs and name != "failed" else f"{ours:,.0f} to {theirs:,.0f} ({peer})"


def summary(pairs):
    peers = order({peer for found in pairs.values() for peer in found})
    rows = []
    for scenario, name, factor, digits, label in SUMMARY:
        if scenario in pairs:
            cells = [number(figure(pairs, scenario, peer, name), digits, factor) for peer in peers]
            rows.append([f"{scenario} {label}", *cells, against_best(pairs, scenario, name)])
    return table(["", *peers, "ebbtide ÷ best peer"], rows)


def load_details(found):
    rows = []
    bases = {peer: median(found[peer], "cpu_us") for peer in AGAINST if peer in found}
    for peer in sorted(found, key=lambda name: median(found[name], "cpu_us") or 0.0):
        samples = found[peer]
        # None for `direct`.
        cpu, (low, high) = median(samples, "cpu_us"), spread(samples, "cpu_us")
        has = cpu is not None
        ratios = [f"{cpu / bases[base]:.2f}" if has and bases.get(base) else "–" for base in AGAINST]
        rows.append(
            [
                peer,
                number(cpu, 1),
                f"{low:.1f}–{high:.1f}" if has else "–",
                *ratios,
                number(median(samples, "rps"), 0),
                number(median(samples, "target") or None, 0),
                number(median(samples, "util"), 0, 100),
                number(median(samples, "load_util"), 0, 100),
                number(median(samples, "p50") or None, 2, 1e-3),
                number(median(samples, "p99") or None, 2, 1e-3),
                number(median(samples, "rss_load"), 1, 1 / 1024),
                sum(sample["errors"] for sample in samples),
                number(median(samples, "other"), 0, 100),
            ]
        )
    return table(
        [
            "peer",
            "CPU µs",
            "min–max",
            *(f"÷ {name}" for name in AGAINST),
            "per second",
            "asked for",
            "its core %",
            "load's core %",
            "p50 ms",
            "p99 ms",
            "RSS MiB",
            "errors",
            "others on its core %",
        ],
        rows,
    )


def idle_details(found):
    rows = []
    for peer in sorted(found, key=lambda name: median(found[name], "kb_per_conn")):
        samples, (low, high) = found[peer], spread(found[peer], "kb_per_conn")
        mib = lambda name: number(median(samples, name), 1, 1 / 1024)
        rows.append(
            [
                peer,
                number(median(samples, "kb_per_conn"), 2),
                f"{low:.2f}–{high:.2f}",
                mib("rss_idle"),
                mib("rss_10k"),
                mib("pss_idle"),
                mib("pss_10k"),
                number(median(samples, "cpu_ms_per_s"), 2),
                number(median(samples, "cpu_ms_per_s_10k"), 2),
                number(median(samples, "conns"), 0),
            ]
        )
    return table(
        [
            "peer",
            "KB per connection",
            "min–max",
            "RSS MiB without",
            "RSS MiB with",
            "PSS MiB without",
            "PSS MiB with",
            "CPU ms/s without",
            "CPU ms/s with",
            "connections",
        ],
        rows,
    )


def start_details(found):
    rows = []
    for peer in sorted(found, key=lambda name: median(found[name], "start_ms")):
        samples = found[peer]
        rows.append(
            [
                peer,
                number(median(samples, "start_ms"), 1),
                number(median(samples, "worst_ms"), 1),
                number(median(samples, "binary_mb"), 1),
                number(median(samples, "libraries_mb"), 1),
            ]
        )
    return table(["peer", "median of 10, ms", "worst, ms", "binary MB", "shared libraries MB"], rows)


def classes(samples):
    """Failures by class, all rounds; of what kind of request."""
    counted = collections.Counter()
    for sample in samples:
        for key, count in sample["fail"].items():
            _, kind, fail = key.split("/")
            counted[f"{kind} {fail}"] += count
    return ", ".join(f"{what} {count:,}" for what, count in counted.most_common(5)) or "–"


def drain_details(found):
    rows = []
    for peer in order(found):
        for how in sorted({sample["how"] for sample in found[peer]}, key=["own", "presleep", "bare"].index):
            samples = how_of(found[peer], how)
            notes = collections.Counter()
            for sample in samples:
                notes.update({name: count for name, count in sample["notes"].items() if count})
            explained = ", ".join(f"{name} {count / len(samples):,.0f}" for name, count in sorted(notes.items()))
            killed = " (killed)" if any(sample["killed"] for sample in samples) else ""
            best = " *" if how == best_how(found[peer]) else ""
            rows.append(
                [
                    peer,
                    how + best,
                    " ".join(f"{sample['failed']:,}" for sample in samples),
                    classes(samples),
                    f"{sum(sum(sample['ok'].values()) for sample in samples) / len(samples):,.0f}",
                    number(median(samples, "exit_s"), 1) + killed,
                    explained or "–",
                ]
            )
    return table(["peer", "stop", "failed, each round", "as", "well", "gone after s", "besides, mean of a round"], rows)


DETAILS = {"load": load_details, "idle": idle_details, "start": start_details, "drain": drain_details}


def rounds(found):
    return max(len({sample["round"] for sample in samples}) for samples in found.values())


def markdown(document):
    pairs, machine = by_pair(document["samples"]), document["machine"]
    days = sorted({sample["at"][:10] for sample in document["samples"]})
    parts = ["# Compared\n"]
    (
        parts.append(
            f"Measured {days[0]}{f' to {days[-1]}' if len(days) > 1 else ''} on {machine.get('cores')} cores of "
            f"{machine.get('cpu') or 'an unnamed CPU'}, {machine.get('system')}, Linux {machine.get('kernel')}; "
            f"ebbtide at {machine.get('commit')}. Medians over the rounds. "
            "How it is measured, how to repeat it, and what it can't tell: [README.md](../README.md).\n"
        )
        if days
        else parts.append("Nothing has been measured.\n")
    )
    if document["versions"]:
        parts.append("".join(f"- {name}: {version}\n" for name, version in document["versions"].items() if version))
    parts.append("## Summary\n")
    parts.append(
        "Less is better in every row. The best peer is the best of the proxies that one would use instead; hyper (the "
        "library's server and client put together), l4copy, l4splice and direct are bounds. Failures: the worst round "
        "in each one's best way to stop.\n"
    )
    parts.append(summary(pairs))
    parts.append("## What is asked of ebbtide\n")
    parts.append("Ratios where a peer is named; the limits are in [limits.toml](../limits.toml).\n")
    parts.append(limits.markdown(pairs))
    parts.append("![CPU, memory and failures of all peers](compare.svg)\n")
    for scenario in TABLE:
        found = pairs.get(scenario.name)
        if found:
            count = rounds(found)
            parts.append(f"## {scenario.name}: {scenario.title}\n")
            parts.append(f"{count} round{'s' if count > 1 else ''}. {NOTES.get(scenario.name, '')}".strip() + "\n")
            parts.append(DETAILS[scenario.kind](found))
    return "\n".join(parts)


NOTES = {
    "S6d": "CPU is per handshake.",
    "S8": "CPU is per message and its echo.",
    "S11": "The best way to stop of each peer has a star.",
    "S13": "Where the load's core is full (direct shows how far it goes) the latency is that of the load client.",
}
