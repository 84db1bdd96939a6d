"""Owns one row of the deletion kind: two pods, a balancer, one client, one deletion, and the verdict."""

import shutil
import threading
import time

import verdict
from pod import Pod
from process import Child

# The client runs quietly for so long before the deletion, and after the old pod has gone.
BEFORE = 1.5
AFTER = 1.5


def run(row, settings, tools):
    """Returns what the table shows of this row."""
    logs = settings.logs / row.name
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    folder = settings.sockets / row.name
    folder.mkdir()
    cast = []
    try:
        old = Pod("old", row.app(tools), settings, row.scheme, logs, folder)
        cast.append(old)
        new = Pod("new", row.app(tools), settings, row.scheme, logs, folder)
        cast.append(new)
        service = Child("balancer", [tools.go("balancer"), "--backends", f"{old.address},{new.address}"], logs)
        cast.append(service)
        target = service.event("listening", 10)["address"]
        client = row.client(target, tools, logs)
        cast.append(client)
        client.wait_ready(20)
        time.sleep(BEFORE)
        if settings.proxy == "calm":
            time.sleep(3)
        else:
            _delete(old, new, service, settings)
        time.sleep(AFTER)
        report = client.finish(20)
        for pod in (old, new):
            pod.stop_app()
        return verdict.of(row, settings, report, old, new)
    finally:
        for one in reversed(cast):
            one.close()


def _delete(old, new, service, settings):
    """The endpoints stay stale for a while: new connections still come to the pod that is leaving."""
    updated = threading.Timer(settings.stale, service.write, [new.address])
    updated.start()
    try:
        old.delete()
    finally:
        updated.join()
