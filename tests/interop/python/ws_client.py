"""The WebSocket client of Python's websockets: long sessions with permessage-deflate, messages numbered both ways.

Usage: ws_client.py ADDRESS SESSIONS
"""

import asyncio
import sys

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from wire import Report, Stream, chunk

INTERVAL = 0.1

report = Report("websockets")


async def push(session, name):
    """A message that `send` took stands before the Close in the stream of bytes, so it must arrive."""
    seq = 0
    while True:
        seq += 1
        await session.send(chunk(seq, name))
        report.good(f"{name}-{seq}")
        await asyncio.sleep(INTERVAL)


async def live(session, name, task):
    """Lives through one session and tells how it ended."""
    lived = Stream("session")
    pushing = asyncio.create_task(push(session, name))
    try:
        async for data in session:
            lived.chunk(data)
            report.first_answer(task)
    except ConnectionClosed:
        pass
    pushing.cancel()
    await asyncio.gather(pushing, return_exceptions=True)
    ends = session.protocol
    clean = ends.close_rcvd is not None and ends.close_sent is not None
    report.stream(lived.end(report.stopped.is_set(), code=session.close_code, message=session.close_reason or "", clean=clean))


async def run(target, task, sessions):
    number = 0
    while not report.stopped.is_set():
        number += 1
        try:
            session = await connect(f"ws://{target}/", compression="deflate", proxy=None, open_timeout=10)
        except (OSError, WebSocketException) as error:
            report.fail("connect", str(error))
        else:
            sessions[task] = session
            await live(session, f"{task}-{number}", task)
        # A client that comes back at once would hammer a service that is down.
        await asyncio.sleep(0.1)


async def main():
    target, count = sys.argv[1], int(sys.argv[2])
    names = [f"py-{number}" for number in range(count)]
    for name in names:
        report.expect(name)
    sessions = {}
    tasks = [asyncio.create_task(run(target, name, sessions)) for name in names]
    await asyncio.to_thread(report.wait_for_end)
    await asyncio.gather(*(session.close() for session in list(sessions.values())))
    await asyncio.gather(*tasks)
    report.say()


if __name__ == "__main__":
    asyncio.run(main())
