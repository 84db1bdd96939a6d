"""Runs a server program as the app of a pod, and stops it when the pod's app gets SIGTERM."""

import ctypes
import signal
import subprocess
import sys
import time

from wire import Journal, listening

# prctl(2)
PR_SET_PDEATHSIG = 1
SECONDS = 20


def start(command, user=None):
    """The server does not outlive this process, however that ends."""
    libc = ctypes.CDLL(None)

    def within():
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    # Blocked here, so that it can be waited for.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    return subprocess.Popen(command, stdout=sys.stderr, preexec_fn=within, user=user)


def until_up(ask):
    """What `ask` returns once it raises nothing more: a server that has just been started needs a moment."""
    until = time.monotonic() + SECONDS
    while True:
        try:
            return ask()
        except (OSError, subprocess.CalledProcessError):
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def serve(server, port, look, number):
    """`look` says how many clients are at work and what has been written, just before the server gets its signal."""
    listening(port)
    signal.sigwait({signal.SIGTERM})
    journal = Journal()
    journal.open, written = look()
    for name in written:
        journal.message(name)
    journal.stop()
    server.send_signal(number)
    server.wait()
    journal.exit()
