"""Owns one row of the deletion kind: two pods, a balancer, one client, one deletion, and the verdict."""

import shutil
import threading
import time

import verdict
from pod import Pod
from process import Child
from rows import redis_app

# The client runs quietly for so long before the deletion, and after the old pod has gone.
BEFORE = 1.5
AFTER = 1.5


def run(row, settings, tools):
    """Returns what the table shows of this row."""
    logs = settings.logs / row.name
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    folder = settings.sockets / row.name
    # A database that does not run as root keeps its files below.
    folder.mkdir(mode=0o711)
    cast = []
    try:
        broker = _broker(logs, folder, cast) if row.consumes else None
        old = Pod("old", row, tools, settings, logs, folder, broker)
        cast.append(old)
        new = Pod("new", row, tools, settings, logs, folder, broker)
        cast.append(new)
        service = None if broker else _service(row, tools, logs, [old, new])
        cast += filter(None, [service])
        target = broker or service.event("listening", 10)["address"]
        client = row.client(target, tools, logs)
        cast.append(client)
        client.wait_ready(20)
        time.sleep(BEFORE)
        if settings.proxy == "calm":
            time.sleep(3)
        else:
            _delete(row, old, new, service, settings)
        time.sleep(AFTER)
        report = client.finish(20)
        for pod in (old, new):
            pod.stop_app()
        return verdict.of(row, settings, report, old, new)
    finally:
        for one in reversed(cast):
            one.close()


def _broker(logs, folder, cast):
    """What consumers take their work from: outside the pods, and there for longer than they are."""
    command, _ = redis_app(None)
    broker = Child("broker", [*command, "--pod", "broker"], logs, {"TMPDIR": str(folder)})
    cast.append(broker)
    return broker.event("listening", 20)["address"]


def _service(row, tools, logs, pods):
    command = [tools.go("balancer"), "--backends", ",".join(pod.address for pod in pods)]
    return Child("balancer", [*command, *(["--sticky"] if row.sticky else [])], logs)


def _delete(row, old, new, service, settings):
    """The endpoints stay stale for a while: new connections still come to the pod that is leaving."""
    if service is None:
        old.delete()
        return
    if row.stays and settings.proxy == "ebbtide":
        old.delete(lambda: service.write(new.address))
        return
    updated = threading.Timer(settings.stale, service.write, [new.address])
    updated.start()
    try:
        old.delete()
    finally:
        updated.join()
