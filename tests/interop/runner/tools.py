"""Owns what must be there before a row can run: runtimes, packages, builds. All of it is cached in the build folder."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from functools import cached_property
from pathlib import Path

import process

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
BUILD_SECONDS = 1500
GO_AT_LEAST = (1, 26)
NODE_AT_LEAST = (18, 0)


class Missing(Exception):
    """A runtime or a package that is not there and can't be had: the row is not run."""


class BuildFailed(Exception):
    """The runtime is there, but the row's program could not be built: the row fails."""


class Tools:
    def __init__(self, settings):
        self.build = settings.build
        self.wanted_ebbtide = settings.ebbtide
        self.install = settings.install
        self._done = {}
        (self.build / "logs").mkdir(parents=True, exist_ok=True)

    def need(self, what):
        """Does one preparation once; the same failure is told to every row that needs it."""
        if what not in self._done:
            try:
                print(f"interop: preparing {what}", file=sys.stderr, flush=True)
                getattr(self, f"_prepare_{what}")()
                self._done[what] = None
            except (Missing, BuildFailed) as error:
                self._done[what] = error
        if self._done[what] is not None:
            raise self._done[what]

    # What rows ask for.

    def go(self, name):
        return self.build / "go" / name

    def rust(self, name):
        return self.build / "rust" / "debug" / name

    @property
    def python(self):
        return self.build / "venv" / "bin" / "python"

    @property
    def node(self):
        return self.build / "node"

    @property
    def tls(self):
        """The folder of the run's certificates: `ca.crt`, and `tls.crt` with `tls.key` in `server` and `client`."""
        return self.build / "tls"

    @property
    def postgres(self):
        """The folder of the server's programs, which Debian keeps out of the path."""
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [shutil.which("initdb")]
        return found[-1] and Path(found[-1]).parent

    # Preparations.

    def _prepare_go(self):
        self._runtime("go", ["go", "version"], GO_AT_LEAST, ["golang-go"])
        self._go("go", "./balancer", "./grpcapp", "./httpapp", "./grpcclient", "./httpclient")

    def _prepare_h2spec(self):
        self._go("h2spec", "github.com/summerwind/h2spec/cmd/h2spec")

    def _go(self, name, *packages):
        (self.build / "go").mkdir(exist_ok=True)
        self._fetch(f"{name}-packages", ["go", "mod", "download"], HERE / "go")
        command = ["go", "build", "-p", "1", "-buildvcs=false", "-o", f"{self.build / 'go'}/", *packages]
        self._run(name, command, HERE / "go")

    def _prepare_rust(self):
        if not shutil.which("cargo"):
            raise Missing("no cargo")
        self._fetch("rust-packages", ["cargo", "fetch", "--locked"], HERE / "rust")
        self._cargo("rust", ["build", "--locked"], HERE / "rust", self.build / "rust")

    def _prepare_ebbtide(self):
        if self.wanted_ebbtide:
            if not os.access(self.wanted_ebbtide, os.X_OK):
                raise BuildFailed(f"no program at {self.wanted_ebbtide}")
            self.ebbtide = self.wanted_ebbtide.resolve()
            return
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        self._cargo("ebbtide", ["build", "--release", "--locked"], ROOT, target)
        self.ebbtide = target / "release" / "ebbtide"

    def _cargo(self, name, arguments, folder, target):
        self._run(name, ["cargo", *arguments], folder, {"CARGO_TARGET_DIR": str(target)})

    def _prepare_node(self):
        self._runtime("node", ["node", "--version"], NODE_AT_LEAST, ["nodejs", "npm"])
        if not shutil.which("npm"):
            raise Missing("no npm")
        self._cached("node", [HERE / "node" / "package.json", HERE / "node" / "package-lock.json"], self._npm)

    def _npm(self):
        self.node.mkdir(exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / "node" / name, self.node / name)
        # No package here needs its install script.
        self._fetch("node", ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], self.node)

    def _prepare_python(self):
        self._cached("venv", [HERE / "python" / "requirements.txt"], self._pip)

    def _pip(self):
        folder = self.build / "venv"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            self._run("venv", [sys.executable, "-m", "venv", folder], HERE)
        except BuildFailed as error:
            if not self._apt("python3-venv"):
                raise Missing("no python3 venv") from error
            self._run("venv", [sys.executable, "-m", "venv", folder], HERE)
        self._fetch("pip", [self.python, "-m", "pip", "install", "-r", HERE / "python" / "requirements.txt"], HERE)

    def _prepare_curl(self):
        self._command("curl", "curl")
        features = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=False).stdout
        if "HTTP2" not in features:
            raise Missing("curl without HTTP/2")

    def _prepare_tls(self):
        """Made afresh for each run, so they need not last."""
        self._command("openssl", "openssl")
        shutil.rmtree(self.tls, ignore_errors=True)
        issued = ["-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE", "-addext"]
        for name, crt, key, options in (
            ("ca", "ca.crt", "ca.key", []),
            ("server", "server/tls.crt", "server/tls.key", [*issued, "subjectAltName=DNS:localhost,IP:127.0.0.1"]),
            ("client", "client/tls.crt", "client/tls.key", [*issued, "subjectAltName=URI:spiffe://interop/client"]),
        ):
            (self.tls / crt).parent.mkdir(parents=True, exist_ok=True)
            command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
            command += ["-days", "2", "-subj", f"/CN=interop {name}", "-keyout", key, "-out", crt, *options]
            self._run(f"tls-{name}", command, self.tls)

    def _prepare_h2load(self):
        self._command("h2load", "nghttp2-client")

    def _prepare_redis(self):
        self._command("redis-server", "redis-server")
        self._command("redis-cli", "redis-tools")

    def _prepare_postgres(self):
        if not self.postgres and not (self._apt("postgresql") and self.postgres):
            raise Missing("no postgres")

    # How.

    def _command(self, name, package):
        if not shutil.which(name) and not (self._apt(package) and shutil.which(name)):
            raise Missing(f"no {name}")

    def _runtime(self, name, command, at_least, packages):
        self._command(name, packages[0])
        if len(packages) > 1 and not shutil.which(packages[1]):
            self._apt(packages[1])
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = re.search(r"(\d+)\.(\d+)", told)
        if not found or (int(found[1]), int(found[2])) < at_least:
            wanted = ".".join(map(str, at_least))
            raise Missing(f"{name} is older than {wanted}" if found else f"no {name}")

    @cached_property
    def _apt_lists(self):
        return self._try(["apt-get", "update"], "apt-update")

    def _apt(self, package):
        if not self.install or os.geteuid() != 0 or not shutil.which("apt-get") or not self._apt_lists:
            return False
        return self._try(["apt-get", "install", "-y", "--no-install-recommends", package], f"apt-{package}")

    def _fetch(self, name, command, folder):
        """What comes over the network is no fault of ours when it does not come."""
        try:
            self._run(name, command, folder)
        except BuildFailed as error:
            raise Missing(f"packages can't be had: {error}") from error

    def _try(self, command, log):
        try:
            self._run(log, command, HERE, {"DEBIAN_FRONTEND": "noninteractive"})
            return True
        except BuildFailed:
            return False

    def _cached(self, name, inputs, make):
        """Makes a folder once for each content of its inputs."""
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()
        stamp = self.build / f"{name}.stamp"
        if stamp.exists() and stamp.read_text() == digest and (self.build / name).is_dir():
            return
        stamp.unlink(missing_ok=True)
        make()
        stamp.write_text(digest)

    def _run(self, name, command, folder, env=None):
        log = self.build / "logs" / f"{name}.txt"
        try:
            code = process.build(command, log, folder, env or {}, BUILD_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildFailed(f"{name}: {error}") from error
        if code != 0:
            last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:]
            raise BuildFailed(f"{name} could not be built: {' '.join(last)[:160]} (log: {log})")
