"""Tests of what reads and writes figures: the tools' output, the samples, the tables, the limits. Nothing is measured."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
sys.path.insert(0, str(HERE.parent / "ruler"))

import limits  # noqa: E402
import load  # noqa: E402
import peers  # noqa: E402
import report  # noqa: E402
import samples  # noqa: E402
import scenarios  # noqa: E402


def text(name):
    return (DATA / name).read_text()


def sample(scenario, peer, run="2026-01-01T00:00:00Z", how=None, round=0, **figures):
    return {"scenario": scenario, "peer": peer, "round": round, "how": how, "at": run, "run": run, **figures}


def loaded(peer, cpu, scenario="S1", **more):
    """A sample of a load."""
    figures = {
        "cpu_us": cpu,
        "rps": 1000.0,
        "p50": 500,
        "p99": 2000,
        "errors": 0,
        "target": 0,
        "util": 0.9,
        "load_util": 0.8,
        "other": 0.0,
        "rss_idle": 5120,
        "rss_load": 10240,
        "pss_load": 10000,
    }
    return sample(scenario, peer, **{**figures, **more})


def stopped(peer, how, failed, **more):
    fail = {"hold/new/refused": failed} if failed else {}
    return sample(
        "S11",
        peer,
        how=how,
        failed=failed,
        fail=fail,
        ok={"hold": 100},
        notes={"moved": 3},
        exit_s=6.0,
        killed=False,
        **more
    )


class Tools(unittest.TestCase):
    def test_wrk(self):
        found = load.parse_wrk(text("wrk.txt"))
        self.assertEqual(found, {"done": 52838, "secs": 1.12, "p50": 42.0, "p99": 19170.0, "errors": 0})

    def test_wrk_counts_every_kind_of_error(self):
        found = load.parse_wrk(text("wrk_errors.txt"))
        self.assertEqual((found["errors"], found["secs"], found["p99"]), (17, 60.0, 2.2e6))

    def test_h2load(self):
        with open(DATA / "h2load.log") as log:
            found = load.parse_h2load(text("h2load.txt"), log)
        self.assertEqual(found, {"done": 7188, "secs": 1.01, "p50": 3898, "p99": 4056, "errors": 0})

    def test_h2load_counts_what_is_not_2xx(self):
        told = text("h2load.txt").replace("7188 2xx, 0 3xx, 0 4xx, 0 5xx", "7180 2xx, 0 3xx, 0 4xx, 8 5xx")
        self.assertEqual(load.parse_h2load(told, [])["errors"], 8)

    def test_s_time(self):
        found = load.parse_s_time(text("s_time.txt"))
        self.assertEqual((found["done"], found["secs"]), (1031, 2))

    def test_loadc_says_its_figures_last(self):
        found = load.parse_loadc('READY 8 bad=0\n{"done":998,"secs":1.001,"p50":2280,"p99":10383,"errors":0}\n')
        self.assertEqual(found["done"], 998)

    def test_every_command_is_filled_in(self):
        for scenario in scenarios.TABLE:
            if scenario.kind == "load":
                words = load.command(scenario.tool, scenario.arguments, "127.0.0.1:1", 4, 100)
                self.assertNotIn("{", " ".join(map(str, words)), scenario.name)


class Samples(unittest.TestCase):
    def test_a_later_run_replaces_its_pairs_alone(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for one in (
                loaded("ebbtide", 20.0, run="1"),
                loaded("nginx", 15.0, run="1"),
                loaded("ebbtide", 10.0, run="2"),
                loaded("ebbtide", 12.0, run="2", round=1),
            ):
                file.write(json.dumps(one) + "\n")
            file.flush()
            pairs = samples.by_pair(samples.read(file.name))
        self.assertEqual(samples.figure(pairs, "S1", "ebbtide", "cpu_us"), 11.0)
        self.assertEqual(samples.figure(pairs, "S1", "nginx", "cpu_us"), 15.0)

    def test_the_ways_to_stop_are_replaced_one_by_one(self):
        found = samples.latest(
            [
                stopped("haproxy", "bare", 9),
                stopped("haproxy", "own", 5),
                {**stopped("haproxy", "own", 0), "run": "2027"},
            ]
        )
        self.assertEqual([(one["how"], one["failed"]) for one in found], [("bare", 9), ("own", 0)])

    def test_failures_are_those_of_the_worst_round_of_the_own_set_up(self):
        pairs = samples.by_pair(
            [
                stopped("haproxy", "bare", 10000),
                stopped("haproxy", "presleep", 90),
                stopped("haproxy", "own", 0),
                stopped("haproxy", "own", 3, round=1),
                stopped("nginx", "presleep", 80),
            ]
        )
        self.assertEqual(samples.figure(pairs, "S11", "haproxy", "failed"), 3)
        self.assertEqual(samples.figure(pairs, "S11", "nginx", "failed"), 80)
        self.assertIsNone(samples.figure(pairs, "S11", "caddy", "failed"))


class Report(unittest.TestCase):
    def test_the_summary_names_the_best_peer_and_no_bound(self):
        pairs = samples.by_pair(
            [
                loaded("ebbtide", 12.0),
                loaded("nginx", 15.0),
                loaded("haproxy", 16.0),
                loaded("hyper", 10.0),
                stopped("ebbtide", "own", 0),
                stopped("haproxy", "own", 7),
            ]
        )
        lines = report.summary(pairs).splitlines()
        self.assertIn("| S1 HTTP/1 keep-alive at saturation", lines[2])
        self.assertTrue(lines[2].endswith("| 12.0 | 15.0 | 16.0 | 10.0 | 0.80 (nginx) |"), lines[2])
        self.assertTrue(lines[-1].endswith("| 0 | – | 7 | – | 0 to 7 (haproxy) |"), lines[-1])

    def test_every_kind_has_its_details(self):
        idle = {
            "conns": 10000,
            "kb_per_conn": 1.5,
            "rss_idle": 5000,
            "rss_10k": 20000,
            "pss_idle": 4000,
            "pss_10k": 19000,
            "cpu_ms_per_s": 0.1,
            "cpu_ms_per_s_10k": 0.2,
        }
        start = {"start_ms": 10.0, "worst_ms": 12.0, "binary_mb": 9.0, "libraries_mb": 0.0}
        found = [
            loaded("ebbtide", 12.0),
            loaded("direct", None, util=None, rss_load=None),
            sample("S7", "ebbtide", **idle),
            sample("S10", "ebbtide", **start),
            stopped("ebbtide", "own", 0),
        ]
        written = report.markdown(samples.document(found, {"machine": {"cores": 2}, "versions": {"nginx": "1.22"}}))
        for line in (
            "| ebbtide | 12.0 | 12.0–12.0 |",
            "| direct | – | – |",
            "| ebbtide | 1.50 |",
            "| ebbtide | 10.0 | 12.0 |",
            "| ebbtide | own * | 0 |",
        ):
            self.assertIn(line, written)

    def test_the_document_gives_the_same_tables_again(self):
        found = [loaded("ebbtide", 12.0), loaded("nginx", 15.0), stopped("ebbtide", "own", 0)]
        document = samples.document(found, {"machine": {}, "versions": {}})
        again = samples.document(json.loads(json.dumps(document))["samples"], document)
        self.assertEqual(report.markdown(document), report.markdown(again))
        self.assertEqual(document["medians"]["S1"]["nginx"]["cpu_us"], {"median": 15.0, "min": 15.0, "max": 15.0})

    def test_what_is_committed_is_what_the_samples_give(self):
        folder = HERE.parent / "results"
        if not (folder / "results.json").exists():
            self.skipTest("nothing is committed")
        document = json.loads((folder / "results.json").read_text())
        self.assertEqual((folder / "results.md").read_text(), report.markdown(document), "make it anew: run --report")
        for private in ("/home/", "/root/", "/tmp/", "/work/"):
            self.assertNotIn(private, (folder / "results.json").read_text())


class Limits(unittest.TestCase):
    def results(self, *found):
        return {
            (scenario, what): (value, holds)
            for _, scenario, what, value, _, holds in limits.results(samples.by_pair(found))
        }

    def test_ratios_and_absolute_figures(self):
        found = self.results(
            loaded("ebbtide", 9.5),
            loaded("hyper", 10.0),
            loaded("envoy", 50.0),
            stopped("ebbtide", "own", 1),
            sample("S7", "ebbtide", rss_idle=7168, kb_per_conn=3.0),
        )
        self.assertEqual(found["S1", "HTTP/1 against plain hyper"], (0.95, False))
        self.assertEqual(found["S1", "below Envoy, pingora and Caddy in every row: CPU (envoy)"], (0.19, True))
        self.assertEqual(found["S1", "below Envoy, pingora and Caddy in every row: CPU (caddy)"], (None, None))
        self.assertEqual(found["S11", "failed during termination"], (1.0, False))
        self.assertEqual(found["S7", "RSS idle, MiB"], (7.0, True))

    def test_flat_cost_is_against_our_own(self):
        found = self.results(loaded("ebbtide", 10.0, "S12-10"), loaded("ebbtide", 13.0, "S12-10000"))
        self.assertEqual(found["S12-10000", "cost per request flat: 10,000 connections against 10"], (1.3, False))

    def test_the_median_peer(self):
        found = self.results(
            *(
                loaded(peer, 1.0, "S13", p99=p99)
                for peer, p99 in (("ebbtide", 200), ("nginx", 100), ("haproxy", 400), ("envoy", 300), ("hyper", 1))
            )
        )
        value, holds = found["S13", "p99 at 80 % load against the median peer"]
        self.assertTrue(holds and abs(value - 2 / 3) < 1e-9)

    def test_a_peer_without_the_protocol_has_no_row(self):
        self.assertNotIn(("S9a", "below Envoy, pingora and Caddy in every row: CPU (caddy)"), self.results())

    def test_every_limit_names_what_there_is(self):
        for limit in limits.load():
            self.assertLessEqual(set(limit["scenarios"]), set(scenarios.SCENARIOS))
            self.assertLessEqual(set(limit.get("against", [])), {*peers.names(), "median"})
            self.assertIn(limit["level"], ("must", "aim"))


class Peers(unittest.TestCase):
    def test_commands_and_files_are_filled_in(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = peers.CONF, peers.RUN
            peers.CONF, peers.RUN = Path(folder) / "conf", Path(folder) / "run"
            try:
                found = peers.load("/bin/ebbtide")
                files = {file.name: file.read_text() for file in peers.CONF.iterdir()}
            finally:
                peers.CONF, peers.RUN = kept
        self.assertEqual(set(files), {file.name for file in (HERE.parent / "conf").iterdir()})
        for name, written in files.items():
            self.assertNotRegex(written, r"@[A-Z0-9_]+@", name)
        for peer in found.values():
            self.assertNotIn("{", " ".join(peer.cmd), peer.name)
        ports = [
            peer.port(need)
            for peer in found.values()
            if peer.cmd
            for need in ("h1", "h2c", "grpc", "tls", "tcp", "admin")
        ]
        self.assertEqual(len(ports), len(set(ports)))

    def test_every_way_to_stop_is_known(self):
        for name, spec in peers.specs().items():
            self.assertLessEqual(set(spec.get("stop", {})), {"own", "presleep", "bare"}, name)
            self.assertLessEqual(set(spec.get("stop_env", {})), set(spec.get("stop", {})), name)


if __name__ == "__main__":
    unittest.main()
