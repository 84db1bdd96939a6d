"""Owns the h2spec row: whatever bare hyper passes, ebbtide in front of an app must pass too."""

import re
import shutil
import xml.etree.ElementTree as xml

from pod import await_ready, free_port
from process import Child, Failure, quick
from tools import HERE

EXCEPTIONS = HERE / "h2spec-exceptions.md"
SECONDS = 150
# Cases that wait for an answer wait so long; most failures are such waits.
CASE_SECONDS = 2


class H2spec:
    name = "h2spec"
    about = "h2spec against ebbtide (upstream http://), compared with bare hyper"
    needs = ["go", "rust", "h2spec"]


def run(row, settings, tools):
    logs = settings.logs / row.name
    shutil.rmtree(logs, ignore_errors=True)
    cast = []
    try:
        bare = Child("bare-hyper", [tools.rust("bare_hyper")], logs)
        cast.append(bare)
        yardstick = _cases("bare", bare.event("listening", 10)["address"], tools, logs)
        documented = set(re.findall(r"^\| `([^`]+)`", EXCEPTIONS.read_text(), re.MULTILINE))
        failed_bare = {case for case, passed in yardstick.items() if not passed}
        faults = [f"{case} fails against bare hyper and is not documented" for case in sorted(failed_bare - documented)]
        shown = yardstick
        if settings.proxy == "ebbtide":
            shown = _cases("ebbtide", _ebbtide(settings, tools, logs, cast), tools, logs)
            failed = {case for case, passed in shown.items() if not passed}
            faults += [f"{case} passes against bare hyper only" for case in sorted(failed - failed_bare)]
            faults += [f"{case} was not run" for case in sorted(set(yardstick) - set(shown))]
        passed = sum(shown.values())
        return {
            "row": row.name, "result": "FAILED" if faults else "passed", "ok": passed, "failed": len(shown) - passed,
            "codes": {}, "ended": {}, "streams": 0, "messages": 0, "released": None, "gone": None, "faults": faults,
            "errors": [], "stream_messages": [], "exceptions": sorted(failed_bare),
        }
    finally:
        for one in reversed(cast):
            one.close()


def _ebbtide(settings, tools, logs, cast):
    app = Child("app", [tools.go("httpapp")], logs)
    cast.append(app)
    upstream, listen, admin = app.event("listening", 10)["address"], free_port(), free_port()
    command = [settings.ebbtide, "run", "--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}"]
    command += ["--upstream", f"http://{upstream}", "--control-socket", settings.sockets / "h2spec.sock"]
    ebbtide = Child("ebbtide", [*command, "--termination-message-path", logs / "report"], logs)
    cast.append(ebbtide)
    await_ready(ebbtide, f"127.0.0.1:{admin}", logs)
    return f"127.0.0.1:{listen}"


def _cases(name, address, tools, logs):
    """Every case's name with whether it passed."""
    host, port = address.rsplit(":", 1)
    report = logs / f"{name}.xml"
    command = [tools.go("h2spec"), "--host", host, "--port", port, "--timeout", CASE_SECONDS, "--junit-report", report]
    quick(f"h2spec-{name}", command, logs, SECONDS)
    if not report.exists():
        raise Failure(f"h2spec against {name} did not finish in {SECONDS} s")
    cases = {}
    for suite in xml.parse(report).getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            section = suite.get("package", "").strip()
            passed = case.find("failure") is None and case.find("error") is None
            number = sum(1 for known in cases if known.startswith(f"{section}/")) + 1
            cases[f"{section}/{number}"] = passed
    return cases
