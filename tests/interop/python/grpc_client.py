"""The grpcio client: unary calls, server streams and bidi streams until standard input ends.

Usage: grpc_client.py ADDRESS. Generic stubs with raw bytes: the service's one message is taken apart here.
"""

import sys
import threading
import time

import grpc

from wire import Report, Stream

CHANNELS = 2
TASKS = 4
PACE = 0.02
BIDI_INTERVAL = 0.05

report = Report("grpcio")
lock = threading.Lock()
open_calls = set()


def encode(data):
    """A protobuf message with one bytes field of number 1."""
    size, length = len(data), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return b"\x0a" + bytes(length) + data


def decode(message):
    """The bytes field; anything else is as good as a broken message."""
    if not message or message[0] != 0x0A:
        return b""
    size, shift, at = 0, 0, 1
    while True:
        byte = message[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return message[at:] if len(message) - at == size else b""


def unary_task(task, channel):
    unary = channel.unary_unary("/interop.Echo/Unary", encode, decode)
    count = 0
    while not report.stopped.is_set():
        wanted = f"{task}-{count}".encode()
        code, text = None, ""
        try:
            if not unary(wanted, timeout=10).endswith(b" " + wanted):
                code, text = grpc.StatusCode.DATA_LOSS, "not the answer to this call"
        except grpc.RpcError as error:
            code, text = error.code(), error.details()
        if code is None:
            report.good()
        else:
            report.fail(str(code.value[0]), text)
        report.first_answer(task)
        count += 1
        time.sleep(PACE)


def numbers(over):
    seq = 0
    while not over.is_set():
        seq += 1
        yield str(seq).encode()
        over.wait(BIDI_INTERVAL)


def stream(task, kind, start):
    """Lives through one stream and tells how it ended."""
    over = threading.Event()
    call = start(b"go") if kind == "server" else start(numbers(over))
    lived, ended = Stream(kind), {}
    with lock:
        open_calls.add(call)
    if report.stopped.is_set():
        call.cancel()
    try:
        for chunk in call:
            lived.chunk(chunk)
            report.first_answer(task)
    except grpc.RpcError as error:
        ended = {"code": error.code().value[0], "message": error.details()}
    over.set()
    with lock:
        open_calls.discard(call)
    report.stream(lived.end(report.stopped.is_set(), **ended))


def stream_task(task, channel, kind):
    if kind == "server":
        start = channel.unary_stream("/interop.Echo/Server", encode, decode)
    else:
        start = channel.stream_stream("/interop.Echo/Bidi", encode, decode)
    while not report.stopped.is_set():
        stream(task, kind, start)
        # A client that comes back at once would hammer a service that is down.
        time.sleep(0.1)


def main():
    options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    threads = []
    for number in range(CHANNELS):
        channel = grpc.insecure_channel(sys.argv[1], options=options)
        for copy in range(TASKS // CHANNELS):
            name = f"py-{number}-{copy}"
            threads.append(threading.Thread(target=unary_task, args=(f"{name}-unary", channel)))
            for kind in ("server", "bidi"):
                threads.append(threading.Thread(target=stream_task, args=(f"{name}-{kind}", channel, kind)))
            for kind in ("unary", "server", "bidi"):
                report.expect(f"{name}-{kind}")
    for thread in threads:
        thread.start()
    report.wait_for_end()
    with lock:
        calls = list(open_calls)
    for call in calls:
        call.cancel()
    for thread in threads:
        thread.join()
    report.say()


if __name__ == "__main__":
    main()
