"""Owns what all tables share: Markdown, numbers, and the order and kind of the peers."""

from peers import specs


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
