"""Fills the queue at a steady pace until standard input ends, waits until it is empty, and looks at what became of it.

Usage: queue_producer.py REDIS-ADDRESS
"""

import sys
import threading
import time
from collections import Counter

import resp
from wire import Report

# Two consumers just manage that: they are always at work.
PACE = 0.16
AHEAD = 6
SECONDS = 8
QUEUES = ("queue", "processing:old", "processing:new")

report = Report("queue")


def fill(broker, pushed):
    while not report.stopped.wait(PACE if len(pushed) >= AHEAD else 0):
        pushed.append(f"message-{len(pushed)}")
        broker.call("RPUSH", "queue", pushed[-1])
        if broker.call("LLEN", "done") >= AHEAD:
            report.first_answer("queue")


def main():
    broker, pushed = resp.Connection(sys.argv[1]), []
    report.expect("queue")
    filling = threading.Thread(target=fill, args=(broker, pushed))
    filling.start()
    report.wait_for_end()
    filling.join()
    until = time.monotonic() + SECONDS
    while sum(broker.call("LLEN", name) for name in QUEUES) and time.monotonic() < until:
        time.sleep(0.05)
    done = Counter(broker.call("LRANGE", "done", 0, -1))
    for name in pushed:
        if done[name] == 1:
            report.good(name)
        else:
            report.fail("lost" if not done[name] else "twice", f"{name} was done {done[name]} times")
    report.say()


if __name__ == "__main__":
    main()
