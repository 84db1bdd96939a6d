"""A PostgreSQL server as the app of a pod. What clients have committed is the table `log`; `app.pod` is where they are.

Usage: postgres_app.py BIN-FOLDER PORT --pod NAME. At SIGTERM the server gets SIGINT, the stop signal of the official image:
with SIGTERM itself PostgreSQL would wait for sessions that nobody ends.
"""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile

import server
from wire import option

AT_WORK = """SELECT count(*) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'"""


def unprivileged():
    """PostgreSQL refuses to be run by root. None is the user that we are."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def main():
    programs, port, user = sys.argv[1], sys.argv[2], unprivileged()
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        if user:
            shutil.chown(folder, user)
        made = [f"{programs}/initdb", "--pgdata", f"{folder}/data", "--username=postgres", "--auth=trust", "--no-sync"]
        subprocess.run([*made, "--locale=C", "--encoding=UTF8"], stdout=sys.stderr, user=user, cwd="/", check=True)
        command = [f"{programs}/postgres", "-D", f"{folder}/data", "-p", port, "-c", "listen_addresses=127.0.0.1"]
        command += ["-c", f"unix_socket_directories={folder}", "-c", "fsync=off", "-c", f"app.pod={option('--pod')}"]
        postgres = server.start(command, user)

        def sql(text):
            told = [f"{programs}/psql", "-XAtq", "-h", folder, "-p", port, "-U", "postgres", "-c", text]
            return subprocess.run(told, capture_output=True, text=True, check=True).stdout.split()

        server.until_up(lambda: sql("CREATE TABLE log (id text)"))
        server.serve(postgres, port, lambda: (int(sql(AT_WORK)[0]), sql("SELECT id FROM log")), signal.SIGINT)


if __name__ == "__main__":
    main()
