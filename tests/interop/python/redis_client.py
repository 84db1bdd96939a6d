"""Redis clients: pipelines of numbered commands on long connections, and redis-cli in loops, until standard input ends.

Usage: redis_client.py ADDRESS. A command is repeated only if its connection ended before the reply.
"""

import subprocess
import sys
import threading
import time

import resp
from wire import Report, Stream

TASKS = 6
LOOPS = 2
BATCH = 8
PACE = 0.05

report = Report("redis")


def pipeline(connection, lived, ids):
    """Takes out of `ids` what has been answered. Each reply is the length of the list, so they come in order."""
    connection.send(*(["RPUSH", "log", name] for name in ids))
    last = 0
    while ids:
        length = connection.reply()
        lived.told["contiguous"] = lived.told["contiguous"] and length > last
        lived.told["messages"] += 1
        last = length
        report.good(ids.pop(0))


def end(error, left):
    """How a connection ended that was not ended here. A pipeline may have crossed with the FIN, but not be cut by it."""
    whole = isinstance(error, resp.Ended) and error.clean and left in (0, BATCH)
    return {"code": "FIN" if whole else "broken", "message": f"{error}, {left} commands unanswered"}


def work(target, task):
    number, left = 0, []
    while not report.stopped.is_set():
        lived, ended = Stream("connection"), {}
        try:
            connection = resp.Connection(target)
            lived.told["pod"] = connection.call("GET", "pod")
        except (resp.Ended, OSError) as error:
            report.fail("connect", str(error))
            time.sleep(0.1)
            continue
        try:
            while not report.stopped.is_set() and not connection.over():
                if not left:
                    left = [f"{task}-{number + at}" for at in range(BATCH)]
                    number += BATCH
                pipeline(connection, lived, left)
                report.first_answer(task)
                time.sleep(PACE)
            if not report.stopped.is_set():
                ended = {"code": "FIN"}
        except (resp.Ended, resp.Refused) as error:
            ended = end(error, len(left))
        report.stream(lived.end(report.stopped.is_set(), **ended))
        connection.close()


def loop(target, task):
    host, port = target.rsplit(":", 1)
    number = 0
    while not report.stopped.is_set():
        number += 1
        name = f"{task}-{number}"
        told = subprocess.run(["redis-cli", "-h", host, "-p", port, "RPUSH", "log", name], capture_output=True, text=True)
        if told.returncode == 0 and told.stdout.strip().isdigit():
            report.good(name)
            report.first_answer(task)
        else:
            report.fail("redis-cli", (told.stderr or told.stdout).strip())
        time.sleep(PACE)


def main():
    threads = []
    for run, count in ((work, TASKS), (loop, LOOPS)):
        for number in range(count):
            name = f"redis-{run.__name__}-{number}"
            report.expect(name)
            threads.append(threading.Thread(target=run, args=(sys.argv[1], name)))
    for thread in threads:
        thread.start()
    report.wait_for_end()
    for thread in threads:
        thread.join()
    report.say()


if __name__ == "__main__":
    main()
