"""Owns the command line and the order of things: prepare, run rows side by side, print one table."""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import closes
import conformance
import process
import scenario
import table
from process import Failure
from rows import ROWS
from tools import ROOT, BuildFailed, Missing, Tools

SPECIAL = {closes.Closes: closes, conformance.H2spec: conformance}

EPILOG = """examples:
  tests/interop/run
  tests/interop/run --only grpc-go,h2spec --ebbtide target/release/ebbtide
  tests/interop/run --proxy none     # the control: the same clients without ebbtide must lose something

rows:
"""


def arguments():
    rows = [*ROWS, *SPECIAL]
    parser = argparse.ArgumentParser(
        prog="tests/interop/run",
        description="Runs real clients against pods that are deleted, and h2spec.",
        epilog=EPILOG + "\n".join(f"  {row.name:15} {row.about}" for row in rows),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    add("--only", metavar="NAME,NAME", help="run these rows only")
    add("--proxy", choices=["ebbtide", "none", "calm"], default="ebbtide",
        help="ebbtide: what is tested. none: clients go straight to the app, which gets SIGTERM at once; losses show. "
        "calm: no ebbtide and no deletion; nothing may be lost [ebbtide]")
    add("--ebbtide", metavar="PATH", type=Path, help="the program to test [built from this repository]")
    add("--build-dir", metavar="PATH", type=Path, default=target / "interop", help="where everything is built and kept [target/interop]")
    add("--output", choices=["text", "json"], default="text", help="what is printed at the end [text]")
    add("--require-all", action="store_true", help="a row that can't be run fails")
    add("--no-install", dest="install", action="store_false", help="install no system packages, also as root")
    add("--jobs", metavar="N", type=int, default=4, help="rows that run side by side [4]")
    add("--timeout", metavar="SECONDS", type=int, default=400, help="bound for all rows together, without building [400]")
    add("--grace", metavar="SECONDS", type=float, default=16, help="grace period of the pods [16]")
    add("--hold", metavar="SECONDS", type=float, default=4, help="how long ebbtide holds [4]")
    add("--stale", metavar="SECONDS", type=float, default=3, help="how long new connections still come to the deleted pod [3]")
    add("--app-stop", metavar="SECONDS", type=float, default=2, help="what the app gets to stop [2]")
    given = parser.parse_args()
    # ebbtide's default; the runner only has to know it.
    given.margin = 2
    given.build = given.build_dir.resolve()
    given.logs = given.build / "rows" / given.proxy
    wanted = given.only.split(",") if given.only else [row.name for row in rows]
    unknown = set(wanted) - {row.name for row in rows}
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; rows are {', '.join(row.name for row in rows)}")
    return given, [row for row in rows if row.name in wanted]


def bad(row, why, result="FAILED"):
    return {"row": row.name, "result": result, "faults": [why]}


def prepare(row, settings, tools):
    """What keeps a row from running, or None."""
    try:
        for need in [*row.needs, *(["ebbtide"] if settings.proxy == "ebbtide" else [])]:
            tools.need(need)
    except Missing as missing:
        return bad(row, str(missing), "FAILED" if settings.require_all else "not run")
    except BuildFailed as error:
        return bad(row, str(error))
    return None


def play(row, settings, tools):
    print(f"interop: {row.name} begins", file=sys.stderr, flush=True)
    began = time.monotonic()
    try:
        result = SPECIAL.get(row, scenario).run(row, settings, tools)
    except Failure as failure:
        result = bad(row, str(failure))
    except Exception as error:  # A fault of the suite must be a failed row, and not a row less.
        result = bad(row, f"{type(error).__name__}: {error}")
    result["seconds"] = round(time.monotonic() - began, 1)
    print(f"interop: {row.name} {result['result']} after {result['seconds']} s", file=sys.stderr, flush=True)
    return result


def give_up(why, settings):
    """Called from a timer or a signal: the threads that wait for children can't be asked."""
    print(f"interop: {why}, ending {process.end_all()} processes", file=sys.stderr, flush=True)
    shutil.rmtree(settings.sockets, ignore_errors=True)
    os._exit(1)


def main():
    settings, wanted = arguments()
    # Not in the build folder: the path of a Unix socket is short.
    settings.sockets = Path(tempfile.mkdtemp(prefix="interop-"))
    settings.sockets.chmod(0o711)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: give_up("stopped by a signal", settings))
    tools = Tools(settings)
    blocked = {row.name: prepare(row, settings, tools) for row in wanted}
    settings.ebbtide = getattr(tools, "ebbtide", None)
    limit = threading.Timer(settings.timeout, give_up, [f"not over after {settings.timeout} s", settings])
    limit.daemon = True
    limit.start()
    with ThreadPoolExecutor(settings.jobs) as pool:
        running = {row.name: pool.submit(play, row, settings, tools) for row in wanted if not blocked[row.name]}
        results = [blocked[row.name] or running[row.name].result() for row in wanted]
    limit.cancel()
    process.end_all()
    shutil.rmtree(settings.sockets, ignore_errors=True)
    if settings.output == "json":
        print(json.dumps({"proxy": settings.proxy, "rows": results}, indent=2))
    else:
        print(table.text(results, settings.proxy))
    failed = any(row["result"] == "FAILED" for row in results)
    if failed:
        print(f"interop: what each process said is in {settings.logs}", file=sys.stderr, flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
