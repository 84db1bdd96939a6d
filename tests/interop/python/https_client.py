"""Python's http.client on an `ssl` that tells a connection without close_notify from one that was ended.

Usage: https_client.py ADDRESS CA. Busy connections carry GET and POST, idle ones wait for their end after one answer; half
of each speak TLS 1.2, the others TLS 1.3.
"""

import http.client
import socket
import ssl
import sys
import threading
import time

from wire import Report, Stream

TASKS = 4
PACE = 0.02
SLOW_MILLIS = 700

report = Report("http.client")


class Link:
    """One connection, with its end in view: http.client would close it unseen."""

    def __init__(self, target, authority, version):
        host, port = target.rsplit(":", 1)
        context = ssl.create_default_context(cafile=authority)
        context.minimum_version = context.maximum_version = version
        raw = socket.create_connection((host, int(port)), 10)
        self.http = http.client.HTTPConnection(host, port)
        self.sock = self.http.sock = context.wrap_socket(raw, server_hostname=host, suppress_ragged_eofs=False)
        # Keeps it open behind http.client's back.
        self._held = self.sock.makefile("rb")

    def ended(self, seconds):
        """How it ended, or None."""
        self.sock.settimeout(seconds)
        try:
            return ("close_notify", "") if self.sock.recv(1) == b"" else ("bytes", "bytes after the last answer")
        except (ssl.SSLWantReadError, TimeoutError):
            return None
        except OSError as error:
            return "broken", str(error)

    def exchange(self, name, post, millis):
        """The pod that answered, and whether it was its last answer."""
        self.sock.settimeout(10)
        headers = {"X-Request-Id": name}
        self.http.request("POST" if post else "GET", f"/?ms={millis}", f"body of {name}" if post else None, headers)
        answer = self.http.getresponse()
        if answer.status != 200 or name.encode() not in answer.read():
            raise http.client.HTTPException(f"{answer.status} to {name}")
        return answer.headers["X-Pod"], answer.will_close

    def close(self):
        self._held.close()
        self.http.close()


class Task:
    def __init__(self, kind, number, arguments):
        self.kind, self.name, self.count = kind, f"py-{kind}-{number}", 0
        self._arguments = [*arguments, (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)[number // 2 % 2]]
        self.link = None

    def try_once(self):
        """One request, on a new connection if there is none."""
        self.count += 1
        name = f"{self.name}-{self.count}"
        try:
            if self.link is None:
                self.link, self.lived = Link(*self._arguments), Stream(self.kind)
            self.lived.told["pod"], last = self.link.exchange(name, self.count % 2, SLOW_MILLIS if self.count % 10 == 9 else 5)
            report.good(name)
        except (OSError, http.client.HTTPException) as error:
            report.fail(type(error).__name__, f"{name}: {error}")
            self._end("failed", str(error))
            time.sleep(0.1)
            return
        if last:
            self._end(*(self.link.ended(10) or ("open", "open after the last answer")))

    def look(self, seconds):
        if self.link and (end := self.link.ended(seconds)):
            self._end(*end)

    def _end(self, code, message):
        if self.link:
            report.stream(self.lived.end(report.stopped.is_set(), code=code, message=message))
            self.link.close()
            self.link = None

    def run(self):
        while not report.stopped.is_set():
            if self.kind == "busy" or self.link is None:
                self.try_once()
            time.sleep(PACE)
            self.look(0 if self.kind == "busy" else 0.2)
        if self.link:
            self._end("open", "")


def main():
    tasks = [Task(kind, number, sys.argv[1:]) for kind in ("busy", "idle") for number in range(TASKS)]
    for task in tasks:
        report.expect(task)
    # One after the other, so that each kind and each version comes to each pod.
    for task in tasks:
        task.try_once()
        report.first_answer(task)
    threads = [threading.Thread(target=task.run) for task in tasks]
    for thread in threads:
        thread.start()
    report.wait_for_end()
    for thread in threads:
        thread.join()
    report.say()


if __name__ == "__main__":
    main()
