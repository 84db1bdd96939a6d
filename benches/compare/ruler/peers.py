"""Owns the peers: their ports, commands with all paths filled in, their files, and whether they are here."""

import dataclasses
import os
import shlex
import shutil
import subprocess
import sysconfig
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
WORK = Path(os.environ.get("BENCH_DIR") or ROOT / "target" / "compare").resolve()
VENV, BUILD, CONF, RUN = WORK / "venv", WORK / "build", WORK / "conf", WORK / "run"
BIN = BUILD / "release"
CERT, KEY, BOTH, MESSAGE = CONF / "cert.pem", CONF / "key.pem", CONF / "both.pem", CONF / "message.bin"

# The app's port; the peers' follow. Another base lets two runs live on one machine.
BASE = int(os.environ.get("BENCH_BASE") or 21000)
APP = f"127.0.0.1:{BASE}"
PORTS = {"h1": 1, "ws": 1, "h2c": 2, "grpc": 3, "tls": 4, "tcp": 5, "admin": 9}


@dataclasses.dataclass
class Peer:
    name: str
    base: int
    can: list[str]
    cmd: list[str]
    env: dict[str, str]
    version: list[str]
    floor: bool
    stop: dict[str, list[str]]
    stop_env: dict[str, dict[str, str]]

    def port(self, need):
        """The port for one of the words of `can`; without a command it is the app's own."""
        return self.base + PORTS[need] if self.cmd else BASE

    def address(self, need):
        return f"127.0.0.1:{self.port(need)}"

    def missing(self):
        """Why it can't be run, or an empty string."""
        if self.cmd and not shutil.which(self.cmd[0]):
            return f"{self.cmd[0]} is not there"
        return ""

    def asked_version(self):
        """In one line, without the paths of this machine."""
        if self.version[:1] == ["crate"]:
            _, folder, crate = self.version
            lock = tomllib.loads((HERE / "src" / folder / "Cargo.lock").read_text())
            return f"{crate} {next(package['version'] for package in lock['package'] if package['name'] == crate)}"
        if not self.version or not shutil.which(self.version[0]):
            return ""
        done = subprocess.run(self.version, capture_output=True, text=True, timeout=20)
        line = (done.stdout or done.stderr).strip().split("\n")[0]
        return line.replace(self.version[0], "").strip()


def specs():
    return tomllib.loads((HERE / "peers.toml").read_text())


def names():
    return list(specs())


def fill(text, values):
    """Replaces @NAME@."""
    for name, value in values.items():
        text = text.replace(f"@{name.upper()}@", str(value))
    return text


def load(ebbtide=None):
    """All peers of peers.toml in its order; their files are written."""
    site = sysconfig.get_path("purelib", "venv", vars={"base": str(VENV), "platbase": str(VENV)})
    common = {
        "app": APP,
        "app_port": BASE,
        "cert": CERT,
        "key": KEY,
        "both": BOTH,
        "conf": CONF,
        "run": RUN,
        "bin": BIN,
        "src": HERE / "src",
        "venv": VENV,
        "site": site,
        "ebbtide": ebbtide or "ebbtide",
    }
    CONF.mkdir(parents=True, exist_ok=True)
    RUN.mkdir(parents=True, exist_ok=True)
    peers = {}
    for index, (name, spec) in enumerate(specs().items()):
        base = BASE + 10 * (index + 1)
        values = {**common, "base": base, **{need: base + port for need, port in PORTS.items()}}
        for template in (HERE / "conf").iterdir():
            if f"/{template.name}" in spec.get("cmd", ""):
                (CONF / template.name).write_text(fill(template.read_text(), values))
        words = lambda key: [word.format(**values) for word in shlex.split(spec.get(key, ""))]
        peers[name] = Peer(
            name,
            base,
            spec["can"].split(),
            words("cmd"),
            spec.get("env", {}),
            words("version"),
            spec.get("floor", False),
            spec.get("stop", {}),
            spec.get("stop_env", {}),
        )
    return peers


def sizes_mb(peer):
    """Of its binary and of the shared libraries that it loads, in MB (10^6)."""
    binary = shutil.which(peer.cmd[0])
    listed = subprocess.run(["ldd", binary], capture_output=True, text=True).stdout
    libraries = [word for word in listed.split() if word.startswith("/")]
    size = lambda path: os.path.getsize(os.path.realpath(path)) / 1e6
    return size(binary), sum(size(path) for path in libraries)
