"""Owns what is printed at the end."""

COLUMNS = ["row", "result", "ok", "failed", "streams ended", "messages", "hook released", "pod gone", "why"]


def _seconds(value):
    return "" if value is None else f"{value:.1f} s"


def _ended(row):
    return ", ".join(f"{count} with {code}" for code, count in sorted(row["ended"].items()))


def _cells(row):
    why = row["faults"][:1] or [row.get("note", "")]
    return [
        row["row"], row["result"], str(row.get("ok", "")), str(row.get("failed", "")), _ended(row) if "ended" in row else "",
        str(row.get("messages") or ""), _seconds(row.get("released")), _seconds(row.get("gone")), why[0],
    ]


def text(rows, proxy):
    lines = [COLUMNS, *map(_cells, rows)]
    # The last column is as wide as it is.
    widths = [max(len(line[at]) for line in lines) for at in range(len(COLUMNS) - 1)]
    shown = []
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths)]
        shown.append("  ".join([*cells, line[-1]]).rstrip())
    shown.insert(1, "-" * max(map(len, shown)))
    for row in rows:
        for fault in row["faults"][1:20]:
            shown.append(f"{row['row']}: {fault}")
        if len(row["faults"]) > 20:
            shown.append(f"{row['row']}: and {len(row['faults']) - 20} more")
    counts = {result: sum(row["result"] == result for row in rows) for result in ("passed", "FAILED", "not run")}
    skipped = f", {counts['not run']} skipped" if counts["not run"] else ""
    shown += ["", f"interop with proxy {proxy}:", f"{counts['passed']} passed, {counts['FAILED']} failed{skipped}"]
    return "\n".join(shown)
