"""The WebSocket app on Python's websockets: numbers what it sends on each session and notes what comes.

Usage: ws_app.py --pod NAME. At SIGTERM it does what this library does by itself: it closes its sessions with 1001.
"""

import asyncio
import signal

from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from wire import Journal, chunk, listening, option

INTERVAL = 0.1
PATIENCE = 1.5

pod = option("--pod")
journal = Journal()


async def push(session):
    seq = 0
    while True:
        seq += 1
        await session.send(chunk(seq, pod))
        await asyncio.sleep(INTERVAL)


async def handle(session):
    journal.begin()
    pushing = asyncio.create_task(push(session))
    try:
        async for data in session:
            journal.chunk(data)
    except ConnectionClosed:
        pass
    pushing.cancel()
    await asyncio.gather(pushing, return_exceptions=True)
    journal.end(session.close_code)


async def main():
    over = asyncio.Event()

    def stop():
        # A session is over before its socket is.
        journal.open = sum(session.state is State.OPEN for session in server.connections)
        journal.stop()
        over.set()

    async with serve(handle, "127.0.0.1", 0, compression="deflate", close_timeout=PATIENCE) as server:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        listening(next(iter(server.sockets)).getsockname()[1])
        await over.wait()
    journal.exit()


if __name__ == "__main__":
    asyncio.run(main())
