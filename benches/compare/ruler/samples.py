"""Owns the samples: one line of JSON for each measurement, kept in the work folder, and what is worked out of them.

A run measures a peer in a scenario anew; earlier runs' samples of the same are then ignored, others stay. So a long
comparison can be made in parts.
"""

import json
import os
import platform
import statistics
import subprocess
import time

from peers import HERE, WORK

FILE = WORK / "samples.jsonl"
# What says nothing about a figure.
LABELS = ("scenario", "peer", "round", "how", "at", "run")


def add(sample):
    with open(FILE, "a") as file:
        file.write(json.dumps(sample) + "\n")


def latest(samples):
    """Of each scenario, peer and way to stop those of the newest run."""
    key = lambda sample: (sample["scenario"], sample["peer"], sample["how"])
    newest = {}
    for sample in samples:
        newest[key(sample)] = max(newest.get(key(sample), ""), sample["run"])
    return [sample for sample in samples if sample["run"] == newest[key(sample)]]


def read(file=FILE):
    try:
        with open(file) as lines:
            return latest([json.loads(line) for line in lines if line.strip()])
    except FileNotFoundError:
        return []


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def machine():
    model = ""
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    with open("/etc/os-release") as lines:
        names = [line.split("=", 1)[1].strip().strip('"') for line in lines if line.startswith("PRETTY_NAME=")]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=HERE)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "system": (names or [""])[0],
        "commit": commit.stdout.strip(),
    }


def by_pair(samples):
    """{scenario: {peer: [samples]}}, in the order in which they were measured."""
    found = {}
    for sample in samples:
        found.setdefault(sample["scenario"], {}).setdefault(sample["peer"], []).append(sample)
    return found


def values(samples, figure):
    return [sample[figure] for sample in samples if sample.get(figure) is not None]


def median(samples, figure):
    found = values(samples, figure)
    return statistics.median(found) if found else None


def spread(samples, figure):
    found = values(samples, figure)
    return (min(found), max(found)) if found else (None, None)


def how_of(samples, how):
    return [sample for sample in samples if sample["how"] == how]


def best_how(samples):
    """A peer's own best set-up: what it offers itself, else a sleep before its signal."""
    hows = {sample["how"] for sample in samples}
    return next((how for how in ("own", "presleep", "bare") if how in hows), None)


def figure(pairs, scenario, peer, name):
    """One figure of one peer: a median over the rounds; None if it was not measured."""
    samples = pairs.get(scenario, {}).get(peer, [])
    if not samples:
        return None
    if name == "failed":
        # The worst round: losing something now and then is losing.
        return max(sample["failed"] for sample in how_of(samples, best_how(samples)))
    return median(samples, name)


def document(samples, info):
    """What results.json holds: the medians for reading, and all samples so that everything can be made anew."""
    pairs = by_pair(samples)
    medians = {}
    for scenario, peers in pairs.items():
        for peer, found in peers.items():
            hows = sorted({sample["how"] for sample in found if sample["how"]})
            if hows:
                value = {how: {"failed": [sample["failed"] for sample in how_of(found, how)]} for how in hows}
            else:
                names = [
                    name for name, value in found[0].items() if name not in LABELS and isinstance(value, int | float)
                ]
                value = {
                    name: {"median": median(found, name), "min": spread(found, name)[0], "max": spread(found, name)[1]}
                    for name in names
                }
            medians.setdefault(scenario, {})[peer] = value
    return {
        "machine": info.get("machine", {}),
        "versions": info.get("versions", {}),
        "medians": medians,
        "samples": samples,
    }
