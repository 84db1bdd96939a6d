"""Owns child processes: their JSON lines, their logs, and that none is left behind."""

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

_alive = set()
_guard = threading.Lock()
_over = False


class Failure(Exception):
    """What goes into the table as the reason of a failed row."""


def spawn(command, **options):
    """The only way a process is started here, so that `end_all` knows every one of them."""
    with _guard:
        if _over:
            raise Failure("the run is over")
        process = subprocess.Popen([str(part) for part in command], **options)
        _alive.add(process)
        return process


def forget(process):
    with _guard:
        _alive.discard(process)


class Child:
    """A process that prints one JSON object a line; what it prints otherwise is only kept."""

    def __init__(self, name, command, logs, env=None):
        self.name = name
        self.events = []
        self.ended_at = None
        self._news = threading.Condition()
        logs.mkdir(parents=True, exist_ok=True)
        self._out = open(logs / f"{name}.out", "w")
        with open(logs / f"{name}.err", "w") as errors:
            self.process = spawn(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(env or {})},
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self._out.write(line)
            self._out.flush()
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                with self._news:
                    self.events.append(event)
                    self._news.notify_all()
        self.process.wait()
        self._out.close()
        with self._news:
            self.ended_at = time.time()
            self._news.notify_all()
        forget(self.process)

    def wait_for(self, wanted, seconds):
        """The first event for which `wanted` holds."""
        until = time.monotonic() + seconds
        with self._news:
            while True:
                found = next((event for event in self.events if wanted(event)), None)
                if found is not None:
                    return found
                left = until - time.monotonic()
                if self.ended_at is not None:
                    raise Failure(f"{self.name} exited with {self.process.returncode} too early")
                if left <= 0:
                    raise Failure(f"{self.name} said nothing for {seconds} s")
                self._news.wait(left)

    def event(self, name, seconds):
        return self.wait_for(lambda event: event.get("event") == name, seconds)

    def write(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def close_stdin(self):
        try:
            self.process.stdin.close()
        except OSError:
            pass

    def signal(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, seconds):
        """True if it ended in time."""
        until = time.monotonic() + max(seconds, 0)
        with self._news:
            while self.ended_at is None:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._news.wait(left)
        return True

    @property
    def code(self):
        return self.process.returncode

    def close(self):
        """Ends it, if it has not ended."""
        self.signal(signal.SIGKILL)
        self.wait(5)


def quick(name, command, logs, seconds):
    """Runs a command of which only the exit code and the text matter."""
    logs.mkdir(parents=True, exist_ok=True)
    with open(logs / f"{name}.err", "w") as errors:
        process = spawn(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
        finally:
            forget(process)
    Path(logs / f"{name}.out").write_text(out)
    return process.returncode, out


def follow(name, command, logs, line, begun):
    """Runs a command that speaks for as long as it lives; `line` gets each line, `begun` the process, to end it."""
    logs.mkdir(parents=True, exist_ok=True)
    with open(logs / f"{name}.err", "w") as errors:
        process = spawn(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
        begun(process)
        try:
            for text in process.stdout:
                line(text.rstrip("\n"))
            return process.wait()
        finally:
            forget(process)


def build(command, log, folder, env, seconds):
    """Runs a build, in a session of its own: compilers start further processes, which must not outlive it."""
    with open(log, "w") as out:
        process = spawn(
            command, cwd=folder, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            raise
        finally:
            forget(process)


def _end(process):
    try:
        leads = os.getpgid(process.pid) == process.pid
        os.killpg(process.pid, signal.SIGKILL) if leads else process.kill()
    except OSError:
        # It has ended meanwhile.
        pass


def end_all():
    """Ends what is still there, by process id and only what was started here, and lets nothing begin any more."""
    global _over
    with _guard:
        _over = True
        left = [process for process in _alive if process.poll() is None]
    for process in left:
        _end(process)
    return len(left)
