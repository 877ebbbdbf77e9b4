"""CRD servers that run, by name.

The state of server NAME is the folder crd-servers/NAME of the state folder. It is made anew at every
start; nothing in it outlives the server.
"""

import base64
import json
import re
import shutil
import time
from pathlib import Path

import crdserverbuild
import crdserverproc
from crdserverproc import Process
from devlib import Failure, locked, say, state_dir, until, warn

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")
# The server asks nobody who they are; the token is for kubectl, which would ask for a password.
KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters:
- name: {name}
  cluster:
    server: {url}
    certificate-authority-data: {authority}
users:
- name: {name}
  user: {{token: anyone}}
contexts:
- name: {name}
  context: {{cluster: {name}, user: {name}, namespace: default}}
current-context: {name}
"""


def home() -> Path:
    return state_dir() / "crd-servers"


def folder_of(name: str) -> Path:
    return home() / name


def names() -> list[str]:
    """Every server there is something of, be it half made or crashed."""
    return sorted(folder.name for folder in home().glob("[!.]*") if folder.is_dir())


def load(name: str) -> Process | None:
    try:
        return Process(**json.loads((folder_of(name) / "server.json").read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def running(name: str) -> Path:
    """The folder of a server that was started and runs, or a message for the user."""
    process = load(name)
    if not process or not (folder_of(name) / "kubeconfig").exists():
        raise Failure(f"there is no CRD server '{name}'; start it with: dev/crd-server up {name}")
    if not process.alive():
        raise Failure(f"CRD server '{name}' is not running any more; "
                      f"start it with: dev/crd-server up {name}")
    return folder_of(name)


def health(name: str) -> str:
    process = load(name)
    if not process or not process.alive():
        return "crashed"
    return "healthy" if _answers(name) else "does not answer"


def up(name: str, port: int, wait: float) -> Path:
    """Start a server, or see that it is already up; its kubeconfig file."""
    if not NAME.fullmatch(name):
        raise Failure(f"'{name}' is no good name: small letters, digits and '-', at most 30")
    build = crdserverbuild.ensure()
    with locked(home() / f".{name}.lock", f"waiting for another dev/crd-server at work on '{name}'"):
        process = load(name)
        if process and process.alive():
            if until(lambda: _answers(name), min(wait, 30)):
                _check_port(name, port)
                say(f"CRD server {name} is already up: {crdserverproc.url(folder_of(name))}")
                return folder_of(name) / "kubeconfig"
            warn(f"CRD server {name} runs but does not answer: starting it afresh")
        elif process:
            say(f"CRD server {name} has crashed: starting it afresh")
        _clear(name, process)
        return _start(name, build, port, wait)


def _check_port(name: str, port: int) -> None:
    address = crdserverproc.url(folder_of(name))
    if port and not address.endswith(f":{port}"):
        raise Failure(f"CRD server '{name}' is up at {address}; to change that: dev/crd-server down {name}")


def _answers(name: str) -> bool:
    folder = folder_of(name)
    return (folder / "kubeconfig").exists() and bool(crdserverproc.get(folder, crdserverproc.READY))


def _start(name: str, build: Path, port: int, wait: float) -> Path:
    begin = time.monotonic()
    folder = folder_of(name)
    folder.mkdir(parents=True, mode=0o700)
    process, go = crdserverproc.spawn(build / crdserverbuild.PROGRAM, folder, port)
    _write(folder / "server.json", json.dumps({"pid": process.pid, "started": process.started}))
    go()
    address = crdserverproc.wait_ready(process, folder, wait)
    authority = base64.b64encode(crdserverproc.authority(folder).encode()).decode()
    _write(folder / "kubeconfig", KUBECONFIG.format(name=name, url=address, authority=authority))
    say(f"CRD server {name} up in {time.monotonic() - begin:.1f} s: {address}")
    return folder / "kubeconfig"


def down(name: str) -> bool:
    """End a server and remove all it made; False when there was none."""
    if not NAME.fullmatch(name):
        return False
    lock = home() / f".{name}.lock"
    if not folder_of(name).exists() and not lock.exists():
        return False
    with locked(lock, f"waiting for another dev/crd-server at work on '{name}'", remove=True):
        _clear(name, load(name))
    return True


def _clear(name: str, process: Process | None) -> None:
    if process:
        process.kill()
    if folder_of(name).exists():
        shutil.rmtree(folder_of(name))


def _write(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.touch(mode=0o600)
    part.write_text(text)
    part.rename(path)
