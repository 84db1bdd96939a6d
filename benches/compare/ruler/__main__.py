"""Measures ebbtide and the proxies that one would use instead, side by side.

  run                                   everything: set-up, all scenarios, 3 rounds (see README.md for how long)
  run --scenario S1,S4 --peer ebbtide,haproxy --rounds 1 --secs 2
  run --report                          tables and plot anew from what has been measured
  run --must                            likewise, and exit 1 if a figure that must hold does not
  run --list                            scenarios and peers

Exit codes: 0 done, 1 a Must does not hold (--must) or a measurement of ebbtide failed, 2 bad usage or no set-up.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import install
import limits
import peers as peers_module
import report
import samples as kept
import scenarios
from processes import LOAD_CPU, answers, few_descriptors, is_taken, kill, pin, spawn

INFO = peers_module.WORK / "info.json"


def arguments():
    parser = argparse.ArgumentParser(
        prog="run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = lambda text: [name for name in text.split(",") if name]
    parser.add_argument(
        "--scenario", type=names, default=[], help="only these, e.g. S1,S12-10,S11 (S12 takes all S12-...)"
    )
    parser.add_argument("--peer", type=names, default=[], help="only these")
    parser.add_argument("--how", type=names, default=[], help="S11: only these ways to stop (bare, presleep, own)")
    parser.add_argument(
        "--rtt", type=int, default=1, help="S11: ms between a client's look at its connection and its request's arrival"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drain-rounds", type=int, default=1, help="rounds of S11, which takes long")
    parser.add_argument("--secs", type=int, default=4, help="length of one measurement")
    parser.add_argument("--ebbtide", metavar="PATH", help="this binary instead of building the image's")
    parser.add_argument("--no-setup", action="store_true", help="install and build nothing")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--must", action="store_true", help="measure nothing; check limits.toml")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="JSON", help="--report, --must: of this results.json"
    )
    parser.add_argument("--out", type=Path, default=peers_module.WORK / "results", help="where tables and plot go")
    parser.add_argument("--list", action="store_true", help="what there is")
    return parser.parse_args()


def chosen(asked, known, what):
    """The names asked for, in the order of the table; all if none."""
    matches = lambda name, one: name == one or name.startswith(one + "-")
    for one in asked:
        if not any(matches(name, one) for name in known):
            print(f"compare: no {what} {one}; there are: {' '.join(known)}", file=sys.stderr)
            sys.exit(2)
    return [name for name in known if not asked or any(matches(name, one) for one in asked)]


def plan(options, names, peers):
    """All measurements in order: peers in turn within a round."""
    for name in names:
        scenario = scenarios.SCENARIOS[name]
        rounds = {"drain": min(options.rounds, options.drain_rounds), "start": 1}.get(scenario.kind, options.rounds)
        for index in range(rounds):
            for peer in peers:
                for how in scenarios.jobs(scenario, peer, options.how):
                    yield scenario, index, peer, how


def brief(sample):
    """The figure that matters, for the line of progress."""
    if "failed" in sample:
        killed = ", killed" if sample["killed"] else ""
        return f"{sample['failed']} failed, gone after {sample['exit_s']:.1f} s{killed} {sample['fail'] or ''}"
    if "kb_per_conn" in sample:
        return f"{sample['kb_per_conn']:.2f} KB per connection, RSS {sample['rss_idle'] / 1024:.1f} MiB idle"
    if "start_ms" in sample:
        return f"{sample['start_ms']:.1f} ms, {sample['binary_mb']:.1f} MB"
    errors = f", {sample['errors']} errors" if sample["errors"] else ""
    cpu = "no proxy" if sample["cpu_us"] is None else f"{sample['cpu_us']:.1f} µs"
    return f"{cpu}, {sample['rps']:,.0f}/s, p99 {sample['p99'] / 1e3:.2f} ms{errors}"


def measure(options, names, peers):
    """Whether all of ebbtide's measurements worked."""
    warning = few_descriptors()
    if warning:
        install.say(warning)
    pin()
    todo = list(plan(options, names, peers))
    run, well, known = kept.now(), True, kept.read()
    if is_taken(peers_module.BASE):
        install.say(f"port {peers_module.BASE} is taken (BENCH_BASE moves all ports)")
        sys.exit(2)
    app = spawn([peers_module.BIN / "backend", peers_module.APP], LOAD_CPU)
    try:
        while not answers(peers_module.BASE):
            time.sleep(0.05)
        for at, (scenario, index, peer, how) in enumerate(todo, 1):
            place = f"[{at}/{len(todo)}] {scenario.name} round {index + 1} {peer.name}{' ' + how if how else ''}"
            try:
                result = scenarios.measure(scenario, peer, how, options, known)
            except Exception as error:  # One measurement must not end hours of others.
                print(f"{place}: FAILED: {error}", flush=True)
                well &= peer.name != "ebbtide"
                continue
            sample = {
                "scenario": scenario.name,
                "peer": peer.name,
                "round": index,
                "how": how,
                "at": kept.now(),
                "run": run,
                **result,
            }
            kept.add(sample)
            known.append(sample)
            print(f"{place}: {brief(sample)}", flush=True)
    finally:
        kill(app)
    return well


def write(options, samples, info):
    options.out.mkdir(parents=True, exist_ok=True)
    document = kept.document(samples, info)
    (options.out / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    (options.out / "results.md").write_text(report.markdown(document))
    if install.plot_only() and not install.run(
        peers_module.VENV / "bin" / "python", Path(__file__).parent / "plot.py", options.out
    ):
        install.say("no plot")
    install.say(f"written: {options.out}")


def source(options):
    """(samples, info) of what there is: the work folder's, else the ones in the repository."""
    if not options.source and kept.FILE.exists():
        return kept.read(), json.loads(INFO.read_text()) if INFO.exists() else {}
    document = json.loads((options.source or peers_module.HERE / "results" / "results.json").read_text())
    return document["samples"], document


def main():
    options = arguments()
    if options.list:
        for scenario in scenarios.TABLE:
            print(f"{scenario.name:10} {scenario.title}")
        print("peers:", " ".join(peers_module.names()))
        return 0
    if options.must or options.report:
        samples, info = source(options)
        if options.report:
            write(options, samples, info)
        return limits.check(kept.by_pair(samples)) if options.must else 0
    if (os.cpu_count() or 1) < 2:
        install.say("needs two cores: one for the load and the app, one for the proxy")
        return 2
    names = chosen(options.scenario, list(scenarios.SCENARIOS), "scenario")
    wanted = chosen(options.peer, peers_module.names(), "peer")
    binary = options.ebbtide
    if not options.no_setup:
        binary = install.everything(options.ebbtide, wanted)
        if binary is None:
            return 2
    peers = []
    for name, peer in peers_module.load(binary).items():
        if name in wanted and peer.missing():
            install.say(f"left out: {name}: {peer.missing()}")
        elif name in wanted:
            peers.append(peer)
    known = json.loads(INFO.read_text()) if INFO.exists() else {}
    versions = {**known.get("versions", {}), **{peer.name: peer.asked_version() for peer in peers if peer.version}}
    info = {"machine": kept.machine(), "versions": versions}
    INFO.write_text(json.dumps(info))
    well = measure(options, names, peers)
    write(options, kept.read(), info)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
