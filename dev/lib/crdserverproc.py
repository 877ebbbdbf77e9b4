"""One process of the CRD server: starting it, asking it, knowing it again, ending it."""

import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from devlib import Failure, start_of, until

LOG = "crd-server.log"
READY = "/apis/apiextensions.k8s.io/v1"


@dataclass
class Process:
    pid: int
    started: str  # when `pid` started, as the kernel tells it: tells it from a later process

    def alive(self) -> bool:
        return bool(self.started) and start_of(self.pid) == self.started

    def kill(self) -> None:
        """End it, and only it. Nothing it has is worth a slow goodbye."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            # The handle stays with the process it was opened for, so nothing changes after this look.
            if self.alive():
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)
        if not until(lambda: not self.alive(), 10, 0.02):
            raise Failure(f"process {self.pid} does not end")
        try:
            os.waitpid(self.pid, os.WNOHANG)  # only when this process is its parent
        except ChildProcessError:
            pass


def spawn(program: Path, folder: Path, port: int):
    """Start the program with `folder` as its own; gives the process and a function that lets it go on.
    Until that is called it does nothing, and when we die before, it ends."""
    with open(folder / LOG, "ab") as log:
        child = subprocess.Popen(
            [str(program), f"--port={port}"], cwd=folder, stdin=subprocess.PIPE, stdout=log, stderr=log,
            start_new_session=True, env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"})
    child.returncode = 0  # it is to outlive us: no warning about that from Popen

    def go() -> None:
        try:
            child.stdin.write(b"go\n")
            child.stdin.close()
        except BrokenPipeError:
            pass  # it has ended, which is seen soon enough

    return Process(child.pid, start_of(child.pid)), go


def wait_ready(process: Process, folder: Path, wait: float) -> str:
    """Wait until the server answers for CRDs; its address."""
    end = time.monotonic() + wait
    while True:
        address = url(folder)
        if address and get(folder, READY):
            return address
        problem = ("ended" if not process.alive() else
                   f"does not answer after {wait:g} s" if time.monotonic() > end else "")
        if problem:
            raise Failure(f"CRD server {folder.name} {problem}:\n{_tail(folder / LOG)}")
        time.sleep(0.05)


def url(folder: Path) -> str:
    """Where it listens; "" when it does not yet."""
    try:
        return (folder / "url").read_text().strip()
    except FileNotFoundError:
        return ""


def authority(folder: Path) -> str:
    """The certificate of its authority: the last one in the file that it made for itself."""
    chain = (folder / "pki/apiserver.crt").read_text()
    return re.findall(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n", chain, re.S)[-1]


def get(folder: Path, path: str):
    """The answer to a GET request, or None when there is no good one."""
    host, _, port = url(folder).rpartition("/")[2].rpartition(":")
    try:
        trust = ssl.create_default_context(cadata=authority(folder))
        connection = http.client.HTTPSConnection(host, int(port), timeout=5, context=trust)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        return json.loads(content) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None


def _tail(path: Path, lines: int = 12) -> str:
    try:
        text = path.read_text(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return ""
    return "".join(f"    {line}\n" for line in text)
