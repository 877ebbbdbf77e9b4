"""Stands in for the official image of PostgreSQL: the same variables and folders, with Debian's server.

A data folder that is empty gets a database and a user, whose password is asked for over the network and not in the pod.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

BIN = next(Path("/usr/lib/postgresql").glob("*/bin"))
data = Path(os.environ["PGDATA"])
user = os.environ.get("POSTGRES_USER", "postgres")
database = os.environ.get("POSTGRES_DB", user)

if not (data / "PG_VERSION").exists():
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w") as password:
        password.write(os.environ["POSTGRES_PASSWORD"])
        password.flush()
        subprocess.run([BIN / "initdb", f"--pgdata={data}", f"--username={user}", f"--pwfile={password.name}",
                        "--auth-local=trust", "--auth-host=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-instructions"], check=True)
    with open(data / "pg_hba.conf", "a") as rules:
        rules.write("host all all all scram-sha-256\n")
    if database not in ("postgres", "template1"):
        subprocess.run([BIN / "postgres", "--single", "-D", data, "postgres"], text=True, check=True,
                       stdout=subprocess.DEVNULL, input=f'CREATE DATABASE "{database}"\n')
# Debian's server puts its socket there, and the image has no such folder unless a pod mounts one.
sockets = "/var/run/postgresql" if os.access("/var/run/postgresql", os.W_OK) else "/tmp"
os.execv(BIN / "postgres", [str(BIN / "postgres"), "-D", str(data), "-c", "listen_addresses=*",
                            "-c", f"unix_socket_directories={sockets}", *sys.argv[1:]])
