"""A queue consumer: an app without an inbound port. Works on one message at a time and settles it in Redis.

Usage: queue_consumer.py REDIS-ADDRESS --pod NAME. At SIGTERM it finishes the message it has and takes no other one.
"""

import signal
import sys
import time

import resp
from wire import Journal, option, say

WORK = 0.3


def settle(broker, own, name):
    """One transaction: what has been settled is done, and done once."""
    broker.send(["MULTI"], ["LREM", own, 1, name], ["RPUSH", "done", name], ["EXEC"])
    return [broker.reply() for _ in range(4)][-1][0] == 1


def main():
    journal = Journal()
    signal.signal(signal.SIGTERM, lambda *_: journal.stop())
    own = f"processing:{option('--pod')}"
    broker = resp.Connection(sys.argv[1])
    broker.call("PING")
    say({"event": "listening", "address": ""})
    while not journal.stopped:
        name = broker.call("BLMOVE", "queue", own, "LEFT", "RIGHT", 0.2)
        if name is None:
            continue
        journal.begin()
        time.sleep(WORK)
        if not settle(broker, own, name):
            journal.told["damaged"] += 1
        journal.message(name)
        journal.end("settled")
    journal.exit()


if __name__ == "__main__":
    main()
