"""The grpcio client: unary calls, server streams and bidi streams until standard input ends.

Usage: client.py ADDRESS. Generic stubs with raw bytes: the service's one message is taken apart here.
"""

import json
import sys
import threading
import time

import grpc

CHANNELS = 2
TASKS = 4
CHUNK = 3072
PACE = 0.02
BIDI_INTERVAL = 0.05
ALPHABET = b"abcdefghijklmnopqrstuvwxyz"
PATTERN = ALPHABET * (CHUNK // 26 + 2)

stopped = threading.Event()
lock = threading.Lock()
report = {"client": "grpcio", "ok": 0, "failed": 0, "codes": {}, "errors": [], "streams": []}
open_calls = set()
waiting = set()


def say(fields):
    with lock:
        print(json.dumps(fields), flush=True)


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


def check(chunk):
    """The sequence number and the pod of a chunk, or None if a byte is missing or wrong."""
    parts = chunk[:64].split(b" ", 2)
    if len(chunk) != CHUNK or len(parts) != 3 or not parts[0].isdigit():
        return None
    seq, start = int(parts[0]), len(parts[0]) + len(parts[1]) + 2
    begin = (seq + start) % 26
    whole = chunk[start:] == PATTERN[begin : begin + CHUNK - start]
    return (seq, parts[1].decode()) if whole else None


def first_answer(task):
    """The last task's first answer makes the client ready."""
    with lock:
        if task not in waiting:
            return
        waiting.discard(task)
        ready = not waiting
    if ready:
        say({"event": "ready"})


def unary_task(task, channel):
    unary = channel.unary_unary("/interop.Echo/Unary", encode, decode)
    count = 0
    while not stopped.is_set():
        wanted = f"{task}-{count}".encode()
        code, text = None, ""
        try:
            if not unary(wanted, timeout=10).endswith(b" " + wanted):
                code, text = grpc.StatusCode.DATA_LOSS, "not the answer to this call"
        except grpc.RpcError as error:
            code, text = error.code(), error.details()
        with lock:
            if code is None:
                report["ok"] += 1
            else:
                number = str(code.value[0])
                report["failed"] += 1
                report["codes"][number] = report["codes"].get(number, 0) + 1
                report["errors"] = (report["errors"] + [text])[:5]
        first_answer(task)
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
    told = {"kind": kind, "pod": "", "code": 0, "message": "", "messages": 0, "contiguous": True, "whole": True}
    with lock:
        open_calls.add(call)
    if stopped.is_set():
        call.cancel()
    try:
        for chunk in call:
            checked = check(chunk)
            told["messages"] += 1
            told["whole"] = told["whole"] and checked is not None
            told["contiguous"] = told["contiguous"] and checked is not None and checked[0] == told["messages"]
            told["pod"] = checked[1] if checked else told["pod"]
            first_answer(task)
    except grpc.RpcError as error:
        told["code"], told["message"] = error.code().value[0], error.details()
    told["end_ms"], told["by_client"] = int(time.time() * 1000), stopped.is_set()
    over.set()
    with lock:
        open_calls.discard(call)
        report["streams"].append(told)


def stream_task(task, channel, kind):
    if kind == "server":
        start = channel.unary_stream("/interop.Echo/Server", encode, decode)
    else:
        start = channel.stream_stream("/interop.Echo/Bidi", encode, decode)
    while not stopped.is_set():
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
            waiting.update(f"{name}-{kind}" for kind in ("unary", "server", "bidi"))
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stopped.set()
    with lock:
        calls = list(open_calls)
    for call in calls:
        call.cancel()
    for thread in threads:
        thread.join()
    say(report)


if __name__ == "__main__":
    main()
