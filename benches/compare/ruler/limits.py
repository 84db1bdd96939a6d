"""Owns the check of limits.toml: which figures hold, and the exit code of --must."""

import statistics
import tomllib

from peers import HERE, specs
from samples import figure
from scenarios import SCENARIOS
from tables import rivals, table


def load():
    return tomllib.loads((HERE / "limits.toml").read_text())["limit"]


def denominator(pairs, scenario, limit, against):
    """None: not measured; 1 for an absolute figure."""
    if "base" in limit:
        return figure(pairs, limit["base"], "ebbtide", limit["figure"])
    if against is None:
        return limit.get("unit", 1)
    if against == "median":
        values = rivals(pairs, scenario, limit["figure"]).values()
        return statistics.median(values) if values else None
    return figure(pairs, scenario, against, limit["figure"])


def serves(peer, scenario):
    """Whether there can be a figure of this peer in this row."""
    if peer in (None, "median"):
        return True
    need = SCENARIOS[scenario].need
    return not need or need in specs()[peer]["can"].split()


def results(pairs):
    """(level, scenario, text, figure, limit, holds) of each; figure and holds are None where it was not measured."""
    for limit in load():
        peers = limit.get("against", [None])
        for scenario in limit["scenarios"]:
            for against in filter(lambda peer: serves(peer, scenario), peers):
                ours = figure(pairs, scenario, "ebbtide", limit["figure"])
                base = denominator(pairs, scenario, limit, against)
                value = ours / base if ours is not None and base else None
                text = limit["text"] + (f" ({against})" if len(peers) > 1 else "")
                yield limit["level"], scenario, text, value, limit["max"], (
                    None if value is None else value <= limit["max"]
                )


def markdown(pairs):
    words = {True: "ok", False: "**no**", None: "not measured"}
    rows = [
        [level.capitalize(), scenario, text, "–" if value is None else f"{value:.2f}", f"{most:g}", words[holds]]
        for level, scenario, text, value, most, holds in results(pairs)
    ]
    return table(["", "row", "what", "figure", "at most", ""], rows)


def check(pairs):
    """Prints the table; 1 if a Must does not hold or was not measured."""
    print(markdown(pairs))
    musts = [holds for level, _, _, _, _, holds in results(pairs) if level == "must"]
    failed, unknown = musts.count(False), musts.count(None)
    print(f"Must: {musts.count(True)} hold, {failed} do not, {unknown} not measured")
    return 1 if failed or unknown else 0
