"""A Redis server as the app of a pod. What clients have written is the list `log`; `pod` tells them where they are.

Usage: redis_app.py PORT --pod NAME
"""

import signal
import sys
import tempfile

import resp
import server
from wire import option


def main():
    port = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        command = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        redis = server.start([*command, "--dir", folder])
        own = server.until_up(lambda: resp.Connection(f"127.0.0.1:{port}"))
        own.call("SET", "pod", option("--pod"))

        def look():
            others = len(own.call("CLIENT", "LIST", "TYPE", "normal").splitlines()) - 1
            return others, own.call("LRANGE", "log", 0, -1)

        server.serve(redis, port, look, signal.SIGTERM)


if __name__ == "__main__":
    main()
