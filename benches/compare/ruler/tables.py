"""Owns what all tables share: Markdown, numbers, and the order and kind of the peers."""

from peers import specs
from samples import figure


def table(head, rows):
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def number(value, digits, factor=1):
    return "–" if value is None else f"{value * factor:,.{digits}f}"


def order(names):
    known = list(specs())
    return sorted(names, key=lambda name: known.index(name) if name in known else len(known))


def is_floor(name):
    return specs().get(name, {}).get("floor", False)


def rivals(pairs, scenario, name):
    """{peer: figure} of the proxies that one would use instead, as far as it was measured."""
    others = [peer for peer in pairs.get(scenario, {}) if peer != "ebbtide" and not is_floor(peer)]
    return {peer: value for peer in others if (value := figure(pairs, scenario, peer, name)) is not None}
