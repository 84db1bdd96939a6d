"""Owns what must hold after a deletion. Each broken expectation becomes one sentence."""

import re
import time
from collections import Counter

# How long after the hook's release a client may notice the end of a stream that was ended before. A stream that dies with
# the app is later than that: the app stops gracefully for longer.
LATE = 0.5
# From SIGTERM to the exit when everything has been drained.
EXIT = 1.5
# How far the first and the last end of a spread lie apart at least; ebbtide spreads over two seconds.
SPREAD = 1
# Words with which clients describe a connection that broke: the status is their own and not the server's.
BROKEN = re.compile(r"\bEOF\b|reset by peer|ECONN|connection refused|broken pipe|transport is closing|socket closed|"
                    r"connection error|error reading from server|h2 protocol error|stream removed|connection dropped|"
                    r"RST_STREAM|transport error|tcp connect|Received http2 header", re.IGNORECASE)


def of(row, settings, report, old, new):
    faults = _calls(row, report)
    faults += _streams(row, settings, report, old) if row.ends else []
    if settings.proxy == "ebbtide":
        faults += ebbtide(row, settings, old)
    if settings.proxy != "calm":
        faults += _consumer(old) if row.consumes else _app(old)
    faults += _messages(row, report, old, new)
    faults += [] if row.ends or row.consumes else _unheard(report, old, new)
    ended = [one for one in report["streams"] if not one["by_client"]]
    codes = Counter(one["code"] for one in ended)
    return {
        "row": row.name,
        "result": "FAILED" if faults else "passed",
        "ok": report["ok"],
        "failed": report["failed"],
        "codes": report["codes"],
        "repeated": report.get("repeated", 0),
        "ended": dict(codes),
        "streams": len(report["streams"]),
        "messages": sum(one["messages"] for one in report["streams"]),
        "released": old.after("hook_at"),
        "gone": old.after("ebbtide_end") or old.after("app_end"),
        "faults": faults,
        "errors": report["errors"],
        "stream_messages": sorted({one["message"] for one in ended}),
    }


def _calls(row, report):
    faults = []
    if report["failed"]:
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(report["codes"].items()))
        faults.append(f"{report['failed']} calls failed ({codes})")
    if report["ok"] < row.fewest:
        faults.append(f"only {report['ok']} calls succeeded")
    return faults


def _streams(row, settings, report, old):
    faults = Counter()
    release = old.notes.get("hook_at")
    for one in report["streams"]:
        kind = f"{one['kind']} stream"
        if not one["contiguous"]:
            faults[f"{kind} with a gap"] += 1
        if not one["whole"]:
            faults[f"{kind} with a cut message"] += 1
        if one["by_client"]:
            continue
        if one["pod"] == "":
            faults[f"{kind} ended with {one['code']} before its first message"] += 1
        elif one["pod"] != "old" or settings.proxy == "calm":
            faults[f"{kind} of a pod that stays ended with {one['code']}"] += 1
        elif one["code"] != row.ends.code:
            faults[f"{kind} ended with {one['code']} instead of {row.ends.code}"] += 1
        elif not one.get("clean", True):
            faults[f"{kind} without a complete close handshake"] += 1
        elif BROKEN.search(one["message"]):
            faults[f"{kind} broken off ({one['message'][:60]})"] += 1
        elif release and one["end_ms"] / 1000 > release + LATE:
            faults[f"{kind} ended after the hook's release"] += 1
    if settings.proxy != "calm":
        began, there = old.notes["t0"] * 1000, [one for one in report["streams"] if one["pod"] == "old"]
        there = [one for one in there if one.get("begin_ms", 0) <= began <= one["end_ms"]]
        for kind in row.ends.kinds:
            if not any(one["kind"] == kind for one in there):
                faults[f"no {kind} stream was at the old pod"] += 1
        if settings.proxy == "ebbtide" and row.ends.spread and there:
            moments = [one["end_ms"] / 1000 for one in there]
            if max(moments) - min(moments) < SPREAD:
                faults[f"ends of streams within {max(moments) - min(moments):.1f} s"] += len(there)
    return [f"{count} × {fault}" for fault, count in faults.items()]


def ebbtide(row, settings, old):
    faults, notes = [], old.notes
    if notes.get("hook_timed_out"):
        faults.append("the app hook was not released in the grace period")
    elif notes["hook"] != "ok":
        faults.append(f"the app hook failed: {notes['hook']}")
    else:
        latest = settings.grace - settings.app_stop - settings.margin
        if old.after("hook_at") > latest + 0.3:
            faults.append(f"the app hook was released at {old.after('hook_at')} s, later than {latest} s")
        if not row.consumes and old.after("hook_at") < settings.hold:
            faults.append(f"the app hook was released at {old.after('hook_at')} s, before the hold's end")
    if notes.get("drain_code") != 0:
        faults.append(f"ebbtide drain exited with {notes.get('drain_code', 'nothing')}")
    if notes["ebbtide_early"]:
        faults.append("ebbtide had exited before its SIGTERM")
    if notes["ebbtide_killed"]:
        faults.append("ebbtide had to be killed")
    elif old.ebbtide.code != 0:
        faults.append(f"ebbtide exited with {old.ebbtide.code}")
    took = (notes["ebbtide_end"] or time.time()) - notes["ebbtide_term"]
    if took > EXIT:
        faults.append(f"ebbtide took {took:.1f} s to exit after its SIGTERM")
    return faults


def _app(old):
    journal, faults = old.journal(), []
    if old.notes["app_killed"] or not journal["exit"] or not journal["stop"]:
        return ["the app did not stop by itself"]
    if journal["exit"]["late"]:
        faults.append(f"{journal['exit']['late']} calls reached the app after its SIGTERM")
    if journal["stop"]["open"]:
        faults.append(f"{journal['stop']['open']} calls were in flight when the app got its SIGTERM")
    if not journal["exit"]["calls"]:
        faults.append("the old pod got no call at all")
    return faults


def _consumer(old):
    """An app that is told to go while it works, and finishes that work afterwards."""
    journal = old.journal()
    if old.notes["app_killed"] or not journal["exit"] or not journal["stop"]:
        return ["the app did not stop by itself"]
    return [] if journal["exit"]["late"] else ["the app had nothing to settle after its SIGTERM"]


def _messages(row, report, old, new):
    """What reached the apps: nothing twice, nothing damaged, and all of which the client takes it."""
    exits, faults = [pod.journal()["exit"] for pod in (old, new)], []
    if not all(exits):
        # The app that can't tell has its own line.
        return []
    ids = [set(one["ids"] or []) for one in exits]
    twice = sum(one["twice"] for one in exits) + len(ids[0] & ids[1])
    if twice and not row.again:
        faults.append(f"{twice} calls were executed twice")
    lost = len(set(report.get("sent", [])) - ids[0] - ids[1])
    if lost:
        faults.append(f"{lost} messages did not reach an app")
    damaged = sum(one.get("damaged", 0) for one in exits)
    if damaged:
        faults.append(f"{damaged} messages reached an app damaged")
    broken = sum(one.get("codes", {}).get("1006", 0) for one in exits)
    if broken:
        faults.append(f"{broken} sessions were broken off for the app")
    return faults


def _unheard(report, old, new):
    """Requests that an app executed and the client got no good answer to."""
    exits = [pod.journal()["exit"] for pod in (old, new)]
    unheard = sum(one["calls"] for one in exits) - report["ok"] if all(exits) else 0
    return [f"{unheard} requests were executed without a good answer"] if unheard > 0 else []
